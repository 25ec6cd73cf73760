/* Rounding new keys and values to KV rows: one thread for eight elements of a row.
 *
 * Bandwidth is all there is to it, and little of that: a decode step stores one row a head, a
 * prefill chunk reads 8 bytes for each element of a row and writes 2. Loads are single floats, for
 * the rows of a packed q, k, v product need no more alignment: neighbours' loads fall into the same
 * lines. Stores are 16 bytes where rows and strides allow, else 4. Under 32 registers, no shared
 * memory. */
#include "kernels/cuda/kv_element.cuh"
#include "kernels/cuda/launch_attention.h"

namespace
{
enum { THREADS = 128 };

__device__ __forceinline__ void store_words(uint8_t *to, const uint32_t *words, bool aligned)
{
	if (aligned) {
		*(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
	} else {
		for (uint32_t i = 0; i < 4; i++)
			((uint32_t *)to)[i] = words[i];
	}
}

/* Thread i has chunk i % chunks of KV row i / chunks; the chunks are first the key's, then the
 * value's. */
template <enum kn_kv_type TYPE>
__global__ void __launch_bounds__(THREADS)
    store_kv_kernel(const struct kn_store_kv_arguments a, bool aligned)
{
	uint32_t key_chunks = a.head_dim / 8, chunks = 2 * key_chunks;
	uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x, row = i / chunks;
	if (row >= (uint64_t)a.count * a.kv_heads) return;
	uint32_t chunk = (uint32_t)(i % chunks);
	size_t token = (size_t)(row / a.kv_heads), head = (size_t)(row % a.kv_heads);
	const float *from =
	    chunk < key_chunks
	        ? a.k + token * a.k_stride + head * a.head_dim + chunk * 8
	        : a.v + token * a.v_stride + head * a.head_dim + (chunk - key_chunks) * 8;
	uint8_t *to = a.rows + token * a.token_stride + head * a.head_stride +
	              (size_t)chunk * 8 * kn_element_bytes(TYPE);
	uint32_t words[8];
	if constexpr (TYPE == KN_KV_F32) {
#pragma unroll
		for (uint32_t j = 0; j < 8; j++)
			words[j] = __float_as_uint(from[j]);
		store_words(to + 16, words + 4, aligned);
	} else {
#pragma unroll
		for (uint32_t j = 0; j < 4; j++)
			words[j] = kn_narrow_pair<TYPE>(from[2 * j], from[2 * j + 1]);
	}
	store_words(to, words, aligned);
}
} // namespace

extern "C" cudaError_t kn_cuda_store_kv(const struct kn_store_kv_arguments *a, cudaStream_t stream)
{
	uint64_t threads = (uint64_t)a->count * a->kv_heads * (a->head_dim / 4);
	if (threads == 0) return cudaSuccess;
	uint64_t blocks = (threads - 1) / THREADS + 1;
	if (blocks > 0x7fffffffu) return cudaErrorInvalidValue;
	bool aligned = ((uintptr_t)a->rows | a->token_stride | a->head_stride) % 16 == 0;
	unsigned grid = (unsigned)blocks;
	if (a->kv_type == KN_KV_F32)
		LAUNCH(store_kv_kernel<KN_KV_F32>, grid, THREADS, 0, stream, *a, aligned);
	else if (a->kv_type == KN_KV_BF16)
		LAUNCH(store_kv_kernel<KN_KV_BF16>, grid, THREADS, 0, stream, *a, aligned);
	else
		LAUNCH(store_kv_kernel<KN_KV_F16>, grid, THREADS, 0, stream, *a, aligned);
	return cudaGetLastError();
}
