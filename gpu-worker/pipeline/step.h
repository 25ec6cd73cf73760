/* What the files of the pipeline share. Private to this folder. */
#ifndef GW_PIPELINE_STEP_H
#define GW_PIPELINE_STEP_H

#include "common/base/log.h"
#include "gpu-worker/cache/token_rows.h"
#include "gpu-worker/pipeline/pipeline.h"
#include "kernels/device.h"

/* A stored unit in memory. */
struct gw_unit {
	struct kvw_unit_shape shape;
	struct kvw_unit_layout layout;
};

/* One layer of a sequence. Dense layers keep everything in `recent`. */
struct gw_layer_state {
	const struct gw_layer_ops *ops;
	struct gw_cluster_index *index; /* NULL in a dense layer */
	uint32_t *slot_hints;           /* [kv_heads][index->capacity]: the cluster cache's */
	struct gw_token_rows sinks;     /* first rows; empty in a dense layer */
	struct gw_token_rows recent;    /* the window; all rows in a dense layer */
};

struct gw_step_map;
struct gw_device_step;

struct gw_sequence {
	struct gw_pipeline *pipeline;
	struct kvc_sequence *stored;    /* NULL without a store */
	int32_t *tokens;                /* prompt, then decoded */
	uint32_t token_count, token_capacity, prompt_tokens;
	uint32_t kv_count;              /* tokens whose KV is held */
	uint32_t window_start;          /* first position in the window of clustered layers */
	uint32_t prefix_hit;
	uint32_t resumed_tokens;        /* known when it was resumed; 0: it was begun here */
	int replaying;                  /* what was known when it was resumed is being run again */
	int refused;                    /* the store has no memory for the fold that is due */
	struct gw_layer_state *layers;  /* [layers] */
	void *kept_rows;                /* sinks and windows of the clustered layers */
	const struct kvc_segment *const *segments; /* the store's list, by ordinal */
	struct gw_unit *units;          /* [segment_capacity]: their units in clustered layers */
	uint32_t segment_count, segment_capacity;
	uint64_t list_changes;          /* of the list of segments */
	struct gw_step_map *map;        /* the same for a device; NULL where none looks up by itself */
	struct kvc_cut *cuts;           /* the prompt's segmentation */
	uint32_t cut_count;
	enum kv_status failed;          /* KV_OK, or why no step can follow */
	char failure[256];
	int cancelled;                  /* the prompt's run ends at the next chunk */
	uint64_t degraded_at;           /* last degraded decode step, counted from 1; 0: none */
	struct gw_audit *audit;         /* NULL until the first audited row */
	struct gw_report report;
};

struct gw_missed {
	uint32_t job, extent;           /* which of the selection's */
	uint32_t span, span_count;      /* of the round's */
};

/* Rows that a fetch has to bring, and where attention finds what. Sized when sequences open. */
struct gw_round {
	struct kn_attend_job *jobs;     /* [max_batch × kv_heads] */
	struct kn_span *spans;          /* [span_capacity] */
	struct kvc_read *reads;         /* [read_capacity] */
	struct gw_missed *missed;       /* [span_capacity]: extents that wait for the fetch */
	uint32_t job_count, span_count, read_count, missed_count;
	uint32_t span_capacity, read_capacity;
	uint8_t *staging;               /* KN_DEVICE: rows that the cache has no room for */
	size_t staging_used, staging_bytes;
	/* Where the store cannot write backend memory, what it brings arrives here and is copied. */
	uint8_t *arrival;               /* KN_SHARED [staging_bytes]; NULL on a unified backend */
	size_t arrival_used;
	struct kn_copy_job *copies;     /* [read_capacity], one for each read */
	float *exact_mass;              /* KN_SHARED [max_batch × heads] */
	uint32_t rows[KN_MAX_DECODE_ROWS]; /* rows of the batch in this round */
	uint32_t row_count;
};

/* Memory of indexing, sized when sequences open; for what is begun together and not finished. */
struct gw_offload_scratch {
	struct kn_device device;        /* on whose stream it is queued */
	struct gw_offload_group *group; /* offload.c: what is in it */
	struct kn_index_job *jobs;      /* [units begun together × kv_heads] */
	uint32_t *order;                /* KN_SHARED [kv_heads][tokens] */
	uint32_t tokens;
	/* Where the store's memory is not the backend's, the host writes units that were made in these;
	 * all NULL on a unified backend. */
	uint8_t *metadata;              /* KN_DEVICE: of the units that are begun together */
	uint8_t *rows;                  /* KN_DEVICE: one head's of a unit, as they are stored */
	uint8_t *units;                 /* KN_SHARED: whole, as they are stored */
	size_t metadata_bytes, units_bytes, row_room; /* row_room in rows */
};

struct gw_pipeline {
	struct gw_pipeline_options options;
	struct kn_device device;        /* of the options: its stream is the one for computing */
	/* The same with a stream for clustering, for copies to the host and for what decoding needs of
	 * them, beside it; on a unified backend with the same stream. */
	struct kn_device background;
	const struct gw_policy_ops *policy;
	const struct gw_model_shape *shape;
	size_t row_bytes;
	struct kvw_model_layout layout;
	uint8_t policy_digest[32];
	struct gw_cluster_cache *cache; /* NULL without a store */
	uint64_t generation;            /* that the cache's contents belong to */
	struct gw_select_scratch *select_scratch;
	uint32_t max_clusters;          /* that the scratch has room for */
	struct gw_selection *selections;/* [max_batch × kv_heads] */
	struct gw_select_row *rows;     /* [max_batch] */
	struct gw_round round;
	struct gw_device_step *device_step; /* NULL: all steps are the host's */
	struct kv_log_limit degrade_log;
	struct gw_offload_scratch offload;      /* a prompt's; folds', too, on a unified backend */
	struct gw_offload_scratch fold_offload; /* queued on the compute stream */
	/* KN_DEVICE: a layer's rows of the longest prompt, for the one prompt that goes on in it while
	 * its last layer is indexed; NULL on a unified backend. */
	uint8_t *spare_rows;
	size_t spare_bytes;
	const struct gw_sequence *spare_user;   /* NULL: free */
	/* Activations of one call, KN_DEVICE: chunk rows in prefill, max_batch in decode. */
	float *x, *qkv, *attention;
	float *logits;                  /* KN_DEVICE [max_batch][vocabulary]; NULL where unified */
	uint32_t *positions;            /* KN_SHARED [max_batch] */
	int32_t *ids;                   /* [max_batch] */
	struct kn_device audit_device;  /* where --audit computes: on memory of the host */
};

/* A cluster's name in the cache: of a KV head, by its number in the sequence's index. */
static inline struct gw_cache_key gw_cluster_key(const struct gw_sequence *sequence,
	uint32_t layer, uint32_t head, uint32_t cluster)
{
	const struct gw_cluster_index *index = sequence->layers[layer].index;
	uint32_t ordinal = index->segment_of[cluster];

	return (struct gw_cache_key){sequence->segments[ordinal]->id, layer, head,
		cluster - index->segment_first[ordinal]};
}

/* Let what is queued come to its end, so that memory may go: after a failure, whose message stays
 * unless the device has a reason of its own. */
static inline void gw_pipeline_settle(const struct gw_pipeline *pipeline)
{
	(void)kn_device_wait(&pipeline->device);
	if (pipeline->background.stream != pipeline->device.stream)
		(void)kn_device_wait(&pipeline->background);
}

/* pipeline.c: what the selections of one step take in one layer. */
uint64_t gw_selected_bytes(const struct gw_model_shape *shape,
	const struct gw_policy_options *policy, size_t row_bytes, uint32_t sequences);
/* Layers whose rows leave the worker. */
uint32_t gw_clustered_layers(const struct gw_model_shape *shape, const struct gw_policy_ops *policy,
	const struct gw_policy_options *options);

/* segmentation.c */
uint32_t gw_segmentation(uint32_t tokens, const struct gw_policy_options *policy,
	struct kvc_cut *cuts, uint32_t capacity);
uint32_t gw_segmentation_bound(uint32_t tokens, const struct gw_policy_options *policy);
/* Most segments that a sequence of `tokens` tokens, prompt_tokens of them its prompt, comes to
 * have, and most clusters of a head in so many segments. */
uint32_t gw_segment_bound(uint32_t prompt_tokens, uint32_t tokens,
	const struct gw_policy_options *policy);
uint32_t gw_cluster_bound(uint32_t tokens, uint32_t segments,
	const struct gw_policy_options *policy);

/* unit.c */
enum kv_status gw_unit_describe(const struct gw_pipeline *pipeline,
	const struct kvc_segment *segment, uint32_t layer, struct gw_unit *unit);
static inline const uint8_t *gw_unit_row(const struct gw_unit *unit, const uint8_t *memory,
	uint32_t head, uint32_t row)
{
	return memory + head * unit->layout.head_bytes + unit->layout.rows +
		(uint64_t)row * unit->shape.row_bytes;
}
static inline const uint32_t *gw_unit_positions(const struct gw_unit *unit, const uint8_t *memory,
	uint32_t head)
{
	return (const uint32_t *)(const void *)(memory + head * unit->layout.head_bytes +
		unit->layout.positions);
}
/* Read a unit: in place where memory is shared, else into `buffer` (≥ the unit's bytes). */
enum kv_status gw_unit_read(struct gw_pipeline *pipeline, const struct kvc_segment *segment,
	uint32_t layer, const struct gw_unit *unit, uint8_t *buffer, const uint8_t **memory);
/* Add a unit's clusters to the layer's index as list entry `ordinal`. What is queued on `device`,
 * here and in gw_attach_unit, reads `memory` until stream_wait. */
enum kv_status gw_unit_attach(struct gw_layer_state *state, const struct kn_device *device,
	const struct gw_unit *unit, const uint8_t *memory, uint32_t ordinal);

/* A layer's rows of tokens [start, start + count) in token order, all KV heads: backend memory. */
struct gw_source_rows {
	const uint8_t *rows;
	size_t head_stride;
	uint32_t start, count;
};
/* offload.c: have memory to index runs of up to `tokens` tokens. */
enum kv_status gw_offload_reserve(struct gw_pipeline *pipeline, uint32_t tokens);
/* What that takes of a device's memory where it is not the host's. */
size_t gw_offload_device_bytes(const struct gw_model_shape *shape,
	const struct gw_policy_options *policy, size_t row_bytes, uint32_t tokens);
/* Rows of one head of the largest unit. */
uint32_t gw_offload_row_bound(const struct gw_policy_options *policy, uint32_t tokens);
/* Units that are begun together, at most; fewer where staging memory ends first. */
enum { GW_OFFLOAD_UNITS = 32 };
void gw_offload_destroy(struct gw_pipeline *pipeline);
/* Index (if clustered) and write one layer of reserved segments, which will be list entries from
 * list_base on. */
struct gw_offload_work {
	struct gw_sequence *sequence;
	const struct kvc_segment *const *segments; /* [count] */
	struct gw_source_rows source;
	uint32_t layer, count, list_base;
	int place; /* also what decoding needs; else only clusters and sinks: a fold's rows are there */
};
/* A prompt's layer: queue it after what the compute stream has now, and go on. Rows and segments
 * stay until finish has brought it to its end, or until settle and drop. On a unified backend it
 * ends at once. What another sequence has begun is finished before. */
enum kv_status gw_offload_begin(const struct gw_offload_work *work);
/* When it returns, the layer is in the store and what decoding needs in place. Nothing was begun:
 * KV_OK. */
enum kv_status gw_offload_finish(struct gw_sequence *sequence);
/* After gw_pipeline_settle: forget what it has begun. */
void gw_offload_drop(struct gw_sequence *sequence);
/* A fold's: it is at its end when it returns, and does not wait for a prompt's. */
enum kv_status gw_offload_fold(const struct gw_offload_work *work);
/* After a commit: take the store's list over; segments that ended as another worker's copy are
 * attached anew. reserved_ids[i] was to become list entry list_base + i. */
enum kv_status gw_offload_adopt(struct gw_sequence *sequence, const uint64_t *reserved_ids,
	uint32_t count, uint32_t list_base);

/* attach.c: put what a unit holds where decoding needs it. */
enum kv_status gw_attach_unit(struct gw_sequence *sequence, const struct kn_device *device,
	uint32_t layer, uint32_t ordinal, const struct kvc_segment *segment,
	const struct gw_unit *unit, const uint8_t *memory);
/* The same for the sequence's list entries, from the store. buffer: gw_attach_buffer_bytes. Waits
 * for `device`. */
enum kv_status gw_attach_layer(struct gw_sequence *sequence, const struct kn_device *device,
	uint32_t layer, uint8_t *buffer);
size_t gw_attach_buffer_bytes(const struct gw_sequence *sequence);
/* Take the store's list over (ordinals, unit layouts). KV_PROTOCOL when it has a gap. */
enum kv_status gw_attach_list(struct gw_sequence *sequence);
/* Of an opened sequence: how many of the prompt's tokens the store has, in segments that are shared
 * and in pieces. KV_PROTOCOL when they do not follow each other, or are not exact. */
enum kv_status gw_attach_known(const struct gw_sequence *sequence, uint32_t *tokens);
/* Of a resumed sequence: is the list one that it once had, from which the tokens behind it can be
 * run? It is not when a worker died before its first commit, when nothing is to be run, or when
 * entries were evicted: the window must be there. */
int gw_attach_whole(const struct gw_sequence *sequence);
/* Go on from the prompt: forget list entries that are not its own. The next commit takes their
 * places. */
void gw_attach_prompt_only(struct gw_sequence *sequence);

/* fetch.c: a round of lookups, one fetch, and the attention jobs that they are for. */
enum kv_status gw_round_reserve(struct gw_pipeline *pipeline, uint32_t max_clusters,
	uint32_t max_tokens);
void gw_round_destroy(struct gw_pipeline *pipeline);
/* Staging memory for selections of up to max_tokens tokens. */
size_t gw_round_staging_bytes(const struct gw_model_shape *shape, size_t row_bytes,
	uint32_t max_batch, uint32_t max_tokens);
/* Spans of one KV head, with so many clusters of so many tokens selected. */
uint64_t gw_round_spans(uint32_t clusters, uint32_t tokens);
void gw_round_begin(struct gw_pipeline *pipeline);
int gw_round_has_room(const struct gw_pipeline *pipeline, const struct gw_selection *selections);
enum kv_status gw_round_add_row(struct gw_pipeline *pipeline, struct gw_sequence *sequence,
	uint32_t layer, uint32_t row, const struct gw_selection *selections);
/* Fetch what is missing; the copies that bring it into place may still be queued. */
enum kv_status gw_round_fetch(struct gw_pipeline *pipeline);
/* The fetch failed: take what waits for it out of jobs and selections, and estimate it by whole
 * clusters. */
enum kv_status gw_round_degrade(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t layer);

/* run_token.c: round this token's keys and values to their type, behind the others. */
enum kv_status gw_append_batch(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer);
/* To `logits`, memory of the host, with what is waited for next. */
enum kv_status gw_queue_logits(struct gw_pipeline *pipeline, uint32_t count, float *logits);

/* attend.c: select, then lookup → fetch → attend in as many rounds as the memory takes. */
enum kv_status gw_select_batch(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer);
enum kv_status gw_attend_batch(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer);
/* Of a clustered layer, only queued: how much is selected will be in counts[count × kv_heads]
 * (KN_SHARED), and pipeline->selections say where the rest is. */
enum kv_status gw_select_queue(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer, struct kn_select_counts *counts);
/* Count what one KV head attended to; exact_mass[group] of its estimate, or NULL. */
void gw_report_selection(struct gw_sequence *sequence, uint32_t layer, uint32_t selected,
	const float *exact_mass);

/* sequence.c */
/* Have what steps with sequences of up to `tokens` tokens and `clusters` clusters need. */
enum kv_status gw_step_reserve(struct gw_pipeline *pipeline, uint32_t tokens, uint32_t clusters);
void gw_sequence_fail(struct gw_sequence *sequence, enum kv_status status);

/* fold.c */
int gw_fold_due(const struct gw_sequence *sequence);
enum kv_status gw_fold(struct gw_sequence *sequence);

/* audit.c: what full attention would have seen with this row's own query. q and attention are
 * backend memory. */
enum kv_status gw_audit_row(struct gw_sequence *sequence, uint32_t layer, const float *q,
	const float *attention, const struct gw_selection *selections);
void gw_audit_destroy(struct gw_sequence *sequence);

#endif
