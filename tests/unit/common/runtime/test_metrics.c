#include "common/runtime/metrics.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define TEST_METRICS(X)                                                                            \
	X(COMMITS, "commits", COUNTER, "result=\"ok\"", "", "Segments\ncommitted \\ now.")             \
	X(COMMITS_FAILED, "commits", COUNTER, "result=\"failed\"", "", "")                             \
	X(ARENA, "arena", GAUGE, "", "bytes", "Memory.")                                               \
	X(BUSY, "busy", REAL_COUNTER, "", "seconds", "Time.")                                          \
	X(SHARE, "share", REAL_GAUGE, "", "", "A ratio.")                                              \
	X(FETCH, "fetch", HISTOGRAM, "", "seconds", "Fetch time.")

enum test_metric { TEST_METRICS(KV_METRIC_ENUM) METRIC_COUNT };

static const struct kv_metric table[] = {TEST_METRICS(KV_METRIC_ROW)};

static struct kv_metrics *create(void)
{
	struct kv_metrics *metrics = NULL;

	assert_int_equal(kv_metrics_create(kv_heap(), table, METRIC_COUNT, &metrics), KV_OK);
	return metrics;
}

static void values_are_kept_by_kind(void **state)
{
	struct kv_metrics *metrics = create();

	(void)state;
	kv_metrics_add(metrics, COMMITS, 3);
	kv_metrics_add(metrics, COMMITS, 1);
	kv_metrics_set(metrics, ARENA, 10);
	kv_metrics_add(metrics, ARENA, -12);
	kv_metrics_add_real(metrics, BUSY, 0.25);
	kv_metrics_add_real(metrics, BUSY, 0.5);
	kv_metrics_set_real(metrics, SHARE, -0.5);
	assert_int_equal(kv_metrics_get(metrics, COMMITS), 4);
	assert_int_equal(kv_metrics_get(metrics, COMMITS_FAILED), 0);
	assert_int_equal(kv_metrics_get(metrics, ARENA), -2);
	assert_true(kv_metrics_get_real(metrics, BUSY) == 0.75);
	kv_metrics_observe(metrics, FETCH, 0.002);
	kv_metrics_reset(metrics);
	assert_int_equal(kv_metrics_get(metrics, COMMITS), 0);
	assert_int_equal(kv_metrics_get(metrics, ARENA), -2);
	assert_true(kv_metrics_get_real(metrics, BUSY) == 0.0);
	assert_true(kv_metrics_get_real(metrics, SHARE) == -0.5);
	assert_int_equal(kv_metrics_observed(metrics, FETCH), 0);
	kv_metrics_destroy(metrics);
	kv_metrics_destroy(NULL);
	kv_metrics_add(NULL, COMMITS, 1);
	kv_metrics_observe(NULL, FETCH, 1.0);
	assert_int_equal(kv_metrics_get(NULL, COMMITS), 0);
}

static void quantiles_lie_in_their_bucket(void **state)
{
	struct kv_metrics *metrics = create();

	(void)state;
	assert_true(kv_metrics_quantile(metrics, FETCH, 0.5) == 0.0);
	for (int i = 0; i < 90; i++)
		kv_metrics_observe(metrics, FETCH, 0.002);
	for (int i = 0; i < 10; i++)
		kv_metrics_observe(metrics, FETCH, 5.0);
	assert_int_equal(kv_metrics_observed(metrics, FETCH), 100);
	assert_true(kv_metrics_quantile(metrics, FETCH, 0.5) > 0.001);
	assert_true(kv_metrics_quantile(metrics, FETCH, 0.5) <= 0.003);
	assert_true(kv_metrics_quantile(metrics, FETCH, 0.99) > 3.0);
	assert_true(kv_metrics_quantile(metrics, FETCH, 0.99) <= 10.0);
	kv_metrics_reset(metrics);
	kv_metrics_observe(metrics, FETCH, 1e6);
	assert_true(kv_metrics_quantile(metrics, FETCH, 0.5) == 300.0);
	/* A bound itself belongs below it, as `le` says. */
	kv_metrics_reset(metrics);
	kv_metrics_observe(metrics, FETCH, 1e-5);
	assert_true(kv_metrics_quantile(metrics, FETCH, 1.0) == 1e-5);
	kv_metrics_destroy(metrics);
}

static void stat_lines_are_memcached_s(void **state)
{
	struct kv_metrics *metrics = create();
	struct kv_text_buffer text;

	(void)state;
	kv_text_init(&text, kv_heap(), 10000);
	kv_metrics_add(metrics, COMMITS, 4);
	kv_metrics_set(metrics, ARENA, -2);
	kv_metrics_add_real(metrics, BUSY, 0.75);
	kv_metrics_render_stat(metrics, "", &text);
	assert_string_equal(kv_text(&text),
	    "STAT commits_total{result=\"ok\"} 4\r\nSTAT commits_total{result=\"failed\"} 0\r\n"
	    "STAT arena_bytes -2\r\nSTAT busy_seconds_total 0.75\r\nSTAT share 0\r\n"
	    "STAT fetch_seconds_count 0\r\nSTAT fetch_seconds_sum 0\r\nSTAT fetch_seconds_p50 0\r\n"
	    "STAT fetch_seconds_p99 0\r\n");
	kv_text_deinit(&text);
	kv_metrics_destroy(metrics);
}

static void json_is_one_object(void **state)
{
	struct kv_metrics *metrics = create();
	struct kv_text_buffer text;

	(void)state;
	kv_text_init(&text, kv_heap(), 10000);
	kv_metrics_add(metrics, COMMITS, 4);
	kv_metrics_set_real(metrics, SHARE, (double)NAN);
	kv_metrics_render_json(metrics, "s_", &text);
	assert_non_null(
	    strstr(kv_text(&text), "{\"s_commits_total{result=\\\"ok\\\"}\":4,\"s_commits"));
	assert_non_null(strstr(kv_text(&text), "\"s_share\":null,"));
	assert_non_null(strstr(kv_text(&text), "\"s_fetch_seconds_p99\":0}"));
	kv_text_deinit(&text);
	kv_metrics_destroy(metrics);
}

static size_t occurrences(const char *text, const char *words)
{
	size_t count = 0;

	while ((text = strstr(text, words))) {
		count++;
		text++;
	}
	return count;
}

static void prometheus_groups_families(void **state)
{
	struct kv_metrics_instance instances[2] = {
	    {create(), "worker=\"a\""}, {create(), "worker=\"b\""}};
	struct kv_metrics *second = create();
	struct kv_text_buffer text;
	const char *out;

	(void)state;
	kv_text_init(&text, kv_heap(), 100000);
	kv_metrics_add(second, COMMITS, 7);
	kv_metrics_observe(second, FETCH, 0.002);
	kv_metrics_destroy((struct kv_metrics *)(uintptr_t)instances[1].metrics);
	instances[1].metrics = second;
	kv_metrics_render_prometheus(instances, 2, "t_", &text);
	out = kv_text(&text);
	assert_int_equal(occurrences(out, "# TYPE t_commits_total counter\n"), 1);
	assert_int_equal(occurrences(out, "# HELP "), 5);
	assert_non_null(strstr(out, "# HELP t_commits_total Segments\\ncommitted \\\\ now.\n"));
	assert_non_null(strstr(out, "# TYPE t_commits_total counter\n"
	                            "t_commits_total{worker=\"a\",result=\"ok\"} 0\n"
	                            "t_commits_total{worker=\"a\",result=\"failed\"} 0\n"
	                            "t_commits_total{worker=\"b\",result=\"ok\"} 7\n"
	                            "t_commits_total{worker=\"b\",result=\"failed\"} 0\n"
	                            "# HELP t_arena_bytes"));
	assert_non_null(strstr(out, "t_arena_bytes{worker=\"a\"} 0\n"));
	assert_non_null(strstr(out, "# TYPE t_fetch_seconds histogram\n"));
	/* Buckets are cumulated. */
	assert_non_null(strstr(out, "t_fetch_seconds_bucket{worker=\"b\",le=\"0.001\"} 0\n"));
	assert_non_null(strstr(out, "t_fetch_seconds_bucket{worker=\"b\",le=\"0.003\"} 1\n"));
	assert_non_null(strstr(out, "t_fetch_seconds_bucket{worker=\"b\",le=\"+Inf\"} 1\n"));
	assert_non_null(strstr(out, "t_fetch_seconds_sum{worker=\"b\"} 0.002\n"));
	assert_non_null(strstr(out, "t_fetch_seconds_count{worker=\"b\"} 1\n"));
	kv_text_reset(&text);
	instances[0].labels = "";
	kv_metrics_render_prometheus(instances, 1, "t_", &text);
	assert_non_null(strstr(kv_text(&text), "t_arena_bytes 0\n"));
	kv_text_reset(&text);
	kv_metrics_put_label(&text, "worker", "a\"b\\c\nd");
	assert_string_equal(kv_text(&text), "worker=\"a\\\"b\\\\c\\nd\"");
	kv_text_deinit(&text);
	kv_metrics_destroy((struct kv_metrics *)(uintptr_t)instances[0].metrics);
	kv_metrics_destroy(second);
}

static void slots_travel(void **state)
{
	struct kv_metrics *from = create();
	struct kv_metrics *to = create();
	uint64_t slots[64];
	size_t count = kv_metrics_slot_count(from);

	(void)state;
	assert_in_range(count, METRIC_COUNT + 1, 64);
	kv_metrics_add(from, COMMITS, 9);
	kv_metrics_set_real(from, SHARE, 0.125);
	kv_metrics_observe(from, FETCH, 0.5);
	kv_metrics_read_slots(from, slots, count);
	assert_int_equal(kv_metrics_write_slots(to, slots, count - 1), KV_PROTOCOL);
	assert_int_equal(kv_metrics_get(to, COMMITS), 0);
	assert_int_equal(kv_metrics_write_slots(to, slots, count), KV_OK);
	assert_int_equal(kv_metrics_get(to, COMMITS), 9);
	assert_true(kv_metrics_get_real(to, SHARE) == 0.125);
	assert_int_equal(kv_metrics_observed(to, FETCH), 1);
	kv_metrics_destroy(from);
	kv_metrics_destroy(to);
}

static void *count_up(void *metrics)
{
	for (int i = 0; i < 10000; i++) {
		kv_metrics_add(metrics, COMMITS, 1);
		kv_metrics_add_real(metrics, BUSY, 0.5);
		kv_metrics_observe(metrics, FETCH, 0.5);
	}
	return NULL;
}

static void threads_lose_no_count(void **state)
{
	struct kv_metrics *metrics = create();
	pthread_t threads[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_up, metrics), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(kv_metrics_get(metrics, COMMITS), 30000);
	assert_true(kv_metrics_get_real(metrics, BUSY) == 15000.0);
	assert_int_equal(kv_metrics_observed(metrics, FETCH), 30000);
	kv_metrics_destroy(metrics);
}

static void failures_are_survived(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_metrics *metrics = NULL;
	struct kv_metrics_instance instance;
	struct kv_text_buffer text;

	(void)state;
	for (uint64_t n = 1; n <= 3; n++) {
		kv_allocator_fail_at(allocator, n);
		assert_int_equal(kv_metrics_create(allocator, table, METRIC_COUNT, &metrics), KV_NO_MEMORY);
		assert_null(metrics);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	metrics = create();
	instance.metrics = metrics;
	instance.labels = "";
	for (uint64_t n = 1; n <= 3; n++) {
		kv_text_init(&text, allocator, 100000);
		kv_allocator_fail_at(allocator, n);
		kv_metrics_render_json(metrics, "", &text);
		assert_int_equal(kv_text_status(&text), KV_NO_MEMORY);
		kv_text_reset(&text);
		kv_text_deinit(&text);
		kv_allocator_fail_at(allocator, n);
		kv_metrics_render_prometheus(&instance, 1, "", &text);
		assert_int_equal(kv_text_status(&text), KV_NO_MEMORY);
		kv_text_deinit(&text);
	}
	kv_text_init(&text, allocator, 100);
	kv_metrics_render_stat(metrics, "", &text);
	assert_int_equal(kv_text_status(&text), KV_LIMIT);
	kv_text_deinit(&text);
	kv_metrics_destroy(metrics);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(values_are_kept_by_kind),
	    cmocka_unit_test(quantiles_lie_in_their_bucket),
	    cmocka_unit_test(stat_lines_are_memcached_s),
	    cmocka_unit_test(json_is_one_object),
	    cmocka_unit_test(prometheus_groups_families),
	    cmocka_unit_test(slots_travel),
	    cmocka_unit_test(threads_lose_no_count),
	    cmocka_unit_test(failures_are_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
