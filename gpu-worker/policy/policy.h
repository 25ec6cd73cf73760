/* What a layer attends to: policies, and the per-layer table that they fill.
 *
 * A policy owns an index and never key/values. When a sequence opens, the policy names the
 * operations of each layer; the stages of the pipeline call them and ask nothing else. A layer
 * whose operations have no `select` keeps all its rows in the worker and attends to all of them.
 */
#ifndef GW_POLICY_POLICY_H
#define GW_POLICY_POLICY_H

#include "gpu-worker/model/shape.h"
#include "gpu-worker/policy/cluster_index.h"
#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Everything that changes what is attended to. */
struct gw_policy_options {
	const char *name;        /* "clusterkv", "clusterkv-paper", "full" */
	uint32_t budget;         /* tokens for each KV head: sinks and selected ones */
	uint32_t sinks;          /* first tokens, always attended */
	uint32_t window;         /* last tokens, kept dense */
	uint32_t fold;           /* tokens that leave a full window together */
	uint32_t segment;        /* tokens of a prompt's segments */
	uint32_t cluster_tokens; /* mean tokens of a cluster */
	uint32_t dense_layers;   /* leading layers that attend to everything */
	uint32_t iterations;     /* of k-means, at most */
	int size_term;           /* score with ln(size) */
	int estimate;            /* estimate what is not selected */
	int center;              /* subtract the mean key before assignment */
	enum kn_index_update update; /* how k-means sums members */
};

/* What one (sequence, KV head) attends to besides sinks and window, in this order. */
struct gw_selection {
	struct kn_extent *extents;   /* KN_SHARED: clusters of the index, trimmed */
	struct kn_select_counts *counts; /* KN_SHARED: how many, once they are waited for */
	uint32_t extent_count;       /* the same for the host: gw_select_rows */
	uint32_t tokens;             /* sum of the extents */
	uint32_t *rest;              /* KN_DEVICE: what estimate.rest shows */
	struct kn_estimate estimate; /* of the rest; clusters = 0 without one */
};

/* One row of a decode step. */
struct gw_select_row {
	const struct gw_cluster_index *index;
	const float *q;              /* backend memory [heads][head_dim] */
	uint32_t budget;             /* tokens left for the selection, sinks taken off */
	struct gw_selection *out;    /* [kv_heads] */
	struct kn_select_counts *counts; /* KN_SHARED [kv_heads]: where counts go; NULL: the scratch */
};

/* Memory of select for a batch: sized when sequences open. */
struct gw_select_scratch;
enum kv_status gw_select_scratch_create(struct kv_allocator *allocator,
	const struct kn_device *device, uint32_t max_rows, const struct gw_model_shape *shape,
	uint32_t max_clusters, struct gw_select_scratch **scratch);
void gw_select_scratch_destroy(struct gw_select_scratch *scratch);
/* What it takes of a device's memory. */
size_t gw_select_scratch_bytes(uint32_t max_rows, const struct gw_model_shape *shape,
	uint32_t max_clusters);

struct gw_policy_context {
	const struct gw_policy_options *options;
	const struct gw_model_shape *shape;
	struct kn_device device;
	struct gw_select_scratch *scratch;
};

struct gw_layer_ops {
	const char *name;
	int clustered; /* units of this layer are stored by cluster, and rows leave the worker */
	/* Queue scoring and selection for all rows; `out` says where the results will be (its
	 * extent_count and tokens are left alone). They live in the scratch until what is queued by the
	 * next call runs. */
	enum kv_status (*select)(const struct gw_policy_context *context,
		const struct gw_select_row *rows, uint32_t count);
};

/* Select, wait, and tell the host how much it was. */
enum kv_status gw_select_rows(const struct gw_layer_ops *ops,
	const struct gw_policy_context *context, const struct gw_select_row *rows, uint32_t count);

extern const struct gw_layer_ops gw_layer_dense;
extern const struct gw_layer_ops gw_layer_clusters;

struct gw_policy_ops {
	const char *name, *help;
	int offloads; /* needs a store: sequences are attached, committed and resumable */
	/* Set what this policy fixes, over what the user chose. */
	void (*adjust)(struct gw_policy_options *options);
	const struct gw_layer_ops *(*layer)(const struct gw_policy_options *options, uint32_t layer);
};

/* The names of all policies, NULL behind them. */
extern const char *const gw_policy_words[];

/* The policy of that name; KV_INVALID lists the known ones. */
enum kv_status gw_policy_find(const char *name, const struct gw_policy_ops **policy);

/* Check ranges against each other; the sentence names the option. */
enum kv_status gw_policy_options_check(const struct gw_policy_options *options);

/* Check them against a model: what a segment or a fold is clustered into must be a job that every
 * backend takes. The sentence names the options and what they may be. */
enum kv_status gw_policy_shape_check(
	const struct gw_policy_options *options, const struct gw_model_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
