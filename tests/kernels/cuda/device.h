/* Device memory for the tests of CUDA kernels, on the emulator and on a GPU alike: they reach it
 * through these (cudaMalloc and cudaMemcpy) alone.
 *
 * Include cmocka's headers before this one: any failure fails the test. Peaky inputs and the
 * comparisons are those of tests/lib/kernel_harness.h (kvt_fill_peaky, kvt_assert_close,
 * kvt_assert_same_bits).
 */
#ifndef KVT_DEVICE_H
#define KVT_DEVICE_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fail the test, naming the call, unless it gave cudaSuccess. */
#define DEV_OK(call) dev_check((call), #call, __FILE__, __LINE__)
void dev_check(cudaError_t error, const char *call, const char *file, int line);

/* Device memory; under the emulator it is filled with NaN and ends at an unmapped page, to 16
 * bytes. */
void *dev_alloc(size_t bytes);
void dev_free(void *memory);
/* dev_alloc with a copy of `bytes` from the host. */
void *dev_upload(const void *host, size_t bytes);
void dev_write(void *device, const void *host, size_t bytes);
/* Waits for all that was queued on the device. */
void dev_download(void *host, const void *device, size_t bytes);
/* The same into new memory, to be freed with kvt_free. */
void *dev_fetch(const void *device, size_t bytes);
/* Wait for what was launched on the default stream and fail the test if it failed. */
void dev_wait(void);

/* How much larger than under emulation sizes may be: 1, or KV_CUDA_TEST_SCALE (on a GPU). */
size_t dev_scale(void);

/* Seeded numbers from [0, 1); the same state gives the same series. */
float dev_random(uint64_t *state);

#ifdef __cplusplus
}
#endif
#endif
