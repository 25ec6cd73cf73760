/* The inner loops of attention and scoring, one table for each CPU level. Private to kernels/cpu.
 *
 * All exponentials are taken to base 2: queries are scaled by scale * log2(e) once, so that a
 * weight is exp2(logit - max). Weights of a block lie in chunks of 16 rows, [chunk][query
 * head][16]: a fixed large stride for each query head would put them all into one cache set.
 */
#ifndef KN_CPU_ATTEND_COMMON_H
#define KN_CPU_ATTEND_COMMON_H

#include "kernels/backend.h"

/* The AVX2 and AVX-512 loops are in this build. */
#if defined(__x86_64__)
#define KN_CPU_VECTORS 1
#else
#define KN_CPU_VECTORS 0
#endif

#define KN_LOG2E 1.44269504088896340736f

/* Weights below 2^-115 count as zero. Above that bound a weight times any fp16 value is not zero in
 * fp32, which the sign of a zero sum would otherwise depend on. */
#define KN_EXP2_LEAST (-115.0f)

/* 2^f on [-1/2, 1/2] as a polynomial with the constant 1, so that 2^0 is exactly 1; minimax to
 * 2e-9. */
#define KN_EXP2_1 0.6931472057f
#define KN_EXP2_2 0.2402264689f
#define KN_EXP2_3 0.05550328777f
#define KN_EXP2_4 0.009618488957f
#define KN_EXP2_5 0.001339993122f
#define KN_EXP2_6 0.0001534581201f

enum {
	KN_SPARSE_ROWS = 256,   /* rows of one block of decode attention: part of the result's bits */
	KN_ESTIMATE_ROWS = 512, /* clusters of one block of the estimate: likewise */
	KN_ROWS_AHEAD = 64,     /* entries readable behind a row list, for prefetching */
	KN_WEIGHT_CHUNK = 16
};

/* One block of rows and what it adds up to. */
struct kn_rows_block {
	const uint8_t *const *rows; /* [count + KN_ROWS_AHEAD]: where each row starts */
	const float *q;             /* [group][head_dim], 64-byte aligned */
	float *weights;             /* [ceil(count / 16)][group][16] */
	const float *multiplier;    /* [count rounded up to 16] or NULL: factors of the weights */
	float *max, *sum;           /* out [group] */
	float *out;                 /* out [group][head_dim] */
	uint32_t count;             /* 1 .. KN_ESTIMATE_ROWS */
	uint32_t group, head_dim;
	size_t value_offset;  /* bytes from a row's start to its values */
	enum kn_kv_type type; /* of the rows */
};

struct kn_rows_level {
	/* weights = q · row, for the first head_dim elements of each row; -inf behind the last row. */
	void (*scores)(const struct kn_rows_block *block);
	/* weights = exp2(weights - max) * multiplier, with max and sum over the rows. */
	void (*softmax)(const struct kn_rows_block *block);
	/* out = sum of weight * values. */
	void (*values)(const struct kn_rows_block *block);
};

extern const struct kn_rows_level kn_rows_plain;
extern const struct kn_rows_level kn_rows_avx2;
extern const struct kn_rows_level kn_rows_avx512;
const struct kn_rows_level *kn_rows_level(enum kn_cpu_level level);

enum { KN_DENSE_KEYS = 64 }; /* keys of one block of prefill attention: part of the result's bits */

/* A tile of query rows, one in each lane, against one block of keys. Key j of the block is token
 * first + j; a lane sees the tokens below visible[lane]. max starts at -inf, sum and out at 0. */
struct kn_dense_tile {
	const float *q;         /* [head_dim][lanes] */
	const float *k, *v;     /* [KN_DENSE_KEYS][head_dim] */
	const int32_t *visible; /* [lanes] */
	float *max, *sum;       /* in and out [lanes] */
	float *out;             /* in and out [head_dim][lanes] */
	float *weights;         /* scratch [KN_DENSE_KEYS][lanes] */
	int32_t first;
	uint32_t keys; /* 1 .. KN_DENSE_KEYS; the lanes see none behind them */
	uint32_t head_dim;
	int masked; /* some lane does not see all the keys */
};

struct kn_dense_level {
	uint32_t lanes;
	/* One KV row to floats. */
	void (*widen)(const uint8_t *row, enum kn_kv_type type, uint32_t head_dim, float *k, float *v);
	void (*block)(const struct kn_dense_tile *tile);
};

enum { KN_DENSE_MAX_LANES = 64 };

extern const struct kn_dense_level kn_dense_plain;
extern const struct kn_dense_level kn_dense_avx2;
extern const struct kn_dense_level kn_dense_avx512;

/* Votes of one job from its logits: votes[c] = sum over heads of softmax(logit + log_size). Without
 * the size term the softmax is over the logits of the clusters whose log_size is not -inf. */
struct kn_votes {
	const float *logits;    /* [group][stride] */
	const float *log_sizes; /* [clusters] */
	float *weights;         /* scratch [clusters] */
	float *votes;           /* out [clusters] */
	size_t stride;
	uint32_t clusters, group;
	int size_term;
};
void kn_votes_plain(const struct kn_votes *v);
void kn_votes_avx2(const struct kn_votes *v);
void kn_votes_avx512(const struct kn_votes *v);
void (*kn_votes_level(enum kn_cpu_level level))(const struct kn_votes *);

#endif
