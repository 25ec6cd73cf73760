/* How a device's own memory is shared out, before a worker takes any of it.
 *
 * All that the options can make a worker take is added up from the functions that size it; what is
 * left is the cluster cache's. A plan is a promise: nothing is refused later that fits into it.
 */
#ifndef GW_PIPELINE_MEMORY_PLAN_H
#define GW_PIPELINE_MEMORY_PLAN_H

#include "gpu-worker/model/model.h"
#include "gpu-worker/policy/policy.h"
#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(part, key in JSON, words, what helps): in the order in which they are told. */
#define GW_MEMORY_PARTS(X)                                                                         \
	X(WEIGHTS, "weights", "weights", "use a smaller model or quantisation")                        \
	X(DENSE_LAYERS, "dense_layers", "dense layers",                                                \
		"lower --context, --max-sequences or --dense-layers")                                      \
	X(WINDOW, "window", "sinks and window", "lower --window, --fold or --max-sequences")           \
	X(INDEX, "index", "centroids", "lower --context or --max-sequences")                           \
	X(PROMPT, "prompt", "rows of prompts", "lower --context or --max-sequences")                   \
	X(ACTIVATIONS, "activations", "activations", "lower --chunk, --max-batch or --budget")         \
	X(SCRATCH, "scratch", "scratch", "lower --chunk, --max-batch or --context")                    \
	X(STEPS, "device_steps", "the device's own steps",                                             \
		"lower --max-batch, --budget or --max-sequences")                                          \
	X(CACHE, "cluster_cache", "cluster cache", "lower --cache or --budget")

enum gw_memory_part {
#define GW_MEMORY_PART(part, key, words, help) GW_MEMORY_##part,
	GW_MEMORY_PARTS(GW_MEMORY_PART)
#undef GW_MEMORY_PART
		GW_MEMORY_PART_COUNT
};

struct gw_memory_request {
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	const struct gw_gguf *file;
	enum kn_kv_type kv_type;
	struct gw_policy_options policy; /* with what the policy fixes */
	uint32_t max_rows;               /* of the model's calls */
	uint32_t chunk, max_batch;
	uint32_t sequences;              /* that are open at once */
	uint32_t context, prompt;        /* most tokens of a sequence, and of them its prompt's */
	uint64_t cache_bytes;            /* 0: what is left */
	uint32_t cache_recency;
	int own_steps;                   /* the device may have some: the store shows its memory */
	int limit_given;                 /* by --device-memory */
};

struct gw_memory_plan {
	uint64_t limit;                         /* 0: not known */
	uint64_t parts[GW_MEMORY_PART_COUNT];   /* bytes */
	uint32_t sequences, context;            /* that it is for */
	struct kn_bounds bounds;                /* of the compute stream, for its scratch memory */
	struct kn_bounds background;            /* of the pipeline's other one, if it has one */
};

/* On a backend whose memory is not the host's. KV_NO_MEMORY (KV_USAGE where the limit was given)
 * when it is not enough: the sentence names the parts, their sizes, and what to lower. */
enum kv_status gw_memory_plan_make(const struct gw_memory_request *request,
	struct gw_memory_plan *plan);

uint64_t gw_memory_plan_sum(const struct gw_memory_plan *plan);

/* The parts with their sizes, for people. Returns `text`. */
enum { GW_MEMORY_TEXT = 400 };
const char *gw_memory_plan_text(const struct gw_memory_plan *plan, char text[GW_MEMORY_TEXT]);

/* Keys of the parts in JSON. */
extern const char *const gw_memory_part_keys[GW_MEMORY_PART_COUNT];

#ifdef __cplusplus
}
#endif
#endif
