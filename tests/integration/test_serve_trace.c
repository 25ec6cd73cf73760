/* Where the time of single requests went: a real worker with a real store, asked by kvctl trace;
 * and the name by which each request goes, whatever becomes of it. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/process.h"
#include "tests/lib/serve_fixture.h"
#include "tests/lib/store_fixture.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"
#define KEY   "sk-0123456789abcdef"

/* SLACK_US: what a report in seconds and a trace may differ by, which are rounded in each part.
 * READERS: more than the socket lets stay. */
enum { PROMPT_BYTES = 4000, BODY_BYTES = 8192, KVCTL_MS = 20000, SLACK_US = 50, READERS = 40 };

static struct store_fixture store;
static struct serve_fixture worker;
static char socket_path[160], key_path[160];

static const char *body_of(unsigned seed, const char *more)
{
	static const char *const words[] = {"the", "in", "on", "and", "you", "is", "to", "of"};
	static char body[BODY_BYTES];
	size_t length = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"");

	while (length < PROMPT_BYTES) {
		seed = seed * 1103515245U + 12345U;
		length += (size_t)snprintf(
		    body + length, sizeof body - length, "%s ", words[(seed >> 16) % 8]);
	}
	snprintf(body + length, sizeof body - length,
	    "\",\"temperature\":0,\"ignore_end\":true,%s}", more);
	return body;
}

static const char *header_named(const char *id)
{
	static char lines[600];

	snprintf(lines, sizeof lines, "Authorization: Bearer " KEY "\r\n%s%s%s",
	    id != NULL ? "X-Request-Id: " : "", id != NULL ? id : "", id != NULL ? "\r\n" : "");
	return lines;
}

static void ask(const char *id, const char *body, struct serve_reply *reply)
{
	serve_extra_headers(header_named(id));
	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, reply));
	if (reply->code != 200) fail_msg("%d: %s", reply->code, reply->body);
}

/* kvctl trace; its output, which the caller frees, and its exit code. */
static char *kvctl(const char *id, const char *flag, int code)
{
	const char *arguments[7] = {KVCTL_PATH, "trace", "--worker-socket", socket_path};
	struct process process = {0};
	char *text, *errors;
	int count = 4, got;

	if (flag != NULL) arguments[count++] = flag;
	if (id != NULL) arguments[count++] = id;
	assert_true(process_start(&process, arguments, NULL));
	got = process_wait(&process, KVCTL_MS);
	text = process_output(&process);
	errors = process_errors(&process);
	process_deinit(&process);
	if (got != code) fail_msg("kvctl trace %s: %d: %s", id != NULL ? id : "", got, errors);
	if (code == 0) {
		free(errors);
		return text;
	}
	free(text);
	return errors;
}

static json_t *trace_of(const char *id)
{
	char *text = kvctl(id, "--json", 0);
	json_t *object = json_loads(text, 0, NULL);

	if (object == NULL) fail_msg("%s: no JSON: %s", id, text);
	free(text);
	return object;
}

/* Until the worker has noticed its end. */
static json_t *ended_trace_of(const char *id, const char *state)
{
	for (int i = 0; i < 500; i++) {
		json_t *object = trace_of(id);

		if (strcmp(json_string_value(json_object_get(object, "state")), state) == 0) return object;
		json_decref(object);
		store_fixture_sleep(10);
	}
	fail_msg("%s was never %s", id, state);
	return NULL;
}

static double number(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	if (!json_is_number(value)) fail_msg("there is no %s", name);
	return json_number_value(value);
}

static const json_t *choice_of(const json_t *trace, size_t index)
{
	return json_array_get(json_object_get(trace, "choices"), index);
}

static const char *end_of(const json_t *trace)
{
	return json_string_value(json_object_get(choice_of(trace, 0), "end"));
}

static const json_t *span_in(const json_t *object, const char *name)
{
	const json_t *spans = json_object_get(object, "spans");

	for (size_t i = 0; i < json_array_size(spans); i++)
		if (!strcmp(json_string_value(json_object_get(json_array_get(spans, i), "name")), name))
			return json_array_get(spans, i);
	return NULL;
}

static double us(const json_t *choice, const char *outer, const char *inner)
{
	const json_t *span = span_in(choice, outer);

	if (span != NULL && inner != NULL) span = span_in(span, inner);
	return span != NULL ? number(span, "us") : 0.0;
}

static double sum_of(const json_t *object)
{
	const json_t *spans = json_object_get(object, "spans");
	double sum = 0;

	for (size_t i = 0; i < json_array_size(spans); i++) {
		const json_t *span = json_array_get(spans, i);

		if (json_object_get(span, "spans") != NULL)
			assert_int_equal((long)sum_of(span), (long)number(span, "us"));
		sum += number(span, "us");
	}
	return sum;
}

static void adds_up(const json_t *trace)
{
	for (size_t i = 0; i < json_array_size(json_object_get(trace, "choices")); i++)
		assert_int_equal((long)sum_of(choice_of(trace, i)), (long)number(trace, "wall_us"));
}

static void near_to(const char *what, double found_us, const json_t *own, const char *name)
{
	double expected = number(own, name) * 1e6;

	if (found_us < expected - SLACK_US || found_us > expected + SLACK_US)
		fail_msg("%s: %.0f us in the trace, %.0f in the answer", what, found_us, expected);
}

/* The answer's own report counts the same by other ways. */
static void agrees_with_the_answer(const json_t *trace, const json_t *answer)
{
	const json_t *own = json_object_get(answer, "clusterkv"), *choice = choice_of(trace, 0);

	near_to("prefill", us(choice, "prefill", NULL) - us(choice, "prefill", "wait"), own,
	    "prefill_seconds");
	near_to("decode", us(choice, "decode", NULL) - us(choice, "decode", "wait"), own,
	    "decode_seconds");
	near_to("index", us(choice, "prefill", "index") + us(choice, "decode", "index"), own,
	    "index_seconds");
	near_to("select", us(choice, "decode", "select"), own, "select_seconds");
	near_to("fetch", us(choice, "decode", "fetch"), own, "fetch_seconds");
	assert_int_equal((long)number(trace, "prompt_tokens"), (long)number(own, "prompt_tokens"));
	assert_int_equal((long)number(trace, "found_tokens"), (long)number(own, "prefix_hit_tokens"));
	assert_int_equal((long)number(trace, "tokens"), 60);
	assert_int_equal((long)number(choice, "steps"), 59);
}

/* A line of the worker's log that has all of these. */
static bool logged(const char *one, const char *other)
{
	char line[2048];
	FILE *log = fopen(worker.log, "r");
	bool found = false;

	assert_non_null(log);
	while (!found && fgets(line, sizeof line, log) != NULL)
		found = strstr(line, one) != NULL && strstr(line, other) != NULL;
	fclose(log);
	return found;
}

static void a_cold_prompt_and_a_warm_one(void **state)
{
	struct serve_reply reply;
	json_t *cold, *warm;
	uint64_t start = store_fixture_now();
	double layers = 0, prefill;
	char *text;

	(void)state;
	ask("cold", body_of(1, "\"max_tokens\":60"), &reply);
	cold = ended_trace_of("cold", "done");
	/* It took no longer than whoever asked has waited, its end included. */
	assert_true(number(cold, "wall_us") <= 1e3 * (double)(store_fixture_now() - start + 1));
	adds_up(cold);
	agrees_with_the_answer(cold, reply.json);
	serve_reply_deinit(&reply);
	ask("warm", body_of(1, "\"max_tokens\":60"), &reply);
	warm = ended_trace_of("warm", "done");
	adds_up(warm);
	agrees_with_the_answer(warm, reply.json);
	serve_reply_deinit(&reply);
	assert_true(number(cold, "found_tokens") < 1);
	assert_true(number(warm, "found_tokens") > 100);
	prefill = us(choice_of(cold, 0), "prefill", NULL);
	assert_true(us(choice_of(cold, 0), "prefill", "index") > 0);
	assert_true(us(choice_of(cold, 0), "prefill", "offload") > 0);
	assert_true(us(choice_of(warm, 0), "prefill", "fetch") > 0);
	assert_true(us(choice_of(warm, 0), "prefill", NULL) < prefill);
	assert_true(us(choice_of(warm, 0), "decode", "select") > 0);
	/* Four layers, and nearly all of the prefill is in them. */
	assert_int_equal(json_array_size(json_object_get(cold, "layers_us")), 4);
	for (size_t i = 0; i < 4; i++)
		layers += json_number_value(json_array_get(json_object_get(cold, "layers_us"), i));
	assert_true(layers <= prefill);
	assert_true(layers >= prefill / 2);
	json_decref(cold);
	json_decref(warm);
	assert_true(logged("answer length ", " request=cold sequence="));
	text = kvctl("cold", NULL, 0);
	assert_non_null(strstr(text, "request   cold\n"));
	assert_non_null(strstr(text, "completion, done (200)"));
	assert_non_null(strstr(text, "\nprefill "));
	assert_non_null(strstr(text, "\n  index "));
	assert_non_null(strstr(text, "\nprefill by layers, of all choices: 4 took "));
	free(text);
	text = kvctl(NULL, NULL, 0);
	assert_non_null(strstr(text, "\ncold "));
	assert_true(strstr(text, "\nwarm ") < strstr(text, "\ncold "));
	free(text);
}

/* Beside each other: the one that came second waits for the first's prompt, and each adds up. */
static void two_at_once_and_two_choices(void **state)
{
	struct serve_reply replies[2], both;
	struct serve_call calls[2];
	json_t *trace;
	char id[8];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		snprintf(id, sizeof id, "at-%u", i);
		serve_extra_headers(header_named(id));
		assert_true(serve_call_open(&calls[i], &worker, "POST", "/v1/completions",
		    body_of(10 + i, "\"max_tokens\":60")));
	}
	for (unsigned i = 0; i < 2; i++) {
		assert_true(serve_call_finish(&calls[i], &replies[i]));
		assert_int_equal(replies[i].code, 200);
		snprintf(id, sizeof id, "at-%u", i);
		trace = ended_trace_of(id, "done");
		adds_up(trace);
		agrees_with_the_answer(trace, replies[i].json);
		json_decref(trace);
		serve_reply_deinit(&replies[i]);
	}
	ask("both", body_of(20, "\"max_tokens\":12,\"n\":2"), &both);
	serve_reply_deinit(&both);
	trace = ended_trace_of("both", "done");
	assert_int_equal(json_array_size(json_object_get(trace, "choices")), 2);
	assert_int_equal((long)number(trace, "tokens"), 24);
	adds_up(trace);
	assert_true(number(choice_of(trace, 1), "found_tokens") > number(choice_of(trace, 0),
	                                                             "found_tokens"));
	json_decref(trace);
}

/* While it runs it can be looked at, and so can what a client left. */
static void one_that_runs_and_is_left(void **state)
{
	struct serve_call call;
	json_t *trace;
	double before;

	(void)state;
	serve_extra_headers(header_named("left"));
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    body_of(30, "\"max_tokens\":12000,\"stream\":true")));
	assert_true(serve_call_tokens(&call, 3));
	trace = trace_of("left");
	assert_string_equal(json_string_value(json_object_get(trace, "state")), "running");
	assert_true(number(trace, "tokens") >= 3);
	assert_true(us(choice_of(trace, 0), "decode", NULL) > 0);
	before = number(trace, "wall_us");
	adds_up(trace);
	json_decref(trace);
	serve_call_close(&call);
	trace = ended_trace_of("left", "gone");
	assert_string_equal(end_of(trace), "cancelled");
	assert_true(number(trace, "wall_us") > before);
	adds_up(trace);
	json_decref(trace);
}

/* A name that ends in "-" is the beginning of one that the worker made. */
static void has_id(const struct serve_reply *reply, int code, const char *id)
{
	static const char header[] = "\r\nX-Request-Id: ";
	const char *at = strstr(reply->head, header), *value = at != NULL ? at + strlen(header) : "";
	size_t length = strlen(id), made = id[length - 1] == '-' ? 16 : 0;

	if (reply->code != code || strncmp(value, id, length) != 0 ||
	    strcspn(value, "\r") != length + made)
		fail_msg("expected %d and %s: %s", code, id, reply->head);
}

static void named(const char *method, const char *path, const char *headers, const char *body,
    int code, const char *id)
{
	struct serve_reply reply;

	serve_extra_headers(headers);
	assert_true(serve_ask(&worker, method, path, body, &reply));
	has_id(&reply, code, id);
	serve_reply_deinit(&reply);
}

/* OpenAI's `param`: the field that is wrong, null where none is. */
static void errors_name_the_field(void **state)
{
	static const struct {
		const char *path, *body, *field;
	} cases[] = {
	    {"/v1/completions", "{\"prompt\":5}", "prompt"},
	    {"/v1/completions", "{\"prompt\":\"a\",\"top_p\":2}", "top_p"},
	    {"/v1/completions", "{\"prompt\":\"a\",\"model\":\"b\"}", "model"},
	    {"/v1/completions", "{\"resume\":\"nobody\"}", "resume"},
	    {"/v1/chat/completions", "{\"messages\":[]}", "messages"},
	    {"/tokenize", "{\"prompt\":\"a\",\"n\":1}", "n"},
	    {"/v1/completions", "{", NULL},
	};

	(void)state;
	serve_extra_headers(header_named(NULL));
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct serve_reply reply;
		const json_t *param;

		assert_true(serve_ask(&worker, "POST", cases[i].path, cases[i].body, &reply));
		param = json_object_get(json_object_get(reply.json, "error"), "param");
		if (cases[i].field == NULL)
			assert_true(json_is_null(param));
		else if (!json_is_string(param) || strcmp(json_string_value(param), cases[i].field) != 0)
			fail_msg("%s: %s", cases[i].body, reply.body);
		serve_reply_deinit(&reply);
	}
}

static void every_answer_has_a_name(void **state)
{
	static char large[16384];
	char longest[65], headers[1024];
	struct serve_call running[2], waiting;
	json_t *trace;

	(void)state;
	memset(large, ' ', sizeof large - 1);
	named("GET", "/v1/models", header_named(NULL), NULL, 200, "req-");
	named("GET", "/v1/models", header_named("m"), NULL, 200, "m");
	named("GET", "/health", header_named("h"), NULL, 200, "h");
	named("POST", "/tokenize", header_named("t"), "{\"prompt\":\"a\"}", 200, "t");
	named("POST", "/v1/completions", header_named("e400"), "{\"prompt\":5}", 400, "e400");
	named("POST", "/v1/completions", header_named(NULL), "{\"prompt\":5}", 400, "cmpl-");
	named("POST", "/v1/chat/completions", header_named(NULL), "{", 400, "chatcmpl-");
	named("POST", "/v1/completions", "X-Request-Id: e401\r\n", "{}", 401, "e401");
	named("POST", "/v1/completions", NULL, "{}", 401, "req-");
	named("GET", "/v2", header_named("e404"), NULL, 404, "e404");
	named("GET", "/v1/models/other", header_named("m404"), NULL, 404, "m404");
	named("POST", "/v1/completions", header_named("s404"), "{\"resume\":\"nobody\"}", 404, "s404");
	named("GET", "/v1/completions", header_named("e405"), NULL, 405, "e405");
	named("POST", "/v1/completions", header_named("e413"), large, 413, "e413");
	/* What cannot be written to a log is not taken for a name. */
	memset(longest, 'a', sizeof longest);
	longest[64] = '\0';
	named("GET", "/v1/models", header_named(longest), NULL, 200, longest);
	snprintf(headers, sizeof headers, "%sX-Request-Id: %sb\r\n", header_named(NULL), longest);
	named("GET", "/v1/models", headers, NULL, 200, "req-");
	named("GET", "/v1/models", header_named("a b"), NULL, 200, "req-");
	named("GET", "/v1/models", header_named("\xc3\xa4"), NULL, 200, "req-");

	/* As many as it takes: two run, one waits. */
	for (int i = 0; i < 2; i++) {
		serve_extra_headers(header_named("runs"));
		assert_true(serve_call_open(&running[i], &worker, "POST", "/v1/completions",
		    body_of(40, "\"max_tokens\":12000,\"stream\":true")));
		assert_true(serve_call_tokens(&running[i], 1));
	}
	assert_true(serve_call_open(
	    &waiting, &worker, "POST", "/v1/completions", body_of(41, "\"max_tokens\":3")));
	assert_true(serve_wait_number(&worker, "waiting", 1));
	named("POST", "/v1/completions", header_named("e429"), body_of(42, "\"max_tokens\":3"), 429,
	    "e429");
	for (int i = 0; i < 2; i++)
		serve_call_close(&running[i]);
	serve_call_close(&waiting);
	assert_true(serve_wait_number(&worker, "running", 0));
	/* The log names those that never came to the engine, too. */
	assert_true(logged("refused 400: prompt: must be", " request=e400\n"));
	assert_true(logged("refused 401: ", " request=e401\n"));
	assert_true(logged("refused 413: ", " request=e413\n"));
	assert_true(logged("answer not found ", " request=s404\n"));
	/* What failed has a trace that says so. */
	trace = ended_trace_of("e400", "failed");
	assert_int_equal((long)number(trace, "code"), 400);
	adds_up(trace);
	json_decref(trace);
	trace = ended_trace_of("s404", "failed");
	assert_int_equal((long)number(trace, "code"), 404);
	assert_string_equal(end_of(trace), "not found");
	adds_up(trace);
	json_decref(trace);
	trace = ended_trace_of("e429", "failed");
	assert_int_equal((long)number(trace, "code"), 429);
	json_decref(trace);
}

static void ids_that_are_none(void **state)
{
	char longer[80];
	char *text;

	(void)state;
	memset(longer, 'a', sizeof longer);
	longer[79] = '\0';
	text = kvctl("nobody", NULL, 1);
	assert_non_null(strstr(text, "request nobody: the worker at "));
	free(text);
	free(kvctl("nobody", "--json", 1));
	text = kvctl(longer, NULL, 2);
	assert_non_null(strstr(text, "1 to 64 characters"));
	free(text);
	text = kvctl("a\nquit", NULL, 2);
	assert_non_null(strstr(text, "visible ASCII"));
	free(text);
	free(kvctl("", NULL, 2));
}

static int connect_one(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%.100s", socket_path);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
	return fd;
}

static size_t read_all(int fd, char *text, size_t size)
{
	const struct timeval limit = {15, 0};
	size_t length = 0;
	ssize_t got;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	while (length + 1 < size && (got = recv(fd, text + length, size - 1 - length, 0)) > 0)
		length += (size_t)got;
	text[length] = '\0';
	return length;
}

/* Who holds connections, sends no end of a line or does not read keeps nobody out. */
static void hostile_readers(void **state)
{
	static char text[8192];
	int fds[READERS], one;

	(void)state;
	for (int i = 0; i < READERS; i++) {
		fds[i] = connect_one();
		assert_int_equal(send(fds[i], "trace half", 10, MSG_NOSIGNAL), 10);
	}
	free(kvctl(NULL, "--json", 0));
	for (int i = 0; i < READERS; i++)
		close(fds[i]);
	one = connect_one();
	memset(text, 'x', 1000);
	assert_int_equal(send(one, text, 1000, MSG_NOSIGNAL), 1000);
	read_all(one, text, sizeof text);
	assert_non_null(strstr(text, "ERROR line too long"));
	close(one);
	/* A thousand lists that nobody takes. */
	one = connect_one();
	for (int i = 0; i < 1000; i++)
		if (send(one, "traces json\n", 12, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
	free(kvctl(NULL, "--json", 0));
	close(one);
	one = connect_one();
	assert_int_equal(send(one, "help\r\ntraces\nquit\ntraces\n", 25, MSG_NOSIGNAL), 25);
	read_all(one, text, sizeof text);
	assert_int_equal(strncmp(text, "traces [json]\r\n", 15), 0);
	close(one);
}

/* Last of the tests: the worker is stopping. */
static void a_stopping_worker_names_its_answers(void **state)
{
	struct serve_call call;
	struct stat facts;

	(void)state;
	serve_extra_headers(header_named("last"));
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    body_of(50, "\"max_tokens\":12000,\"stream\":true")));
	assert_true(serve_call_tokens(&call, 1));
	serve_fixture_signal(&worker, SIGTERM);
	assert_true(serve_wait_status(&worker, "stopping"));
	named("POST", "/v1/completions", header_named("e503"), "{\"prompt\":\"a\"}", 503, "e503");
	named("GET", "/v2", header_named("s503"), NULL, 503, "s503");
	serve_call_close(&call);
	assert_int_equal(serve_fixture_wait(&worker), 0);
	assert_int_equal(stat(socket_path, &facts), -1);
	assert_int_equal(errno, ENOENT);
}

static int start(void **state)
{
	FILE *keys;

	(void)state;
	if (!store_fixture_init(&store) || !store_fixture_start(&store, NULL)) return -1;
	snprintf(socket_path, sizeof socket_path, "%.96s/worker.sock", store.directory);
	snprintf(key_path, sizeof key_path, "%s/keys", store.directory);
	umask(077);
	keys = fopen(key_path, "w");
	if (keys == NULL || fputs(KEY "\n", keys) < 0 || fclose(keys) != 0) return -1;
	{
		const char *const arguments[] = {"--model", MODEL, "--store", store.address, "--budget",
		    "48", "--sinks", "4", "--window", "32", "--fold", "32", "--segment", "256",
		    "--cluster-tokens", "8", "--dense-layers", "1", "--max-sequences", "2",
		    "--max-requests", "1", "--max-body", "8KiB", "--drain-timeout", "20s",
		    "--api-key-file", key_path, "--worker-socket", socket_path, NULL};

		return serve_fixture_start(&worker, arguments, true) ? 0 : -1;
	}
}

static int stop(void **state)
{
	bool good;

	(void)state;
	good = serve_fixture_stop(&worker, false);
	unlink(key_path);
	return store_fixture_deinit(&store, !good) && good ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_cold_prompt_and_a_warm_one),
	    cmocka_unit_test(two_at_once_and_two_choices),
	    cmocka_unit_test(one_that_runs_and_is_left),
	    cmocka_unit_test(every_answer_has_a_name),
	    cmocka_unit_test(errors_name_the_field),
	    cmocka_unit_test(ids_that_are_none),
	    cmocka_unit_test(hostile_readers),
	    cmocka_unit_test(a_stopping_worker_names_its_answers),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
