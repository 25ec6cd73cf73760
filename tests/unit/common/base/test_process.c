#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/process.h"

/* Run it in a child, whose streams and signals may be spoilt: true gives 0. */
static int in_child(int (*check)(void))
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) _exit(check());
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int without_streams(void)
{
	char byte = 0;
	int other;

	for (int i = 0; i <= 2; i++)
		close(i);
	if (kv_process_prepare() != KV_OK) return 1;
	for (int i = 0; i <= 2; i++)
		if (fcntl(i, F_GETFD) < 0) return 2;
	other = open("/dev/null", O_RDWR);
	if (other <= 2) return 3;
	if (read(0, &byte, 1) != -1 || errno != EBADF) return 4;
	if (write(1, &byte, 1) != -1 || errno != EBADF) return 5;
	return write(2, &byte, 1) == 1 ? 0 : 6;
}

/* One that is lacking among others is found too, and the others are left as they are. */
static int without_output(void)
{
	int pair[2];
	char byte = 'x';

	if (pipe(pair) != 0 || dup2(pair[0], 0) != 0 || dup2(pair[1], 2) != 2) return 1;
	close(1);
	if (kv_process_prepare() != KV_OK || fcntl(1, F_GETFD) < 0) return 2;
	if (write(2, &byte, 1) != 1) return 3;
	byte = 0;
	return read(0, &byte, 1) == 1 && byte == 'x' ? 0 : 4;
}

static int beyond_limits(void)
{
	struct rlimit limit = {4, 4};
	FILE *file = tmpfile();
	int pair[2];

	if (!file || pipe(pair) != 0 || kv_process_prepare() != KV_OK) return 1;
	close(pair[0]);
	if (write(pair[1], "x", 1) != -1 || errno != EPIPE) return 2;
	if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
	if (write(fileno(file), "1234", 4) != 4) return 4;
	return write(fileno(file), "5", 1) == -1 && errno == EFBIG ? 0 : 5;
}

static int full_output(void)
{
	FILE *full = fopen("/dev/full", "w");

	if (!full) return 77;
	if (kv_process_finish() != KV_OK) return 1;
	fputs("text", stdout);
	if (dup2(fileno(full), 1) != 1) return 2;
	if (kv_process_finish() != KV_IO) return 3;
	/* What was lost stays lost, whatever is written afterwards. */
	return kv_process_finish() == KV_IO ? 0 : 4;
}

/* The soft limit is raised as far as is needed and allowed, and no further. */
static int few_descriptors(void)
{
	struct rlimit limit = {20, 50};

	if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
	if (kv_process_descriptors(20, "one needs", "--ones") != KV_OK) return 2;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur != 20) return 3;
	if (kv_process_descriptors(50, "all need", "--all") != KV_OK) return 4;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur != 50) return 5;
	if (kv_process_descriptors(51, "all need", "--all") != KV_USAGE) return 6;
	if (strstr(kv_error_message(), "all need 51 file descriptors") == NULL) return 7;
	return strstr(kv_error_message(), "may have 50; lower --all") != NULL ? 0 : 8;
}

static void descriptors_are_asked_for(void **state)
{
	(void)state;
	assert_int_equal(in_child(few_descriptors), 0);
}

static void closed_streams_are_opened(void **state)
{
	(void)state;
	assert_int_equal(in_child(without_streams), 0);
	assert_int_equal(in_child(without_output), 0);
}

static void a_failed_write_ends_nothing(void **state)
{
	(void)state;
	assert_int_equal(in_child(beyond_limits), 0);
}

static void a_lost_answer_is_told(void **state)
{
	int code = in_child(full_output);

	(void)state;
	if (code == 77) skip();
	assert_int_equal(code, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(closed_streams_are_opened),
	    cmocka_unit_test(descriptors_are_asked_for),
	    cmocka_unit_test(a_failed_write_ends_nothing),
	    cmocka_unit_test(a_lost_answer_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
