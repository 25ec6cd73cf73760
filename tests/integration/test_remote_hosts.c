/* Worker and store on two hosts: two network namespaces and a cable between them, which is cut.
 *
 * The program sets both up as root, runs itself inside the worker's, and takes them down whatever
 * comes of it. The store is started in the other one; files and Unix sockets are common to both. */
#include "tests/lib/trial.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CUT_MS = 5000, LEASE_MS = 2000, PATIENCE_MS = 30000, COMMAND_MS = 10000, SKIPPED = 77 };

/* ---- outside ---- */

/* Names by process, so that runs do not meet and a dead one's can be told. */
static char store_space[40], worker_space[40], store_end[16], worker_end[16];

static void make_names(long pid)
{
	snprintf(store_space, sizeof store_space, "clusterkv-%ld-store", pid);
	snprintf(worker_space, sizeof worker_space, "clusterkv-%ld-worker", pid);
	snprintf(store_end, sizeof store_end, "ckvs%ld", pid % 1000000);
	snprintf(worker_end, sizeof worker_end, "ckvw%ld", pid % 1000000);
}

/* Run a program of PATH; its words go to `log` (NULL: nowhere). */
static int run(const char *const *arguments, const char *log)
{
	char *copy[24] = {0};
	int status = 0;
	pid_t pid;

	for (int i = 0; i < 23 && arguments[i]; i++)
		copy[i] = (char *)(uintptr_t)arguments[i];
	pid = fork();
	if (pid == 0) {
		int output = open(log ? log : "/dev/null", O_WRONLY | O_CREAT | O_TRUNC, 0600);

		if (output >= 0) {
			dup2(output, 1);
			dup2(output, 2);
		}
		execvp(copy[0], copy);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define IP(...) (run((const char *const[]){"ip", __VA_ARGS__, NULL}, NULL) == 0)

static void remove_spaces(void)
{
	(void)IP("netns", "del", worker_space);
	(void)IP("netns", "del", store_space);
}

/* Those of a run that was killed. */
static void sweep(void)
{
	DIR *folder = opendir("/run/netns");
	const struct dirent *entry;
	long pid;

	while (folder && (entry = readdir(folder))) {
		if (sscanf(entry->d_name, "clusterkv-%ld-", &pid) != 1) continue;
		if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) (void)IP("netns", "del", entry->d_name);
	}
	if (folder) closedir(folder);
}

static bool make_spaces(const char *store_address, const char *worker_address)
{
	return IP("netns", "add", store_space) && IP("netns", "add", worker_space) &&
	       IP("link", "add", store_end, "netns", store_space, "type", "veth", "peer", "name",
	           worker_end, "netns", worker_space) &&
	       IP("-n", store_space, "addr", "add", store_address, "dev", store_end) &&
	       IP("-n", worker_space, "addr", "add", worker_address, "dev", worker_end) &&
	       IP("-n", store_space, "link", "set", store_end, "up") &&
	       IP("-n", worker_space, "link", "set", worker_end, "up") &&
	       IP("-n", store_space, "link", "set", "lo", "up") &&
	       IP("-n", worker_space, "link", "set", "lo", "up");
}

static pid_t inner;

static void pass_on(int number)
{
	if (inner > 0) kill(inner, number);
}

static int run_inside(const char *program, const char *filter)
{
	char pid[24];
	const char *const arguments[] = {
	    "ip", "netns", "exec", worker_space, program, "inside", pid, filter, NULL};
	int status = 0;

	snprintf(pid, sizeof pid, "%ld", (long)getpid());
	inner = fork();
	if (inner == 0) {
		execvp("ip", (char *const *)(uintptr_t)arguments);
		_exit(127);
	}
	signal(SIGTERM, pass_on);
	signal(SIGINT, pass_on);
	while (inner > 0 && waitpid(inner, &status, 0) < 0 && errno == EINTR) {
	}
	return inner > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int outside(const char *program, const char *filter)
{
	char store_address[40], worker_address[40];
	int code;

	make_names((long)getpid());
	snprintf(store_address, sizeof store_address, "10.213.%d.1/30", (int)(getpid() % 250));
	snprintf(worker_address, sizeof worker_address, "10.213.%d.2/30", (int)(getpid() % 250));
	if (geteuid() != 0 || !IP("-V")) {
		printf("skipped: network namespaces take root and iproute2\n");
		return SKIPPED;
	}
	sweep();
	if (!make_spaces(store_address, worker_address)) {
		printf("skipped: this machine refuses network namespaces\n");
		remove_spaces();
		return SKIPPED;
	}
	code = run_inside(program, filter);
	remove_spaces();
	return code;
}

/* ---- inside ---- */

static const char *const in_store_space[] = {"ip", "netns", "exec", store_space, NULL};
static struct store_fixture store;
static struct serve_fixture worker;
static struct trial trial;
static int space_number;

static bool start_store(void)
{
	const char *const arguments[] = {
	    "--transport=map", "--lease=2s", "--heartbeat=200ms", trial.memory, NULL};

	return store_fixture_start(&store, arguments);
}

static int set_up(void **state)
{
	(void)state;
	if (!store_fixture_init(&store)) return -1;
	store.remote = true;
	snprintf(store.host, sizeof store.host, "10.213.%d.1", space_number);
	return start_store() ? 0 : -1;
}

static int tear_down(void **state)
{
	bool worked = !worker.pid || serve_fixture_stop(&worker, false);

	(void)state;
	(void)IP("-n", store_space, "link", "set", store_end, "up");
	return store_fixture_deinit(&store, false) && worked ? 0 : -1;
}

static void cut(void)
{
	assert_true(IP("-n", store_space, "link", "set", store_end, "down"));
}

static void mend(void)
{
	assert_true(IP("-n", store_space, "link", "set", store_end, "up"));
}

static void start_worker(void)
{
	const char *const arguments[] = {"--store", store.address, "--store-secret", store.secret,
	    "--call-timeout", "2s", "--fetch-timeout", "1s", "--drain-timeout", "100ms", NULL};

	trial_serve(&worker, &trial, arguments);
}

static void the_same_answer_over_a_cable(void **state)
{
	const char *const inside[] = {"--store", "none", NULL};
	const char *const there[] = {"--store", store.address, "--store-secret", store.secret, NULL};
	int32_t *prompt = trial_prompt(&trial, 1, trial.prompt_tokens);
	json_t *reference = trial_generate(&trial, prompt, trial.prompt_tokens, inside);
	json_t *cold = trial_generate(&trial, prompt, trial.prompt_tokens, there);
	json_t *warm = trial_generate(&trial, prompt, trial.prompt_tokens, there);

	(void)state;
	assert_string_equal(json_string_value(json_object_get(cold, "transport")), "stream");
	trial_same_bits(reference, cold, "over a cable");
	assert_int_equal(trial_number(warm, "prefix_hit_tokens"), trial.prompt_tokens - 1);
	assert_true(store_fixture_stat(&store, "fetched_bytes_total") > 0);
	json_decref(reference);
	json_decref(cold);
	json_decref(warm);
	free(prompt);
}

/* The answer that runs while the cable is cut: it goes on, or ends with an error that says why, and
 * not later than its deadlines; returns whether it was whole. */
static void end_interrupted(struct serve_call *call, uint64_t since)
{
	struct serve_reply reply;
	struct serve_stream stream;

	assert_true(serve_call_finish(call, &reply));
	assert_true(store_fixture_now() - since < PATIENCE_MS);
	assert_true(serve_stream_parse(&reply, &stream));
	assert_true(stream.done);
	if (!strstr(reply.body, "\"error\""))
		fail_msg("an answer of 15000 tokens was whole after %u events", stream.events);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
}

static void check_recovery(const char *body, const json_t *before)
{
	json_t *after;

	assert_true(serve_wait_status(&worker, "ok"));
	after = trial_ask(&worker, body);
	trial_same_to_rounding(trial_own(before), trial_own(after), false, "after the cut");
	json_decref(after);
	assert_true(store_fixture_wait_stat(&store, "workers{state=\"connected\"}", 1, PATIENCE_MS));
	assert_int_equal((int)store_fixture_stat(&store, "segments{state=\"reserved\"}"), 0);
	assert_int_equal((int)store_fixture_stat(&store, "segments{state=\"quarantined\"}"), 0);
}

static void interrupt(bool restart)
{
	int32_t *prompt = trial_prompt(&trial, 2, trial.prompt_tokens);
	char *body = trial_body(prompt, trial.prompt_tokens, trial.answer_tokens, "");
	char *endless = trial_body(prompt, trial.prompt_tokens, 15000, "\"stream\":true");
	struct serve_call call;
	json_t *before;
	uint64_t since;

	start_worker();
	before = trial_ask(&worker, body);
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions", endless));
	assert_true(serve_call_tokens(&call, 20));
	since = store_fixture_now();
	cut();
	/* Nobody says goodbye: the store finds out by itself, and so does the worker. */
	assert_true(
	    store_fixture_wait_stat(&store, "workers{state=\"connected\"}", 0, LEASE_MS + PATIENCE_MS));
	assert_true(store_fixture_wait_stat(&store, "workers{state=\"lapsed\"}", 0, PATIENCE_MS));
	assert_true(store_fixture_wait_stat(&store, "segments{state=\"reserved\"}", 0, PATIENCE_MS));
	end_interrupted(&call, since);
	assert_true(serve_wait_status(&worker, "waiting for the store"));
	if (restart) {
		store_fixture_kill(&store);
		mend();
		assert_true(start_store());
	} else {
		while (store_fixture_now() - since < CUT_MS)
			store_fixture_sleep(20);
		mend();
	}
	check_recovery(body, before);
	assert_true(serve_fixture_stop(&worker, false));
	memset(&worker, 0, sizeof worker);
	json_decref(before);
	free(prompt);
	free(body);
	free(endless);
}

static void a_cut_of_five_seconds(void **state)
{
	(void)state;
	interrupt(false);
}

/* The worker's side of the old connection is left open to nobody. */
static void a_store_that_dies_behind_a_cut(void **state)
{
	(void)state;
	interrupt(true);
}

static int inside(const char *pid, const char *filter)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(the_same_answer_over_a_cable, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_cut_of_five_seconds, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_store_that_dies_behind_a_cut, set_up, tear_down),
	};
	const long number = strtol(pid, NULL, 10);
	int failed;

	signal(SIGPIPE, SIG_IGN);
	make_names(number);
	space_number = (int)(number % 250);
	store_fixture_prefix(in_store_space);
	if (filter) cmocka_set_test_filter(filter);
	if (!trial_init(&trial, "tiny_llama")) return SKIPPED;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	trial_deinit(&trial);
	return failed;
}

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "inside") == 0)
		return inside(argv[2], argc > 3 ? argv[3] : NULL);
	return outside(argv[0], argc > 1 ? argv[1] : NULL);
}
