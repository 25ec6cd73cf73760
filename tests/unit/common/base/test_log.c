#include "common/base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static char captured[8192];

/* Run `emit` with standard error in a file, and keep what it wrote. */
static void capture(void (*emit)(void))
{
	FILE *file = tmpfile();
	int saved = dup(STDERR_FILENO);
	size_t length;

	assert_non_null(file);
	assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
	emit();
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(file);
	length = fread(captured, 1, sizeof captured - 1, file);
	captured[length] = '\0';
	fclose(file);
}

static void emit_all_levels(void)
{
	kv_error("test", "one=%d", 1);
	kv_warning("test", "two");
	kv_info("test", "three");
	kv_debug("test", "four");
}

static void emit_hostile(void)
{
	kv_info("test", "name=%s", "a\nINFO forged: b\x1b[31m\tc");
}

static void emit_long(void)
{
	static char text[6000];

	memset(text, 'x', sizeof text - 1);
	kv_info("test", "%s", text);
}

static void levels_are_filtered(void **state)
{
	(void)state;
	unsetenv("JOURNAL_STREAM");
	kv_log_set_level(KV_LOG_WARNING);
	capture(emit_all_levels);
	assert_non_null(strstr(captured, "Z error test: one=1\n"));
	assert_non_null(strstr(captured, "Z warning test: two\n"));
	assert_null(strstr(captured, "three"));
	kv_log_set_level(KV_LOG_DEBUG);
	capture(emit_all_levels);
	assert_non_null(strstr(captured, "debug test: four\n"));
	kv_log_set_level(KV_LOG_INFO);
}

static void the_journal_gets_priorities(void **state)
{
	(void)state;
	setenv("JOURNAL_STREAM", "1:2", 1);
	capture(emit_all_levels);
	assert_string_equal(captured, "<3>test: one=1\n<4>test: two\n<6>test: three\n");
	unsetenv("JOURNAL_STREAM");
}

static void one_event_is_one_line(void **state)
{
	(void)state;
	capture(emit_hostile);
	assert_ptr_equal(strchr(captured, '\n'), captured + strlen(captured) - 1);
	assert_non_null(strstr(captured, "name=a INFO forged: b?[31m c\n"));
	capture(emit_long);
	assert_ptr_equal(strchr(captured, '\n'), captured + strlen(captured) - 1);
	assert_non_null(strstr(captured, "xxx...\n"));
}

static void emit_about_a_request(void)
{
	static char text[6000];

	memset(text, 'x', sizeof text - 1);
	kv_log_set_subject((struct kv_log_subject){"cmpl-1", "seq-1"});
	kv_info("test", "one");
	kv_info("test", "%s", text);
	kv_log_set_subject((struct kv_log_subject){"cmpl-2", ""});
	kv_info("test", "two");
	kv_log_set_subject((struct kv_log_subject){0});
	kv_info("test", "three");
}

static void a_line_says_what_it_is_about(void **state)
{
	(void)state;
	capture(emit_about_a_request);
	assert_non_null(strstr(captured, "test: one request=cmpl-1 sequence=seq-1\n"));
	/* However long it is. */
	assert_non_null(strstr(captured, "xxx... request=cmpl-1 sequence=seq-1\n"));
	assert_non_null(strstr(captured, "test: two request=cmpl-2\n"));
	assert_non_null(strstr(captured, "test: three\n"));
}

static void level_words_are_strict(void **state)
{
	enum kv_log_level level = KV_LOG_INFO;

	(void)state;
	assert_int_equal(kv_log_parse_level("debug", &level), 0);
	assert_int_equal(level, KV_LOG_DEBUG);
	assert_int_equal(kv_log_parse_level("Debug", &level), -1);
	assert_int_equal(kv_log_parse_level("", &level), -1);
	assert_int_equal(level, KV_LOG_DEBUG);
}

enum { MANY_LINES = 4000, NO_HANG_SECONDS = 20 };

/* Read what is in the pipe now. */
static void drain(int descriptor)
{
	size_t used = 0;
	ssize_t got;

	while ((got = read(descriptor, captured, sizeof captured - 1)) > 0)
		used = (size_t)got;
	captured[used] = '\0';
}

/* Last of the tests: there is no way back. */
static void a_reader_that_hangs_stops_nobody(void **state)
{
	int saved = dup(STDERR_FILENO), pair[2];

	(void)state;
	assert_int_equal(pipe(pair), 0);
	assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
	assert_true(dup2(pair[1], STDERR_FILENO) >= 0);
	kv_log_never_wait();
	/* Nobody reads: without this the first thousand lines would be the last. */
	alarm(NO_HANG_SECONDS);
	for (int i = 0; i < MANY_LINES; i++)
		kv_info("test", "line=%d: %064d", i, 0);
	drain(pair[0]);
	kv_info("test", "read again");
	alarm(0);
	dup2(saved, STDERR_FILENO);
	drain(pair[0]);
	assert_non_null(strstr(captured, "warning log: standard error was not read, lines dropped: "));
	assert_non_null(strstr(captured, "info test: read again\n"));
	close(saved);
	close(pair[0]);
	close(pair[1]);
}

static struct kv_log_limit limit;

static void emit_too_many(void)
{
	for (int i = 0; i < KV_LOG_BURST + 5; i++)
		kv_warning_limited(&limit, "test", "line %d", i);
}

static void emit_one_later(void)
{
	limit.since_ms -= 10000;
	kv_warning_limited(&limit, "test", "again");
}

static unsigned lines(void)
{
	unsigned count = 0;

	for (const char *at = captured; *at != '\0'; at++)
		count += *at == '\n';
	return count;
}

static void a_limit_leaves_lines_out_and_says_how_many(void **state)
{
	(void)state;
	capture(emit_too_many);
	assert_int_equal(lines(), KV_LOG_BURST);
	assert_non_null(strstr(captured, "line 19"));
	assert_null(strstr(captured, "line 20"));
	capture(emit_one_later);
	assert_int_equal(lines(), 2);
	assert_non_null(strstr(captured, "5 more lines"));
	assert_non_null(strstr(captured, "again"));
	capture(emit_one_later);
	assert_int_equal(lines(), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(levels_are_filtered),
	    cmocka_unit_test(the_journal_gets_priorities),
	    cmocka_unit_test(one_event_is_one_line),
	    cmocka_unit_test(a_line_says_what_it_is_about),
	    cmocka_unit_test(level_words_are_strict),
	    cmocka_unit_test(a_reader_that_hangs_stops_nobody),
	    cmocka_unit_test(a_limit_leaves_lines_out_and_says_how_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
