/* Where a prompt is cut. Depends on its length and the options only, so that equal prefixes of
 * different prompts meet in the same segments. */
#include "gpu-worker/pipeline/step.h"

uint32_t gw_segmentation_bound(uint32_t tokens, const struct gw_policy_options *policy)
{
	return tokens / policy->segment + 2;
}

uint32_t gw_segment_bound(uint32_t prompt_tokens, uint32_t tokens,
	const struct gw_policy_options *policy)
{
	return gw_segmentation_bound(prompt_tokens, policy) + tokens / policy->fold + 2;
}

uint32_t gw_cluster_bound(uint32_t tokens, uint32_t segments,
	const struct gw_policy_options *policy)
{
	return tokens / policy->cluster_tokens + segments;
}

/* Multiples of the segment length below tokens - window, a shorter rest up to there, then the
 * tail of window tokens, unclustered. */
uint32_t gw_segmentation(uint32_t tokens, const struct gw_policy_options *policy,
	struct kvc_cut *cuts, uint32_t capacity)
{
	uint32_t body = tokens > policy->window ? tokens - policy->window : 0;
	uint32_t count = 0, end = 0;

	while (end < body && count < capacity) {
		end = body - end > policy->segment ? end + policy->segment : body;
		cuts[count].end = end;
		cuts[count].kind = KVW_CLUSTERED;
		count++;
	}
	if (end < tokens && count < capacity) {
		cuts[count].end = tokens;
		cuts[count].kind = KVW_PLAIN;
		count++;
	}
	return count;
}
