#include <math.h>

#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/row_tasks.h"

/* Eight partial sums, by column modulo 8: enough for the compiler to use vectors, and one order for
 * all. The square of a float is exact in double, so fused or not makes no difference. */
enum { LANES = 8 };

static double sum_of_squares(const float *x, uint32_t width)
{
	double lane[LANES] = {0};
	uint32_t k = 0;

	for (; k + LANES <= width; k += LANES)
		for (uint32_t i = 0; i < LANES; i++)
			lane[i] += (double)x[k + i] * (double)x[k + i];
	for (uint32_t i = 0; k < width; k++, i++)
		lane[i] += (double)x[k] * (double)x[k];
	return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
	       ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void norm_rows(const void *arguments, uint32_t first, uint32_t count)
{
	const struct kn_rms_norm_arguments *a = arguments;

	for (uint32_t n = first; n < first + count; n++) {
		const float *x = a->x + a->x_stride * n;
		float *out = a->out + a->out_stride * n;
		double mean = sum_of_squares(x, a->width) / (double)a->width;
		float factor = (float)(1.0 / sqrt(mean + (double)a->epsilon));

		for (uint32_t k = 0; k < a->width; k++)
			out[k] = x[k] * factor * a->weight[k];
	}
}

enum kv_status kn_cpu_rms_norm(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_rms_norm_arguments *a)
{
	(void)stream;
	if (a->count == 0) return KV_OK;
	if (!a->x || !a->weight || !a->out || a->width == 0)
		return kv_fail(KV_INVALID, "rms_norm without input, weight, output or width");
	kn_run_rows(backend->pool, norm_rows, a, a->count, a->width);
	return KV_OK;
}
