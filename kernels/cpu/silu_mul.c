#include "kernels/cpu/silu_mul_loop.h"

#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/row_tasks.h"

struct silu_run {
	const struct kn_silu_mul_arguments *a;
	kn_silu_row *row;
};

void kn_silu_row_plain(const float *gate, const float *up, float *out, uint32_t width)
{
	kn_silu_loop(gate, up, out, width);
}

static void silu_rows(const void *arguments, uint32_t first, uint32_t count)
{
	const struct silu_run *run = arguments;
	const struct kn_silu_mul_arguments *a = run->a;

	for (uint32_t n = first; n < first + count; n++)
		run->row(a->gate + a->in_stride * n, a->up + a->in_stride * n, a->out + a->out_stride * n,
		    a->width);
}

static kn_silu_row *row_of(enum kn_cpu_level level)
{
	switch (level) {
#if defined(__x86_64__)
	case KN_CPU_AVX512:
		return kn_silu_row_avx512;
	case KN_CPU_AVX2:
		return kn_silu_row_avx2;
#endif
	default:
		return kn_silu_row_plain;
	}
}

enum kv_status kn_cpu_silu_mul(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_silu_mul_arguments *a)
{
	(void)stream;
	if (a->count == 0 || a->width == 0) return KV_OK;
	if (!a->gate || !a->up || !a->out)
		return kv_fail(KV_INVALID, "silu_mul without gate, up or output");
	struct silu_run run = {a, row_of(backend->level)};

	kn_run_rows(backend->pool, silu_rows, &run, a->count, a->width);
	return KV_OK;
}
