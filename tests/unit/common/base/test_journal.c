/* Lines of the log where standard error is the journal: a socket of the test's stands in for it. */
#include "common/base/journal.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { MANY_LINES = 4000, NO_HANG_SECONDS = 20 };

static char folder[] = "/tmp/clusterkv-journal-XXXXXX";
static char path[128], got[8192], written[8192];
static int journal = -1, saved = -1;
static FILE *errors;

static void listen_at_path(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path);
	journal = socket(AF_UNIX, SOCK_DGRAM, 0);
	assert_true(journal >= 0);
	assert_int_equal(bind(journal, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(fcntl(journal, F_SETFL, O_NONBLOCK), 0);
}

static void stop_listening(void)
{
	close(journal);
	unlink(path);
}

/* JOURNAL_STREAM names standard error, or nearly: `more` is added to the inode. */
static void set_stream(unsigned more, const char *behind)
{
	struct stat facts;
	char text[96];

	assert_int_equal(fstat(STDERR_FILENO, &facts), 0);
	snprintf(text, sizeof text, "%ju:%ju%s", (uintmax_t)facts.st_dev,
	    (uintmax_t)facts.st_ino + more, behind);
	setenv("JOURNAL_STREAM", text, 1);
}

static int begin(void **state)
{
	(void)state;
	if (mkdtemp(folder) == NULL) return -1;
	snprintf(path, sizeof path, "%s/socket", folder);
	kv_journal_set_path(path);
	kv_log_set_program("tester");
	return 0;
}

static int end(void **state)
{
	(void)state;
	kv_journal_set_path(NULL);
	return rmdir(folder);
}

static int open_all(void **state)
{
	(void)state;
	errors = tmpfile();
	saved = dup(STDERR_FILENO);
	if (errors == NULL || saved < 0 || dup2(fileno(errors), STDERR_FILENO) < 0) return -1;
	listen_at_path();
	set_stream(0, "");
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	dup2(saved, STDERR_FILENO);
	close(saved);
	fclose(errors);
	stop_listening();
	unsetenv("JOURNAL_STREAM");
	return 0;
}

/* The next entry, "" when there is none. */
static const char *entry(void)
{
	ssize_t length = recv(journal, got, sizeof got - 1, 0);

	got[length > 0 ? length : 0] = '\0';
	return got;
}

/* What is on standard error by now. */
static const char *on_stderr(void)
{
	ssize_t length = pread(fileno(errors), written, sizeof written - 1, 0);

	written[length > 0 ? length : 0] = '\0';
	return written;
}

static void a_line_is_an_entry_with_fields(void **state)
{
	(void)state;
	errno = ENOENT;
	kv_warning("disk", "one=%d", 1);
	assert_int_equal(errno, ENOENT);
	assert_string_equal(entry(),
	    "MESSAGE=disk: one=1\nPRIORITY=4\nSYSLOG_IDENTIFIER=tester\nCLUSTERKV_MODULE=disk\n");
	kv_log_set_subject((struct kv_log_subject){"cmpl-1", "seq-1"});
	kv_info("http", "two");
	kv_log_set_subject((struct kv_log_subject){"cmpl-1", NULL});
	kv_error("http", "three");
	kv_log_set_subject((struct kv_log_subject){0});
	assert_string_equal(entry(), "MESSAGE=http: two request=cmpl-1 sequence=seq-1\nPRIORITY=6\n"
	                             "SYSLOG_IDENTIFIER=tester\nCLUSTERKV_MODULE=http\n"
	                             "CLUSTERKV_REQUEST=cmpl-1\nCLUSTERKV_SEQUENCE=seq-1\n");
	assert_string_equal(entry(), "MESSAGE=http: three request=cmpl-1\nPRIORITY=3\n"
	                             "SYSLOG_IDENTIFIER=tester\nCLUSTERKV_MODULE=http\n"
	                             "CLUSTERKV_REQUEST=cmpl-1\n");
	assert_string_equal(entry(), "");
	assert_string_equal(on_stderr(), "");
}

static void nothing_forges_a_field(void **state)
{
	static char text[6000];

	(void)state;
	kv_info("test", "name=%s", "a\nPRIORITY=0\nMESSAGE=b");
	assert_string_equal(entry(), "MESSAGE=test: name=a PRIORITY=0 MESSAGE=b\nPRIORITY=6\n"
	                             "SYSLOG_IDENTIFIER=tester\nCLUSTERKV_MODULE=test\n");
	memset(text, 'x', sizeof text - 1);
	kv_info("test", "%s", text);
	assert_non_null(strstr(entry(), "xxx...\nPRIORITY=6\nSYSLOG_IDENTIFIER=tester\n"));
}

static void without_the_journal(const char *stream)
{
	if (stream != NULL) setenv("JOURNAL_STREAM", stream, 1);
	assert_false(kv_journal_is_stderr());
	kv_info("test", "line");
	assert_string_equal(entry(), "");
	assert_int_equal(ftruncate(fileno(errors), 0), 0);
}

/* The variable stays when standard error is redirected: then it names something else. */
static void another_stderr_is_not_the_journal(void **state)
{
	(void)state;
	assert_true(kv_journal_is_stderr());
	set_stream(1, "");
	kv_info("test", "line");
	assert_string_equal(entry(), "");
	assert_string_equal(on_stderr(), "<6>test: line\n");
	set_stream(0, "x");
	without_the_journal(NULL);
	set_stream(0, ":1");
	without_the_journal(NULL);
	without_the_journal("");
	without_the_journal("1");
	without_the_journal(":");
	without_the_journal("-1:-1");
	without_the_journal(" 1: 2");
	without_the_journal("99999999999999999999999:1");
	unsetenv("JOURNAL_STREAM");
	without_the_journal(NULL);
}

static void a_journal_that_is_gone_leaves_stderr(void **state)
{
	(void)state;
	stop_listening();
	kv_info("test", "gone");
	assert_string_equal(on_stderr(), "<6>test: gone\n");
	/* It is found again when it is back. */
	listen_at_path();
	kv_info("test", "back");
	assert_non_null(strstr(entry(), "MESSAGE=test: back\n"));
	assert_string_equal(on_stderr(), "<6>test: gone\n");
}

/* Last of the tests: there is no way back. */
static void a_busy_journal_holds_nobody_up(void **state)
{
	unsigned entries = 0, lines = 0;

	(void)state;
	kv_log_never_wait();
	alarm(NO_HANG_SECONDS);
	for (int i = 0; i < MANY_LINES; i++)
		kv_info("test", "a");
	alarm(0);
	while (*entry() != '\0')
		entries++;
	lines = (unsigned)lseek(fileno(errors), 0, SEEK_END) / (unsigned)strlen("<6>test: a\n");
	assert_true(entries > 0);
	assert_true(lines > 0);
	assert_int_equal(entries + lines, MANY_LINES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_line_is_an_entry_with_fields, open_all, close_all),
	    cmocka_unit_test_setup_teardown(nothing_forges_a_field, open_all, close_all),
	    cmocka_unit_test_setup_teardown(another_stderr_is_not_the_journal, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_journal_that_is_gone_leaves_stderr, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_busy_journal_holds_nobody_up, open_all, close_all),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
