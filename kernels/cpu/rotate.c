#include <math.h>
#include <string.h>

#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/row_tasks.h"

/* Every layer rotates the same positions, for queries and then for keys: the sines and cosines of
 * the last call are kept and used again while positions and frequencies stay the same. */
struct kn_rotate_cache {
	uint32_t rows;         /* room */
	uint32_t count, pairs; /* what is in it; count 0: nothing */
	float frequencies[KN_MAX_HEAD_DIM / 2];
	uint32_t *positions;    /* [rows] */
	float *cosines, *sines; /* [rows][pairs] */
};

struct rotate_run {
	const struct kn_rotate_arguments *a;
	struct kn_rotate_cache *cache;
	uint32_t first_row;
};

enum kv_status kn_rotate_cache_create(struct kn_backend *backend)
{
	size_t rows = backend->max_rows, angles = rows * (KN_MAX_HEAD_DIM / 2);
	uint8_t *memory = kn_memory_create(backend->allocator,
	    sizeof(struct kn_rotate_cache) + 2 * angles * sizeof(float) + rows * sizeof(uint32_t));

	if (!memory) return KV_NO_MEMORY;
	struct kn_rotate_cache *cache = (void *)memory;

	memset(cache, 0, sizeof *cache);
	cache->rows = backend->max_rows;
	cache->cosines = (float *)(void *)(memory + sizeof *cache);
	cache->sines = cache->cosines + angles;
	cache->positions = (uint32_t *)(void *)(cache->sines + angles);
	backend->rotate_cache = cache;
	return KV_OK;
}

void kn_rotate_cache_destroy(struct kn_backend *backend)
{
	kn_memory_destroy(backend->allocator, backend->rotate_cache);
	backend->rotate_cache = NULL;
}

/* Angles in double: the product of a long position and a float frequency keeps all its digits. */
static void fill_rows(const void *arguments, uint32_t first, uint32_t count)
{
	struct kn_rotate_cache *cache = ((const struct rotate_run *)arguments)->cache;

	for (uint32_t n = first; n < first + count; n++)
		for (uint32_t i = 0; i < cache->pairs; i++) {
			double angle = (double)cache->positions[n] * (double)cache->frequencies[i];

			cache->cosines[(size_t)n * cache->pairs + i] = (float)cos(angle);
			cache->sines[(size_t)n * cache->pairs + i] = (float)sin(angle);
		}
}

static void rotate_head(
    float *x, const float *cosines, const float *sines, uint32_t pairs, int adjacent)
{
	if (adjacent) {
		for (uint32_t i = 0; i < pairs; i++) {
			float p = x[2 * i], q = x[2 * i + 1];

			x[2 * i] = p * cosines[i] - q * sines[i];
			x[2 * i + 1] = p * sines[i] + q * cosines[i];
		}
		return;
	}
	for (uint32_t i = 0; i < pairs; i++) {
		float p = x[i], q = x[i + pairs];

		x[i] = p * cosines[i] - q * sines[i];
		x[i + pairs] = p * sines[i] + q * cosines[i];
	}
}

static void rotate_rows(const void *arguments, uint32_t first, uint32_t count)
{
	const struct rotate_run *run = arguments;
	const struct kn_rotate_arguments *a = run->a;
	uint32_t pairs = run->cache->pairs;

	for (uint32_t n = first; n < first + count; n++)
		for (uint32_t h = 0; h < a->heads; h++)
			rotate_head(a->x + a->x_stride * (run->first_row + n) + (size_t)a->head_dim * h,
			    run->cache->cosines + (size_t)n * pairs, run->cache->sines + (size_t)n * pairs,
			    pairs, a->adjacent_pairs);
}

static void rotate_some(struct kn_backend *backend, struct rotate_run *run, uint32_t count)
{
	const struct kn_rotate_arguments *a = run->a;
	struct kn_rotate_cache *cache = run->cache;
	uint32_t pairs = a->rotary_dim / 2;
	const uint32_t *positions = a->positions + run->first_row;
	int known = cache->pairs == pairs && cache->count >= count &&
	            memcmp(cache->positions, positions, count * sizeof *positions) == 0 &&
	            memcmp(cache->frequencies, a->inverse_frequency, pairs * sizeof(float)) == 0;

	if (!known) {
		cache->pairs = pairs;
		cache->count = count;
		memcpy(cache->positions, positions, count * sizeof *positions);
		memcpy(cache->frequencies, a->inverse_frequency, pairs * sizeof(float));
		/* A sine costs as much as some twenty rotations. */
		kn_run_rows(backend->pool, fill_rows, run, count, pairs * 40);
	}
	kn_run_rows(backend->pool, rotate_rows, run, count, a->heads * a->head_dim);
}

enum kv_status kn_cpu_rotate(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_rotate_arguments *a)
{
	(void)stream;
	if (a->count == 0 || a->heads == 0 || a->rotary_dim == 0) return KV_OK;
	if (!a->x || !a->positions || !a->inverse_frequency)
		return kv_fail(KV_INVALID, "rotate without input, positions or frequencies");
	if (a->rotary_dim % 2 != 0 || a->rotary_dim > a->head_dim || a->head_dim > KN_MAX_HEAD_DIM)
		return kv_fail(KV_INVALID, "rotate %u of %u channels: even and at most %d", a->rotary_dim,
		    a->head_dim, KN_MAX_HEAD_DIM);
	struct rotate_run run = {a, backend->rotate_cache, 0};

	for (uint32_t count; run.first_row < a->count; run.first_row += count) {
		count = a->count - run.first_row;
		if (count > run.cache->rows) count = run.cache->rows;
		rotate_some(backend, &run, count);
	}
	return KV_OK;
}
