/* Times decode and prefill attention, scoring, selection and indexing at the shapes of the two
 * models that clusterkv is measured with, beside a plain read of the same rows. Prints the best of
 * some runs:
 *
 *   bench_attention [threads [plain|avx2|avx512]]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "kernels/backend.h"
#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/half.h"

enum { DIM = 64, ROW = 256, RUN_ROWS = 20, WINDOW = 128 };

struct model {
	const char *name;
	uint32_t layers, kv_heads, group, context, clusters;
};

static const struct model models[] = {
    {"SmolLM2-135M", 30, 3, 3, 7680, 240},
    {"Qwen2.5-0.5B", 24, 2, 7, 30000, 944},
};

static const struct kn_backend_ops *ops;
static struct kn_backend *backend;

static void *memory(size_t bytes)
{
	void *block;

	if (ops->buffer_create(backend, KN_DEVICE, bytes, &block) != KV_OK) {
		fprintf(stderr, "no memory for %zu bytes\n", bytes);
		exit(1);
	}
	return block;
}

static void release(void *block)
{
	ops->buffer_destroy(backend, block);
}

static void must(enum kv_status status)
{
	if (status == KV_OK) return;
	fprintf(stderr, "%s\n", kv_error_message());
	exit(1);
}

static void fill_halves(struct kv_random *random, uint16_t *x, size_t count)
{
	uint16_t some[1021];

	for (size_t i = 0; i < 1021; i++)
		some[i] = kn_half_from_float(kv_random_normal(random));
	for (size_t i = 0; i < count; i++)
		x[i] = some[(i * 7 + i / 1021) % 1021];
}

static void fill_floats(struct kv_random *random, float *x, size_t count)
{
	for (size_t i = 0; i < count; i++)
		x[i] = kv_random_normal(random);
}

/* The plain read: every span a task, eight sums so that the loads do not wait for each other. */
struct list {
	const struct kn_attend_job *jobs;
	volatile uint64_t sink;
};

static void read_task(void *context, uint32_t task, uint32_t thread)
{
	struct list *list = context;
	const struct kn_attend_job *job = &list->jobs[task / 2];
	uint64_t sums[8] = {0};

	(void)thread;
	for (uint32_t i = task % 2; i < job->span_count; i += 2) {
		const struct kn_span *span = &job->spans[i];
		const uint8_t *end = span->rows + (size_t)span->count * ROW;

		if (i + 2 < job->span_count)
			for (size_t p = 0; p < (size_t)span[2].count * ROW; p += 64)
				__builtin_prefetch(span[2].rows + p);
		for (const uint8_t *p = span->rows; p < end; p += 64) {
			uint64_t words[8];

			memcpy(words, p, 64);
			for (int j = 0; j < 8; j++)
				sums[j] += words[j];
		}
	}
	list->sink = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

/* The jobs of all the layers of one step. */
struct step {
	const struct model *m;
	uint32_t jobs;
	uint8_t *rows;
	float *q, *out;
	struct kn_span *spans;
	struct kn_attend_job *job;
	size_t bytes;
};

static void step_create(struct step *s, const struct model *m, uint32_t budget, uint32_t layers)
{
	struct kv_random random;
	uint32_t runs = budget / RUN_ROWS + (budget % RUN_ROWS != 0);
	size_t head_bytes = (size_t)m->context * ROW;

	kv_random_seed(&random, 1);
	memset(s, 0, sizeof *s);
	s->m = m;
	s->jobs = layers * m->kv_heads;
	s->rows = memory(s->jobs * head_bytes);
	s->q = memory((size_t)s->jobs * m->group * DIM * 4);
	s->out = memory((size_t)s->jobs * m->group * DIM * 4);
	s->spans = memory((size_t)s->jobs * (runs + 1) * sizeof *s->spans);
	s->job = memory(s->jobs * sizeof *s->job);
	fill_halves(&random, (uint16_t *)(void *)s->rows, s->jobs * head_bytes / 2);
	fill_floats(&random, s->q, (size_t)s->jobs * m->group * DIM);
	for (uint32_t i = 0; i < s->jobs; i++) {
		struct kn_span *spans = s->spans + (size_t)i * (runs + 1);
		const uint8_t *head = s->rows + i * head_bytes;

		for (uint32_t j = 0; j < runs; j++) {
			uint32_t count = budget - j * RUN_ROWS < RUN_ROWS ? budget - j * RUN_ROWS : RUN_ROWS;
			uint64_t at = kv_random_below(&random, m->context - WINDOW - RUN_ROWS);

			spans[j] = (struct kn_span){.rows = head + at * ROW, .count = count};
		}
		spans[runs] = (struct kn_span){.rows = head + head_bytes - (size_t)WINDOW * ROW, WINDOW};
		if (budget >= m->context) {
			spans[0] = (struct kn_span){.rows = head, .count = m->context};
			runs = 0;
		}
		s->job[i] = (struct kn_attend_job){.q = s->q + (size_t)i * m->group * DIM,
		    .out = s->out + (size_t)i * m->group * DIM,
		    .spans = spans,
		    .span_count = runs + 1};
		for (uint32_t j = 0; j <= runs; j++)
			s->bytes += (size_t)spans[j].count * ROW;
	}
}

static void step_destroy(struct step *s)
{
	release(s->rows);
	release(s->q);
	release(s->out);
	release(s->spans);
	release(s->job);
}

static void attend_step(const struct step *s)
{
	for (uint32_t i = 0; i < s->jobs; i += s->m->kv_heads) {
		struct kn_attend_sparse_arguments a = {.jobs = s->job + i,
		    .job_count = s->m->kv_heads,
		    .group = s->m->group,
		    .head_dim = DIM,
		    .kv_type = KN_KV_F16,
		    .scale = 0.125f};

		must(ops->attend_sparse(backend, NULL, &a));
	}
}

static void time_step(const char *what, const struct model *m, uint32_t budget, uint32_t layers)
{
	struct step s;
	struct list list;
	double read = 1e9, attend = 1e9;

	step_create(&s, m, budget, layers);
	for (int run = 0; run < 30; run++) {
		uint64_t start = kv_now_ns();

		for (uint32_t i = 0; i < s.jobs; i += m->kv_heads) {
			list.jobs = s.job + i;
			kn_pool_run(backend->pool, read_task, &list, m->kv_heads * 2);
		}
		read = fmin(read, kv_seconds_since(start));
		start = kv_now_ns();
		attend_step(&s);
		attend = fmin(attend, kv_seconds_since(start));
	}
	printf("| %s %s | %.1f MB | %.3f ms, %.1f GB/s | %.3f ms, %.1f GB/s | %.0f %% |\n", m->name,
	    what, (double)s.bytes * 1e-6, read * 1e3, (double)s.bytes / read * 1e-9, attend * 1e3,
	    (double)s.bytes / attend * 1e-9, 100 * read / attend);
	step_destroy(&s);
}

static void time_scores(const struct model *m)
{
	uint32_t clusters = m->clusters, jobs = m->layers * m->kv_heads;
	size_t size = (size_t)jobs * clusters;
	uint16_t *centroids = memory(size * DIM * 2);
	float *q = memory((size_t)jobs * m->group * DIM * 4), *logits = memory(size * m->group * 4);
	float *votes = memory(size * 4), *log_sizes = memory(size * 4);
	uint32_t *sizes = memory(size * 4), *rest = memory(size * 4), *scratch = memory(size * 4);
	struct kn_extent *extents = memory(size * sizeof *extents);
	struct kn_score_job *score = memory(jobs * sizeof *score);
	struct kn_select_job *selection = memory(jobs * sizeof *selection);
	struct kn_select_counts *taken = memory(jobs * sizeof *taken);
	struct kv_random random;
	double scoring = 1e9, selecting = 1e9;

	kv_random_seed(&random, 2);
	fill_halves(&random, centroids, size * DIM);
	fill_floats(&random, q, (size_t)jobs * m->group * DIM);
	for (size_t i = 0; i < size; i++) {
		sizes[i] = 1 + (uint32_t)kv_random_below(&random, 63);
		log_sizes[i] = logf((float)sizes[i]);
	}
	for (uint32_t i = 0; i < jobs; i++) {
		size_t at = (size_t)i * clusters;

		score[i] = (struct kn_score_job){.q = q + (size_t)i * m->group * DIM,
		    .centroids = centroids + at * DIM,
		    .log_sizes = log_sizes + at,
		    .clusters = clusters,
		    .logits = logits + at * m->group,
		    .logits_stride = clusters,
		    .votes = votes + at};
		selection[i] = (struct kn_select_job){.votes = votes + at,
		    .sizes = sizes + at,
		    .clusters = clusters,
		    .budget = 1024,
		    .extents = extents + at,
		    .rest = rest + at,
		    .counts = taken + i,
		    .scratch = scratch + at};
	}
	for (int run = 0; run < 30; run++) {
		uint64_t start = kv_now_ns();

		for (uint32_t i = 0; i < jobs; i += m->kv_heads) {
			struct kn_score_arguments a = {.jobs = score + i,
			    .job_count = m->kv_heads,
			    .group = m->group,
			    .head_dim = DIM,
			    .scale = 0.125f,
			    .size_term = 1};

			must(ops->score(backend, NULL, &a));
		}
		scoring = fmin(scoring, kv_seconds_since(start));
		start = kv_now_ns();
		for (uint32_t i = 0; i < jobs; i += m->kv_heads)
			must(ops->select(
			    backend, NULL, &(struct kn_select_arguments){selection + i, m->kv_heads}));
		selecting = fmin(selecting, kv_seconds_since(start));
	}
	printf("| %s score, select: %u heads, %u clusters | %.1f MB | | score %.3f ms, select %.3f ms "
	       "| |\n",
	    m->name, jobs, clusters, (double)size * DIM * 2e-6, scoring * 1e3, selecting * 1e3);
	void *blocks[] = {centroids, q, logits, votes, log_sizes, sizes, rest, scratch, extents, score,
	    selection, taken};

	for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
		release(blocks[i]);
}

/* One chunk of 512 queries at the end of `context` tokens, one layer. */
static void time_dense(const struct model *m, uint32_t context)
{
	enum { CHUNK = 512 };
	uint32_t heads = m->kv_heads * m->group;
	size_t width = (size_t)heads * DIM, head_bytes = (size_t)context * ROW;
	uint8_t *rows = memory(m->kv_heads * head_bytes);
	float *q = memory(CHUNK * width * 4), *out = memory(CHUNK * width * 4);
	const uint8_t *own[8];
	struct kn_span spans[8];
	struct kv_random random;
	double best = 1e9;

	kv_random_seed(&random, 3);
	fill_halves(&random, (uint16_t *)(void *)rows, m->kv_heads * head_bytes / 2);
	fill_floats(&random, q, CHUNK * width);
	for (uint32_t h = 0; h < m->kv_heads; h++) {
		spans[h] = (struct kn_span){.rows = rows + h * head_bytes, .count = context - CHUNK};
		own[h] = rows + (h + 1) * head_bytes - (size_t)CHUNK * ROW;
	}
	struct kn_attend_dense_arguments a = {.q = q,
	    .q_stride = width,
	    .out = out,
	    .out_stride = width,
	    .context = spans,
	    .context_spans = 1,
	    .own = own,
	    .count = CHUNK,
	    .heads = heads,
	    .kv_heads = m->kv_heads,
	    .head_dim = DIM,
	    .kv_type = KN_KV_F16,
	    .scale = 0.125f};

	for (int run = 0; run < 6; run++) {
		uint64_t start = kv_now_ns();

		must(ops->attend_dense(backend, NULL, &a));
		best = fmin(best, kv_seconds_since(start));
	}
	double keys = (double)context - CHUNK / 2.0, flops = keys * CHUNK * heads * DIM * 4;

	printf("| %s prefill, %d queries at %u | | | %.2f ms, %.1f GFLOP/s | |\n", m->name, CHUNK,
	    context, best * 1e3, flops / best * 1e-9);
	release(rows);
	release(q);
	release(out);
}

static void time_index(uint32_t n, uint32_t clusters, uint32_t jobs)
{
	uint8_t *rows = memory((size_t)jobs * n * ROW);
	struct kn_index_job job[16];
	struct kv_random random;
	double best = 1e9;

	kv_random_seed(&random, 4);
	uint16_t *halves = (uint16_t *)(void *)rows;

	for (size_t i = 0; i < (size_t)jobs * n; i++)
		for (size_t d = 0; d < 2 * DIM; d++) {
			float centre = d < DIM ? (float)((i * 7 % 100 * 131 + d * 37) % 61) / 20.0f : 0.0f;

			halves[i * 2 * DIM + d] = kn_half_from_float(kv_random_normal(&random) + centre);
		}
	for (uint32_t i = 0; i < jobs; i++)
		job[i] = (struct kn_index_job){.rows = rows + (size_t)i * n * ROW,
		    .row_stride = ROW,
		    .n = n,
		    .clusters = clusters,
		    .order = memory((size_t)n * 4),
		    .sizes = memory((size_t)clusters * 4),
		    .centroids = memory((size_t)clusters * DIM * 2),
		    .value_means = memory((size_t)clusters * DIM * 2)};
	struct kn_index_arguments a = {.jobs = job,
	    .job_count = jobs,
	    .head_dim = DIM,
	    .iterations = 5,
	    .kv_type = KN_KV_F16,
	    .center = 1};

	for (int run = 0; run < 6; run++) {
		uint64_t start = kv_now_ns();

		must(ops->index(backend, NULL, &a));
		best = fmin(best, kv_seconds_since(start));
	}
	printf("| index, %u jobs of %u keys, %u clusters, 5 iterations | | | %.2f ms a job | |\n", jobs,
	    n, clusters, best / jobs * 1e3);
	for (uint32_t i = 0; i < jobs; i++) {
		release(job[i].order);
		release(job[i].sizes);
		release(job[i].centroids);
		release(job[i].value_means);
	}
	release(rows);
}

int main(int argc, char **argv)
{
	static const char *const levels[] = {"auto", "plain", "avx2", "avx512"};
	struct kn_backend_options options = {
	    .allocator = kv_heap(), .max_rows = 512, .max_columns = 1024};

	if (argc > 1) options.threads = (uint32_t)strtoul(argv[1], NULL, 10);
	for (int i = 0; i < 4 && argc > 2; i++)
		if (strcmp(argv[2], levels[i]) == 0) options.cpu_level = (enum kn_cpu_level)i;
	must(kn_backend_open("cpu", &options, &ops, &backend));
	printf("%s; best of some runs\n\n", ops->describe(backend));
	printf("| what | bytes | plain read | this op | share of the read |\n|---|---|---|---|---|\n");
	for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
		time_step("decode, 1,024 + 128 tokens", &models[i], 1024, models[i].layers);
		time_step("decode, 2 dense layers", &models[i], models[i].context, 2);
		time_scores(&models[i]);
	}
	time_dense(&models[0], 2048);
	time_dense(&models[0], 7680);
	time_dense(&models[1], 7680);
	time_dense(&models[1], 30000);
	time_index(4096, 128, 6);
	time_index(320, 10, 6);
	ops->close(backend);
	return 0;
}
