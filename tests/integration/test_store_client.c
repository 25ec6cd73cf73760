/* A worker's view of a store: sharing, resuming, deaths and refusals, over a real kvstored (ucx,
 * map or stream, by argument) or inside the process (local). */
#include "tests/lib/store_client_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/transport/frame.h"
#include "common/transport/unix_socket.h"
#include "proto/codec.h"

const char *test_transport;
const char *test_program;

static struct store_fixture fixture;

static bool is_local(void)
{
	return strcmp(test_transport, "local") == 0;
}

static bool is_stream(void)
{
	return strcmp(test_transport, "stream") == 0;
}

static const struct store_fixture *where(void)
{
	return is_local() ? NULL : &fixture;
}

static const char *const *store_arguments(void)
{
	static char transport[32];
	static const char *arguments[] = {transport, "--lease=1s", "--heartbeat=100ms", NULL};

	snprintf(transport, sizeof transport, "--transport=%s", test_store_transport());
	return arguments;
}

static int set_up(void **state)
{
	(void)state;
	if (is_local()) return 0;
	if (!store_fixture_init(&fixture)) return -1;
	fixture.remote = is_stream();
	return store_fixture_start(&fixture, store_arguments()) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	if (is_local()) return 0;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

/* ---- sharing ---- */

static void test_share(void **state)
{
	struct kvc_store *a = test_connect(where(), "a");
	struct kvc_store *b = is_local() ? a : test_connect(where(), "b");
	struct kvc_sequence *first = NULL;
	struct kvc_sequence *second = NULL;
	uint32_t count;

	(void)state;
	assert_string_equal(kvc_transport(a), test_transport);
	assert_ok(test_open(a, NULL, 1, &first));
	kvc_sequence_segments(first, &count);
	assert_int_equal(count, 0);
	assert_ok(test_write(a, first, 1));
	kvc_sequence_segments(first, &count);
	assert_int_equal(count, CUTS);
	assert_int_equal(test_compare(a, first, 1), 0);
	assert_ok(test_open(b, NULL, 1, &second));
	kvc_sequence_segments(second, &count);
	assert_int_equal(count, CUTS);
	assert_int_equal(test_compare(b, second, 1), 0);
	assert_ok(kvc_check(b));
	assert_true(strlen(kvc_lanes(b)) > 0);
	if (!is_local()) {
		assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"committed\"}", CUTS, 0));
		assert_true(store_fixture_wait_stat(&fixture, "tokens", PROMPT_TOKENS, 0));
		assert_true(store_fixture_wait_stat(
		    &fixture, "prefix_hit_tokens_total{how=\"shared\"}", PROMPT_TOKENS, 0));
		assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 2, 0));
		assert_true(store_fixture_wait_stat(&fixture, "checksum_mismatches_total", 0, 0));
	}
	kvc_sequence_close(first, 0);
	assert_int_equal(test_compare(b, second, 1), 0);
	kvc_sequence_close(second, 0);
	if (b != a) kvc_close(b);
	kvc_close(a);
}

/* Two workers write the same prompt: the second commit ends with what the first has stored. */
static void test_same_twice(void **state)
{
	struct kvc_store *a = test_connect(where(), "a");
	struct kvc_store *b = is_local() ? a : test_connect(where(), "b");
	struct kvc_sequence *first = NULL;
	struct kvc_sequence *second = NULL;
	const struct kvc_segment *const *list;
	uint32_t count;
	uint64_t stored;

	(void)state;
	assert_ok(test_open(a, NULL, 2, &first));
	assert_ok(test_open(b, NULL, 2, &second));
	assert_ok(test_write(a, first, 2));
	list = kvc_sequence_segments(first, &count);
	stored = list[0]->id;
	assert_ok(test_write(b, second, 2));
	list = kvc_sequence_segments(second, &count);
	assert_int_equal(count, CUTS);
	assert_int_equal(list[0]->id, stored);
	assert_int_equal(test_compare(b, second, 2), 0);
	if (!is_local())
		assert_true(store_fixture_wait_stat(&fixture, "segments_duplicate_total", CUTS, 0));
	kvc_sequence_close(second, 0);
	kvc_sequence_close(first, 0);
	if (b != a) kvc_close(b);
	kvc_close(a);
}

/* A prompt that shares the first segment and a part of the second: one is shared, one is a piece.
 */
static void test_pieces(void **state)
{
	struct kvc_store *store = test_connect(where(), "a");
	struct kvc_sequence *first = NULL;
	struct kvc_sequence *second = NULL;
	int32_t prompt[PROMPT_TOKENS];
	struct kvc_cut cut[2] = {{CUT_ONE, KVW_CLUSTERED}, {CUT_ONE + 100, KVW_PLAIN}};
	struct kvc_open_request request = {
	    .prompt = prompt, .prompt_tokens = CUT_ONE + 100, .cuts = cut, .cut_count = 2};
	const struct kvc_piece *pieces;
	uint32_t count;

	(void)state;
	assert_ok(test_open(store, NULL, 3, &first));
	assert_ok(test_write(store, first, 3));
	test_prompt(prompt, 3);
	assert_ok(kvc_sequence_open(store, &request, &second));
	kvc_sequence_segments(second, &count);
	assert_int_equal(count, 1);
	pieces = kvc_sequence_pieces(second, &count);
	assert_int_equal(count, 1);
	assert_int_equal(pieces[0].segment->start, CUT_ONE);
	assert_int_equal(pieces[0].tokens, 100);
	kvc_sequence_release_pieces(second);
	kvc_sequence_pieces(second, &count);
	assert_int_equal(count, 0);
	kvc_sequence_close(second, 0);
	kvc_sequence_close(first, 0);
	kvc_close(store);
}

/* ---- resuming ---- */

static void check_resumed(struct kvc_store *store, const char *id)
{
	uint8_t digest[32];
	uint8_t other[32] = {0};
	int32_t prompt[PROMPT_TOKENS];
	struct kvc_resume_state resumed;
	struct kvc_sequence *sequence = NULL;
	uint32_t count;

	memset(digest, 3, sizeof digest);
	test_prompt(prompt, 5);
	assert_int_equal(
	    kvc_sequence_resume(store, "no-such", digest, &sequence, &resumed), KV_NOT_FOUND);
	assert_int_equal(kvc_sequence_resume(store, id, other, &sequence, &resumed), KV_REFUSED);
	assert_ok(kvc_sequence_resume(store, id, digest, &sequence, &resumed));
	kvc_sequence_segments(sequence, &count);
	assert_int_equal(count, CUTS);
	assert_int_equal(resumed.prompt_tokens, PROMPT_TOKENS);
	assert_memory_equal(resumed.prompt, prompt, sizeof prompt);
	assert_int_equal(resumed.decoded_tokens, DECODED);
	for (int32_t i = 0; i < DECODED; i++)
		assert_int_equal(resumed.decoded[i], 100 + i);
	assert_int_equal(resumed.sampler_bytes, 5);
	assert_memory_equal(resumed.sampler_state, "state", 5);
	assert_int_equal(resumed.parameter_bytes, 13);
	assert_memory_equal(resumed.parameters, "temperature=0", 13);
	assert_int_equal(test_compare(store, sequence, 5), 0);
	kvc_sequence_close(sequence, 0);
}

/* Write, push some tokens, and stay. */
static enum kv_status prepare_to_resume(
    struct kvc_store *store, const char *id, struct kvc_sequence **sequence)
{
	int32_t decoded[DECODED];

	for (int32_t i = 0; i < DECODED; i++)
		decoded[i] = 100 + i;
	KV_TRY(test_open(store, id, 5, sequence));
	KV_TRY(test_write(store, *sequence, 5));
	KV_TRY(kvc_push(*sequence, decoded, 3, "older", 5));
	KV_TRY(kvc_push(*sequence, decoded, DECODED, "state", 5));
	return kvc_flush(*sequence);
}

static void test_keep_and_resume(void **state)
{
	struct kvc_store *store = test_connect(where(), "a");
	struct kvc_sequence *sequence = NULL;

	(void)state;
	assert_ok(prepare_to_resume(store, "kept", &sequence));
	assert_string_equal(kvc_sequence_id(sequence), "kept");
	kvc_sequence_close(sequence, 1);
	check_resumed(store, "kept");
	kvc_close(store);
}

/* ---- other processes ---- */

struct child {
	pid_t pid;
	int output;
};

static struct child start_child(const char *mode)
{
	struct child child = {0};
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	child.pid = fork();
	assert_true(child.pid >= 0);
	if (child.pid == 0) {
		dup2(ends[1], 1);
		for (int i = 3; i < 256; i++)
			close(i);
		execl(test_program, test_program, test_transport, mode, fixture.address, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	child.output = ends[0];
	return child;
}

/* Wait for its line. */
static void await_line(const struct child *child)
{
	char byte = 0;

	while (byte != '\n')
		assert_int_equal(read(child->output, &byte, 1), 1);
}

static int end_child(struct child *child, int number)
{
	int status = 0;

	if (number) kill(child->pid, number);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	close(child->output);
	return status;
}

static void test_killed_worker(void **state)
{
	struct kvc_store *store = test_connect(where(), "heir");
	struct child child = start_child("hold");
	uint8_t digest[32];
	struct kvc_resume_state resumed;
	struct kvc_sequence *sequence = NULL;

	(void)state;
	await_line(&child);
	memset(digest, 3, sizeof digest);
	assert_int_equal(kvc_sequence_resume(store, "held", digest, &sequence, &resumed), KV_BUSY);
	end_child(&child, SIGKILL);
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 1, 3000));
	assert_true(store_fixture_wait_stat(&fixture, "sequences{state=\"orphaned\"}", 1, 3000));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"quarantined\"}", 0, 3000));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"reserved\"}", 0, 3000));
	check_resumed(store, "held");
	kvc_close(store);
}

/* A worker that slept through its lease knows it as soon as it looks. */
static void test_stopped_worker(void **state)
{
	struct child child = start_child("sleep");
	int status;

	(void)state;
	await_line(&child);
	kill(child.pid, SIGSTOP);
	assert_true(store_fixture_wait_stat(&fixture, "lease_expiries_total", 1, 5000));
	/* Of one on another host nothing can come any more that would be of use. */
	assert_true(
	    store_fixture_wait_stat(&fixture, "workers{state=\"lapsed\"}", is_stream() ? 0 : 1, 1000));
	kill(child.pid, SIGCONT);
	status = end_child(&child, 0);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* What a closed sequence still had to tell is not told after its end, however slow the store is. */
static void test_push_before_close(void **state)
{
	const char *arguments[] = {store_arguments()[0], "--lease=60s", NULL};
	const int32_t decoded[] = {1, 2, 3};
	struct kvc_options options = test_options(&fixture, "a");
	struct kvc_sequence *sequence = NULL;
	struct kvc_store *store = NULL;
	pid_t waker;

	(void)state;
	assert_true(store_fixture_stop(&fixture) && store_fixture_start(&fixture, arguments));
	options.call_ms = 30000;
	assert_ok(kvc_open(&options, &store));
	assert_ok(test_open(store, "told", 5, &sequence));
	kill(fixture.pid, SIGSTOP);
	assert_ok(kvc_push(sequence, decoded, 3, NULL, 0));
	waker = fork();
	assert_true(waker >= 0);
	if (waker == 0) {
		/* Longer than a push is held back. */
		store_fixture_sleep(400);
		kill(fixture.pid, SIGCONT);
		_exit(0);
	}
	kvc_sequence_close(sequence, 0);
	assert_int_equal(waitpid(waker, NULL, 0), waker);
	kvc_close(store);
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 0, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "requests_failed_total", 0, 0));
}

/* ---- the store's death ---- */

static void await_connected(struct kvc_store *store, int wanted)
{
	uint64_t deadline = store_fixture_now() + 10000;

	while (kvc_connected(store) != wanted) {
		assert_true(store_fixture_now() < deadline);
		store_fixture_sleep(10);
	}
}

static void test_killed_store(void **state)
{
	struct kvc_store *store = test_connect(where(), "a");
	struct kvc_sequence *sequence = NULL;
	struct kvc_sequence *other = NULL;
	uint64_t generation = kvc_generation(store);
	struct kvc_new_segment more = {PROMPT_TOKENS, 64, KVW_PLAIN, KVW_APPROXIMATE};
	const struct kvc_segment *reserved = NULL;
	uint64_t start;
	uint32_t count;
	enum kv_status status;

	(void)state;
	assert_ok(test_open(store, NULL, 6, &sequence));
	assert_ok(test_write(store, sequence, 6));
	store_fixture_kill(&fixture);
	start = store_fixture_now();
	assert_int_equal(test_open(store, NULL, 6, &other), KV_DISCONNECTED);
	assert_true(store_fixture_now() - start < 6000);
	assert_int_equal(kvc_connected(store), 0);
	assert_int_equal(kvc_check(store), KV_DISCONNECTED);
	assert_int_equal(test_compare(store, sequence, 6), -1);
	assert_true(store_fixture_start(&fixture, store_arguments()));
	await_connected(store, 1);
	status = kvc_sequence_check(sequence);
	assert_int_equal(status, KV_STALE);
	assert_ok(test_open(store, NULL, 6, &other));
	assert_true(kvc_generation(store) != generation);
	kvc_sequence_segments(other, &count);
	assert_int_equal(count, 0);
	/* What was attached in the old one may not be used, and does not make the new one doubtful
	 * once it is closed. */
	assert_int_equal(test_compare(store, sequence, 6), -1);
	assert_int_equal(kvc_reserve(sequence, &more, 1, &reserved), KV_STALE);
	assert_int_equal(kvc_check(store), KV_STALE);
	kvc_sequence_close(sequence, 1);
	assert_ok(kvc_check(store));
	assert_ok(test_write(store, other, 6));
	assert_int_equal(test_compare(store, other, 6), 0);
	kvc_sequence_close(other, 0);
	kvc_close(store);
}

static void test_stopped_store(void **state)
{
	struct kvc_options options = test_options(&fixture, "a");
	struct kvc_store *store = NULL;
	struct kvc_sequence *sequence = NULL;
	uint64_t start;
	enum kv_status status;

	(void)state;
	options.call_ms = 500;
	assert_ok(kvc_open(&options, &store));
	store_fixture_signal(&fixture, SIGSTOP);
	start = store_fixture_now();
	status = test_open(store, NULL, 8, &sequence);
	assert_true(status == KV_TIMEOUT || status == KV_DISCONNECTED);
	assert_true(store_fixture_now() - start < 5000);
	await_connected(store, 0);
	store_fixture_signal(&fixture, SIGCONT);
	await_connected(store, 1);
	assert_ok(test_open(store, NULL, 8, &sequence));
	assert_ok(test_write(store, sequence, 8));
	assert_int_equal(test_compare(store, sequence, 8), 0);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
}

static void test_no_store(void **state)
{
	struct kvc_options options = test_options(&fixture, "a");
	struct kvc_store *store = NULL;

	(void)state;
	options.address = "unix:/nonexistent/kvstored.sock";
	options.secret = NULL;
	options.connect_ms = 0;
	assert_int_equal(kvc_open(&options, &store), KV_DISCONNECTED);
	assert_non_null(strstr(kv_error_message(), "/nonexistent/kvstored.sock"));
	options.address = "tcp:somewhere";
	assert_int_equal(kvc_open(&options, &store), KV_INVALID);
}

/* ---- refusals ---- */

static void test_other_layout(void **state)
{
	struct kvc_store *store = test_connect(where(), "a");
	struct kvc_options options = test_options(&fixture, "b");
	struct kvc_store *forged = NULL;

	(void)state;
	options.layout.head_dim = 32;
	assert_int_equal(kvc_open(&options, &forged), KV_REFUSED);
	assert_true(strlen(kv_error_message()) > 10);
	options = test_options(&fixture, "b");
	options.transport = strcmp(test_transport, "map") == 0 ? "ucx" : "map";
	/* With a store on another host there is no choice to begin with. */
	assert_int_equal(kvc_open(&options, &forged), is_stream() ? KV_UNSUPPORTED : KV_REFUSED);
	assert_non_null(strstr(kv_error_message(), "transport"));
	kvc_close(store);
}

static void test_no_room(void **state)
{
	struct kvc_store *store = test_connect(where(), "a");
	struct kvc_sequence *sequence = NULL;
	struct kvc_new_segment huge[2] = {
	    {0, 65536, KVW_CLUSTERED, KVW_EXACT}, {65536, 65536, KVW_CLUSTERED, KVW_EXACT}};
	const struct kvc_segment *out[2];
	int32_t *prompt = calloc(131072, sizeof *prompt);
	struct kvc_cut cut = {131072, KVW_CLUSTERED};
	struct kvc_open_request request = {
	    .prompt = prompt, .prompt_tokens = 131072, .cuts = &cut, .cut_count = 0};

	(void)state;
	assert_ok(kvc_sequence_open(store, &request, &sequence));
	assert_int_equal(kvc_reserve(sequence, huge, 2, out), KV_TOO_LARGE);
	print_message("refused: %s\n", kv_error_message());
	assert_ok(kvc_sequence_check(sequence));
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
	free(prompt);
}

static int raw_connect(void)
{
	int socket = -1;

	assert_ok(kv_unix_connect(fixture.socket, &socket));
	return socket;
}

/* Read one answer; false when the store closed without one. */
static bool raw_answer(int socket, Kv__Response **response)
{
	struct kv_frame_reader *reader = NULL;
	enum kv_frame_event event = KV_FRAME_NONE;
	struct kv_frame frame;
	uint64_t deadline = store_fixture_now() + 10000;
	enum kv_status status = KV_OK;

	assert_ok(kv_frame_reader_create(kv_heap(), 0, 4, &reader));
	while (status == KV_OK && event == KV_FRAME_NONE && store_fixture_now() < deadline) {
		status = kv_frame_read(reader, socket, &event, &frame);
		if (event == KV_FRAME_NONE) store_fixture_sleep(5);
	}
	if (status == KV_OK && event == KV_FRAME_READY)
		assert_ok(kv_codec_response_unpack(kv_heap(), frame.payload, frame.length, response));
	else
		assert_true(store_fixture_now() < deadline);
	kv_frame_reader_destroy(reader);
	return status == KV_OK && event == KV_FRAME_READY;
}

static void raw_send(int socket, const Kv__Request *request)
{
	struct kv_frame_writer *writer = NULL;
	uint8_t *bytes = NULL;
	size_t length;
	int idle = 0;

	assert_ok(kv_codec_request_pack(kv_heap(), request, &bytes, &length));
	assert_ok(kv_frame_writer_create(kv_heap(), 0, &writer));
	assert_ok(kv_frame_push(writer, bytes, length, NULL, 0));
	assert_ok(kv_frame_write(writer, socket, &idle));
	assert_int_equal(idle, 1);
	kv_free(kv_heap(), bytes);
	kv_frame_writer_destroy(writer);
}

static void test_other_version(void **state)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__HelloRequest hello = KV__HELLO_REQUEST__INIT;
	Kv__Response *response = NULL;
	int socket = raw_connect();

	(void)state;
	hello.protocol_version = 99;
	hello.client_name = (char *)(uintptr_t) "other";
	hello.client_kind = (char *)(uintptr_t) "gpu-worker";
	request.id = 5;
	request.body_case = KV__REQUEST__BODY_HELLO;
	request.hello = &hello;
	raw_send(socket, &request);
	assert_true(raw_answer(socket, &response));
	assert_int_equal(response->id, 5);
	assert_int_equal(response->status, KV_PROTOCOL);
	assert_non_null(strstr(response->message, "99"));
	kv_codec_response_free(kv_heap(), response);
	assert_false(raw_answer(socket, &response));
	close(socket);
	assert_true(store_fixture_stat(&fixture, "connections_refused_total{reason=\"version\"}") == 1);
}

static void test_rude_peers(void **state)
{
	static const uint8_t oversized[8] = {0xff, 0xff, 0xff, 0x7f, 1, 2, 3, 4};
	static const uint8_t garbage[8] = {4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
	static const uint8_t half[6] = {100, 0, 0, 0, 1, 2};
	Kv__Request request = KV__REQUEST__INIT;
	Kv__CloseRequest early = KV__CLOSE_REQUEST__INIT;
	Kv__Response *response = NULL;
	int sockets[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		sockets[i] = raw_connect();
	assert_int_equal(write(sockets[0], oversized, sizeof oversized), sizeof oversized);
	assert_int_equal(write(sockets[1], garbage, sizeof garbage), sizeof garbage);
	assert_int_equal(write(sockets[2], half, sizeof half), sizeof half);
	request.body_case = KV__REQUEST__BODY_CLOSE;
	request.close = &early;
	raw_send(sockets[3], &request);
	assert_false(raw_answer(sockets[0], &response));
	assert_false(raw_answer(sockets[1], &response));
	assert_true(raw_answer(sockets[3], &response));
	assert_int_equal(response->status, KV_PROTOCOL);
	kv_codec_response_free(kv_heap(), response);
	assert_false(raw_answer(sockets[3], &response));
	/* Half a message is waited for, and then no more. */
	assert_false(raw_answer(sockets[2], &response));
	for (int i = 0; i < 4; i++)
		close(sockets[i]);
}

/* ---- the daemon ---- */

static void test_daemon_refusals(void **state)
{
	char socket[160];
	char output[2048];
	const char *second[] = {"kvstored", "--config=", socket, "--stats-socket=", NULL};
	const char *huge[] = {"kvstored", "--config=", socket, "--memory=900TiB", NULL};
	const char *unknown[] = {"kvstored", "--config=", "--memry=1GiB", NULL};
	const char *check[] = {"kvstored", "--config=", "--check", NULL};

	(void)state;
	snprintf(socket, sizeof socket, "--socket=%s", fixture.socket);
	assert_int_equal(store_fixture_run(&fixture, second, output, sizeof output), 1);
	assert_non_null(strstr(output, fixture.socket));
	snprintf(socket, sizeof socket, "--socket=%s/other.sock", fixture.directory);
	assert_int_equal(store_fixture_run(&fixture, huge, output, sizeof output), 1);
	assert_non_null(strstr(output, "900TiB"));
	assert_int_equal(store_fixture_run(&fixture, unknown, output, sizeof output), 2);
	assert_non_null(strstr(output, "memory"));
	assert_int_equal(store_fixture_run(&fixture, check, output, sizeof output), 0);
	/* The first one is as it was. */
	assert_true(store_fixture_ask(&fixture, "health", output, sizeof output));
	assert_int_equal(strncmp(output, "OK", 2), 0);
}

static void test_counters(void **state)
{
	static const struct kvc_counter counters[] = {{"cache_hit_bytes_total", 300},
	    {"cache_miss_bytes_total", 100}, {"decode_tokens_total", 5}};
	struct kvc_store *store = test_connect(where(), "counting");
	char answer[16384];

	(void)state;
	kvc_report(store, counters, 2);
	assert_true(
	    store_fixture_wait_stat(&fixture, "worker:counting:cache_hit_bytes_total", 300, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "worker:counting:cache_hit_rate", 0.75, 0));
	assert_true(store_fixture_wait_stat(&fixture, "cache_hit_rate", 0.75, 0));
	/* The last ones come with the end, whatever the second says. */
	kvc_report(store, counters, 3);
	kvc_close(store);
	assert_true(store_fixture_wait_stat(&fixture, "worker:counting:decode_tokens_total", 5, 3000));
	assert_true(store_fixture_ask(&fixture, "stats", answer, sizeof answer));
	assert_non_null(strstr(answer, "STAT worker:counting:state left\r\n"));
	assert_true(store_fixture_ask(&fixture, "stats json", answer, sizeof answer));
	assert_non_null(strstr(answer, "\"workers\":{\"counting\":{"));
	assert_true(store_fixture_ask(&fixture, "nonsense", answer, sizeof answer));
	assert_string_equal(answer, "ERROR unknown command \"nonsense\", try help\r\n");
}

/* ---- as another worker ---- */

static int child_sleeps(struct kvc_store *store, struct kvc_sequence *sequence)
{
	uint64_t deadline = store_fixture_now() + 30000;
	uint64_t generation = kvc_generation(store);

	/* SIGSTOP comes somewhere in here. Without a look at the clock: only the store's word counts.
	 */
	while (kvc_sequence_check(sequence) == KV_OK && store_fixture_now() < deadline)
		store_fixture_sleep(5);
	if (kvc_sequence_check(sequence) == KV_OK) return 1;
	if (test_compare(store, sequence, 5) != -1) return 2;
	await_connected(store, 1);
	kvc_sequence_close(sequence, 0);
	if (test_open(store, NULL, 5, &sequence) != KV_OK) return 3;
	if (kvc_generation(store) != generation) return 4;
	if (test_compare(store, sequence, 5) != 0) return 5;
	kvc_close(store);
	return 0;
}

static int be_child(const char *mode, const char *address)
{
	struct kvc_new_segment more = {PROMPT_TOKENS, 64, KVW_PLAIN, KVW_APPROXIMATE};
	const struct kvc_segment *reserved = NULL;
	struct kvc_sequence *sequence = NULL;
	struct kvc_store *store = NULL;
	struct kvc_options options;

	snprintf(fixture.address, sizeof fixture.address, "%s", address);
	options = test_options(&fixture, "child");
	if (kvc_open(&options, &store) != KV_OK ||
	    prepare_to_resume(store, "held", &sequence) != KV_OK ||
	    kvc_reserve(sequence, &more, 1, &reserved) != KV_OK) {
		fprintf(stderr, "child: %s\n", kv_error_message());
		return 10;
	}
	if (write(1, "ready\n", 6) != 6) return 11;
	if (strcmp(mode, "sleep") == 0) return child_sleeps(store, sequence);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest local[] = {
	    cmocka_unit_test(test_share),
	    cmocka_unit_test(test_same_twice),
	    cmocka_unit_test(test_pieces),
	    cmocka_unit_test(test_keep_and_resume),
	};
	const struct CMUnitTest remote[] = {
	    cmocka_unit_test_setup_teardown(test_share, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_same_twice, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_pieces, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_keep_and_resume, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_killed_worker, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_stopped_worker, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_push_before_close, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_killed_store, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_stopped_store, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_no_store, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_other_layout, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_no_room, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_other_version, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_rude_peers, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_daemon_refusals, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_counters, set_up, tear_down),
	};

	/* The others speak on the Unix socket themselves. */
	const struct CMUnitTest stream[] = {
	    cmocka_unit_test_setup_teardown(test_share, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_same_twice, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_pieces, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_keep_and_resume, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_killed_worker, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_stopped_worker, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_killed_store, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_stopped_store, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_other_layout, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_no_room, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_counters, set_up, tear_down),
	};

	signal(SIGPIPE, SIG_IGN);
	test_program = argv[0];
	test_transport = argc > 1 ? argv[1] : "map";
	if (argc > 3) return be_child(argv[2], argv[3]);
	if (argc > 2) cmocka_set_test_filter(argv[2]);
	if (is_stream()) return cmocka_run_group_tests(stream, NULL, NULL);
	return is_local() ? cmocka_run_group_tests(local, NULL, NULL)
	                  : cmocka_run_group_tests(remote, NULL, NULL);
}
