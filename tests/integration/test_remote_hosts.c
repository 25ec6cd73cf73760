/* Worker and store on two hosts: two network namespaces and a cable between them, which is cut; by
 * the encrypted stream, and by UCX where the network is trusted.
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
static bool by_ucx; /* both ends trust the cable */

static bool start_store(void)
{
	char trusted[40];
	const char *const arguments[] = {"--transport=map", "--lease=2s", "--heartbeat=200ms",
	    trial.memory, by_ucx ? trusted : NULL, NULL};

	snprintf(trusted, sizeof trusted, "--trusted-network=%s", store_end);
	return store_fixture_start(&store, arguments);
}

static int set_up_store(bool trusted)
{
	by_ucx = trusted;
	if (!store_fixture_init(&store)) return -1;
	store.remote = true;
	snprintf(store.host, sizeof store.host, "10.213.%d.1", space_number);
	return start_store() ? 0 : -1;
}

static int set_up(void **state)
{
	(void)state;
	return set_up_store(false);
}

static int set_up_trusted(void **state)
{
	(void)state;
	return set_up_store(true);
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
	    "--call-timeout", "2s", "--fetch-timeout", "1s", "--drain-timeout", "100ms",
	    by_ucx ? "--transport" : NULL, "ucx", "--trusted-network", worker_end, NULL};

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

/* ---- by UCX ---- */

static const char *const *ucx_arguments(void)
{
	static char network[40];
	static const char *arguments[9];

	snprintf(network, sizeof network, "10.213.%d.0/30", space_number);
	arguments[0] = "--store";
	arguments[1] = store.address;
	arguments[2] = "--store-secret";
	arguments[3] = store.secret;
	arguments[4] = "--transport";
	arguments[5] = "ucx";
	arguments[6] = "--trusted-network";
	arguments[7] = network;
	return arguments;
}

static void the_same_answer_by_ucx(void **state)
{
	const char *const inside[] = {"--store", "none", NULL};
	int32_t *prompt = trial_prompt(&trial, 3, trial.prompt_tokens);
	json_t *reference = trial_generate(&trial, prompt, trial.prompt_tokens, inside);
	json_t *cold = trial_generate(&trial, prompt, trial.prompt_tokens, ucx_arguments());
	json_t *warm = trial_generate(&trial, prompt, trial.prompt_tokens, ucx_arguments());
	char address[160];
	const char *const beside[] = {"--store", address, NULL};
	json_t *local;

	(void)state;
	snprintf(address, sizeof address, "unix:%s", store.socket);
	local = trial_generate(&trial, prompt, trial.prompt_tokens, beside);
	assert_string_equal(json_string_value(json_object_get(cold, "transport")), "ucx");
	trial_same_bits(reference, cold, "cold, by UCX");
	assert_int_equal(trial_number(warm, "prefix_hit_tokens"), trial.prompt_tokens - 1);
	trial_same_bits(local, warm, "warm, by UCX");
	/* None of it took the other way. */
	assert_true(store_fixture_stat(&store, "fetched_bytes_total") > 0);
	assert_int_equal((int)store_fixture_stat(&store, "fetched_bytes_total"),
	    (int)store_fixture_stat(&store, "fetched_ucx_bytes_total"));
	json_decref(reference);
	json_decref(cold);
	json_decref(warm);
	json_decref(local);
	free(prompt);
}

/* How many sockets listen in the network of that process; fails for one at another address than
 * these. */
static unsigned count_listeners(pid_t pid, const char *const *addresses)
{
	enum { LISTENS = 10 };
	unsigned count = 0, address, state;
	char path[64], line[256], text[32];
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/net/tcp", (int)pid);
	file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof line, file)) {
		bool known = false;

		if (sscanf(line, " %*u: %x:%*x %*x:%*x %x", &address, &state) != 2 || state != LISTENS)
			continue;
		snprintf(text, sizeof text, "%u.%u.%u.%u", address & 255, address >> 8 & 255,
		    address >> 16 & 255, address >> 24);
		for (int i = 0; addresses[i]; i++)
			known |= strcmp(text, addresses[i]) == 0;
		if (!known) fail_msg("something listens at %s", text);
		count++;
	}
	fclose(file);
	snprintf(path, sizeof path, "/proc/%d/net/tcp6", (int)pid);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, " %*u: %*[0-9A-F]:%*x %*[0-9A-F]:%*x %x", &state) == 1)
			assert_int_not_equal(state, LISTENS);
	if (file) fclose(file);
	return count;
}

/* A prompt that shares nothing with those of other seeds. */
static void write_body(char *body, size_t size, unsigned tokens, unsigned seed)
{
	size_t length = (size_t)snprintf(
	    body, size, "{\"max_tokens\":300,\"ignore_end\":true,\"temperature\":0,\"prompt\":[");

	for (unsigned i = 0; i < tokens; i++) {
		seed = seed * 1103515245U + 12345U;
		length += (size_t)snprintf(body + length, size - length, "%u,", 3 + seed / 65536 % 250);
	}
	snprintf(body + length - 1, size - length + 1, "]}");
}

/* A worker with hardly any cache asks without a pause, so that the store may hear of it before it
 * hears that slots are free again. */
static void a_line_holds_under_load(void **state)
{
	enum { PROMPT = 3000, ANSWERS = 12 };
	const char *const arguments[] = {"--model", KV_TINY_MODELS "/tiny_llama.gguf", "--store",
	    store.address, "--store-secret", store.secret, "--transport", "ucx", "--trusted-network",
	    worker_end, "--threads", "1", "--window", "32", "--fold", "32", "--budget", "64",
	    "--segment", "64", "--cluster-tokens", "8", "--cache", "64KiB", NULL};
	static char body[PROMPT * 4 + 128];
	struct serve_reply reply;
	double all, by_line;

	(void)state;
	assert_true(serve_fixture_start(&worker, arguments, true));
	for (unsigned i = 0; i < ANSWERS; i++) {
		write_body(body, sizeof body, PROMPT, i);
		assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
		if (reply.code != 200) fail_msg("%d: %s", reply.code, reply.body);
		serve_reply_deinit(&reply);
	}
	all = (double)store_fixture_stat(&store, "fetched_bytes_total");
	by_line = (double)store_fixture_stat(&store, "fetched_ucx_bytes_total");
	print_message("%.0f MB, by UCX %.0f\n", all / 1e6, by_line / 1e6);
	assert_true(all > 10e6);
	/* The few that found no slot free came in answers. */
	assert_true(by_line > 0.9 * all);
	assert_true(process_child(worker.pid, "kvline") > 0);
}

static void check_listeners(void)
{
	char worker_host[64];
	const char *const at_store[] = {store.host, NULL};
	const char *const at_worker[] = {worker_host, "127.0.0.1", NULL};

	snprintf(worker_host, sizeof worker_host, "10.213.%d.2", space_number);
	/* The store's own, and UCX's. */
	assert_int_equal(count_listeners(store.pid, at_store), 2);
	assert_int_equal(count_listeners(worker.pid, at_worker), 2);
}

/* What the answer says of how it came by its bytes, and the store of how the worker does. */
static void is_by(json_t *own, const char *transport)
{
	const char *lanes = strcmp(transport, "stream") == 0 ? "lanes stream" : "lanes tcp/";
	char answer[16384] = "";

	assert_string_equal(json_string_value(json_object_get(own, "transport")), transport);
	for (int i = 0; i < 40 && !strstr(answer, lanes); i++) {
		if (i > 0) store_fixture_sleep(100);
		assert_true(store_fixture_ask(&store, "stats workers", answer, sizeof answer));
	}
	if (!strstr(answer, lanes)) fail_msg("no \"%s\" in: %s", lanes, answer);
}

/* UCX listens on the trusted network alone; and that its process ends, or stands still, is no end
 * of an answer, whichever host's it is. */
static void what_ends_kvline_ends_nothing_else(void **state)
{
	int32_t *prompt = trial_prompt(&trial, 4, trial.prompt_tokens);
	char *body = trial_body(prompt, trial.prompt_tokens, trial.answer_tokens, "");
	char *long_one = trial_body(prompt, trial.prompt_tokens, 600, "\"stream\":true");

	(void)state;
	start_worker();
	json_decref(trial_ask(&worker, body)); /* from here on all of it is found */
	for (int turn = 0; turn < 2; turn++) {
		json_t *before = trial_ask(&worker, body), *after;
		struct serve_call call;
		struct serve_reply reply;
		pid_t victim;

		is_by(trial_own(before), "ucx");
		check_listeners();
		victim = process_child(turn ? store.pid : worker.pid, "kvline");
		assert_true(victim > 0);
		assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions", long_one));
		assert_true(serve_call_tokens(&call, 20));
		assert_int_equal(kill(victim, turn ? SIGSTOP : SIGKILL), 0);
		assert_true(serve_call_finish(&call, &reply));
		assert_int_equal(reply.code, 200);
		assert_null(strstr(reply.body, "\"error\""));
		serve_reply_deinit(&reply);
		after = trial_ask(&worker, body);
		trial_same_bits(trial_own(before), trial_own(after), "without the line");
		is_by(trial_own(after), "stream");
		json_decref(before);
		json_decref(after);
		/* A new connection has a new line. */
		assert_true(serve_fixture_stop(&worker, false));
		if (!turn) start_worker();
	}
	memset(&worker, 0, sizeof worker);
	assert_true(store_fixture_stat(&store, "fetched_bytes_total") >
	            store_fixture_stat(&store, "fetched_ucx_bytes_total"));
	assert_true(store_fixture_stat(&store, "fetched_ucx_bytes_total") > 0);
	free(prompt);
	free(body);
	free(long_one);
}

static void a_cut_of_five_seconds_by_ucx(void **state)
{
	(void)state;
	interrupt(false);
	assert_true(store_fixture_stat(&store, "fetched_ucx_bytes_total") > 0);
}

static void a_store_that_dies_while_it_sends_by_ucx(void **state)
{
	(void)state;
	interrupt(true);
}

/* The worker ends with an error that says this, and the code. */
static void expect_refusal(const char *const *more, const char *word, int code)
{
	int32_t *prompt = trial_prompt(&trial, 5, 20);
	struct process process;
	char *errors;

	trial_generate_start(&process, &trial, prompt, 20, more);
	assert_int_equal(process_wait(&process, PATIENCE_MS), code);
	errors = process_errors(&process);
	if (!strstr(errors, word)) fail_msg("\"%s\" is not in: %s", word, errors);
	free(errors);
	process_deinit(&process);
	free(prompt);
}

/* Both ends have to say it. */
static void who_does_not_trust_is_not_reached(void **state)
{
	const char *const *arguments = ucx_arguments();
	const char *undeclared[9] = {NULL}, *elsewhere[9] = {NULL};

	(void)state;
	/* The store does not. */
	expect_refusal(arguments, "--trusted-network", 1);
	for (int i = 0; i < 8; i++) {
		if (i < 6) undeclared[i] = arguments[i];
		elsewhere[i] = i == 7 ? "203.0.113.0/24" : arguments[i];
	}
	expect_refusal(undeclared, "--trusted-network", 2);
	expect_refusal(elsewhere, "203.0.113.0/24", 1);
	assert_int_equal((int)store_fixture_stat(&store, "workers{state=\"connected\"}"), 0);
}

/* A worker that names a network over which the store does not reach it is told so at its start. */
static void another_network_is_told_in_words(void **state)
{
	const char *const *arguments = ucx_arguments();
	const char *loopback[9] = {NULL};

	(void)state;
	for (int i = 0; i < 8; i++)
		loopback[i] = i == 7 ? "lo" : arguments[i];
	expect_refusal(loopback, "does not reach this host", 1);
}

static int inside(const char *pid, const char *filter)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(the_same_answer_over_a_cable, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_cut_of_five_seconds, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_store_that_dies_behind_a_cut, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(the_same_answer_by_ucx, set_up_trusted, tear_down),
	    cmocka_unit_test_setup_teardown(
	        what_ends_kvline_ends_nothing_else, set_up_trusted, tear_down),
	    cmocka_unit_test_setup_teardown(a_line_holds_under_load, set_up_trusted, tear_down),
	    cmocka_unit_test_setup_teardown(a_cut_of_five_seconds_by_ucx, set_up_trusted, tear_down),
	    cmocka_unit_test_setup_teardown(
	        a_store_that_dies_while_it_sends_by_ucx, set_up_trusted, tear_down),
	    cmocka_unit_test_setup_teardown(who_does_not_trust_is_not_reached, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(
	        another_network_is_told_in_words, set_up_trusted, tear_down),
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
