/* A decode step that a device runs by itself, from the embedding to the logits: it looks clusters
 * up in its mirror of the cluster cache, brings what is missing from the store's memory into
 * staging, attends, and the host hears of it when all layers are done. Private to this folder.
 *
 * store_memory.c registers the store's memory, step_map.c keeps what lookups read of a sequence on
 * the device, device_step.c queues the layers and decides whether to believe them, device_admit.c
 * takes over what was staged.
 */
#ifndef GW_PIPELINE_DEVICE_STEP_H
#define GW_PIPELINE_DEVICE_STEP_H

#include "gpu-worker/cache/cache_mirror.h"
#include "gpu-worker/pipeline/step.h"

/* ---- store_memory.c ---- */

/* Regions of the store that operations reach. They come and go between steps. */
struct gw_store_memory {
	struct kvc_memory_watch watch;
	struct gw_pipeline *pipeline;
	struct gw_registered {
		uint8_t *memory;
		uint64_t bytes;
	} *regions;        /* [capacity] */
	uint32_t count, capacity;
	uint64_t changes;
	int watching, refused; /* refused: a region was not taken, which was said */
};

/* False where none will ever come: the store tells of none, or tells another pipeline. */
int gw_store_memory_open(struct gw_pipeline *pipeline, struct gw_store_memory *memory);
void gw_store_memory_close(struct gw_store_memory *memory);
int gw_store_memory_has(const struct gw_store_memory *memory, const uint8_t *start, uint64_t bytes);

/* ---- step_map.c ---- */

/* What the lookups of one layer read, memory of the device. */
struct gw_layer_map {
	const uint8_t **unit_rows; /* [kv_heads][segments] */
	uint32_t *hints;           /* [kv_heads][clusters] */
	uint32_t *first_row;       /* [kv_heads][clusters] */
	uint32_t *segment_of;      /* [clusters] */
	uint32_t *segment_first;   /* [segments] */
};

/* All of a sequence's, in one buffer. It is made anew when the list of segments changes. */
struct gw_step_map {
	uint64_t *segment_ids;       /* KN_DEVICE [segments], at the start of the buffer */
	size_t bytes;
	struct gw_layer_map *layers; /* [layers]; of dense ones nothing is used */
	uint64_t *ids;               /* the host's, to be uploaded: [segments] */
	const uint8_t **unit_rows;   /* [layers][kv_heads][segments] */
	uint32_t segments, clusters; /* capacity */
	uint32_t hinted;             /* leading segments whose clusters were looked for in the cache */
	uint64_t seen_list, seen_index, seen_memory;
	int made, reachable;
	int hints_stale;             /* the host has found slots since they were uploaded */
};

/* Device memory of a sequence's with so many clustered layers. */
size_t gw_step_map_bytes(uint32_t layers, uint32_t kv_heads, uint32_t segments, uint32_t clusters);
enum kv_status gw_step_map_create(struct gw_sequence *sequence);
void gw_step_map_destroy(struct gw_sequence *sequence);
/* Queue what changed. *reachable: operations reach all clusters of the sequence. What is uploaded
 * stays as it is until stream_wait. */
enum kv_status gw_step_map_update(struct gw_sequence *sequence, int *reachable);

/* ---- device_step.c ---- */

/* What a step leaves behind, in memory of the device and then of the host. */
struct gw_step_words {
	uint32_t staged; /* rows of staging that are taken */
	uint32_t copies; /* of the last lookup */
	uint32_t failed; /* bits of kn_step_failure */
	uint32_t unused;
};

/* Memory of a step; it grows when sequences open. A job is a row of the batch and a KV head. */
struct gw_step_room {
	uint32_t jobs;             /* max_batch × kv_heads */
	uint32_t tokens, extents;  /* that a job selects, at most */
	uint32_t span_capacity;    /* of a job */
	uint32_t staging_rows, copy_capacity;
	/* KN_DEVICE, in one buffer that starts with the staging: */
	uint8_t *staging;          /* [staging_rows] rows: all layers of a step */
	struct kn_span *spans;     /* [jobs][span_capacity] */
	struct kn_copy_job *copies;/* [copy_capacity] */
	uint32_t *span_counts;     /* [jobs] */
	struct gw_step_words *words;
	/* KN_SHARED, in one buffer that starts with the misses: what the host reads after a step */
	struct kn_lookup_miss *misses;     /* [layers][jobs][extents] */
	struct kn_select_counts *selected; /* [layers][jobs] */
	struct kn_lookup_counts *found;    /* [layers][jobs] */
	float *exact_mass;                 /* [layers][jobs][group] */
	struct gw_step_words *seen;
	/* The host's: */
	struct kn_lookup_job *lookups;     /* [jobs] */
	struct kn_attend_job *attends;     /* [jobs] */
	struct kn_span *dense;             /* [jobs] */
};

enum { GW_ADMISSIONS = 256 }; /* copies that go with one operation */

struct gw_device_step {
	struct gw_store_memory memory;
	struct gw_step_room room;
	struct kn_copy_job admissions[GW_ADMISSIONS];
	uint32_t admission_count;
	int admitted;         /* something of the last step was copied into the cache */
	uint32_t pause;       /* steps that are left to the host, as staging was full */
	uint32_t pause_after; /* how many it was the last time; 0: there was room since */
};

/* NULL in the pipeline where no step can be one, and nothing is taken for it: on a unified backend,
 * with a store that tells of no memory or without one, with an audit. */
enum kv_status gw_device_step_create(struct gw_pipeline *pipeline);
void gw_device_step_destroy(struct gw_pipeline *pipeline);
/* Device memory of a step over so many clustered layers, of sequences with so many clusters of
 * which so many tokens are selected. */
size_t gw_device_step_bytes(const struct gw_model_shape *shape, size_t row_bytes, uint32_t layers,
	uint32_t max_batch, uint32_t max_clusters, uint32_t max_tokens);
/* As gw_round_reserve. */
enum kv_status gw_device_step_reserve(struct gw_pipeline *pipeline, uint32_t max_clusters,
	uint32_t max_tokens);

/* The step that pipeline->ids and positions describe. *done: it was run, may be believed, and its
 * logits are there. Else nothing has happened, and the host must run it. */
enum kv_status gw_device_step(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, float *logits, int *done);

/* ---- device_admit.c ---- */

/* Of a step that is believed: put what was staged into the cluster cache, and count. */
enum kv_status gw_device_admit(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count);

#endif
