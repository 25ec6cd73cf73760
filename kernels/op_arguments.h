/* The argument structs of the backend operations: one struct for each op, plain data, C and C++.
 *
 * Memory: the arrays of descriptors `jobs`, `spans`, `context` and `own` are ordinary memory of the
 * host, read during the call (but for spans that a lookup writes). Every other pointer is backend
 * memory of either kind (backend.h).
 * Shapes are written [slowest … fastest]. A "KV row" is one token's key and value of one KV head
 * side by side, [K head_dim][V head_dim], in the KV type; a run of KV rows is contiguous. Rows of a
 * batch are independent: the bits of a row depend neither on its neighbours nor on the number of
 * threads, the memory addresses, or the number of rows (1 to 16 in decode).
 */
#ifndef KN_OP_ARGUMENTS_H
#define KN_OP_ARGUMENTS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* BF16 is for backends that say so; the cpu backend refuses it (KV_UNSUPPORTED). */
enum kn_kv_type { KN_KV_F16 = 0, KN_KV_F32 = 1, KN_KV_BF16 = 2 };

static inline const char *kn_kv_type_name(enum kn_kv_type type)
{
	return type == KN_KV_F32 ? "f32" : type == KN_KV_BF16 ? "bf16" : "f16";
}

/* Bytes of one KV row. */
static inline size_t kn_kv_row_bytes(enum kn_kv_type type, uint32_t head_dim)
{
	return (size_t)2 * head_dim * (type == KN_KV_F32 ? 4u : 2u);
}

/* Weight element types, with GGUF's numbers. */
enum kn_weight_type {
	KN_F32 = 0,
	KN_F16 = 1,
	KN_Q4_0 = 2,
	KN_Q4_1 = 3,
	KN_Q5_0 = 6,
	KN_Q5_1 = 7,
	KN_Q8_0 = 8,
	KN_Q4_K = 12,
	KN_Q5_K = 13,
	KN_Q6_K = 14,
	KN_BF16 = 30
};

/* One or more matrices of the same `columns` and any types, stacked by rows, as they are in the
 * file. */
struct kn_weight_part {
	enum kn_weight_type type;
	uint32_t rows;
	const void *data; /* rows × columns elements in GGUF block order; borrowed during pack only */
	uint64_t bytes;   /* of data, checked against type, rows and columns */
};

enum kn_precision { KN_PRECISION_DEFAULT, KN_PRECISION_FP32 };

/* A packed weight matrix [rows][columns], owned by the backend. */
struct kn_weight;

/* y[m][rows] = x[m][columns] · Wᵀ (+ bias). `fp32` weights use float activations throughout;
 * default ones may round activations to 8 bits by blocks of at most 32 columns. */
struct kn_matmul_arguments {
	const struct kn_weight *weight;
	const float *x; /* [count][columns], row stride x_stride floats */
	size_t x_stride;
	float *y; /* [count][rows], row stride y_stride floats */
	size_t y_stride;
	const float *bias; /* [rows] or NULL */
	const float
	    *add; /* [count][rows], stride y_stride, added to the result, or NULL; may equal y */
	uint32_t count;
};

/* out[i] = row ids[i] of the table (a packed weight), dequantised. */
struct kn_embed_arguments {
	const struct kn_weight *table;
	const int32_t *ids;
	float *out; /* [count][columns] */
	uint32_t count;
};

/* out = x / sqrt(mean(x²) + epsilon) * weight, sums in double order-fixed. */
struct kn_rms_norm_arguments {
	const float *x; /* [count][width], stride x_stride */
	size_t x_stride;
	const float *weight; /* [width] */
	float *out;          /* [count][width], stride out_stride */
	size_t out_stride;
	uint32_t count, width;
	float epsilon;
};

/* Rotary position embedding in place. */
struct kn_rotate_arguments {
	float *x; /* [count][heads][head_dim], row stride x_stride floats */
	size_t x_stride;
	const uint32_t *positions; /* [count] */
	const float
	    *inverse_frequency; /* [rotary_dim / 2]: theta_base^(-2i/rotary_dim), scaling included */
	uint32_t count, heads, head_dim, rotary_dim;
	int adjacent_pairs; /* 1: pairs (2i, 2i+1); 0: pairs (i, i + rotary_dim/2) */
};

/* out[i][j] = silu(gate[i][j]) * up[i][j] */
struct kn_silu_mul_arguments {
	const float *gate, *up; /* [count][width], row stride in_stride floats */
	size_t in_stride;
	float *out; /* [count][width], row stride out_stride; may be gate's memory */
	size_t out_stride;
	uint32_t count, width;
};

/* Round k and v to the KV type and write KV row (i, h) to rows + i * token_stride + h *
 * head_stride. */
struct kn_store_kv_arguments {
	const float *k, *v; /* [count][kv_heads][head_dim], row strides below, floats */
	size_t k_stride, v_stride;
	uint8_t *rows;
	size_t token_stride, head_stride; /* bytes */
	enum kn_kv_type kv_type;
	uint32_t count, kv_heads, head_dim;
};

/* A run of KV rows. */
struct kn_span {
	const uint8_t *rows;
	uint32_t count;
};

/* Causal attention of a prefill chunk over everything before it and itself.
 * Query i (0 ≤ i < count) of head h attends, for KV head g = h / (heads / kv_heads), to all rows of
 * the context spans of g, then to the first own_before + i + 1 rows of own[g]. Softmax in fp32. The
 * bits of a query depend on its context rows in span order, not on how spans are cut. */
struct kn_attend_dense_arguments {
	const float *q; /* [count][heads][head_dim], row stride q_stride floats, unscaled */
	size_t q_stride;
	float *out; /* [count][heads][head_dim], row stride out_stride floats */
	size_t out_stride;
	const struct kn_span *context; /* [kv_heads][context_spans] */
	uint32_t context_spans;
	const uint8_t *const *own; /* [kv_heads]: KV rows in token order, own_before + count of them */
	uint32_t own_before, count;
	uint32_t heads, kv_heads, head_dim;
	enum kn_kv_type kv_type;
	float scale; /* 1 / sqrt(head_dim) as a rule */
};

/* What is not attended exactly, estimated by cluster: cluster c adds rest[c] * exp(logit) to the
 * denominator and that weight times its mean value to the numerator. rest[c] = 0 adds nothing. */
struct kn_estimate {
	const float *logits;         /* [group][clusters]: scale * q·centroid, without ln(size) */
	size_t logits_stride;        /* floats between query heads of the group */
	const uint32_t *rest;        /* [clusters]: tokens of the cluster that are not attended */
	const uint16_t *value_means; /* fp16 [clusters][head_dim] */
	uint32_t clusters;           /* 0: no estimate */
};

/* One (sequence, KV head) of a decode step. */
struct kn_attend_job {
	const float *q;              /* [group][head_dim] contiguous, unscaled */
	float *out;                  /* [group][head_dim] contiguous */
	const struct kn_span *spans; /* host memory; attended in this order */
	uint32_t span_count;
	struct kn_estimate estimate;
	float *exact_mass; /* [group] or NULL: exact mass / (exact + estimated) is written here */
	/* NULL: `spans` is the host's. Else backend memory in which an operation that is queued before
	 * (lookup) leaves how many spans there are: `spans` is backend memory, too, span_count is the
	 * most that there can be, and row_bound the most rows of all of them together. */
	const uint32_t *spans_written;
	uint32_t row_bound;
};

/* Decode attention, flash style: the rows of the spans in order, cut into blocks of a fixed number
 * of tokens counted from the first (so that bits depend on the rows alone), the estimate as the
 * last block; partial results merged by log-sum-exp in that order. Softmax in fp32. */
struct kn_attend_sparse_arguments {
	const struct kn_attend_job *jobs;
	uint32_t job_count;
	uint32_t group, head_dim; /* query heads for each KV head */
	enum kn_kv_type kv_type;
	float scale;
};

/* One (sequence, KV head) of scoring. */
struct kn_score_job {
	const float *q;            /* [group][head_dim] contiguous */
	const uint16_t *centroids; /* fp16 [clusters][head_dim] */
	const float *log_sizes;    /* [clusters]: ln(size) (-inf for an empty one) */
	uint32_t clusters;
	float *logits; /* out [group][logits_stride]: scale * q·centroid */
	size_t logits_stride;
	float *votes; /* out [clusters]: sum over the group of softmax(logit + ln size) */
};
struct kn_score_arguments {
	const struct kn_score_job *jobs;
	uint32_t job_count;
	uint32_t group, head_dim;
	float scale;
	int size_term; /* 1: softmax(logit + ln size); 0: softmax(logit), empty ones last */
};

/* A trimmed cluster of the selection. */
struct kn_extent {
	uint32_t cluster;
	uint32_t count; /* leading tokens taken, 1 ≤ count ≤ size */
};

/* How much a selection took. */
struct kn_select_counts {
	uint32_t extents;
	uint32_t tokens; /* min(budget, sum of sizes) */
};

/* One (sequence, KV head) of selection: clusters by falling vote, ties by lower index, empty ones
 * skipped, until `budget` tokens; the last one is trimmed to fit exactly. */
struct kn_select_job {
	const float *votes;    /* [clusters] */
	const uint32_t *sizes; /* [clusters] */
	uint32_t clusters;
	uint32_t budget;                 /* tokens */
	struct kn_extent *extents;       /* out, room for `clusters` */
	uint32_t *rest;                  /* out [clusters]: size - taken */
	struct kn_select_counts *counts; /* out */
	uint32_t *scratch;               /* [clusters] */
};
struct kn_select_arguments {
	const struct kn_select_job *jobs;
	uint32_t job_count;
};

/* One (segment, KV head) of indexing: cosine k-means over post-position keys.
 *
 * assignment: argmax over clusters of dot(key - mean, centroid') / |centroid'| (mean = 0 without
 * centring; centroid' = centroid - mean), ties to the lower index. Every dot product is a chain of
 * fused multiply-adds over ascending channels from 0, so that all backends give the same bits.
 * start: centroid c is key floor(c * n / clusters). Empty clusters take the keys with the lowest
 * cosine to their own centroid. update: members summed in ascending position, fp32. Stop when under
 * 1 % of the assignments change, or after `iterations`. Storing order: by cluster, then falling
 * cosine, then ascending position. Published centroids and value means are raw means rounded to
 * fp16. Source: ClusterKV (arXiv 2412.03213), section on semantic clustering, with the changes
 * named above. */
struct kn_index_job {
	const uint8_t *rows;   /* n KV rows in position order */
	size_t row_stride;     /* bytes between rows, ≥ the KV row's bytes */
	uint32_t n, clusters;  /* 1 ≤ clusters ≤ n; above KN_MAX_INDEX_… it may be KV_LIMIT */
	uint32_t *order;       /* out [n]: order[j] = index of the row stored at j */
	uint32_t *sizes;       /* out [clusters] */
	uint16_t *centroids;   /* out fp16 [clusters][head_dim] */
	uint16_t *value_means; /* out fp16 [clusters][head_dim] */
};
/* How the rounds of k-means sum members. ORDERED: in ascending position, the same bits everywhere.
 * PAPER: in any order, as the published kernel does; the sums in order are one of these, and what
 * the cpu backend and sizes that the kernel does not take come to. Published means are in order. */
enum kn_index_update { KN_INDEX_ORDERED, KN_INDEX_PAPER };

struct kn_index_arguments {
	const struct kn_index_job *jobs;
	uint32_t job_count;
	uint32_t head_dim, iterations;
	enum kn_kv_type kv_type;
	enum kn_index_update update;
	int center;
};

/* Copies of KV rows (or any bytes); jobs do not overlap. */
struct kn_copy_job {
	const uint8_t *source;
	uint8_t *destination;
	size_t bytes;
};
struct kn_copy_arguments {
	const struct kn_copy_job *jobs;
	uint32_t job_count;
};

/* destination row j = source row order[j] of one KV head. */
struct kn_gather_rows_arguments {
	const uint8_t *source;
	size_t source_stride;  /* bytes */
	const uint32_t *order; /* [count] */
	uint8_t *destination;
	size_t destination_stride; /* bytes */
	size_t row_bytes;
	uint32_t count;
};

/* ---- the cluster cache ---- */

enum { KN_CACHE_PAGE_ROWS = 16 }; /* KV rows of one page */

/* A slot of the cluster cache as operations see it. */
struct kn_cache_slot {
	uint64_t generation;           /* of the cache's contents; 0: the slot is free */
	uint64_t segment;              /* never reused within one */
	uint32_t layer, head, cluster; /* the cluster's number in its segment */
	uint32_t held;                 /* leading rows that are valid */
	uint32_t first_page;           /* of its chain */
	uint32_t unused;
};

/* The cluster cache, shared by all sequences of a worker. Written by the host (or copies queued by
 * it), never while a lookup may run. */
struct kn_cache_table {
	const struct kn_cache_slot *slots; /* [slot_count] */
	const uint32_t *next_page;         /* [page_count]: chains of a slot's pages in row order */
	const uint8_t *memory;             /* [page_count][KN_CACHE_PAGE_ROWS][row_bytes] */
	uint32_t *used_step;               /* [slot_count] or NULL: raised to `step` where looked up */
	size_t row_bytes;
	uint64_t generation; /* the current one, not 0: slots of another are nobody's */
	uint32_t slot_count, page_count;
	uint32_t step; /* of the worker, ascending */
};

/* Bits of what a step must not be believed for: it is to be discarded and run the other way. */
enum kn_step_failure {
	KN_STEP_GENERATION = 1,   /* some of what was copied may be other data */
	KN_STEP_STAGING_FULL = 2, /* not all that was missing found room */
	KN_STEP_UNREACHABLE = 4   /* something missing lies where operations cannot read */
};

/* Where lookups put what is not in the cache, one for all the lookups of a step. */
struct kn_staging {
	uint8_t *memory; /* [rows][row_bytes] */
	uint32_t rows;
	uint32_t *used;             /* rows taken; lookups add to it, whoever begins a step zeroes it */
	struct kn_copy_job *copies; /* out [copy_capacity]: from units to staging, in no order */
	uint32_t copy_capacity;
	uint32_t *copy_count; /* out: of this lookup, at most copy_capacity */
	uint32_t *failed;     /* bits of kn_step_failure are set, never cleared */
};

/* An extent that is not, or not whole, in the cache. It is staged whole. */
struct kn_lookup_miss {
	uint32_t cluster, count; /* as in the extent */
	uint32_t held;           /* leading rows that its slot holds, below count; 0: no slot */
	uint32_t staged;         /* its first row in staging, or KN_NOT_STAGED */
};
#define KN_NOT_STAGED UINT32_MAX

struct kn_lookup_counts {
	uint32_t spans;                   /* written, `before` and `after` among them */
	uint32_t misses;                  /* entries of the miss list */
	uint32_t hit_tokens, miss_tokens; /* rows that slots hold (of misses, too), and the others */
};

/* One (sequence, KV head) of a lookup. Clusters are numbered across the sequence's segments, as in
 * selection; hints[c] says where cluster c may be, any value is allowed: a hint counts only where
 * the slot's generation, segment, layer, head and cluster are the wanted ones, and the slot only
 * while its chain stays within the pages. */
struct kn_lookup_job {
	const struct kn_extent *extents;         /* of the selection */
	const struct kn_select_counts *selected; /* its extent count */
	const uint32_t *hints;                   /* [clusters]: slots */
	const uint32_t *segment_of;              /* [clusters]: the list entry that it belongs to */
	const uint32_t *segment_first;           /* [entries]: first cluster of a list entry */
	const uint64_t *segment_ids;             /* [entries] */
	const uint32_t *first_row; /* [clusters]: where it starts in its unit's rows of this head */
	/* [entries]: this head's first row in the list entry's unit, memory that operations reach, or
	 * NULL: it is not reachable. */
	const uint8_t *const *unit_rows;
	uint32_t layer, head;
	struct kn_span before, after; /* sinks and window: first and last span; count 0: none */
	/* Out: where attention finds the extents' rows, in the order of the selection: hits in the
	 * cache's pages, adjoining pages of an extent as one span, misses in staging. Room for
	 * 2 + extents + tokens / KN_CACHE_PAGE_ROWS. */
	struct kn_span *spans;
	uint32_t *span_count;            /* out, what kn_attend_job.spans_written points at */
	struct kn_lookup_miss *misses;   /* out, in order of extents; room for all */
	struct kn_lookup_counts *counts; /* out */
};

/* cluster → slot → spans. What is missing gets rows of staging, and a copy job that brings it there
 * (gather_extents). An extent that finds no room in staging, or cannot be reached, has no span: a
 * bit of staging.failed is set, and nothing is written outside. Which misses get which rows differs
 * from run to run; what attention makes of them does not. */
struct kn_lookup_arguments {
	const struct kn_lookup_job *jobs;
	uint32_t job_count;
	struct kn_cache_table cache;
	struct kn_staging staging;
};

/* Bring missing extents over from the store's memory, then look whether that is still what it was:
 * the generation word is read behind the copies. Copies do not overlap. */
struct kn_gather_extents_arguments {
	const struct kn_copy_job *copies;
	const uint32_t *count; /* how many there are; above max_copies is KN_STEP_STAGING_FULL */
	uint32_t max_copies;
	const uint64_t *generation; /* NULL, or no copies: no look */
	uint64_t expected;
	uint32_t *failed; /* bits of kn_step_failure are set, never cleared */
};

#ifdef __cplusplus
}
#endif
#endif
