/* The data path of a worker: prompts and tokens in, logits out.
 *
 * One pipeline serves many sequences; it is used by one thread. gw_run_prompt and gw_run_token
 * are the two flows: read run_prompt.c and run_token.c first, every other module is met there in
 * the order in which data meets it.
 */
#ifndef GW_PIPELINE_PIPELINE_H
#define GW_PIPELINE_PIPELINE_H

#include "gpu-worker/cache/cluster_cache.h"
#include "gpu-worker/model/model.h"
#include "gpu-worker/policy/policy.h"
#include "kernels/backend.h"
#include "kvstore/client/store_client.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_pipeline;
struct gw_sequence;

/* Long work reports here: done of total, in layer × token units of a prompt. */
typedef void gw_progress(void *context, uint64_t done, uint64_t total);

struct gw_pipeline_options {
	struct kv_allocator *allocator;
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	struct kn_stream *stream;
	struct gw_model *model;
	struct kvc_store *store;           /* NULL only for a policy that does not offload */
	struct gw_policy_options policy;
	enum kn_kv_type kv_type;
	uint64_t cache_bytes;              /* 0: twice the budget's bytes for each of max_batch */
	uint32_t cache_recency;            /* R of `recency:R`, 0: CLOCK by bytes */
	uint32_t chunk;                    /* prefill rows in one call; ≤ the model's max_rows */
	uint32_t max_batch;                /* sequences of one decode call, ≤ KN_MAX_DECODE_ROWS */
	uint32_t context;                  /* most tokens of a sequence; 0: the model's context */
	int reserve;                       /* take what steps need at once, not as sequences open */
	struct kn_bounds background;       /* with it: of the stream for clustering */
	int audit;                         /* also compute what full attention would have seen */
	int estimate_misses;               /* what a fetch does not bring is estimated */
};

enum kv_status gw_pipeline_create(const struct gw_pipeline_options *options,
	struct gw_pipeline **pipeline);
void gw_pipeline_destroy(struct gw_pipeline *pipeline);

/* The layout that the store is told of. Needed before a store can be opened. */
void gw_pipeline_layout(const struct gw_model_shape *shape, const struct gw_policy_options *policy,
	enum kn_kv_type kv_type, struct kvw_model_layout *layout);

/* What the store knows these key/values by: the model file's digest, how exactly it is computed,
 * and the layout. Workers of one file with other options share nothing, and so get along. */
void gw_pipeline_model_id(const uint8_t file[32], enum kn_precision precision,
	const struct kvw_model_layout *layout, uint8_t id[32]);

struct gw_sequence_request {
	const char *id;                    /* NULL: the store chooses */
	const int32_t *tokens;
	uint32_t token_count;
	uint32_t max_tokens;               /* room for decoded tokens */
	const void *parameters;            /* opaque, handed back by resume */
	size_t parameter_bytes;
};

/* Open a sequence: memory is taken, the known prefix attached. */
enum kv_status gw_sequence_open(struct gw_pipeline *pipeline,
	const struct gw_sequence_request *request, struct gw_sequence **sequence);

/* What a sequence holds of the worker's memory at most, the cluster cache aside: dense layers,
 * window and clusters, and while its prompt is computed residual rows and a layer of it. */
uint64_t gw_sequence_bytes(const struct gw_pipeline *pipeline, uint32_t prompt_tokens,
	uint32_t max_tokens);

/* Take over a sequence by id. `state` is borrowed from the sequence. KV of its list is attached
 * and its tokens are known; gw_sequence_replay runs the rest. There is room for as many tokens
 * as it was opened for, or max_tokens if that is more. */
enum kv_status gw_sequence_resume(struct gw_pipeline *pipeline, const char *id, uint32_t max_tokens,
	struct gw_sequence **sequence, struct kvc_resume_state *state);

/* Close and free. keep: others may resume it. */
void gw_sequence_close(struct gw_sequence *sequence, int keep);

const char *gw_sequence_id(const struct gw_sequence *sequence);
const int32_t *gw_sequence_tokens(const struct gw_sequence *sequence, uint32_t *count);
uint32_t gw_sequence_prompt_tokens(const struct gw_sequence *sequence);
/* Tokens of prompt and answer that it has room for. */
uint32_t gw_sequence_capacity(const struct gw_sequence *sequence);
/* Tokens of prompt and answer that were known when it was resumed; 0 for one that began here. */
uint32_t gw_sequence_resumed_tokens(const struct gw_sequence *sequence);
/* Prompt tokens whose KV was found and not computed. */
uint32_t gw_sequence_prefix_hit(const struct gw_sequence *sequence);

/* Prefill. logits[vocabulary] of the last prompt token: memory of the host (KN_SHARED memory is
 * written fastest), here and below. mean_nll, when not NULL: mean negative log
 * likelihood of the prompt's tokens 2…N (nothing may have been attached). */
enum kv_status gw_run_prompt(struct gw_sequence *sequence, float *logits, double *mean_nll,
	gw_progress *progress, void *progress_context);

/* The same in units, a chunk of a layer or a layer's end: others of the pipeline's sequences may
 * decode between them, and other prompts may be open. step: the next one; *done is set after the
 * last, when logits are there. A failure ends the run and the sequence. close: in any case, before
 * the sequence is closed; an unfinished run gives back what it reserved. NULL is allowed. */
struct gw_prompt_run;
enum kv_status gw_prompt_open(struct gw_sequence *sequence, double *mean_nll,
	gw_progress *progress, void *progress_context, struct gw_prompt_run **prompt);
enum kv_status gw_prompt_step(struct gw_prompt_run *prompt, float *logits, int *done);
void gw_prompt_close(struct gw_prompt_run *prompt);

/* The store knows all accepted tokens when this returns: closed with keep, the sequence can be
 * resumed where it is. KV_UNSUPPORTED where it cannot. */
enum kv_status gw_sequence_flush(struct gw_sequence *sequence);

/* Negative log likelihood of a token under logits[vocabulary]. */
double gw_token_nll(const float *logits, uint32_t vocabulary, int32_t token);

/* Make gw_run_prompt end with KV_CANCELLED at the next chunk: for its progress callback. */
void gw_sequence_cancel(struct gw_sequence *sequence);

/* Take `token` (sampled, or given by a teacher) as the sequence's next one, and tell the store
 * of it and of the sampler's state, at most 100 ms late. KV_LIMIT when max_tokens are there
 * already. */
enum kv_status gw_sequence_accept(struct gw_sequence *sequence, int32_t token,
	const void *sampler_state, size_t sampler_bytes);

/* One decode step: run the last accepted token of each sequence; logits[count][vocabulary]
 * follow it. A failure that concerns one sequence is put into failures[i], with its sentence in
 * gw_sequence_failure (the others go on); the return value is about the call as a whole. */
enum kv_status gw_run_token(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, float *logits, enum kv_status *failures);

/* Why a sequence failed; "" when it did not. */
const char *gw_sequence_failure(const struct gw_sequence *sequence);

/* Was it left out of the last step (KV_LIMIT) because the store has no memory for its fold? Nothing
 * was changed then, a later step may succeed; any other failure is the sequence's end. */
int gw_sequence_refused(const struct gw_sequence *sequence);

/* After resume: run what the store's list does not hold, up to the last known token; logits
 * follow it. Where that begins in the prompt, it is told and can be given up as gw_run_prompt. */
enum kv_status gw_sequence_replay(struct gw_sequence *sequence, float *logits,
	gw_progress *progress, void *progress_context);
/* The same in parts: what the list or the prompt has, then a token at a time; *done with the last,
 * when logits are there. */
enum kv_status gw_sequence_replay_step(struct gw_sequence *sequence, float *logits,
	gw_progress *progress, void *progress_context, int *done);

/* Sums over decode steps × clustered layers × KV heads (or query heads); divide by the counts. */
struct gw_report {
	uint64_t selections;               /* (step, layer, KV head) */
	double budget_tokens, window_tokens;
	double bytes_touched;              /* KV rows, centroids, value means and sizes read */
	uint64_t estimates;                /* (step, layer, query head) */
	double lost_mass_estimated;
	uint64_t audits;                   /* (step, layer, query head) */
	double lost_mass, output_error;
	uint64_t recalls;                  /* (step, layer, KV head) */
	double recall;
	struct gw_cache_stats cache;       /* of this sequence's lookups */
	double prefill_seconds, decode_seconds;
	double select_seconds, fetch_seconds; /* of the host's steps: a device does not tell */
	/* Clustering. Where a device does it beside the next layer: what the worker took to queue it
	 * and then waited for it and its copies, not what went on meanwhile. */
	double index_seconds;
	double attach_seconds;             /* in prefill: to bring in what the store has */
	double offload_seconds;            /* in both: to write to the store and commit */
	uint32_t prefill_layers;           /* that are behind it */
	uint64_t decode_steps;
	uint64_t degraded_steps;           /* of them, with clusters estimated that were selected */
	uint64_t device_steps;             /* of them, run by the device without the host */
	uint64_t repeated_steps;           /* of them, begun by the device and run again by the host */
};
const struct gw_report *gw_sequence_report(const struct gw_sequence *sequence);

struct gw_cache_stats gw_pipeline_cache_stats(const struct gw_pipeline *pipeline);
const struct gw_pipeline_options *gw_pipeline_options(const struct gw_pipeline *pipeline);

#ifdef __cplusplus
}
#endif
#endif
