/* The story of a cell:
 *
 *     start store and workers → a request comes to the process that waits at the phase (a fault
 *     point: it stops itself there) → the signal goes to the victim → the request ends, in time →
 *     the victim is started again, or not → the same question is answered right → nothing is held
 */
#include "tests/fault/kill_cell.h"

#include <signal.h>
#include <unistd.h>

#include "tests/lib/trial.h"

enum {
	LEASE_MS = 1000,
	ASLEEP_MS = LEASE_MS + 300,
	CALL_MS = 1500,
	FETCH_MS = 700,
	DRAIN_MS = 3000,
	LOADED_MS = 6000, /* what a loaded machine adds to any of them */
	DEADLINE_MS = CALL_MS + FETCH_MS + LEASE_MS + DRAIN_MS + LOADED_MS,
	BACK_MS = 30000,
	HOLD_MS = 30000,
	PROMPT_TOKENS = 600,
	ANSWER_TOKENS = 80,
	FOLD_TOKENS = 32
};

/* Some four prompts: memory that is given back is soon used again. */
static const char memory[] = "--memory=2MiB";

const char *const kill_victims[VICTIMS] = {"worker", "store"};
const char *const kill_signals[SIGNALS] = {"kill", "stop", "term"};
const char *const kill_phases[PHASES] = {
    "connect", "reserve", "writing", "commit", "reading", "evicting", "idle"};

static const struct kill_cell *cell;
static struct trial trial;
static struct store_fixture store;
static struct serve_fixture first, second;
static json_t *answers;
static struct serve_call call; /* the request that is disturbed */
static bool asked;
static unsigned question;   /* which prompt it is about */
static uint64_t since;      /* from when its deadline counts */
static bool store_is_there; /* at the end */
static bool finished;       /* all of it was found in order */

/* What the present run of the store was asked, to be compared with what it counted. */
static struct {
	unsigned answers, cold; /* of questions that nothing disturbed; with nothing found stored */
	double found;           /* prompt tokens that they found */
	bool answered[KILL_PROMPTS], asked[KILL_PROMPTS]; /* the prompts; also of disturbed ones */
} ledger;

void kill_cell_name(const struct kill_cell *one, char *name, size_t size)
{
	snprintf(name, size, "%s-%s-%s-%s-%s", kill_victims[one->victim], kill_signals[one->signal],
	    kill_phases[one->phase], one->restarted ? "restarted" : "left", one->transport);
}

bool kill_cell_parse(const char *name, struct kill_cell *found)
{
	static const char *const transports[] = {"map", "ucx"};
	char made[96];

	for (unsigned i = 0; i < VICTIMS * SIGNALS * PHASES * 4; i++) {
		const struct kill_cell one = {.victim = (enum kill_victim)(i % VICTIMS),
		    .signal = (enum kill_signal)(i / VICTIMS % SIGNALS),
		    .phase = (enum kill_phase)(i / VICTIMS / SIGNALS % PHASES),
		    .restarted = i / VICTIMS / SIGNALS / PHASES % 2,
		    .transport = transports[i / VICTIMS / SIGNALS / PHASES / 2]};

		kill_cell_name(&one, made, sizeof made);
		if (strcmp(made, name) != 0) continue;
		*found = one;
		return true;
	}
	return false;
}

/* ---- processes ---- */

/* A fold's call where the victim stays away, the prompt's where it comes back: both are met. */
static void write_faults(bool of_store, char *text, size_t size)
{
	static const char *const points[VICTIMS][PHASES] = {
	    {"client.connect", "client.reserve", "client.write", "client.commit", "client.fetch",
	        "store.evict", NULL},
	    {"store.hello", "store.reserve", "client.write", "store.commit", "client.fetch",
	        "store.evict", NULL},
	};
	static const unsigned folds[PHASES] = {0, 1, 17, 1, 40, 0, 0};
	static const unsigned prompts[PHASES] = {0, 0, 3, 0, 2, 0, 0};
	const char *point = points[cell->victim][cell->phase];
	bool here = point && (strncmp(point, "store", 5) == 0) == of_store;

	snprintf(text, size, "--faults=%s@%u", here ? point : "",
	    (cell->restarted ? prompts : folds)[cell->phase]);
	if (!here) strcpy(text, "--faults=");
}

static bool holds_in_store(void)
{
	return cell->phase == EVICTING ||
	       (cell->victim == VICTIM_STORE &&
	           (cell->phase == CONNECT || cell->phase == RESERVE || cell->phase == COMMIT));
}

static void start_store(bool with_faults)
{
	/* A worker that sleeps while it writes or reads must not harm what others put there. */
	const char *verify = cell->signal == STOP_AND_WAKE ? "--verify=fetch" : "--verify=commit";
	char transport[32], lease[32], faults[64] = "--faults=";
	const char *const arguments[] = {
	    transport, memory, lease, "--heartbeat=100ms", verify, faults, NULL};

	snprintf(transport, sizeof transport, "--transport=%s", cell->transport);
	snprintf(lease, sizeof lease, "--lease=%dms", (int)LEASE_MS);
	if (with_faults) write_faults(true, faults, sizeof faults);
	memset(&ledger, 0, sizeof ledger);
	assert_true(store_fixture_start(&store, arguments));
}

static void start_worker(
    struct serve_fixture *worker, const char *name, bool with_faults, bool ready)
{
	char call_ms[24], fetch_ms[24], drain_ms[24], faults[64] = "--faults=";
	const char *const arguments[] = {"--store", store.address, "--transport", cell->transport,
	    "--name", name, "--call-timeout", call_ms, "--fetch-timeout", fetch_ms, "--drain-timeout",
	    drain_ms, faults, NULL};
	struct trial_arguments all = {0};

	snprintf(call_ms, sizeof call_ms, "%dms", (int)CALL_MS);
	snprintf(fetch_ms, sizeof fetch_ms, "%dms", (int)FETCH_MS);
	snprintf(drain_ms, sizeof drain_ms, "%dms", (int)DRAIN_MS);
	if (with_faults) write_faults(false, faults, sizeof faults);
	trial_add(&all, trial.options);
	trial_add(&all, arguments);
	assert_true(serve_fixture_start(worker, all.all, ready));
}

static pid_t victim_pid(void)
{
	return cell->victim == VICTIM_STORE ? store.pid : first.pid;
}

static pid_t holder_pid(void)
{
	if (cell->phase == IDLE) return 0;
	return holds_in_store() ? store.pid : first.pid;
}

static bool is_stopped(pid_t pid)
{
	char path[64], line[512] = "";
	const char *after;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
	file = fopen(path, "r");
	if (!file) return false;
	after = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
	fclose(file);
	return after && after[1] == ' ' && after[2] == 'T';
}

static void wait_stopped(pid_t pid)
{
	uint64_t deadline = store_fixture_now() + HOLD_MS;

	while (!is_stopped(pid)) {
		if (store_fixture_now() > deadline)
			fail_msg("the phase %s was never reached", kill_phases[cell->phase]);
		store_fixture_sleep(2);
	}
}

static void end_worker(struct serve_fixture *worker)
{
	assert_true(serve_fixture_stop(worker, false));
}

static double stat_of(const char *name)
{
	double value = store_fixture_stat(&store, name);

	if (value < 0) fail_msg("the store does not count %s", name);
	return value;
}

/* ---- questions ---- */

static char *body_of(unsigned number, const char *more)
{
	int32_t *prompt = trial_prompt(&trial, number, PROMPT_TOKENS);
	char *body = trial_body(prompt, PROMPT_TOKENS, ANSWER_TOKENS, more);

	free(prompt);
	return body;
}

static const json_t *expected_answer(const char *kind, unsigned number)
{
	const json_t *answer = json_array_get(json_object_get(answers, kind), number);

	assert_non_null(answer);
	return answer;
}

/* Bit for bit where it was computed from the same segments, else to rounding. */
static void check_answer(const json_t *found, unsigned number, const char *what)
{
	const json_t *cold = expected_answer("cold", number), *warm = expected_answer("warm", number);
	double hit = trial_number(found, "prefix_hit_tokens");

	if (hit <= 0)
		trial_same_bits(cold, found, what);
	else if (hit >= trial_number(warm, "prefix_hit_tokens"))
		trial_same_bits(warm, found, what);
	else
		trial_same_to_rounding(cold, found, false, what);
}

static void note_answer(const json_t *found, unsigned number)
{
	double hit = trial_number(found, "prefix_hit_tokens");

	ledger.answers++;
	ledger.cold += hit <= 0;
	ledger.found += hit;
	ledger.answered[number] = true;
}

/* A refusal that is clean names what happened, and may be asked again. */
static bool is_clean_refusal(int code, const char *text)
{
	return code == 503 && (strstr(text, "store") || strstr(text, "stopping"));
}

static void ask(const struct serve_fixture *worker, unsigned number, const char *what)
{
	char *body = body_of(number, "");
	uint64_t deadline = store_fixture_now() + BACK_MS;
	bool answered = false;

	ledger.asked[number] = true;
	while (!answered) {
		struct serve_reply reply;
		uint64_t start = store_fixture_now();

		assert_true(serve_ask(worker, "POST", "/v1/completions", body, &reply));
		if (store_fixture_now() - start > DEADLINE_MS) fail_msg("%s: it took too long", what);
		answered = reply.code == 200;
		if (answered) {
			check_answer(trial_own(reply.json), number, what);
			note_answer(trial_own(reply.json), number);
		} else if (!is_clean_refusal(reply.code, reply.body)) {
			fail_msg("%s: %d: %s", what, reply.code, reply.body);
		} else if (store_fixture_now() > deadline) {
			fail_msg("%s: never answered: %s", what, reply.body);
		}
		serve_reply_deinit(&reply);
		if (!answered) store_fixture_sleep(20);
	}
	free(body);
}

static void open_question(unsigned number)
{
	char more[64], *body;

	snprintf(more, sizeof more, "\"stream\":true,\"sequence\":\"one-%u\"", number);
	body = body_of(number, more);
	question = number;
	ledger.asked[number] = true;
	asked = serve_call_open(&call, &first, "POST", "/v1/completions", body);
	free(body);
}

/* How the disturbed request ended. `broken`: the connection may end without an answer. */
static void check_question(bool broken)
{
	struct serve_reply reply;
	struct serve_stream stream;
	const char *message;
	uint64_t took;
	bool whole;

	if (!asked) return;
	asked = false;
	whole = serve_call_finish(&call, &reply);
	took = store_fixture_now() - since;
	if (took > DEADLINE_MS) fail_msg("the request ended after %llu ms", (unsigned long long)took);
	if (!whole) {
		if (!broken) fail_msg("the request's connection was lost");
		return;
	}
	if (reply.code != 200) {
		if (!is_clean_refusal(reply.code, reply.body))
			fail_msg("the request: %d: %s", reply.code, reply.body);
		serve_reply_deinit(&reply);
		return;
	}
	assert_true(serve_stream_parse(&reply, &stream));
	message = json_string_value(json_object_get(json_object_get(stream.last, "error"), "message"));
	/* That bytes are wrong must be known from the lease, before they are looked at. */
	if (message && strstr(message, "checksum")) fail_msg("the request: %s", message);
	if (message)
		printf("after %llu ms: %s\n", (unsigned long long)took, message);
	else if (stream.done)
		check_answer(trial_own(stream.last), question, "the request");
	else if (!broken)
		fail_msg("the request's stream was cut off");
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
}

/* ---- the story ---- */

static void start_all(void)
{
	if (cell->phase == CONNECT && cell->victim == VICTIM_WORKER) {
		start_worker(&first, "first", true, false);
		start_store(false);
		wait_stopped(first.pid);
	} else {
		start_store(true);
		start_worker(&first, "first", true, cell->phase != CONNECT);
	}
	if (cell->phase == CONNECT) wait_stopped(holder_pid());
	if (cell->victim == VICTIM_WORKER) start_worker(&second, "second", false, true);
}

/* Questions until the store has to evict for one. */
static void fill_store(void)
{
	for (unsigned number = 0; number < KILL_PROMPTS; number++) {
		uint64_t deadline = store_fixture_now() + HOLD_MS;

		open_question(number);
		assert_true(asked);
		while (!is_stopped(store.pid)) {
			if (store_fixture_now() > deadline) fail_msg("question %u is not answered", number);
			if (serve_call_ended(&call)) break;
			store_fixture_sleep(2);
		}
		if (is_stopped(store.pid)) return;
		since = store_fixture_now();
		check_question(false);
	}
	fail_msg("%u prompts fit into %s", (unsigned)KILL_PROMPTS, memory);
}

static void reach_phase(void)
{
	if (cell->phase == IDLE) {
		ask(&first, 0, "before");
	} else if (cell->phase == EVICTING) {
		fill_store();
	} else {
		open_question(0);
		assert_true(asked);
		wait_stopped(holder_pid());
	}
}

/* While it sleeps, others work: they take what it had, or take its work over. */
static void work_meanwhile(void)
{
	uint64_t until = store_fixture_now() + ASLEEP_MS;

	if (cell->victim == VICTIM_WORKER) {
		assert_true(store_fixture_wait_stat(
		    &store, "workers{state=\"lapsed\"}", cell->phase == CONNECT ? 0 : 1, LOADED_MS));
		for (unsigned number = 1; number < KILL_PROMPTS; number++)
			ask(&second, number, "meanwhile");
		if (cell->restarted) ask(&second, question, "in its place");
		/* What it had been given was given to others meanwhile. */
		assert_true(stat_of("evictions_total") > 0);
	}
	while (store_fixture_now() < until)
		store_fixture_sleep(10);
}

static void send_signal(void)
{
	pid_t victim = victim_pid(), holder = holder_pid();
	bool holds = victim == holder;

	if (cell->signal == KILL_AT_ONCE) kill(victim, SIGKILL);
	if (cell->signal == END) kill(victim, SIGTERM);
	if (cell->signal == STOP_AND_WAKE && !holds) kill(victim, SIGSTOP);
	if (holder && (!holds || cell->signal == END)) kill(holder, SIGCONT);
	if (cell->signal == STOP_AND_WAKE) {
		work_meanwhile();
		kill(victim, SIGCONT);
	}
	since = store_fixture_now();
}

static void end_victim(void)
{
	if (cell->victim == VICTIM_WORKER) {
		if (cell->signal == KILL_AT_ONCE) serve_fixture_wait(&first);
		if (cell->signal == END) assert_int_equal(serve_fixture_wait(&first), 0);
	} else {
		if (cell->signal == KILL_AT_ONCE) store_fixture_kill(&store);
		if (cell->signal == END) assert_true(store_fixture_ended(&store));
	}
}

static void restart(void)
{
	if (cell->victim == VICTIM_WORKER) {
		end_worker(&first);
		start_worker(&first, "again", false, true);
	} else {
		assert_true(store_fixture_stop(&store));
		start_store(false);
	}
}

static void refuses(void)
{
	char *body = body_of(0, "");
	struct serve_reply reply;
	uint64_t start = store_fixture_now();

	assert_true(serve_ask(&first, "POST", "/v1/completions", body, &reply));
	if (!is_clean_refusal(reply.code, reply.body))
		fail_msg("without a store: %d: %s", reply.code, reply.body);
	assert_true(store_fixture_now() - start < DEADLINE_MS);
	serve_reply_deinit(&reply);
	free(body);
}

/* What the dead one was answering is answered to the end, with the same tokens. */
static void resume(const struct serve_fixture *worker)
{
	struct serve_reply reply;
	char body[64];

	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"orphaned\"}", 1, LOADED_MS));
	snprintf(body, sizeof body, "{\"resume\":\"one-%u\"}", question);
	assert_true(serve_ask(worker, "POST", "/v1/completions", body, &reply));
	if (reply.code != 200) fail_msg("resumed: %d: %s", reply.code, reply.body);
	assert_true(json_equal(json_object_get(expected_answer("cold", question), "tokens"),
	    json_object_get(trial_own(reply.json), "tokens")));
	serve_reply_deinit(&reply);
}

static void no_pin_is_left(void)
{
	static const char *const held[] = {"workers{state=\"lapsed\"}", "segments{state=\"reserved\"}",
	    "segments{state=\"quarantined\"}", "sequences{state=\"active\"}",
	    "arena_bytes{state=\"leased\"}", "arena_bytes{state=\"reserved\"}"};

	for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
		assert_true(store_fixture_wait_stat(&store, held[i], 0, LOADED_MS));
	assert_true(store_fixture_wait_stat(&store, "checksum_mismatches_total", 0, 0));
}

/* The store counted at least what the ledger holds, and no prompt that nobody asked about. */
static void ledger_is_counted(void)
{
	double opened = stat_of("sequences_opened_total");
	double lookups = stat_of("prefix_lookup_tokens_total");
	double hits = stat_of("prefix_hit_tokens_total{how=\"shared\"}") +
	              stat_of("prefix_hit_tokens_total{how=\"copied\"}");
	double commits = stat_of("commits_total{result=\"ok\"}");
	double tokens = stat_of("tokens"), answered = 0, asked_about = 0;

	for (unsigned i = 0; i < KILL_PROMPTS; i++) {
		answered += ledger.answered[i] ? PROMPT_TOKENS : 0;
		asked_about += ledger.asked[i] ? PROMPT_TOKENS : 0;
	}
	assert_true(opened >= ledger.answers);
	assert_true(lookups == opened * PROMPT_TOKENS);
	assert_true(hits >= ledger.found);
	/* What was found nowhere: whole prompts at least of the cold ones. */
	assert_true(lookups - hits >= (double)ledger.cold * PROMPT_TOKENS);
	/* A cold prompt is committed, and each answer's folds are; nobody commits more. */
	assert_true(commits >= ledger.cold + (double)ledger.answers * (ANSWER_TOKENS / FOLD_TOKENS));
	assert_true(commits <= opened * (1 + ANSWER_TOKENS / FOLD_TOKENS));
	/* A prompt is there once, whoever stored it. What was decoded goes with its sequence. */
	assert_true(tokens >= (stat_of("evictions_total") > 0 ? PROMPT_TOKENS : answered));
	assert_true(tokens <= asked_about + stat_of("sequences{state=\"orphaned\"}") *
	                                        (PROMPT_TOKENS + ANSWER_TOKENS));
}

/* Every call is a message; what the engine refused was answered with an error. */
static void messages_add_up(void)
{
	double refused = stat_of("reserve_failures_total");
	double commits = stat_of("commits_total{result=\"ok\"}");
	double reserves = stat_of("reserves_total");

	assert_true(reserves - refused >= commits);
	assert_true(stat_of("requests_total") >= stat_of("sequences_opened_total") +
	                                             stat_of("sequences_resumed_total") + reserves +
	                                             commits + stat_of("pushes_total"));
	refused += stat_of("commits_total{result=\"corrupt\"}") +
	           stat_of("commits_total{result=\"stale\"}") +
	           stat_of("commits_total{result=\"refused\"}");
	assert_true(stat_of("requests_failed_total") >= refused);
	/* Only one whose lease lapsed asks for what it no longer has. */
	if (!(stat_of("lease_expiries_total") > 0))
		assert_true(stat_of("requests_failed_total") <= refused);
	assert_true(stat_of("commits_total{result=\"corrupt\"}") == 0);
}

static void counters_add_up(void)
{
	double arena =
	    stat_of("arena_bytes{state=\"free\"}") + stat_of("arena_bytes{state=\"reserved\"}") +
	    stat_of("arena_bytes{state=\"leased\"}") + stat_of("arena_bytes{state=\"cached\"}") +
	    stat_of("arena_bytes{state=\"quarantined\"}");

	assert_true(arena == stat_of("regions_bytes"));
	assert_true(stat_of("regions_bytes") <= stat_of("arena_limit_bytes"));
	assert_true(store_fixture_wait_stat(&store, "workers{state=\"connected\"}",
	    (first.pid > 0 ? 1 : 0) + (second.pid > 0 ? 1 : 0), LOADED_MS));
	ledger_is_counted();
	messages_add_up();
	if (cell->phase == EVICTING && cell->victim == VICTIM_WORKER)
		assert_true(stat_of("evictions_total") > 0);
}

static void the_story(void **state)
{
	bool gone = cell->signal != STOP_AND_WAKE && !cell->restarted;
	const struct serve_fixture *asker;

	(void)state;
	start_all();
	reach_phase();
	send_signal();
	check_question(cell->victim == VICTIM_WORKER && cell->signal != STOP_AND_WAKE);
	end_victim();
	store_is_there = !(gone && cell->victim == VICTIM_STORE);
	if (cell->restarted) restart();
	if (!store_is_there) {
		refuses();
		finished = true;
		return;
	}
	asker = gone ? (cell->victim == VICTIM_WORKER ? &second : &first) : &first;
	if (cell->victim == VICTIM_WORKER && cell->signal == KILL_AT_ONCE && cell->phase != CONNECT &&
	    cell->phase != IDLE)
		resume(asker);
	/* What others stored meanwhile is read by one that holds none of it: the latest is still there.
	 */
	for (unsigned number = KILL_PROMPTS; cell->signal == STOP_AND_WAKE && number-- > 1;)
		ask(asker, number, "stored meanwhile");
	ask(asker, question, "after");
	if (second.pid > 0) ask(&second, 1, "beside");
	no_pin_is_left();
	counters_add_up();
	finished = true;
}

static int begin(void **state)
{
	(void)state;
	return store_fixture_init(&store) ? 0 : -1;
}

static void wake(pid_t pid)
{
	if (pid > 0) kill(pid, SIGCONT);
}

static int end(void **state)
{
	bool clean;

	(void)state;
	wake(store.pid);
	wake(first.pid);
	if (asked) serve_call_close(&call);
	clean = serve_fixture_stop(&first, false);
	clean = serve_fixture_stop(&second, false) && clean;
	clean = store_fixture_deinit(&store, !clean || !finished) && clean;
	return clean && process_count(store.directory) == 0 ? 0 : -1;
}

/* ---- answers of an undisturbed store ---- */

static bool take_trial(void)
{
	static char fold[16];

	if (!trial_init(&trial, "tiny_llama")) return false;
	trial.answer_tokens = ANSWER_TOKENS;
	snprintf(fold, sizeof fold, "%d", (int)FOLD_TOKENS);
	serve_answer_limit(BACK_MS / 1000);
	return true;
}

static void collect(void **state)
{
	const char *path = *state;
	const char *const arguments[] = {"--store", store.address, "--threads", "1", NULL};
	json_t *lists[2] = {json_array(), json_array()};

	for (unsigned i = 0; i < 2 * KILL_PROMPTS; i++) {
		int32_t *prompt = trial_prompt(&trial, i / 2, PROMPT_TOKENS);

		json_array_append_new(
		    lists[i % 2], trial_generate(&trial, prompt, PROMPT_TOKENS, arguments));
		free(prompt);
	}
	json_t *all = json_pack("{s:o,s:o}", "cold", lists[0], "warm", lists[1]);

	assert_int_equal(json_dump_file(all, path, 0), 0);
	json_decref(all);
}

bool kill_answers_write(const char *path)
{
	struct CMUnitTest tests[] = {cmocka_unit_test(collect)};
	bool done;

	tests[0].initial_state = (void *)(uintptr_t)path;
	if (!take_trial() || !store_fixture_init(&store)) return false;
	done = store_fixture_start(&store, NULL) && cmocka_run_group_tests(tests, NULL, NULL) == 0;
	done = store_fixture_deinit(&store, !done) && done;
	trial_deinit(&trial);
	return done;
}

int kill_cell_run(const struct kill_cell *one, const char *path)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(the_story, begin, end)};
	int failed = 1;

	cell = one;
	answers = json_load_file(path, JSON_ALLOW_NUL, NULL);
	if (!answers)
		fprintf(stderr, "no answers in %s\n", path);
	else if (take_trial())
		failed = cmocka_run_group_tests(tests, NULL, NULL);
	trial_deinit(&trial);
	json_decref(answers);
	return failed ? 1 : 0;
}
