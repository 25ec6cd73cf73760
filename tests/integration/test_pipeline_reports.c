/* What a sequence reports of itself, and what --audit finds, against a direct computation.
 *
 * All layers but the last are dense, so that the sums are those of one layer, whose queries,
 * selections and output are still in the pipeline's memory after a step. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/half.h"
#include "tests/lib/discrete_backend.h"
#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

static const char *model_name = "tiny_llama";

enum { MOST = 900, MAX_GROUP = 8 };

/* What a report should come to. */
struct sums {
	uint64_t selections, estimates, audits, recalls;
	double budget, window, bytes, estimated, lost, error, recall;
};

/* One KV head of one step. */
struct view {
	const struct gw_sequence *sequence;
	const struct gw_selection *selection;
	const float *q, *out; /* [group][head_dim] */
	uint32_t layer, head, group, head_dim, count, prefix;
	const uint8_t *rows[MOST];
	uint8_t attended[MOST];
	double mass[MAX_GROUP][MOST]; /* exp(logit - largest) */
	double largest[MAX_GROUP];
	double votes[MOST]; /* of prefix tokens */
};

static double number_of(const uint8_t *row, uint32_t i)
{
	uint16_t half;

	memcpy(&half, row + 2 * (size_t)i, sizeof half);
	return (double)kn_half_to_float(half);
}

static const uint8_t *row_of(const struct view *v, uint32_t position)
{
	const struct gw_sequence *s = v->sequence;

	return position < s->window_start
	           ? kvt_stored_row(s, v->layer, v->head, position)
	           : gw_token_rows_at(&s->layers[v->layer].recent, v->head, position - s->window_start);
}

static void find_rows(struct view *v)
{
	for (uint32_t p = 0; p < v->count; p++)
		v->rows[p] = row_of(v, p);
}

static void mark_attended(struct view *v)
{
	const struct gw_sequence *s = v->sequence;
	const struct gw_cluster_index *index = s->layers[v->layer].index;
	uint32_t sinks = s->pipeline->options.policy.sinks;

	for (uint32_t p = 0; p < v->count; p++)
		v->attended[p] = p < sinks || p >= s->window_start;
	for (uint32_t e = 0; e < v->selection->extent_count; e++) {
		const struct kn_extent *extent = &v->selection->extents[e];
		uint32_t ordinal = index->segment_of[extent->cluster];
		const uint8_t *memory =
		    kvc_direct(s->pipeline->options.store, s->segments[ordinal], v->layer);
		uint32_t first = index->first_row[v->head * index->capacity + extent->cluster];

		for (uint32_t i = 0; i < extent->count; i++) {
			uint32_t p = gw_unit_positions(&s->units[ordinal], memory, v->head)[first + i];

			assert_int_equal(v->attended[p], 0);
			v->attended[p] = 1;
		}
	}
}

static void weigh(struct view *v, double scale)
{
	memset(v->votes, 0, sizeof v->votes);
	for (uint32_t g = 0; g < v->group; g++) {
		double prefix_mass = 0.0;

		v->largest[g] = -HUGE_VAL;
		for (uint32_t p = 0; p < v->count; p++) {
			const uint8_t *row = v->rows[p];
			double dot = 0.0;

			for (uint32_t i = 0; i < v->head_dim; i++)
				dot += (double)v->q[g * v->head_dim + i] * number_of(row, i);
			v->mass[g][p] = dot * scale;
			if (v->mass[g][p] > v->largest[g]) v->largest[g] = v->mass[g][p];
		}
		for (uint32_t p = 0; p < v->count; p++) {
			v->mass[g][p] = exp(v->mass[g][p] - v->largest[g]);
			if (p < v->prefix) prefix_mass += v->mass[g][p];
		}
		for (uint32_t p = 0; p < v->prefix; p++)
			v->votes[p] += v->mass[g][p] / prefix_mass;
	}
}

static void add_lost_mass_and_error(const struct view *v, struct sums *sums)
{
	for (uint32_t g = 0; g < v->group; g++) {
		double all = 0.0, prefix = 0.0, attended = 0.0, difference = 0.0, norm = 0.0;

		for (uint32_t p = 0; p < v->count; p++) {
			all += v->mass[g][p];
			if (p < v->prefix) prefix += v->mass[g][p];
			if (p < v->prefix && v->attended[p]) attended += v->mass[g][p];
		}
		for (uint32_t i = 0; i < v->head_dim; i++) {
			double full = 0.0, d;

			for (uint32_t p = 0; p < v->count; p++)
				full += v->mass[g][p] / all * number_of(v->rows[p], v->head_dim + i);
			d = (double)v->out[g * v->head_dim + i] - full;
			difference += d * d;
			norm += full * full;
		}
		sums->audits++;
		sums->lost += 1.0 - attended / prefix;
		sums->error += sqrt(difference / norm);
	}
}

/* The share of the best tokens that was attended; the best are found by looking for the next one.
 */
static void add_recall(struct view *v, struct sums *sums)
{
	uint32_t sinks = v->sequence->layers[v->layer].sinks.count;
	uint32_t budget = sinks + v->selection->tokens, found = 0;

	if (budget > v->prefix) budget = v->prefix;
	for (uint32_t n = 0; n < budget; n++) {
		uint32_t best = 0;

		for (uint32_t p = 1; p < v->prefix; p++)
			if (v->votes[p] > v->votes[best]) best = p;
		v->votes[best] = -1.0;
		found += v->attended[best];
	}
	if (budget == 0) return;
	sums->recall += (double)found / budget;
	sums->recalls++;
}

static void add_estimate(const struct view *v, double scale, struct sums *sums)
{
	const struct gw_cluster_index *index = v->sequence->layers[v->layer].index;

	if (!v->sequence->pipeline->options.policy.estimate || index->clusters == 0) return;
	for (uint32_t g = 0; g < v->group; g++) {
		double exact = 0.0, estimated = 0.0;

		for (uint32_t p = 0; p < v->count; p++)
			exact += v->attended[p] ? v->mass[g][p] : 0.0;
		for (uint32_t c = 0; c < index->clusters; c++) {
			size_t slot = (size_t)v->head * index->capacity + c;
			double dot = 0.0, left = index->sizes[slot];

			for (uint32_t i = 0; i < v->head_dim; i++)
				dot += (double)v->q[g * v->head_dim + i] *
				       (double)kn_half_to_float(index->centroids[slot * v->head_dim + i]);
			for (uint32_t e = 0; e < v->selection->extent_count; e++)
				if (v->selection->extents[e].cluster == c) left -= v->selection->extents[e].count;
			estimated += left * exp(dot * scale - v->largest[g]);
		}
		sums->estimates++;
		sums->estimated += estimated / (exact + estimated);
	}
}

static void add_step(const struct kvt_talk *talk, struct sums *sums)
{
	static struct view v;
	const struct gw_sequence *s = talk->sequence;
	const struct gw_pipeline *pipeline = talk->pipeline;
	const struct gw_model_shape *shape = pipeline->shape;
	double scale = (double)shape->attention_scale;

	v.sequence = s;
	v.layer = shape->layers - 1;
	v.group = gw_shape_group(shape);
	v.head_dim = shape->head_dim;
	v.count = s->kv_count;
	v.prefix = s->window_start > s->prompt_tokens ? s->window_start : s->prompt_tokens;
	for (v.head = 0; v.head < shape->kv_heads; v.head++) {
		uint32_t clusters = s->layers[v.layer].index->clusters;
		uint32_t budget, window = s->kv_count - s->window_start;

		v.selection = &pipeline->selections[v.head];
		v.q = pipeline->qkv + (size_t)v.head * v.group * v.head_dim;
		v.out = pipeline->attention + (size_t)v.head * v.group * v.head_dim;
		budget = s->layers[v.layer].sinks.count + v.selection->tokens;
		assert_true(budget <= pipeline->options.policy.budget);
		sums->selections++;
		sums->budget += budget;
		sums->window += window;
		sums->bytes += (double)((budget + window) * pipeline->row_bytes +
		                        clusters * (4 * (size_t)v.head_dim + 8));
		find_rows(&v);
		mark_attended(&v);
		weigh(&v, scale);
		add_lost_mass_and_error(&v, sums);
		add_recall(&v, sums);
		add_estimate(&v, scale, sums);
	}
}

static void assert_mean(
    const char *what, double got, uint64_t got_count, double want, uint64_t want_count, double most)
{
	assert_int_equal(got_count, want_count);
	if (want_count == 0) return;
	got /= (double)got_count;
	want /= (double)want_count;
	print_message("  %s: %.6g\n", what, got);
	if (!(fabs(got - want) <= most)) fail_msg("%s is %.9g, not %.9g", what, got, want);
}

struct audit_case {
	uint32_t prompt, steps, window, fold, sinks, budget;
	int estimate;
};

static void run_audit_case(
    struct kvt_worker *worker, const struct audit_case *c, struct gw_report *report)
{
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = c->prompt, .room = c->steps};
	struct gw_pipeline *pipeline;
	struct sums sums = {0};
	struct kvt_talk talk, *batch[1] = {&talk};

	print_message("prompt %u, %u steps, window %u, fold %u, sinks %u, budget %u\n", c->prompt,
	    c->steps, c->window, c->fold, c->sinks, c->budget);
	kvt_make_prompt(worker, 1, ids, MOST);
	worker->options.policy.window = c->window;
	worker->options.policy.fold = c->fold;
	worker->options.policy.sinks = c->sinks;
	worker->options.policy.budget = c->budget;
	worker->options.policy.estimate = c->estimate;
	worker->options.policy.dense_layers = worker->shape->layers - 1;
	worker->options.kv_type = KN_KV_F16; /* the audit's keys are fp16 */
	worker->options.audit = 1;
	kvt_store_open(worker, 0);
	pipeline = kvt_pipeline_open(worker);
	kvt_talk_begin(&talk, pipeline, &question);
	while (talk.count < c->steps) {
		kvt_talk_step(batch, 1);
		kvt_discrete_show(worker->ops, worker->backend);
		add_step(&talk, &sums);
		kvt_discrete_hide(worker->ops, worker->backend);
	}
	*report = *gw_sequence_report(talk.sequence);
	assert_int_equal(report->decode_steps, c->steps - 1);
	assert_mean(
	    "budget", report->budget_tokens, report->selections, sums.budget, sums.selections, 1e-9);
	assert_mean(
	    "window", report->window_tokens, report->selections, sums.window, sums.selections, 1e-9);
	assert_mean(
	    "bytes", report->bytes_touched, report->selections, sums.bytes, sums.selections, 1e-6);
	assert_mean("lost mass, estimated", report->lost_mass_estimated, report->estimates,
	    sums.estimated, sums.estimates, 1e-5);
	assert_mean("lost mass", report->lost_mass, report->audits, sums.lost, sums.audits, 1e-5);
	assert_mean(
	    "output error", report->output_error, report->audits, sums.error, sums.audits, 1e-4);
	/* Where votes lie close together, single and double precision may rank them otherwise. */
	assert_mean("recall", report->recall, report->recalls, sums.recall, sums.recalls, 2e-3);
	assert_int_equal(report->cache.hit_bytes + report->cache.miss_bytes,
	    (report->cache.hit_tokens + report->cache.miss_tokens) * pipeline->row_bytes);
	kvt_talk_end(&talk);
	gw_pipeline_destroy(pipeline);
	kvt_store_close(worker);
}

static void an_audit_is_what_it_says(void **state)
{
	static const struct audit_case cases[] = {
	    {300, 130, 64, 96, 16, 64, 1},
	    {300, 60, 64, 96, 16, 64, 0},
	    {500, 20, 0, 96, 16, 100, 1},
	    {40, 200, 64, 48, 16, 40, 1}, /* the sinks come with the first fold */
	    {70, 150, 64, 48, 16, 40, 1}, /* some of them with the prompt, some with the fold */
	    {20, 60, 16, 5, 16, 30, 1},
	    {200, 30, 64, 96, 0, 50, 1},
	};
	struct kvt_worker worker;
	struct gw_report report;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i += KVT_EVERY) {
		run_audit_case(&worker, &cases[i], &report);
		assert_true(report.lost_mass > 0.0 && report.output_error > 0.0);
		assert_true(report.recall / (double)report.recalls < 1.0);
	}
	kvt_worker_close(&worker);
}

static void nothing_is_lost_where_the_budget_covers_everything(void **state)
{
	static const struct audit_case all = {300, 130, 64, 96, 16, 4096, 1};
	struct kvt_worker worker;
	struct gw_report report;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	run_audit_case(&worker, &all, &report);
	assert_true(fabs(report.lost_mass_estimated / (double)report.estimates) < 1e-6);
	assert_true(fabs(report.lost_mass / (double)report.audits) < 1e-6);
	assert_true(report.recall == (double)report.recalls);
	assert_true(report.output_error / (double)report.audits < 1e-4);
	kvt_worker_close(&worker);
}

/* More budget loses less, and the estimate brings the output nearer to full attention. */
static void more_budget_and_the_estimate_help(void **state)
{
	struct kvt_worker worker;
	struct gw_report reports[4];
	double lost[4], error[4], recall[4];

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	for (uint32_t i = 0; i < 4; i++) {
		const struct audit_case c = {600, 40, 64, 96, 16, i < 3 ? 32u << i : 64u, i < 3 ? 1 : 0};

		run_audit_case(&worker, &c, &reports[i]);
		lost[i] = reports[i].lost_mass / (double)reports[i].audits;
		error[i] = reports[i].output_error / (double)reports[i].audits;
		recall[i] = reports[i].recall / (double)reports[i].recalls;
		assert_true(lost[i] > 0.0 && lost[i] < 1.0 && recall[i] > 0.0 && recall[i] < 1.0);
	}
	assert_true(lost[0] > lost[1] && lost[1] > lost[2]);
	assert_true(error[0] > error[1] && error[1] > error[2]);
	assert_true(recall[0] < recall[2]);
	assert_true(error[1] < error[3]);
	for (uint32_t i = 0; i < 3; i++) {
		double estimated = reports[i].lost_mass_estimated / (double)reports[i].estimates;

		/* The estimate of a whole cluster is a lower bound of its mass. */
		assert_true(estimated > 0.0 && estimated < lost[i]);
	}
	kvt_worker_close(&worker);
}

/* A sequence's own share of the cache's figures adds up to the pipeline's. */
static void lookups_are_counted_for_their_sequence(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talks[3], *batch[3] = {&talks[0], &talks[1], &talks[2]};
	int32_t ids[MOST];
	struct gw_cache_stats sum = {0}, all;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_store_open(&worker, 0);
	worker.options.cache_bytes = 150000;
	pipeline = kvt_pipeline_open(&worker);
	kvt_make_prompt(&worker, 2, ids, MOST);
	for (uint32_t i = 0; i < 3; i++) {
		struct kvt_question question = {.prompt = ids, .prompt_tokens = 300 + 100 * i, .room = 20};

		kvt_talk_begin(&talks[i], pipeline, &question);
	}
	for (uint32_t step = 0; step < 18; step++)
		kvt_talk_step(batch, 3);
	for (uint32_t i = 0; i < 3; i++) {
		const struct gw_report *report = gw_sequence_report(talks[i].sequence);

		assert_int_equal(report->decode_steps, 18);
		assert_int_equal((report->cache.hit_tokens + report->cache.miss_tokens) +
		                     report->selections * worker.options.policy.sinks,
		    (uint64_t)report->budget_tokens);
		sum.hit_bytes += report->cache.hit_bytes;
		sum.miss_bytes += report->cache.miss_bytes;
		sum.hit_tokens += report->cache.hit_tokens;
		sum.hit_clusters += report->cache.hit_clusters;
		sum.miss_clusters += report->cache.miss_clusters;
	}
	all = gw_pipeline_cache_stats(pipeline);
	assert_true(sum.hit_bytes > 0);
	assert_int_equal(sum.hit_bytes, all.hit_bytes);
	assert_int_equal(sum.miss_bytes, all.miss_bytes);
	assert_int_equal(sum.hit_tokens, all.hit_tokens);
	assert_int_equal(sum.hit_clusters, all.hit_clusters);
	assert_int_equal(sum.miss_clusters, all.miss_clusters);
	for (uint32_t i = 0; i < 3; i++)
		kvt_talk_end(&talks[i]);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* Twice a budget of one token is less than a page, which is the least that can be had. */
static void the_smallest_budget_has_a_cache(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	worker.options.policy.budget = 1;
	worker.options.policy.sinks = 0;
	worker.options.policy.dense_layers = worker.shape->layers - 1;
	worker.options.max_batch = 1;
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	assert_int_equal(gw_pipeline_cache_stats(pipeline).capacity_bytes,
	    GW_CACHE_PAGE_ROWS * kn_kv_row_bytes(worker.options.kv_type, worker.shape->head_dim));
	gw_pipeline_destroy(pipeline);
	kvt_store_close(&worker);
	kvt_worker_close(&worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_audit_is_what_it_says),
	    cmocka_unit_test(nothing_is_lost_where_the_budget_covers_everything),
	    cmocka_unit_test(more_budget_and_the_estimate_help),
	    cmocka_unit_test(lookups_are_counted_for_their_sequence),
	    cmocka_unit_test(the_smallest_budget_has_a_cache),
	};

	if (argc > 1) model_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
