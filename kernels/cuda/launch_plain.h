/* Launchers of the kernels of all that is not attention or clustering: norms, activation functions,
 * embedding, weights, matrix products with few rows, sampling.
 *
 * Each queues its kernels on `stream` and returns cudaGetLastError(): an error of the launch, not
 * of the run. Argument structs are read during the call; every array that they point at is memory
 * that the device reaches, at least 4-byte aligned, and is never read on the host. Nothing is
 * allocated, and arguments are checked by the caller: what a struct's comment asks for is taken for
 * granted. No rows, or a width of 0, launch nothing and succeed.
 *
 * Each row's bits depend on that row alone: not on how many rows there are, nor on addresses.
 */
#ifndef KN_CUDA_LAUNCH_PLAIN_H
#define KN_CUDA_LAUNCH_PLAIN_H

#include <cuda_runtime_api.h>

#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- norms and activation functions ---- */

/* One block of 256 threads for each row; the sum of squares is 256 chains and a tree, in double. */
cudaError_t kn_cuda_rms_norm(const struct kn_rms_norm_arguments *a, cudaStream_t stream);

/* out = (x - mean) / sqrt(variance + epsilon) * weight + bias, mean and variance in double, the
 * variance from the differences to the mean. Rows as in kn_rms_norm_arguments. */
struct kn_cuda_layer_norm_arguments {
	const float *x; /* [count][width], stride x_stride floats */
	size_t x_stride;
	const float *weight; /* [width] */
	const float *bias;   /* [width] or NULL */
	float *out;          /* [count][width], stride out_stride floats; may be x's memory */
	size_t out_stride;
	uint32_t count, width;
	float epsilon;
};
cudaError_t kn_cuda_layer_norm(const struct kn_cuda_layer_norm_arguments *a, cudaStream_t stream);

/* rms_norm of each head of q and k, in place, before they are rotated. One warp for each head. */
struct kn_cuda_qk_norm_arguments {
	float *q; /* [count][heads][head_dim], row stride q_stride floats */
	size_t q_stride;
	float *k; /* [count][kv_heads][head_dim], row stride k_stride floats */
	size_t k_stride;
	const float *q_weight, *k_weight; /* [head_dim] */
	uint32_t count, heads, kv_heads, head_dim;
	float epsilon;
};
cudaError_t kn_cuda_qk_norm(const struct kn_cuda_qk_norm_arguments *a, cudaStream_t stream);

/* silu(gate) * up: the bits of the cpu backend. One thread for each element. */
cudaError_t kn_cuda_silu_mul(const struct kn_silu_mul_arguments *a, cudaStream_t stream);

/* gelu(gate) * up with gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x³))). */
cudaError_t kn_cuda_gelu_mul(const struct kn_silu_mul_arguments *a, cudaStream_t stream);

/* ---- weights ---- */

/* Rows of a matrix, in GGUF blocks as in the file. */
struct kn_cuda_weight_part {
	enum kn_weight_type type;
	uint32_t first_row, rows; /* of the whole matrix */
	const uint8_t *data;      /* device memory, 256-byte aligned: rows × kn_weight_row_bytes */
};

/* A packed weight: a host struct about device memory. Types are kept as they are in the file, so a
 * weight takes the file's bytes and embed and matmul read the file's values; whoever has memory to
 * spare may pack a dequantised F16 part instead (kn_cuda_dequantise), which saves prefill the
 * dequantising and costs decode the bandwidth. */
struct kn_cuda_weight {
	uint32_t rows;
	uint32_t columns; /* a multiple of 32, as on the cpu backend; of 256 for the K types */
	enum kn_precision precision;
	uint32_t part_count;
	const struct kn_cuda_weight_part *parts; /* host memory, by rising first_row, without holes */
};

enum kn_cuda_float { KN_CUDA_F16, KN_CUDA_F32 };

/* out[i] = row first + i of the part, dequantised: [rows][columns] without gaps, 16-byte aligned.
 * The bits of kn_dequantise_row; F16 is that rounded to nearest, ties to even, and beyond ±65,504
 * saturated, as kn_half_from_float. One thread for eight elements. */
cudaError_t kn_cuda_dequantise(const struct kn_cuda_weight_part *part, uint32_t columns,
    uint32_t first, uint32_t rows, enum kn_cuda_float type, void *out, cudaStream_t stream);

/* kn_embed_arguments with this table (the struct's own is not read). Values as kn_cuda_dequantise
 * gives them, whatever the precision. The ids are device memory and thus not checked here: the row
 * of an id that the table does not have is all NaN. */
cudaError_t kn_cuda_embed(
    const struct kn_cuda_weight *table, const struct kn_embed_arguments *a, cudaStream_t stream);

/* kn_matmul_arguments with this weight (the struct's own is not read): for 1 to KN_MAX_DECODE_ROWS
 * rows, right for any number. Activations and sums are float at either precision, the weights are
 * read as blocks; each row's bits are the same in every batch. For more rows kn_cuda_gemm
 * (gemm_cublas.h) is the faster one. */
cudaError_t kn_cuda_gemv(
    const struct kn_cuda_weight *weight, const struct kn_matmul_arguments *a, cudaStream_t stream);

/* ---- around a GEMM ---- */

/* to[i] = x row i as float, without gaps: what a GEMM reads does not depend on x's address. */
cudaError_t kn_cuda_gemm_pack_f32(const float *x, size_t x_stride, float *to, uint32_t count,
    uint32_t columns, cudaStream_t stream);

/* The same as f16, each row multiplied by a power of two that brings its largest magnitude into
 * [2^14, 2^15), but by 2^100 at most: none overflows, and small values keep their bits as long as
 * f16's range lets them. unscale[i] undoes it. A row with an infinity or NaN keeps the factor 1. */
cudaError_t kn_cuda_gemm_pack_f16(const float *x, size_t x_stride, void *to, float *unscale,
    uint32_t count, uint32_t columns, cudaStream_t stream);

/* y[i][first_row + r] = (product[i][r] * unscale[i] + bias[first_row + r]) + add[i][first_row + r]
 * for count × rows, product without gaps. unscale, bias and add may be NULL; add may be y. */
struct kn_cuda_gemm_finish_arguments {
	const float *product, *unscale, *bias, *add;
	float *y;
	size_t y_stride; /* floats, of add too */
	uint32_t first_row, rows, count;
};
cudaError_t kn_cuda_gemm_finish(const struct kn_cuda_gemm_finish_arguments *a, cudaStream_t stream);

/* ---- sampling ---- */

/* How one row's token is picked: gpu-worker/text/sampler.h, without penalties. */
struct kn_cuda_sample_options {
	float temperature; /* 0: greedy, the lowest id wins a tie */
	uint32_t top_k;    /* 0: off */
	float top_p;       /* 1: off */
	float min_p;       /* 0: off; applied first, as the sampler does */
	double draw;       /* the random number, in [0, 1) */
};

/* Picks as gw_sampler_pick does, but for the sums: probabilities are whole multiples of 2^-42 of
 * the best one's, so that sums do not depend on their order. The two differ only where the draw, or
 * the share top_p, falls within that rounding of a token's edge. */
struct kn_cuda_sample_arguments {
	const float *logits; /* [count][vocabulary], row stride logits_stride floats */
	size_t logits_stride;
	const struct kn_cuda_sample_options *options; /* [count], device memory */
	int32_t *ids;                                 /* out [count] */
	uint32_t count, vocabulary;                   /* 1 ≤ vocabulary ≤ 2^20 */
};
size_t kn_cuda_sample_scratch_bytes(uint32_t count, uint32_t vocabulary);
/* scratch: so many bytes of device memory, 16-byte aligned. */
cudaError_t kn_cuda_sample(
    const struct kn_cuda_sample_arguments *a, void *scratch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
