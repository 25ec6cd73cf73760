/* A weight on both sides, an input, and their product: exact and the cpu backend's. What the tests
 * of matrix products compare with. Include cmocka's headers before this one. */
#ifndef KVT_PRODUCT_H
#define KVT_PRODUCT_H

#include "kernels/cuda/launch_plain.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVT_PRODUCT_PARTS = 3 };

struct kvt_product {
	uint32_t count, columns, x_stride; /* x_stride: more than columns, no multiple of 4 floats */
	struct kn_weight_part parts[KVT_PRODUCT_PARTS];
	struct kn_cuda_weight_part cuda_parts[KVT_PRODUCT_PARTS];
	struct kn_cuda_weight weight; /* of device memory, for float precision */
	float *host_x, *x;            /* [count][x_stride] */
	double *want;                 /* [count][rows] */
	float *cpu;                   /* [count][rows] */
};

/* `count` rows of input times parts of these types and rows, stacked. `columns`: a multiple of 32,
 * or of 256 where a type asks for it. */
void kvt_product_create(struct kvt_product *product, uint32_t count, uint32_t columns,
    uint32_t part_count, const enum kn_weight_type *types, const uint32_t *rows);
/* `want` from host_x, which was changed. */
void kvt_product_again(struct kvt_product *product);
void kvt_product_destroy(struct kvt_product *product);

#ifdef __cplusplus
}
#endif
#endif
