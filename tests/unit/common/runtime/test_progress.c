#include "common/base/clock.h"
#include "common/runtime/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static char shown[16384];

/* Run updates 0 to `steps` with both the bar and the log going to one file. */
static void run(struct kv_progress_settings settings, uint64_t steps, uint64_t wait_ms)
{
	struct kv_progress *progress = NULL;
	FILE *file = tmpfile();
	int saved = dup(STDERR_FILENO);

	unsetenv("NOTIFY_SOCKET");
	unsetenv("JOURNAL_STREAM");
	settings.fd = fileno(file);
	dup2(fileno(file), STDERR_FILENO);
	assert_int_equal(kv_progress_create(kv_heap(), &settings, &progress), KV_OK);
	for (uint64_t i = 0; i <= steps; i++) {
		uint64_t start = kv_now_ms();

		while (kv_now_ms() - start < wait_ms)
			;
		kv_progress_update(progress, i * 1024);
	}
	kv_progress_finish(progress);
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(file);
	shown[fread(shown, 1, sizeof shown - 1, file)] = '\0';
	fclose(file);
}

static int occurrences(const char *words)
{
	int count = 0;

	for (const char *at = shown; (at = strstr(at, words)); at++)
		count++;
	return count;
}

static void a_bar_fills_and_ends_its_line(void **state)
{
	struct kv_progress_settings settings = {
	    .title = "loading", .unit = "bytes", .total = 4096, .mode = KV_PROGRESS_BAR};

	(void)state;
	settings.bar_interval_ms = 1;
	run(settings, 4, 2);
	assert_int_equal(strncmp(shown, "\rloading [", 10), 0);
	assert_non_null(strstr(shown, "[..............................]"));
	assert_non_null(strstr(shown, "[##############################] 100 %, 4.0 KiB, "));
	assert_ptr_equal(strchr(shown, '\n'), shown + strlen(shown) - 1);
	assert_int_equal(occurrences("\r"), 6);
}

static void a_bar_is_rate_limited(void **state)
{
	struct kv_progress_settings settings = {
	    .title = "loading", .unit = "tokens", .total = 0, .mode = KV_PROGRESS_BAR};

	(void)state;
	settings.bar_interval_ms = 1000000;
	run(settings, 1000, 0);
	/* The first update and the end. */
	assert_int_equal(occurrences("\r"), 2);
	assert_non_null(strstr(shown, "loading 1024000 tokens, "));
}

static void lines_come_after_their_interval(void **state)
{
	struct kv_progress_settings settings = {
	    .title = "loading", .unit = "tokens", .total = 2048, .mode = KV_PROGRESS_LINES};

	(void)state;
	settings.line_interval_ms = 1;
	run(settings, 2, 2);
	assert_int_equal(occurrences("progress: loading: "), 4);
	assert_non_null(strstr(shown, " 50 %, 1024 tokens, "));
	assert_int_equal(occurrences(", done\n"), 1);
	/* What was quick is not mentioned at all. */
	settings.line_interval_ms = 1000000;
	run(settings, 100, 0);
	assert_string_equal(shown, "");
}

static void files_are_no_terminals(void **state)
{
	struct kv_progress_settings settings = {
	    .title = "loading", .total = 5, .mode = KV_PROGRESS_AUTO};

	(void)state;
	settings.line_interval_ms = 1;
	run(settings, 1, 2);
	assert_int_equal(occurrences("\r"), 0);
	assert_int_equal(occurrences("progress: loading"), 3);
	settings.mode = KV_PROGRESS_OFF;
	run(settings, 3, 2);
	assert_string_equal(shown, "");
	kv_progress_finish(NULL);
}

static void failure_makes_nothing(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_progress_settings settings = {.title = "x"};
	struct kv_progress *progress = NULL;

	(void)state;
	kv_allocator_fail_at(allocator, 1);
	assert_int_equal(kv_progress_create(allocator, &settings, &progress), KV_NO_MEMORY);
	assert_null(progress);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_bar_fills_and_ends_its_line),
	    cmocka_unit_test(a_bar_is_rate_limited),
	    cmocka_unit_test(lines_come_after_their_interval),
	    cmocka_unit_test(files_are_no_terminals),
	    cmocka_unit_test(failure_makes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
