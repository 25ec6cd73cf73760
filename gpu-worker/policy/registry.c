#include <stdio.h>
#include <string.h>

#include "gpu-worker/policy/policy.h"

static const struct gw_layer_ops *full_layer(const struct gw_policy_options *options,
	uint32_t layer)
{
	(void)options, (void)layer;
	return &gw_layer_dense;
}

static const struct gw_layer_ops *clusterkv_layer(const struct gw_policy_options *options,
	uint32_t layer)
{
	return layer < options->dense_layers ? &gw_layer_dense : &gw_layer_clusters;
}

static void keep(struct gw_policy_options *options)
{
	(void)options;
}

/* The paper to the letter (arXiv 2412.03213): 80 tokens a cluster, q·μ, nothing estimated. */
static void follow_paper(struct gw_policy_options *options)
{
	options->cluster_tokens = 80;
	options->size_term = 0;
	options->estimate = 0;
	options->center = 0;
	options->update = KN_INDEX_PAPER;
}

/* name, help, offloads, adjust, layer */
#define POLICIES(X)                                                                                \
	X("clusterkv", "attend to the clusters that each query needs, estimate the rest", 1, keep,     \
		clusterkv_layer)                                                                           \
	X("clusterkv-paper", "the published rule, for comparison", 1, follow_paper, clusterkv_layer)   \
	X("full", "attend to everything, KV kept in the worker", 0, keep, full_layer)
#define ROW(name, help, offloads, adjust, layer) {name, help, offloads, adjust, layer},
#define NAME(name, help, offloads, adjust, layer) name,

static const struct gw_policy_ops policies[] = {POLICIES(ROW)};
const char *const gw_policy_words[] = {POLICIES(NAME) NULL};

enum kv_status gw_policy_find(const char *name, const struct gw_policy_ops **policy)
{
	char known[128] = "";
	size_t used = 0;

	for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++)
		if (strcmp(policies[i].name, name) == 0) {
			*policy = &policies[i];
			return KV_OK;
		}
	for (size_t i = 0; gw_policy_words[i] != NULL && used < sizeof known; i++)
		used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "",
			gw_policy_words[i]);
	return kv_fail(KV_INVALID, "policy \"%s\" is not known; use one of %s", name, known);
}

enum kv_status gw_policy_options_check(const struct gw_policy_options *o)
{
	if (o->budget <= o->sinks)
		return kv_fail(KV_INVALID, "--budget %u must be more than --sinks %u", o->budget, o->sinks);
	if (o->fold == 0) return kv_fail(KV_INVALID, "--fold 0: must be at least 1 token");
	if (o->cluster_tokens == 0)
		return kv_fail(KV_INVALID, "--cluster-tokens 0: must be at least 1 token");
	if (o->segment < o->cluster_tokens || o->segment <= o->sinks)
		return kv_fail(KV_INVALID, "--segment %u must be more than --sinks %u and at least "
			"--cluster-tokens %u", o->segment, o->sinks, o->cluster_tokens);
	if (o->iterations == 0) return kv_fail(KV_INVALID, "k-means iterations 0: must be at least 1");
	return KV_OK;
}

/* No prompt is longer than the model's context, so no segment is. */
static enum kv_status check_clusters(const char *option, uint32_t tokens, uint32_t cluster_tokens,
	const struct gw_model_shape *shape)
{
	uint32_t most = KN_MAX_INDEX_CHANNELS / shape->head_dim;
	uint32_t longest = tokens < shape->context ? tokens : shape->context;
	uint32_t clusters = longest / cluster_tokens + (longest % cluster_tokens != 0 ? 1 : 0);

	if (clusters <= most) return KV_OK;
	return kv_fail(KV_INVALID,
		"--%s %u with --cluster-tokens %u makes %u clusters of %u tokens at once; with heads of %u "
		"channels it can be %u: raise --cluster-tokens to %u or lower --%s to %u",
		option, tokens, cluster_tokens, clusters, longest, shape->head_dim, most,
		longest / most + (longest % most != 0 ? 1 : 0), option, most * cluster_tokens);
}

enum kv_status gw_policy_shape_check(
	const struct gw_policy_options *o, const struct gw_model_shape *shape)
{
	KV_TRY(check_clusters("segment", o->segment, o->cluster_tokens, shape));
	return check_clusters("fold", o->fold, o->cluster_tokens, shape);
}
