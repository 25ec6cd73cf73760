/* The ops that work row by row: rms_norm, rotate, silu_mul, copy. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/kernel_harness.h"

/* Enough rows for tasks on several threads, more than the backend's chunk. */
enum { COUNT = 131 };

/* The first backend's bits; all others must give the same. */
struct kept {
	float *values;
	size_t count;
};

static void check_bits(
    const struct kvt_backend *b, struct kept *kept, const float *values, size_t count)
{
	if (!kept->values) {
		kept->values = kvt_alloc(count, sizeof(float));
		kept->count = count;
		memcpy(kept->values, values, count * sizeof(float));
	}
	assert_int_equal(kept->count, count);
	kvt_assert_same_bits(b->name, values, kept->values, count * sizeof(float));
}

static void check_rms_norm(const struct kvt_backend *b, uint32_t width, struct kept *kept)
{
	uint32_t in = width + 5, out = width + 2;
	float *x = kvt_alloc(COUNT * in, sizeof(float)), *y = kvt_alloc(COUNT * out, sizeof(float));
	float *weight = kvt_alloc(width, sizeof(float)), *one = kvt_alloc(width, sizeof(float));
	double *want = kvt_alloc(COUNT * out, sizeof(double));
	struct kv_random random;

	kv_random_seed(&random, width);
	kvt_fill_peaky(&random, x, COUNT * in, 3.0f);
	kvt_fill_peaky(&random, weight, width, 1.0f);
	memset(x, 0, width * sizeof(float));
	for (uint32_t n = 0; n < COUNT; n++) {
		double sum = 0.0;

		for (uint32_t k = 0; k < width; k++)
			sum += (double)x[n * in + k] * (double)x[n * in + k];
		for (uint32_t k = 0; k < width; k++)
			want[n * out + k] =
			    (double)x[n * in + k] / sqrt(sum / width + 1e-5) * (double)weight[k];
	}
	struct kn_rms_norm_arguments a = {x, in, weight, y, out, COUNT, width, 1e-5f};

	assert_int_equal(b->ops->rms_norm(b->backend, NULL, &a), KV_OK);
	kvt_assert_close(b->name, y, want, COUNT * out, 1e-5, 1e-6);
	check_bits(b, kept, y, COUNT * out);
	a.x = x + 77 * in;
	a.out = one;
	a.count = 1;
	assert_int_equal(b->ops->rms_norm(b->backend, NULL, &a), KV_OK);
	kvt_assert_same_bits("one row alone", one, y + 77 * out, width * sizeof(float));
	kvt_free(want);
	kvt_free(one);
	kvt_free(weight);
	kvt_free(y);
	kvt_free(x);
}

static const uint32_t widths[] = {1, 7, 8, 64, 576, 899};

static void each_rms_norm(const struct kvt_backend *b, void *context)
{
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
		check_rms_norm(b, widths[i], (struct kept *)context + i);
}

static void run_kept(kvt_backend_test *test)
{
	struct kept kept[8] = {{NULL, 0}};

	kvt_each_backend(test, kept);
	for (size_t i = 0; i < 8; i++)
		kvt_free(kept[i].values);
}

static void test_rms_norm(void **state)
{
	(void)state;
	run_kept(each_rms_norm);
}

static void reference_rotate(const struct kn_rotate_arguments *a, const float *x, double *want)
{
	for (uint32_t n = 0; n < a->count; n++)
		for (uint32_t h = 0; h < a->heads; h++)
			for (uint32_t i = 0; i < a->head_dim; i++) {
				size_t base = n * a->x_stride + (size_t)h * a->head_dim;
				uint32_t half = a->rotary_dim / 2;
				uint32_t pair = a->adjacent_pairs ? i / 2 : i % half;
				int second = a->adjacent_pairs ? i % 2 == 1 : i >= half;

				want[base + i] = (double)x[base + i];
				if (i >= a->rotary_dim) continue;
				double angle = (double)a->positions[n] * (double)a->inverse_frequency[pair];
				double p = (double)x[base + (a->adjacent_pairs ? 2 * pair : pair)];
				double q = (double)x[base + (a->adjacent_pairs ? 2 * pair + 1 : pair + half)];

				want[base + i] =
				    second ? p * sin(angle) + q * cos(angle) : p * cos(angle) - q * sin(angle);
			}
}

static void check_rotate(const struct kvt_backend *b, uint32_t head_dim, uint32_t rotary_dim,
    int adjacent, uint32_t first_position, struct kept *kept)
{
	enum { HEADS = 3 };
	size_t stride = HEADS * head_dim + 4, total = COUNT * stride;
	float *x = kvt_alloc(total, sizeof(float)), *y = kvt_alloc(total, sizeof(float));
	double *want = kvt_alloc(total, sizeof(double));
	float frequencies[KN_MAX_HEAD_DIM / 2];
	uint32_t positions[COUNT];
	struct kv_random random;

	kv_random_seed(&random, head_dim);
	kvt_fill_peaky(&random, x, total, 1.0f);
	for (uint32_t i = 0; i < rotary_dim / 2; i++)
		frequencies[i] = (float)pow(10000.0, -2.0 * i / rotary_dim);
	for (uint32_t n = 0; n < COUNT; n++)
		positions[n] = first_position + n * 3;
	struct kn_rotate_arguments a = {
	    y, stride, positions, frequencies, COUNT, HEADS, head_dim, rotary_dim, adjacent};

	reference_rotate(&a, x, want);
	for (uint32_t n = 0; n < COUNT; n++)
		for (size_t i = HEADS * head_dim; i < stride; i++)
			want[n * stride + i] = (double)x[n * stride + i];
	/* Twice with the same positions, then with others: the second call may reuse the first's sines,
	 * the third must not. */
	for (int round = 0; round < 2; round++) {
		memcpy(y, x, total * sizeof(float));
		assert_int_equal(b->ops->rotate(b->backend, NULL, &a), KV_OK);
		kvt_assert_close(b->name, y, want, total, 1e-5, 1e-6);
	}
	check_bits(b, kept, y, total);
	positions[0] += 5;
	memcpy(y, x, total * sizeof(float));
	reference_rotate(&a, x, want);
	assert_int_equal(b->ops->rotate(b->backend, NULL, &a), KV_OK);
	for (uint32_t i = 0; i < head_dim; i++)
		assert_true(fabs((double)y[i] - want[i]) < 1e-4);
	/* One row alone gives the bits that it has in the batch. */
	a.x = y + 70 * stride;
	a.positions = positions + 70;
	a.count = 1;
	memcpy(y, x, total * sizeof(float));
	assert_int_equal(b->ops->rotate(b->backend, NULL, &a), KV_OK);
	kvt_assert_same_bits("one row alone", y + 70 * stride, kept->values + 70 * stride,
	    HEADS * head_dim * sizeof(float));
	kvt_free(want);
	kvt_free(y);
	kvt_free(x);
}

static void each_rotate(const struct kvt_backend *b, void *context)
{
	struct kept *kept = context;

	check_rotate(b, 64, 64, 1, 0, &kept[0]);
	check_rotate(b, 64, 64, 0, 30000, &kept[1]);
	check_rotate(b, 80, 32, 0, 100, &kept[2]);
	check_rotate(b, 2, 2, 1, 1, &kept[3]);
	check_rotate(b, 256, 256, 0, 7, &kept[4]);
}

static void test_rotate(void **state)
{
	(void)state;
	run_kept(each_rotate);
}

static void check_silu_mul(const struct kvt_backend *b, void *context)
{
	enum { WIDTH = 213 };
	float *in = kvt_alloc(COUNT * 2 * WIDTH, sizeof(float));
	float *out = kvt_alloc(COUNT * WIDTH, sizeof(float));
	double *want = kvt_alloc(COUNT * WIDTH, sizeof(double));
	struct kv_random random;

	kv_random_seed(&random, 3);
	kvt_fill_peaky(&random, in, COUNT * 2 * WIDTH, 2.0f);
	in[0] = -100.0f;
	in[1] = 100.0f;
	in[2] = -1e30f;
	in[3] = 1e30f;
	in[4] = 0.0f;
	in[WIDTH + 2] = 1.0f;
	in[WIDTH + 3] = 1e-30f;
	for (uint32_t n = 0; n < COUNT; n++)
		for (uint32_t k = 0; k < WIDTH; k++) {
			double g = (double)in[n * 2 * WIDTH + k], u = (double)in[n * 2 * WIDTH + WIDTH + k];

			want[n * WIDTH + k] = g / (1.0 + exp(-g)) * u;
		}
	struct kn_silu_mul_arguments a = {in, in + WIDTH, 2 * WIDTH, out, WIDTH, COUNT, WIDTH};

	assert_int_equal(b->ops->silu_mul(b->backend, NULL, &a), KV_OK);
	kvt_assert_close(b->name, out, want, COUNT * WIDTH, 1e-5, 1e-6);
	/* Each element on its own, too: rms would hide a wrong small one. */
	for (uint32_t i = 0; i < COUNT * WIDTH; i++)
		if (fabs((double)out[i] - want[i]) > 1e-6 * fabs(want[i]) + 1e-30)
			fail_msg("%s: element %u is %g, not %g", b->name, i, (double)out[i], want[i]);
	check_bits(b, context, out, COUNT * WIDTH);
	a.out = in;
	a.out_stride = 2 * WIDTH;
	assert_int_equal(b->ops->silu_mul(b->backend, NULL, &a), KV_OK);
	for (uint32_t n = 0; n < COUNT; n++)
		kvt_assert_same_bits(
		    "in place", in + n * 2 * WIDTH, out + n * WIDTH, WIDTH * sizeof(float));
	kvt_free(want);
	kvt_free(out);
	kvt_free(in);
}

static void test_silu_mul(void **state)
{
	(void)state;
	run_kept(check_silu_mul);
}

static void check_copy(const struct kvt_backend *b, void *context)
{
	enum { JOBS = 50, ROOM = 9000 };
	uint8_t *from = kvt_alloc(JOBS, ROOM), *to = kvt_alloc(JOBS, ROOM);
	struct kn_copy_job jobs[JOBS];

	(void)context;
	for (uint32_t i = 0; i < JOBS * ROOM; i++)
		from[i] = (uint8_t)(i * 2654435761u >> 24);
	for (uint32_t i = 0; i < JOBS; i++)
		jobs[i] = (struct kn_copy_job){from + i * ROOM, to + i * ROOM, i % 7 ? i * 170u : 0u};
	jobs[0].source = NULL;
	struct kn_copy_arguments a = {jobs, JOBS};

	assert_int_equal(b->ops->copy(b->backend, NULL, &a), KV_OK);
	for (uint32_t i = 0; i < JOBS; i++)
		for (uint32_t k = 0; k < ROOM; k++)
			if (to[i * ROOM + k] != (k < jobs[i].bytes ? from[i * ROOM + k] : 0))
				fail_msg("%s: job %u byte %u", b->name, i, k);
	jobs[0].bytes = 1;
	assert_int_equal(b->ops->copy(b->backend, NULL, &a), KV_INVALID);
	kvt_free(to);
	kvt_free(from);
}

static void test_copy(void **state)
{
	(void)state;
	kvt_each_backend(check_copy, NULL);
}

static void test_refusals(void **state)
{
	struct kvt_backend b;
	float x[600] = {0};
	uint32_t position = 0;

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	struct kn_rotate_arguments r = {x, 64, &position, x, 1, 1, 64, 63, 0};

	assert_int_equal(b.ops->rotate(b.backend, NULL, &r), KV_INVALID);
	r.rotary_dim = 66;
	assert_int_equal(b.ops->rotate(b.backend, NULL, &r), KV_INVALID);
	r.head_dim = r.rotary_dim = 2 * KN_MAX_HEAD_DIM;
	assert_int_equal(b.ops->rotate(b.backend, NULL, &r), KV_INVALID);
	struct kn_rms_norm_arguments n = {x, 64, NULL, x, 64, 1, 64, 1e-5f};

	assert_int_equal(b.ops->rms_norm(b.backend, NULL, &n), KV_INVALID);
	struct kn_silu_mul_arguments s = {x, NULL, 64, x, 64, 1, 64};

	assert_int_equal(b.ops->silu_mul(b.backend, NULL, &s), KV_INVALID);
	kvt_backend_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_rms_norm),
	    cmocka_unit_test(test_rotate),
	    cmocka_unit_test(test_silu_mul),
	    cmocka_unit_test(test_copy),
	    cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
