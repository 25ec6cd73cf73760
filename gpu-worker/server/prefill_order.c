#include "gpu-worker/server/prefill_order.h"

#include <stddef.h>

/* The oldest prompt has one part of the time, the others this many. */
enum { OTHERS_PARTS = 3 };

/* The first of those with the least left that are begun, or are not; `count` when there is none. */
static uint32_t shortest(const struct gw_open_prompt *prompts, uint32_t count, int begun)
{
	uint32_t best = count;

	for (uint32_t i = 0; i < count; i++)
		if ((prompts[i].begun != 0) == begun &&
		    (best == count || prompts[i].left < prompts[best].left))
			best = i;
	return best;
}

uint32_t gw_prefill_next(const struct gw_open_prompt *prompts, uint32_t count, int64_t owed_ns)
{
	uint32_t begun = shortest(prompts, count, 1), fresh = shortest(prompts, count, 0);

	if (owed_ns > 0) return 0;
	if (begun == count) return fresh;
	if (fresh == count || prompts[fresh].left > prompts[begun].left / 2) return begun;
	return fresh;
}

int64_t gw_prefill_account(int64_t owed_ns, uint32_t index, uint64_t took_ns)
{
	return index == 0 ? owed_ns - (int64_t)took_ns : owed_ns + (int64_t)(took_ns / OTHERS_PARTS);
}

int gw_prefill_will_find(
    const struct gw_open_prompt *prompts, uint32_t count, const int32_t *tokens, uint32_t length)
{
	for (uint32_t i = 0; tokens != NULL && i < count; i++) {
		uint32_t most = prompts[i].count < length ? prompts[i].count : length, common = 0;

		if (prompts[i].tokens == NULL) continue;
		while (common < most && tokens[common] == prompts[i].tokens[common])
			common++;
		if (common <= prompts[i].found) continue;
		common -= prompts[i].found;
		if (common >= (length - prompts[i].found) / 2 && prompts[i].left / 2 <= common) return 1;
	}
	return 0;
}
