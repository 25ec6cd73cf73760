/* The CUDA kernels that store, turn, gather and copy: against the cpu backend, bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/launch_attention.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

struct store_case {
	uint32_t count, kv_heads, head_dim;
	enum kn_kv_type type;
	uint32_t gap; /* bytes between tokens' rows */
};

static const struct store_case store_cases[] = {
    {1, 1, 64, KN_KV_F16, 0},
    {13, 3, 80, KN_KV_F16, 64},
    {5, 2, 8, KN_KV_F32, 4},
    {3, 1, 256, KN_KV_F32, 0},
    {7, 2, 96, KN_KV_BF16, 20},
};

/* Values at and beside every limit of the 16-bit types, then peaks over their whole range. */
static void fill_limits(struct kv_random *random, float *x, size_t count)
{
	static const float limits[] = {0.0f, -0.0f, 65504.0f, 65519.9f, 65520.0f, -1e30f, 6.1e-5f,
	    5.96e-8f, 2.98e-8f, 2.99e-8f, 1e-30f, 1.00048828125f, 1.00146484375f, 3.4028235e38f,
	    INFINITY, -INFINITY, NAN, 3.3961775e38f, 1.00390625f, 1.01171875f};
	size_t n = sizeof limits / sizeof *limits;

	kvt_fill_peaky(random, x, count, 1.0f);
	for (size_t i = 0; i < count; i++) {
		if (i % 3 == 0 && i / 3 < n)
			x[i] = limits[i / 3];
		else
			x[i] = ldexpf(x[i], (int)kv_random_below(random, 50) - 30);
	}
}

/* To bf16 from the definition: the nearer neighbour, the even one in the middle, never infinity. */
static uint16_t bf16_of(float value)
{
	uint32_t bits = kn_float_bits(value);

	if (isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
	double low = (double)kn_bits_float(bits & 0xffff0000u);
	double high = ldexp((double)kn_bits_float((bits & 0xff800000u)), -7);
	uint32_t below = bits >> 16;

	if ((bits & 0x7f800000u) == 0) high = copysign(ldexp(1.0, -133), (double)value);
	if ((bits & 0x7fff0000u) >= 0x7f7f0000u) return (uint16_t)((bits >> 16 & 0x8000u) | 0x7f7fu);
	double middle = low + high / 2;

	if (fabs((double)value) > fabs(middle) || ((double)value == middle && (below & 1) != 0))
		below++;
	return (uint16_t)below;
}

static void reference_store(const struct kn_store_kv_arguments *a)
{
	struct kvt_backend cpu;

	if (a->kv_type != KN_KV_BF16) {
		assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
		assert_int_equal(cpu.ops->store_kv(cpu.backend, NULL, a), KV_OK);
		kvt_backend_close(&cpu);
		return;
	}
	for (uint32_t t = 0; t < a->count; t++)
		for (uint32_t h = 0; h < a->kv_heads; h++)
			for (uint32_t d = 0; d < 2 * a->head_dim; d++) {
				const float *from = d < a->head_dim ? a->k + t * a->k_stride + d
				                                    : a->v + t * a->v_stride + d - a->head_dim;
				uint16_t half = bf16_of(from[(size_t)h * a->head_dim]);

				memcpy(
				    a->rows + t * a->token_stride + h * a->head_stride + (size_t)d * 2, &half, 2);
			}
}

static void check_store(const struct store_case *c, uint64_t seed)
{
	size_t bytes = kn_kv_row_bytes(c->type, c->head_dim), width = (size_t)c->kv_heads * c->head_dim;
	size_t stride = 3 * width + 7, token = bytes * c->kv_heads + c->gap, total = c->count * token;
	float *x = kvt_alloc(c->count * stride, sizeof *x);
	uint8_t *want = kvt_alloc(total, 1);
	struct kv_random random;

	kv_random_seed(&random, seed);
	fill_limits(&random, x, c->count * stride);
	memset(want, 0xa5, total);
	struct kn_store_kv_arguments a = {.k = x,
	    .v = x + width,
	    .k_stride = stride,
	    .v_stride = stride,
	    .rows = want,
	    .token_stride = token,
	    .head_stride = bytes,
	    .kv_type = c->type,
	    .count = c->count,
	    .kv_heads = c->kv_heads,
	    .head_dim = c->head_dim};

	reference_store(&a);
	float *device_x = dev_upload(x, c->count * stride * sizeof *x);
	uint8_t *rows = kvt_alloc(total, 1);

	memset(rows, 0xa5, total);
	uint8_t *device_rows = dev_upload(rows, total);

	a.k = device_x;
	a.v = device_x + width;
	a.rows = device_rows;
	DEV_OK(kn_cuda_store_kv(&a, NULL));
	dev_wait();
	dev_download(rows, device_rows, total);
	kvt_assert_same_bits("stored rows", rows, want, total);
	dev_free(device_rows);
	dev_free(device_x);
	kvt_free(rows);
	kvt_free(want);
	kvt_free(x);
}

static void stores_rows(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof store_cases / sizeof *store_cases; i++)
		check_store(&store_cases[i], i + 1);
	struct kn_store_kv_arguments none = {.head_dim = 64};

	DEV_OK(kn_cuda_store_kv(&none, NULL));
}

/* Row count, row bytes and strides: units of 16, 8, 4 and 1 bytes. */
static const uint32_t gather_cases[][4] = {
    {37, 256, 256, 512}, {9, 40, 48, 56}, {5, 20, 20, 24}, {300, 3, 5, 4}, {1, 16, 16, 16}};

static void gathers_rows(void **state)
{
	(void)state;
	for (size_t c = 0; c < sizeof gather_cases / sizeof *gather_cases; c++) {
		uint32_t count = gather_cases[c][0], bytes = gather_cases[c][1];
		size_t from = gather_cases[c][2], to = gather_cases[c][3];
		uint8_t *source = kvt_alloc(count, from), *want = kvt_alloc(count, to);
		uint32_t *order = kvt_alloc(count, sizeof *order);

		for (size_t i = 0; i < count * from; i++)
			source[i] = (uint8_t)(i * 2654435761u >> 24);
		for (uint32_t i = 0; i < count; i++)
			order[i] = (i * 77 + 3) % count;
		uint8_t *device_to = dev_upload(want, count * to);

		for (uint32_t i = 0; i < count; i++)
			memcpy(want + i * to, source + order[i] * from, bytes);
		uint8_t *device_source = dev_upload(source, count * from);
		uint32_t *device_order = dev_upload(order, count * sizeof *order);
		struct kn_gather_rows_arguments a = {
		    device_source, from, device_order, device_to, to, bytes, count};

		DEV_OK(kn_cuda_gather_rows(&a, NULL));
		dev_wait();
		uint8_t *got = dev_fetch(device_to, count * to);

		kvt_assert_same_bits("gathered rows", got, want, count * to);
		a.count = 0;
		DEV_OK(kn_cuda_gather_rows(&a, NULL));
		kvt_free(got);
		dev_free(device_order);
		dev_free(device_source);
		dev_free(device_to);
		kvt_free(order);
		kvt_free(want);
		kvt_free(source);
	}
}

/* Runs at all alignments: job i starts `shift` behind a multiple of 16 at one end and i % 16 at the
 * other; lengths from 0 to some slices. */
enum { COPIES = 36, ROOM = 9000 };

static uint64_t copy_bytes(uint32_t i)
{
	return i == 35 ? ROOM - 16 : i % 9 == 0 ? i / 9 : i * 37u;
}

static void copies_runs(void **state)
{
	uint8_t *from = kvt_alloc(COPIES, ROOM), *want = kvt_alloc(COPIES, ROOM);
	struct kn_copy_job jobs[COPIES];

	(void)state;
	for (size_t i = 0; i < COPIES * ROOM; i++)
		from[i] = (uint8_t)(i * 2654435761u >> 24);
	uint8_t *source = dev_upload(from, COPIES * ROOM);

	for (uint32_t shift = 0; shift < 12; shift += 3) {
		memset(want, 0xee, COPIES * ROOM);
		uint8_t *to = dev_upload(want, COPIES * ROOM);

		for (uint32_t i = 0; i < COPIES; i++) {
			size_t a = i * ROOM + shift, b = i * ROOM + i % 16;

			jobs[i] = (struct kn_copy_job){source + a, to + b, copy_bytes(i)};
			memcpy(want + b, from + a, copy_bytes(i));
		}
		struct kn_copy_job *device_jobs = dev_upload(jobs, sizeof jobs);
		struct kn_copy_arguments a = {device_jobs, COPIES};

		DEV_OK(kn_cuda_copy(&a, 100000, NULL));
		dev_wait();
		uint8_t *got = dev_fetch(to, COPIES * ROOM);

		kvt_assert_same_bits("copies", got, want, COPIES * ROOM);
		kvt_free(got);
		dev_free(device_jobs);
		dev_free(to);
	}
	DEV_OK(kn_cuda_copy(&(struct kn_copy_arguments){NULL, 0}, 1, NULL));
	dev_free(source);
	kvt_free(want);
	kvt_free(from);
}

/* Several blocks of one job. */
static void copies_a_long_run(void **state)
{
	size_t bytes = 70001, room = bytes + 3;
	uint8_t *from = kvt_alloc(room, 1);

	(void)state;
	for (size_t i = 0; i < room; i++)
		from[i] = (uint8_t)(i * 2654435761u >> 24);
	uint8_t *source = dev_upload(from, room), *to = dev_alloc(room);

	DEV_OK(cudaMemset(to, 0xff, room));
	struct kn_copy_job job = {source + 3, to + 3, bytes},
	                   *device_job = dev_upload(&job, sizeof job);

	DEV_OK(kn_cuda_copy(&(struct kn_copy_arguments){device_job, 1}, bytes, NULL));
	dev_wait();
	uint8_t *got = dev_fetch(to, room);

	kvt_assert_same_bits("long copy", got + 3, from + 3, bytes);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(got[i], 0xff);
	kvt_free(got);
	dev_free(device_job);
	dev_free(to);
	dev_free(source);
	kvt_free(from);
}

/* Extents of several lengths, the generation word and the flag. */
enum { EXTENTS = 7, EXTENT_ROOM = 3000 };
struct extents {
	uint8_t *host, *source, *slots;
	struct kn_copy_job list[EXTENTS];
	struct kn_copy_job *device_list;
	uint64_t *generation;
	uint32_t *count, *changed;
};

static void extents_create(struct extents *e)
{
	uint64_t generation = 41;
	uint32_t zero = 0;

	e->host = kvt_alloc(EXTENTS, EXTENT_ROOM);
	for (size_t i = 0; i < EXTENTS * EXTENT_ROOM; i++)
		e->host[i] = (uint8_t)(i * 2654435761u >> 24);
	e->source = dev_upload(e->host, EXTENTS * EXTENT_ROOM);
	e->slots = dev_alloc(EXTENTS * EXTENT_ROOM);
	DEV_OK(cudaMemset(e->slots, 0xff, EXTENTS * EXTENT_ROOM));
	for (uint32_t i = 0; i < EXTENTS; i++)
		e->list[i] = (struct kn_copy_job){e->source + i * EXTENT_ROOM + i,
		    e->slots + (EXTENTS - 1 - i) * EXTENT_ROOM + (i % 2 ? i : 0), i * 480u};
	e->device_list = dev_upload(e->list, sizeof e->list);
	e->generation = dev_upload(&generation, sizeof generation);
	e->count = dev_upload(&zero, sizeof zero);
	e->changed = dev_upload(&zero, sizeof zero);
}

static void extents_destroy(struct extents *e)
{
	dev_free(e->changed);
	dev_free(e->count);
	dev_free(e->generation);
	dev_free(e->device_list);
	dev_free(e->slots);
	dev_free(e->source);
	kvt_free(e->host);
}

/* Copy `count` extents with so many blocks; returns the flag. */
static uint32_t gather(
    struct extents *e, uint32_t count, uint32_t max, uint32_t blocks, uint64_t expected)
{
	struct kn_gather_extents_arguments a = {
	    e->device_list, e->count, max, e->generation, expected, e->changed};
	uint32_t changed = 0;

	dev_write(e->count, &count, sizeof count);
	dev_write(e->changed, &changed, sizeof changed);
	DEV_OK(kn_cuda_gather_extents(&a, blocks, NULL));
	dev_wait();
	dev_download(&changed, e->changed, sizeof changed);
	return changed;
}

static void check_slots(const struct extents *e, uint32_t count)
{
	uint8_t *got = dev_fetch(e->slots, EXTENTS * EXTENT_ROOM);

	for (uint32_t i = 0; i < EXTENTS; i++) {
		const uint8_t *slot = got + (EXTENTS - 1 - i) * EXTENT_ROOM;
		uint32_t shift = i % 2 ? i : 0, bytes = i < count ? i * 480u : 0;

		kvt_assert_same_bits("extent", slot + shift, e->host + i * EXTENT_ROOM + i, bytes);
		for (uint32_t k = shift + bytes; k < EXTENT_ROOM; k++)
			assert_int_equal(slot[k], 0xff);
	}
	kvt_free(got);
}

static void gathers_extents(void **state)
{
	/* Fewer blocks than extents, as many, more, and a number that does not divide. */
	static const uint32_t blocks[] = {1, 3, EXTENTS, 2 * EXTENTS, 2 * EXTENTS + 3};

	(void)state;
	for (uint32_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
		for (uint32_t count = i; count <= EXTENTS; count += 3) {
			struct extents e;

			extents_create(&e);
			assert_int_equal(gather(&e, count, EXTENTS, blocks[i], 41), 0);
			check_slots(&e, count);
			extents_destroy(&e);
		}
}

static void tells_what_is_wrong(void **state)
{
	struct extents e;
	uint64_t now = 42, *word;

	(void)state;
	extents_create(&e);
	assert_int_equal(gather(&e, EXTENTS, EXTENTS, 4, 40), KN_STEP_GENERATION);
	assert_int_equal(gather(&e, EXTENTS, EXTENTS - 2, 4, 41), KN_STEP_STAGING_FULL);
	assert_int_equal(gather(&e, 0, EXTENTS, 4, 40), 0);
	/* A copy that itself changes the generation: only a look behind the copies sees it. */
	word = dev_upload(&now, sizeof now);
	e.list[2] = (struct kn_copy_job){(uint8_t *)word, (uint8_t *)e.generation, 8};
	dev_write(e.device_list, e.list, sizeof e.list);
	assert_int_equal(gather(&e, 3, EXTENTS, 1, 41), KN_STEP_GENERATION);
	assert_int_equal(gather(&e, 3, EXTENTS, 1, 42), 0);
	assert_int_equal(gather(&e, 1, 0, 4, 41), KN_STEP_STAGING_FULL);
	struct kn_gather_extents_arguments none = {.max_copies = 1};

	assert_int_equal(kn_cuda_gather_extents(&none, 0, NULL), cudaErrorInvalidValue);
	dev_free(word);
	extents_destroy(&e);
}

struct rotate_case {
	uint32_t count, heads, head_dim, rotary_dim, first_position;
	int adjacent;
};

static const struct rotate_case rotate_cases[] = {
    {11, 3, 64, 64, 0, 1},
    {5, 9, 64, 64, 30000, 0},
    {3, 2, 80, 32, 1000000, 0},
    {2, 1, 2, 2, 1, 1},
    {1, 17, 256, 256, 4000000000u, 0},
};

/* Float sines of nearly equal double ones differ in the last place now and then. */
static void check_rotated(
    const struct rotate_case *c, const float *got, const float *want, const float *x, size_t total)
{
	size_t differ = 0;

	for (size_t i = 0; i < total; i++) {
		differ += memcmp(got + i, want + i, sizeof *got) != 0;
		if (!(fabsf(got[i] - want[i]) <= 2e-7f * 100.0f))
			fail_msg("rotate of %u channels: element %zu is %.9g, not %.9g (from %.9g)",
			    c->head_dim, i, (double)got[i], (double)want[i], (double)x[i]);
	}
	if (differ * 1000 > total)
		fail_msg("rotate of %u channels: %zu of %zu differ from cpu", c->head_dim, differ, total);
}

static void check_rotate(const struct rotate_case *c)
{
	size_t stride = (size_t)c->heads * c->head_dim + 4, total = c->count * stride;
	float *x = kvt_alloc(total, sizeof *x), *want = kvt_alloc(total, sizeof *want);
	float frequencies[KN_MAX_HEAD_DIM / 2];
	uint32_t positions[16];
	struct kv_random random;
	struct kvt_backend cpu;

	kv_random_seed(&random, c->head_dim);
	kvt_fill_peaky(&random, x, total, 1.0f);
	memcpy(want, x, total * sizeof *x);
	for (uint32_t i = 0; i < c->rotary_dim / 2; i++)
		frequencies[i] = (float)pow(10000.0, -2.0 * i / c->rotary_dim);
	for (uint32_t n = 0; n < c->count; n++)
		positions[n] = c->first_position + n * 3;
	struct kn_rotate_arguments a = {want, stride, positions, frequencies, c->count, c->heads,
	    c->head_dim, c->rotary_dim, c->adjacent};

	assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
	assert_int_equal(cpu.ops->rotate(cpu.backend, NULL, &a), KV_OK);
	kvt_backend_close(&cpu);
	float *device = dev_upload(x, total * sizeof *x);
	float *inverse = dev_upload(frequencies, c->rotary_dim / 2 * sizeof(float));
	uint32_t *at = dev_upload(positions, c->count * sizeof *at);

	a.x = device;
	a.positions = at;
	a.inverse_frequency = inverse;
	DEV_OK(kn_cuda_rotate(&a, NULL));
	dev_wait();
	float *got = dev_fetch(device, total * sizeof *got);

	check_rotated(c, got, want, x, total);
	/* One row alone has the bits that it has in the batch. */
	dev_write(device, x, total * sizeof *x);
	a.x = device + (c->count - 1) * stride;
	a.positions = at + c->count - 1;
	a.count = 1;
	DEV_OK(kn_cuda_rotate(&a, NULL));
	dev_wait();
	dev_download(x, device, total * sizeof *x);
	kvt_assert_same_bits("one row alone", x + (c->count - 1) * stride,
	    got + (c->count - 1) * stride, stride * sizeof *x);
	dev_free(at);
	dev_free(inverse);
	dev_free(device);
	kvt_free(got);
	kvt_free(want);
	kvt_free(x);
}

static void rotates(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof rotate_cases / sizeof *rotate_cases; i++)
		check_rotate(&rotate_cases[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(stores_rows),
	    cmocka_unit_test(gathers_rows),
	    cmocka_unit_test(copies_runs),
	    cmocka_unit_test(copies_a_long_run),
	    cmocka_unit_test(gathers_extents),
	    cmocka_unit_test(tells_what_is_wrong),
	    cmocka_unit_test(rotates),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
