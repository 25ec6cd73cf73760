/* Times the matmuls of whole models, beside a plain read of the same bytes in the same run.
 *
 *   bench_kernels [--threads=N] [--level=auto|plain|avx2|avx512] [--model=smollm2|qwen|all]
 *                 [--rows=N] [--repeat=N] [--json]
 *
 * Decode: every weight of a step once, for 1 to 16 rows; prefill: every weight but the output
 * matrix, for --rows rows (512). Weights are random, of the real models' types and shapes. Times
 * are the best and the median of --repeat runs: on a shared machine the best is the steadier one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/weight.h"

enum { MAX_WEIGHTS = 256, MAX_REPEAT = 99, READ_BYTES = 256 << 10 };

struct shape {
	const char *name;
	uint32_t rows, columns;
	enum kn_weight_type even, odd; /* types in even and in odd layers */
	int output;                    /* 1: the output matrix, once for the model */
};

struct bench_model {
	const char *name;
	uint32_t layers, shape_count;
	struct shape shapes[5];
};

static const struct bench_model models[] = {
    {"smollm2", 30, 5,
        {{"qkv", 960, 576, KN_Q4_1, KN_Q4_1, 0}, {"o", 576, 576, KN_Q4_1, KN_Q4_1, 0},
            {"gate+up", 3072, 576, KN_Q4_1, KN_Q4_1, 0}, {"down", 576, 1536, KN_Q4_1, KN_Q4_1, 0},
            {"output", 49152, 576, KN_Q8_0, KN_Q8_0, 1}}},
    {"qwen", 24, 5,
        {{"qkv", 1152, 896, KN_Q5_0, KN_Q8_0, 0}, {"o", 896, 896, KN_Q5_0, KN_Q5_0, 0},
            {"gate+up", 9728, 896, KN_Q5_0, KN_Q5_0, 0}, {"down", 896, 4864, KN_Q6_K, KN_Q4_K, 0},
            {"output", 151936, 896, KN_Q8_0, KN_Q8_0, 1}}},
};

struct bench {
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	const struct bench_model *model;
	struct kn_weight *weights[MAX_WEIGHTS];
	const struct shape *shapes[MAX_WEIGHTS];
	uint32_t weight_count;
	float *x, *y;
	uint32_t rows, repeat;
	int json, first;
};

struct timing {
	double best, median; /* seconds */
};

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

typedef void timed_function(struct bench *bench, const struct shape *only, uint32_t rows);

static struct timing time_it(
    struct bench *bench, timed_function *f, const struct shape *only, uint32_t rows)
{
	double seconds[MAX_REPEAT];

	f(bench, only, rows);
	for (uint32_t i = 0; i < bench->repeat; i++) {
		uint64_t start = kv_now_ns();

		f(bench, only, rows);
		seconds[i] = kv_seconds_since(start);
	}
	qsort(seconds, bench->repeat, sizeof *seconds, compare_doubles);
	return (struct timing){seconds[0], seconds[bench->repeat / 2]};
}

/* Weights of one shape (only != NULL), or all; the output matrix only with up to 16 rows. */
static int takes_part(
    const struct bench *bench, uint32_t i, const struct shape *only, uint32_t rows)
{
	if (only) return bench->shapes[i] == only;
	return rows <= KN_MAX_DECODE_ROWS || !bench->shapes[i]->output;
}

static void multiply(struct bench *bench, const struct shape *only, uint32_t rows)
{
	for (uint32_t i = 0; i < bench->weight_count; i++) {
		if (!takes_part(bench, i, only, rows)) continue;
		struct kn_matmul_arguments a = {
		    .weight = bench->weights[i],
		    .x = bench->x,
		    .x_stride = bench->shapes[i]->columns,
		    .y = bench->y,
		    .y_stride = bench->shapes[i]->rows,
		    .count = rows,
		};

		if (bench->ops->matmul(bench->backend, NULL, &a) != KV_OK) {
			fprintf(stderr, "%s\n", kv_error_message());
			exit(1);
		}
	}
}

struct read_job {
	const uint8_t *data;
	uint64_t bytes;
	_Alignas(64) uint64_t sums[256]; /* by thread, so that the loads are not optimised away */
};

static void read_task(void *context, uint32_t task, uint32_t thread)
{
	struct read_job *job = context;
	uint64_t from = (uint64_t)task * READ_BYTES, to = from + READ_BYTES;
	const uint64_t *p = (const uint64_t *)(const void *)(job->data + from);
	uint64_t sum = 0;

	if (to > job->bytes) to = job->bytes;
	for (uint64_t i = 0; i < (to - from) / 8; i += 16) {
		__builtin_prefetch(p + i + 256);
		__builtin_prefetch(p + i + 264);
		for (uint64_t k = 0; k < 16; k++)
			sum += p[i + k];
	}
	job->sums[thread % 256] += sum;
}

static void read_weights(struct bench *bench, const struct shape *only, uint32_t rows)
{
	struct read_job job;

	memset(&job, 0, sizeof job);
	for (uint32_t i = 0; i < bench->weight_count; i++) {
		if (!takes_part(bench, i, only, rows)) continue;
		/* Slabs of one weight lie one after the other. */
		job.data = bench->weights[i]->slabs[0].tile;
		job.bytes = bench->weights[i]->bytes & ~(uint64_t)127;
		kn_pool_run(bench->backend->pool, read_task, &job,
		    (uint32_t)((job.bytes + READ_BYTES - 1) / READ_BYTES));
	}
	volatile uint64_t sink = job.sums[0] + job.sums[1];

	(void)sink;
}

/* Random block bytes without the bits that make an f16 huge: any layout gets finite scales. */
static struct kn_weight *random_weight(
    struct bench *bench, const struct shape *shape, enum kn_weight_type type)
{
	uint64_t bytes = kn_weight_row_bytes(type, shape->columns) * shape->rows;
	uint64_t *data = kv_alloc(kv_heap(), (size_t)bytes + 8);
	struct kn_weight *weight = NULL;
	struct kv_random random;

	if (!data) return NULL;
	kv_random_seed(&random, bytes);
	for (uint64_t i = 0; i < bytes / 8 + 1; i++)
		data[i] = kv_random_next(&random) & UINT64_C(0x1fff1fff1fff1fff);
	struct kn_weight_part part = {type, shape->rows, data, bytes};
	enum kv_status status = bench->ops->weight_pack(
	    bench->backend, &part, 1, shape->columns, KN_PRECISION_DEFAULT, &weight);

	kv_free(kv_heap(), data);
	return status == KV_OK ? weight : NULL;
}

static int load_model(struct bench *bench)
{
	const struct bench_model *model = bench->model;

	bench->weight_count = 0;
	for (uint32_t l = 0; l < model->layers; l++)
		for (uint32_t s = 0; s < model->shape_count; s++) {
			const struct shape *shape = &model->shapes[s];

			if (shape->output && l + 1 < model->layers) continue;
			struct kn_weight *weight =
			    random_weight(bench, shape, l % 2 ? shape->odd : shape->even);

			if (!weight) return -1;
			bench->shapes[bench->weight_count] = shape;
			bench->weights[bench->weight_count++] = weight;
		}
	return 0;
}

static double bytes_of(const struct bench *bench, const struct shape *only, uint32_t rows)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < bench->weight_count; i++)
		if (takes_part(bench, i, only, rows)) bytes += bench->ops->weight_bytes(bench->weights[i]);
	return (double)bytes;
}

static double products_of(const struct bench *bench, const struct shape *only, uint32_t rows)
{
	double products = 0.0;

	for (uint32_t i = 0; i < bench->weight_count; i++)
		if (takes_part(bench, i, only, rows))
			products += (double)bench->shapes[i]->rows * (double)bench->shapes[i]->columns;
	return products * (double)rows;
}

static void print_line(struct bench *bench, const struct shape *only, uint32_t rows,
    struct timing t, struct timing read)
{
	const char *name = only ? only->name : rows > KN_MAX_DECODE_ROWS ? "layers" : "step";
	double bytes = bytes_of(bench, only, rows), products = products_of(bench, only, rows);

	if (bench->json) {
		printf("%s{\"model\":\"%s\",\"what\":\"%s\",\"rows\":%u,\"bytes\":%.0f,"
		       "\"best_ms\":%.4f,\"median_ms\":%.4f,\"read_best_ms\":%.4f,\"read_median_ms\":%.4f,"
		       "\"gmac_s\":%.2f}",
		    bench->first ? "" : ",\n", bench->model->name, name, rows, bytes, t.best * 1e3,
		    t.median * 1e3, read.best * 1e3, read.median * 1e3, products / t.best * 1e-9);
		bench->first = 0;
		return;
	}
	printf("%-8s %-8s %4u %8.2f %9.3f %9.3f %9.3f %6.1f %5.0f %% %8.1f %9.0f\n", bench->model->name,
	    name, rows, bytes * 1e-6, t.best * 1e3, t.median * 1e3, read.best * 1e3,
	    bytes / t.best * 1e-9, 100.0 * read.best / t.best, products / t.best * 1e-9,
	    (double)rows / t.best);
}

static void bench_model(struct bench *bench)
{
	static const uint32_t decode_rows[] = {1, 2, 4, 8, 16};
	struct timing read = time_it(bench, read_weights, NULL, 1);

	for (size_t i = 0; i < sizeof decode_rows / sizeof *decode_rows; i++)
		print_line(
		    bench, NULL, decode_rows[i], time_it(bench, multiply, NULL, decode_rows[i]), read);
	for (uint32_t s = 0; s < bench->model->shape_count; s++) {
		const struct shape *only = &bench->model->shapes[s];

		read = time_it(bench, read_weights, only, 1);
		print_line(bench, only, 1, time_it(bench, multiply, only, 1), read);
		if (!only->output)
			print_line(bench, only, bench->rows, time_it(bench, multiply, only, bench->rows), read);
	}
	read = time_it(bench, read_weights, NULL, bench->rows);
	print_line(bench, NULL, bench->rows, time_it(bench, multiply, NULL, bench->rows), read);
	for (uint32_t i = 0; i < bench->weight_count; i++)
		bench->ops->weight_destroy(bench->backend, bench->weights[i]);
}

struct settings {
	uint32_t threads, rows, repeat;
	enum kn_cpu_level level;
	const char *model;
	int json;
};

static int parse_number(const char *text, uint32_t most, uint32_t *value)
{
	char *end;
	unsigned long number = strtoul(text, &end, 10);

	if (end == text || *end || number < 1 || number > most) return -1;
	*value = (uint32_t)number;
	return 0;
}

static int parse_settings(int argc, char **argv, struct settings *s)
{
	static const char *const levels[] = {"auto", "plain", "avx2", "avx512"};

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i];
		int bad = 0;

		if (strcmp(a, "--json") == 0) {
			s->json = 1;
		} else if (strncmp(a, "--threads=", 10) == 0) {
			bad = parse_number(a + 10, 256, &s->threads);
		} else if (strncmp(a, "--rows=", 7) == 0) {
			bad = parse_number(a + 7, 4096, &s->rows);
		} else if (strncmp(a, "--repeat=", 9) == 0) {
			bad = parse_number(a + 9, MAX_REPEAT, &s->repeat);
		} else if (strncmp(a, "--model=", 8) == 0) {
			s->model = a + 8;
		} else if (strncmp(a, "--level=", 8) == 0) {
			bad = -1;
			for (int l = 0; l < 4; l++)
				if (strcmp(a + 8, levels[l]) == 0) {
					s->level = (enum kn_cpu_level)l;
					bad = 0;
				}
		} else {
			bad = -1;
		}
		if (bad) {
			fprintf(stderr, "bench_kernels: bad argument %s\n", a);
			return -1;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct settings s = {.rows = 512, .repeat = 9, .model = "all"};
	static struct bench bench;

	if (parse_settings(argc, argv, &s) != 0) return 2;
	struct kn_backend_options options = {
	    .allocator = kv_heap(),
	    .threads = s.threads,
	    .cpu_level = s.level,
	    .max_rows = s.rows > 16 ? s.rows : 16,
	    .max_columns = 4864,
	};

	if (kn_backend_open("cpu", &options, &bench.ops, &bench.backend) != KV_OK) {
		fprintf(stderr, "bench_kernels: %s\n", kv_error_message());
		return 1;
	}
	size_t inputs = (size_t)options.max_rows * 4864, outputs = (size_t)options.max_rows * 9728;

	if (outputs < (size_t)16 * 151936) outputs = (size_t)16 * 151936;
	bench.x = kv_alloc_array(kv_heap(), inputs, sizeof(float));
	bench.y = kv_alloc_array_zero(kv_heap(), outputs, sizeof(float));
	if (!bench.x || !bench.y) return 1;
	struct kv_random random;

	kv_random_seed(&random, 1);
	for (size_t i = 0; i < inputs; i++)
		bench.x[i] = kv_random_normal(&random);
	bench.rows = s.rows;
	bench.repeat = s.repeat;
	bench.json = s.json;
	bench.first = 1;
	if (s.json)
		printf("{\"backend\":\"%s\",\"results\":[\n", bench.ops->describe(bench.backend));
	else
		printf("%s\n%-8s %-8s %4s %8s %9s %9s %9s %6s %7s %8s %9s\n",
		    bench.ops->describe(bench.backend), "model", "what", "rows", "MB", "best ms",
		    "median ms", "read ms", "GB/s", "of read", "GMAC/s", "rows/s");
	for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
		if (strcmp(s.model, "all") != 0 && strcmp(s.model, models[i].name) != 0) continue;
		bench.model = &models[i];
		if (load_model(&bench) != 0) {
			fprintf(stderr, "bench_kernels: %s\n", kv_error_message());
			return 1;
		}
		bench_model(&bench);
	}
	if (s.json) printf("\n]}\n");
	kv_free(kv_heap(), bench.x);
	kv_free(kv_heap(), bench.y);
	bench.ops->close(bench.backend);
	return 0;
}
