/* The driver of the fuzz targets finds a fault, keeps the input that met it, and meets it again
 * from that input and from its seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/process.h"

enum { WAIT_MS = 30000 };

static char folder[] = "/tmp/clusterkv-fuzz-XXXXXX";

/* Its exit code, and what it wrote to its standard error; the caller frees that. */
static int run(const char *const *arguments, char **errors)
{
	struct process process = {0};
	int code;

	assert_true(process_start(&process, arguments, NULL));
	code = process_wait(&process, WAIT_MS);
	*errors = process_errors(&process);
	assert_non_null(*errors);
	process_deinit(&process);
	return code;
}

static void write_seed(const char *bytes)
{
	FILE *file = fopen("seed", "wb");

	assert_non_null(file);
	assert_true(fputs(bytes, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* The number and the seed of the input that failed, and the name of its file. */
static void read_report(
    const char *errors, unsigned long long *number, unsigned long long *seed, char *name)
{
	const char *report = strstr(errors, "failed at input "), *again = strstr(errors, "again: ");

	assert_non_null(report);
	assert_non_null(again);
	assert_int_equal(sscanf(report, "failed at input %llu of seed %llu,", number, seed), 2);
	assert_int_equal(sscanf(again, "again: fuzz_planted 0 %63s", name), 1);
	assert_non_null(strstr(report, folder));
}

static void check_found_again(const char *amount)
{
	unsigned long long number, seed, number_again, seed_again;
	char name[64], name_again[64], seed_text[32], *errors;

	assert_int_equal(run((const char *[]){FUZZ_PLANTED, amount, "seed", NULL}, &errors), 1);
	read_report(errors, &number, &seed, name);
	free(errors);

	assert_int_equal(run((const char *[]){FUZZ_PLANTED, "0", name, NULL}, &errors), 1);
	read_report(errors, &number_again, &seed_again, name_again);
	assert_int_equal(number_again, 1);
	assert_int_equal(unlink(name_again), 0);
	free(errors);

	snprintf(seed_text, sizeof seed_text, "%llu", seed);
	assert_int_equal(
	    run((const char *[]){FUZZ_PLANTED, "--seed", seed_text, "10s", "seed", NULL}, &errors), 1);
	read_report(errors, &number_again, &seed_again, name_again);
	assert_true(number_again == number && seed_again == seed);
	assert_string_equal(name, name_again);
	assert_int_equal(unlink(name), 0);
	free(errors);
}

static void test_abort_is_found_again(void **state)
{
	(void)state;
	write_seed("0123456789");
	check_found_again("100000");
	check_found_again("10s");
}

static void test_exit_is_found_again(void **state)
{
	(void)state;
	write_seed("1023456789");
	check_found_again("100000");
	check_found_again("10s");
}

static void test_an_end_in_time_is_a_success(void **state)
{
	char *errors;

	(void)state;
	/* Nothing comes of no bytes. */
	write_seed("");
	assert_int_equal(run((const char *[]){FUZZ_PLANTED, "1000", "seed", NULL}, &errors), 0);
	free(errors);
	assert_int_equal(run((const char *[]){FUZZ_PLANTED, "1s", "seed", NULL}, &errors), 0);
	free(errors);
}

static void test_wrong_words_are_refused(void **state)
{
	static const char *const amounts[] = {"s", "0s", "-1", "ten", "1m"};
	char *errors;

	(void)state;
	write_seed("");
	for (size_t i = 0; i < sizeof amounts / sizeof amounts[0]; i++) {
		assert_int_equal(run((const char *[]){FUZZ_PLANTED, amounts[i], "seed", NULL}, &errors), 2);
		free(errors);
	}
	assert_int_equal(run((const char *[]){FUZZ_PLANTED, "1", "not-there", NULL}, &errors), 1);
	free(errors);
}

static int in_folder(void **state)
{
	(void)state;
	return mkdtemp(folder) == NULL || chdir(folder) != 0;
}

static int remove_folder(void **state)
{
	(void)state;
	return unlink("seed") != 0 || chdir("/") != 0 || rmdir(folder) != 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_abort_is_found_again),
	    cmocka_unit_test(test_exit_is_found_again),
	    cmocka_unit_test(test_an_end_in_time_is_a_success),
	    cmocka_unit_test(test_wrong_words_are_refused),
	};

	return cmocka_run_group_tests(tests, in_folder, remove_folder);
}
