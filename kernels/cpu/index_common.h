/* The inner loops of indexing, one table for each CPU level, all with the same bits. Private to
 * kernels/cpu. */
#ifndef KN_CPU_INDEX_COMMON_H
#define KN_CPU_INDEX_COMMON_H

#include "kernels/cpu/attend_common.h"

/* The KV rows of one job. */
struct kn_index_rows {
	const uint8_t *rows;
	size_t stride; /* bytes */
	uint32_t n, head_dim;
	enum kn_kv_type type;
};

enum { KN_INDEX_TILE_KEYS = 64 };

/* One pass: labels[i] = the cluster c with the greatest dot(x, centroids[c]) / norms[c], the lowest
 * on a tie, where x = key i - mean; cosines[i] = that value / |x|. Dot products and the square of
 * |x| are chains of fused multiply-adds over ascending channels from 0; a norm of 0 counts as 1. A
 * NaN is never the greatest; with nothing but NaN the label is 0 and the cosine -inf (or NaN). */
struct kn_index_pass {
	const float *mean;      /* [head_dim] */
	const float *centroids; /* [clusters][head_dim], less the mean */
	const float *norms;     /* [clusters], no zeros */
	uint32_t clusters;
	float *tile;      /* scratch [head_dim][KN_INDEX_TILE_KEYS], 64-byte aligned */
	uint32_t *labels; /* out [n] */
	float *cosines;   /* out [n] */
};

struct kn_index_level {
	void (*assign)(const struct kn_index_rows *rows, const struct kn_index_pass *pass);
	/* sums[labels[i]] += the head_dim elements at `offset` bytes of row i, i ascending. NULL
	 * labels: all rows into sums[0]. */
	void (*sum)(
	    const struct kn_index_rows *rows, size_t offset, const uint32_t *labels, float *sums);
};

extern const struct kn_index_level kn_index_plain;
extern const struct kn_index_level kn_index_avx2;
extern const struct kn_index_level kn_index_avx512;

#endif
