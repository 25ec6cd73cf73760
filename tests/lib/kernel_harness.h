/* What the kernel tests share: a CPU backend at every level of this machine and with several thread
 * counts, inputs with peaks, and comparisons that say where they failed.
 *
 * Uses cmocka's assertions: include the cmocka headers before this one is used in a test program.
 */
#ifndef KVT_KERNEL_HARNESS_H
#define KVT_KERNEL_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/random.h"
#include "kernels/backend.h"

struct kvt_backend {
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	struct kv_allocator *allocator; /* its own: closing checks that nothing leaked */
	enum kn_cpu_level level;
	uint32_t threads;
	char name[32]; /* "avx512 x 2" */
};

enum { KVT_MAX_ROWS = 48, KVT_MAX_COLUMNS = 8192 };

/* Open the cpu backend. 0 when this machine lacks the level; fails the test on any other error. */
int kvt_backend_open(struct kvt_backend *b, enum kn_cpu_level level, uint32_t threads);
void kvt_backend_close(struct kvt_backend *b);

/* Run `test` with each level {plain, avx2, avx512} that the machine has × threads {1, 2, 3}. The
 * first call is plain with one thread: a test may keep its result to compare bits with. */
typedef void kvt_backend_test(const struct kvt_backend *b, void *context);
void kvt_each_backend(kvt_backend_test *test, void *context);

/* Zeroed memory, 64-byte aligned, that must be had; freed with kvt_free. */
void *kvt_alloc(size_t count, size_t size);
void kvt_free(void *block);

/* Normal values, of which one in 37 is a peak some 20 times as large: what activations look like,
 * and what uniform inputs would never show. */
void kvt_fill_peaky(struct kv_random *random, float *x, size_t count, float scale);

/* Rows of GGUF blocks with random codes and sane scales (F32, F16, BF16: peaky values). `data` has
 * room for rows * kn_weight_row_bytes(type, columns). */
void kvt_fill_weights(struct kv_random *random, enum kn_weight_type type, uint8_t *data,
    uint32_t rows, uint32_t columns);

/* All weight types, and their names. */
extern const enum kn_weight_type kvt_weight_types[11];
const char *kvt_weight_type_name(enum kn_weight_type type);

/* got against want: largest and rms difference, both divided by the rms of want. */
struct kvt_error {
	double max, rms;
	size_t worst; /* index of the largest difference */
};
struct kvt_error kvt_compare(const float *got, const double *want, size_t count);

/* Fail the test, naming `what`, when the errors of kvt_compare are larger, or a value is not
 * finite. */
void kvt_assert_close(
    const char *what, const float *got, const double *want, size_t count, double max, double rms);

/* Fail, naming the first byte that differs. */
void kvt_assert_same_bits(const char *what, const void *a, const void *b, size_t bytes);

#endif
