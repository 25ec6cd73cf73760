/* The steps of run_prompt.c. Private to this folder. */
#ifndef GW_PIPELINE_RUN_PROMPT_H
#define GW_PIPELINE_RUN_PROMPT_H

#include "gpu-worker/pipeline/step.h"

struct gw_prompt_run {
	struct gw_sequence *sequence;
	struct gw_model *model;
	const struct gw_model_shape *shape;
	gw_progress *progress;
	void *progress_context;
	double *mean_nll;         /* NULL, or the last layer's rows are all wanted */
	uint32_t layer, at;       /* what comes next: a layer's chunk, or at the prompt's end its end */
	int embedded, ended;
	int whole;                /* it ended well: segments are committed */
	uint32_t first;           /* first token that is computed */
	uint32_t hit;             /* tokens whose KV is stored: shared segments, then pieces */
	uint32_t own_start;       /* first token of the layer buffer: where sharing ends */
	uint32_t shared_count;    /* leading list entries that were attached */
	uint32_t new_count;       /* segments to be stored */
	const struct kvc_segment **reserved; /* [new_count] */
	float *x;                 /* KN_DEVICE: residual [prompt - first][hidden] */
	uint32_t *positions;      /* KN_SHARED [prompt - first] */
	float *qkv, *attention;   /* one chunk's */
	/* KN_DEVICE: this layer's rows from own_start on, [kv_heads][own_tokens] */
	uint8_t *own;
	uint8_t *other_own;       /* the next layer's, while offload reads these; NULL: there is none */
	uint8_t *own_memory;      /* the one of both that is the run's; the other is the pipeline's */
	size_t own_stride;        /* bytes between heads */
	uint32_t own_tokens;
	struct kn_span *spans;    /* context [kv_heads][span_capacity] */
	uint32_t span_capacity, span_count;
	const uint8_t **own_rows; /* [kv_heads]: what the last chunk's own rows start with */
	uint32_t own_before;
	uint8_t *context;         /* KN_DEVICE: shared rows of this layer; NULL on a unified backend */
	size_t context_used, context_bytes;
	uint8_t *piece_rows;      /* one head's rows of a piece; NULL on a unified backend */
	uint8_t *buffer;          /* one unit, where memory is not shared */
	uint8_t **shared_units;   /* [shared_count] units of this layer, where memory is not shared */
	float *logits;            /* KN_SHARED, scratch of mean_nll */
};

enum kv_status gw_prompt_begin(struct gw_prompt_run *run, struct gw_sequence *sequence);
/* Frees; gives reserved segments back unless the run came to its end. */
void gw_prompt_end(struct gw_prompt_run *run);

/* Residual rows of all tokens that are computed. */
enum kv_status gw_prompt_embed(struct gw_prompt_run *run);
/* What is stored of this layer: spans over shared segments, copies of pieces in the buffer. */
enum kv_status gw_prompt_context(struct gw_prompt_run *run, uint32_t layer);
/* Chunks end at absolute multiples of the chunk length. */
uint32_t gw_prompt_chunk_end(const struct gw_prompt_run *run, uint32_t at);
float *gw_prompt_residual(const struct gw_prompt_run *run, uint32_t at);
const uint32_t *gw_prompt_positions(const struct gw_prompt_run *run, uint32_t at);
/* Round keys and values of a chunk to the KV type, into the layer buffer. */
enum kv_status gw_prompt_append(struct gw_prompt_run *run, uint32_t at, uint32_t count);
enum kv_status gw_prompt_attend(struct gw_prompt_run *run, uint32_t at, uint32_t count);
void gw_prompt_progress(struct gw_prompt_run *run, uint32_t layer, uint32_t done);
/* Without a store: the layer's rows stay in the worker. */
enum kv_status gw_prompt_keep(struct gw_prompt_run *run, uint32_t layer);
/* With one: begin to index the new segments and to write their units. */
enum kv_status gw_prompt_offload(struct gw_prompt_run *run, uint32_t layer);
/* Commit the new segments and take the store's list over. */
enum kv_status gw_prompt_commit(struct gw_prompt_run *run);
enum kv_status gw_prompt_logits(struct gw_prompt_run *run, float *logits, double *mean_nll);

#endif
