/* The CUDA operations that work row by row: rms_norm, layer_norm, qk_norm, silu_mul, gelu_mul. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/launch_plain.h"
#include "tests/kernels/cuda/device.h"
#include "tests/lib/kernel_harness.h"

enum { COUNT = 17 };

/* Input rows on both sides, and what they are multiplied with. */
struct rows {
	uint32_t width, in, out; /* in and out: strides */
	float *host, *host_weight, *host_bias;
	float *x, *weight, *bias; /* on the device */
};

static void rows_create(struct rows *r, uint32_t width, uint32_t in, uint32_t out)
{
	struct kv_random random;

	*r = (struct rows){.width = width, .in = in, .out = out};
	kv_random_seed(&random, width);
	r->host = kvt_alloc((size_t)COUNT * in, sizeof(float));
	r->host_weight = kvt_alloc(width, sizeof(float));
	r->host_bias = kvt_alloc(width, sizeof(float));
	kvt_fill_peaky(&random, r->host, (size_t)COUNT * in, 3.0f);
	kvt_fill_peaky(&random, r->host_weight, width, 1.0f);
	kvt_fill_peaky(&random, r->host_bias, width, 1.0f);
	memset(r->host, 0, width * sizeof(float));
	r->x = dev_upload(r->host, (size_t)COUNT * in * sizeof(float));
	r->weight = dev_upload(r->host_weight, width * sizeof(float));
	r->bias = dev_upload(r->host_bias, width * sizeof(float));
}

static void rows_destroy(struct rows *r)
{
	dev_free(r->x);
	dev_free(r->weight);
	dev_free(r->bias);
	kvt_free(r->host);
	kvt_free(r->host_weight);
	kvt_free(r->host_bias);
}

/* Rows first … first + count to out. */
typedef cudaError_t launch_rows(const struct rows *r, uint32_t first, uint32_t count, float *out);

/* COUNT rows at once, and then the same in calls of 1, 3 and 16, which start at other addresses:
 * the same bits. The result without gaps. */
static float *run_rows(const struct rows *r, launch_rows *launch)
{
	static const uint32_t cuts[] = {COUNT, 1, 3, 16};
	size_t bytes = (size_t)COUNT * r->out * sizeof(float);
	float *kept = kvt_alloc((size_t)COUNT * r->width, sizeof(float));

	for (uint32_t i = 0; i < 4; i++) {
		float *device = dev_alloc(bytes);

		for (uint32_t n = 0; n < COUNT; n += cuts[i]) {
			uint32_t count = COUNT - n < cuts[i] ? COUNT - n : cuts[i];

			DEV_OK(launch(r, n, count, device + (size_t)n * r->out));
		}
		dev_wait();
		float *host = dev_fetch(device, bytes);

		for (uint32_t n = 0; n < COUNT; n++) {
			const float *row = host + (size_t)n * r->out;

			if (i == 0)
				memcpy(kept + (size_t)n * r->width, row, r->width * sizeof *row);
			else
				kvt_assert_same_bits("rows in smaller calls", row, kept + (size_t)n * r->width,
				    r->width * sizeof *row);
		}
		kvt_free(host);
		dev_free(device);
	}
	return kept;
}

/* Each value within a few units of the last place of the double reference. */
static void check_values(const char *what, const struct rows *r, const float *got,
    const double *want, double relative, double absolute)
{
	for (size_t i = 0; i < (size_t)COUNT * r->width; i++)
		if (!(fabs((double)got[i] - want[i]) <= relative * fabs(want[i]) + absolute))
			fail_msg("%s: width %u, element %zu is %.9g, not %.9g", what, r->width, i,
			    (double)got[i], want[i]);
}

static cudaError_t launch_rms_norm(const struct rows *r, uint32_t first, uint32_t count, float *out)
{
	struct kn_rms_norm_arguments a = {
	    r->x + (size_t)first * r->in, r->in, r->weight, out, r->out, count, r->width, 1e-5f};

	return kn_cuda_rms_norm(&a, NULL);
}

static void cpu_rms_norm(const struct rows *r, float *out)
{
	struct kvt_backend cpu;
	struct kn_rms_norm_arguments a = {
	    r->host, r->in, r->host_weight, out, r->width, COUNT, r->width, 1e-5f};

	assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
	assert_int_equal(cpu.ops->rms_norm(cpu.backend, NULL, &a), KV_OK);
	kvt_backend_close(&cpu);
}

static const uint32_t widths[] = {1, 31, 259};

enum { WIDTHS = sizeof widths / sizeof *widths };

static void test_rms_norm(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < WIDTHS; i++) {
		struct rows r;
		uint32_t width = widths[i] * (uint32_t)dev_scale();

		rows_create(&r, width, width + 5, width + 2);
		float *got = run_rows(&r, launch_rms_norm);
		float *cpu = kvt_alloc((size_t)COUNT * width, sizeof(float));
		double *want = kvt_alloc((size_t)COUNT * width, sizeof(double));

		cpu_rms_norm(&r, cpu);
		for (uint32_t n = 0; n < COUNT; n++) {
			const float *x = r.host + (size_t)n * r.in;
			double sum = 0.0;

			for (uint32_t k = 0; k < width; k++)
				sum += (double)x[k] * (double)x[k];
			for (uint32_t k = 0; k < width; k++)
				want[(size_t)n * width + k] =
				    (double)x[k] / sqrt(sum / width + 1e-5) * (double)r.host_weight[k];
		}
		check_values("rms_norm", &r, got, want, 3e-7, 0.0);
		for (size_t k = 0; k < (size_t)COUNT * width; k++)
			want[k] = (double)cpu[k];
		/* The sums' order alone may move the factor, by one unit. */
		check_values("rms_norm against cpu", &r, got, want, 2.5e-7, 0.0);
		kvt_free(want);
		kvt_free(cpu);
		kvt_free(got);
		rows_destroy(&r);
	}
}

static cudaError_t launch_layer_norm(
    const struct rows *r, uint32_t first, uint32_t count, float *out)
{
	struct kn_cuda_layer_norm_arguments a = {r->x + (size_t)first * r->in, r->in, r->weight,
	    r->width % 2 ? r->bias : NULL, out, r->out, count, r->width, 1e-5f};

	return kn_cuda_layer_norm(&a, NULL);
}

static void test_layer_norm(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < WIDTHS; i++) {
		struct rows r;
		uint32_t width = widths[i] * (uint32_t)dev_scale();

		rows_create(&r, width, width + 5, width + 2);
		/* A mean that is large beside the deviations: squares minus squared mean would cancel. */
		for (uint32_t k = 0; k < width; k++)
			r.host[r.in + k] += 20000.0f;
		dev_write(r.x, r.host, (size_t)COUNT * r.in * sizeof(float));
		float *got = run_rows(&r, launch_layer_norm);
		double *want = kvt_alloc((size_t)COUNT * width, sizeof(double));

		for (uint32_t n = 0; n < COUNT; n++) {
			const float *x = r.host + (size_t)n * r.in;
			double mean = 0.0, variance = 0.0;

			for (uint32_t k = 0; k < width; k++)
				mean += (double)x[k] / width;
			for (uint32_t k = 0; k < width; k++)
				variance += ((double)x[k] - mean) * ((double)x[k] - mean) / width;
			for (uint32_t k = 0; k < width; k++)
				want[(size_t)n * width + k] =
				    ((double)x[k] - mean) / sqrt(variance + 1e-5) * (double)r.host_weight[k] +
				    (width % 2 ? (double)r.host_bias[k] : 0.0);
		}
		check_values("layer_norm", &r, got, want, 1e-6, 1e-6);
		kvt_free(want);
		kvt_free(got);
		rows_destroy(&r);
	}
}

/* gate and up side by side in a row of twice the width. */
static cudaError_t launch_silu_mul(const struct rows *r, uint32_t first, uint32_t count, float *out)
{
	const float *gate = r->x + (size_t)first * r->in;
	struct kn_silu_mul_arguments a = {gate, gate + r->width, r->in, out, r->out, count, r->width};

	return kn_cuda_silu_mul(&a, NULL);
}

static cudaError_t launch_gelu_mul(const struct rows *r, uint32_t first, uint32_t count, float *out)
{
	const float *gate = r->x + (size_t)first * r->in;
	struct kn_silu_mul_arguments a = {gate, gate + r->width, r->in, out, r->out, count, r->width};

	return kn_cuda_gelu_mul(&a, NULL);
}

/* Values where exponentials end, zero and small ones. */
static void place_extremes(struct rows *r)
{
	static const float extremes[] = {-100.0f, 100.0f, -1e30f, 1e30f, 0.0f, -20.0f, -5.0f, 1e-30f};

	memcpy(r->host + r->in, extremes, sizeof extremes);
	r->host[r->in + r->width + 2] = 1.0f;
	r->host[r->in + r->width + 3] = 1e-30f;
	dev_write(r->x, r->host, (size_t)COUNT * r->in * sizeof(float));
}

static double silu(double x)
{
	return x / (1.0 + exp(-x));
}

static double gelu(double x)
{
	return x / (1.0 + exp(-2.0 * sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void test_activations(void **state)
{
	(void)state;
	for (int is_gelu = 0; is_gelu < 2; is_gelu++) {
		struct rows r;
		uint32_t width = 259 * (uint32_t)dev_scale();

		rows_create(&r, width, 2 * width + 1, width + 3);
		place_extremes(&r);
		float *got = run_rows(&r, is_gelu ? launch_gelu_mul : launch_silu_mul);
		double *want = kvt_alloc((size_t)COUNT * width, sizeof(double));

		for (uint32_t n = 0; n < COUNT; n++)
			for (uint32_t k = 0; k < width; k++) {
				double gate = (double)r.host[(size_t)n * r.in + k];
				double up = (double)r.host[(size_t)n * r.in + width + k];

				want[(size_t)n * width + k] = (is_gelu ? gelu(gate) : silu(gate)) * up;
			}
		/* The exponent of gelu reaches -88: the rounding of its argument counts 88 times. */
		check_values(
		    is_gelu ? "gelu_mul" : "silu_mul", &r, got, want, is_gelu ? 2e-5 : 1e-6, 1e-30);
		if (!is_gelu) {
			struct kvt_backend cpu;
			float *same = kvt_alloc((size_t)COUNT * width, sizeof(float));
			struct kn_silu_mul_arguments a = {
			    r.host, r.host + width, r.in, same, width, COUNT, width};

			assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
			assert_int_equal(cpu.ops->silu_mul(cpu.backend, NULL, &a), KV_OK);
			kvt_backend_close(&cpu);
			kvt_assert_same_bits("silu_mul against cpu", got, same, COUNT * width * sizeof *got);
			kvt_free(same);
		}
		kvt_free(want);
		kvt_free(got);
		rows_destroy(&r);
	}
}

struct heads {
	uint32_t head_dim, heads, kv_heads, stride;
	float *weights; /* [2][head_dim], on the device */
};

/* q, k and the last 3 floats of each row, from row `first` on. */
static void norm_heads(const struct heads *h, float *rows, uint32_t first, uint32_t count)
{
	float *q = rows + (size_t)first * h->stride;
	struct kn_cuda_qk_norm_arguments a = {q, h->stride, q + (size_t)h->heads * h->head_dim,
	    h->stride, h->weights, h->weights + h->head_dim, count, h->heads, h->kv_heads, h->head_dim,
	    1e-6f};

	DEV_OK(kn_cuda_qk_norm(&a, NULL));
}

static void check_qk_norm(uint32_t head_dim, uint32_t heads, uint32_t kv_heads)
{
	uint32_t all = heads + kv_heads, stride = all * head_dim + 3;
	size_t total = (size_t)COUNT * stride;
	float *host = kvt_alloc(total, sizeof(float)),
	      *weights = kvt_alloc(2 * head_dim, sizeof(float));
	double *want = kvt_alloc(total, sizeof(double));
	struct kv_random random;

	kv_random_seed(&random, head_dim);
	kvt_fill_peaky(&random, host, total, 2.0f);
	kvt_fill_peaky(&random, weights, 2 * head_dim, 1.0f);
	for (size_t i = 0; i < total; i++)
		want[i] = (double)host[i];
	for (uint32_t n = 0; n < COUNT; n++)
		for (uint32_t h = 0; h < all; h++) {
			double *x = want + (size_t)n * stride + (size_t)h * head_dim, sum = 0.0;

			for (uint32_t k = 0; k < head_dim; k++)
				sum += x[k] * x[k];
			for (uint32_t k = 0; k < head_dim; k++)
				x[k] = x[k] / sqrt(sum / head_dim + 1e-6) *
				       (double)weights[(h < heads ? 0 : head_dim) + k];
		}
	struct heads h = {head_dim, heads, kv_heads, stride, NULL};
	float *kept = NULL;

	h.weights = dev_upload(weights, 2 * head_dim * sizeof(float));
	for (uint32_t cut = COUNT; cut > 0; cut = cut / 4) { /* 17, 4, 1 */
		float *device = dev_upload(host, total * sizeof(float));

		for (uint32_t n = 0; n < COUNT; n += cut)
			norm_heads(&h, device, n, COUNT - n < cut ? COUNT - n : cut);
		dev_wait();
		float *got = dev_fetch(device, total * sizeof(float));

		dev_free(device);
		if (kept) {
			kvt_assert_same_bits("qk_norm in smaller calls", got, kept, total * sizeof(float));
			kvt_free(got);
			continue;
		}
		kept = got;
		for (size_t i = 0; i < total; i++)
			if (!(fabs((double)kept[i] - want[i]) <= 3e-7 * fabs(want[i])))
				fail_msg("qk_norm of %u channels: element %zu is %.9g, not %.9g", head_dim, i,
				    (double)kept[i], want[i]);
	}
	kvt_free(kept);
	dev_free(h.weights);
	kvt_free(want);
	kvt_free(weights);
	kvt_free(host);
}

static void test_qk_norm(void **state)
{
	(void)state;
	check_qk_norm(64, 3, 1);
	check_qk_norm(80, 4, 2);
	check_qk_norm(256, 1, 1);
	check_qk_norm(8, 5, 0);
}

/* The same heads through rms_norm of the cpu backend, whose epsilon and order are the same. */
static void test_qk_norm_against_cpu(void **state)
{
	enum { HEAD_DIM = 96, HEADS = 5 };
	float x[HEADS * HEAD_DIM], weights[2 * HEAD_DIM], want[HEADS * HEAD_DIM];
	struct kv_random random;
	struct kvt_backend cpu;

	(void)state;
	kv_random_seed(&random, 5);
	kvt_fill_peaky(&random, x, HEADS * HEAD_DIM, 1.0f);
	kvt_fill_peaky(&random, weights, HEAD_DIM, 1.0f);
	memcpy(weights + HEAD_DIM, weights, HEAD_DIM * sizeof *weights);
	struct kn_rms_norm_arguments a = {x, HEAD_DIM, weights, want, HEAD_DIM, HEADS, HEAD_DIM, 1e-6f};

	assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
	assert_int_equal(cpu.ops->rms_norm(cpu.backend, NULL, &a), KV_OK);
	kvt_backend_close(&cpu);
	struct heads h = {HEAD_DIM, 3, 2, HEADS * HEAD_DIM, dev_upload(weights, sizeof weights)};
	float *device = dev_upload(x, sizeof x);

	norm_heads(&h, device, 0, 1);
	dev_wait();
	dev_download(x, device, sizeof x);
	for (uint32_t i = 0; i < HEADS * HEAD_DIM; i++)
		if (!(fabsf(x[i] - want[i]) <= 2.5e-7f * fabsf(want[i])))
			fail_msg("element %u is %.9g, cpu has %.9g", i, (double)x[i], (double)want[i]);
	dev_free(device);
	dev_free(h.weights);
}

/* Nothing to do is no error: CUDA refuses a grid of 0 blocks. */
static void test_nothing(void **state)
{
	struct kn_rms_norm_arguments rms = {.width = 5};
	struct kn_cuda_layer_norm_arguments layer = {.width = 5};
	struct kn_cuda_qk_norm_arguments qk = {.heads = 1, .head_dim = 64};
	struct kn_silu_mul_arguments silu = {.width = 5};

	(void)state;
	DEV_OK(kn_cuda_rms_norm(&rms, NULL));
	DEV_OK(kn_cuda_layer_norm(&layer, NULL));
	DEV_OK(kn_cuda_qk_norm(&qk, NULL));
	DEV_OK(kn_cuda_silu_mul(&silu, NULL));
	DEV_OK(kn_cuda_gelu_mul(&silu, NULL));
	silu = (struct kn_silu_mul_arguments){.count = 1};
	DEV_OK(kn_cuda_silu_mul(&silu, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_rms_norm),
	    cmocka_unit_test(test_layer_norm),
	    cmocka_unit_test(test_activations),
	    cmocka_unit_test(test_qk_norm),
	    cmocka_unit_test(test_qk_norm_against_cpu),
	    cmocka_unit_test(test_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
