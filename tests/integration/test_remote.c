/* A worker and its store on two hosts, here both on the loopback address: the same answers, and
 * whoever has not the secret, records a handshake, says nothing or takes nothing gets nowhere. */
#include "tests/lib/store_client_test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/frame.h"
#include "common/transport/line.h"
#include "common/transport/secure_dial.h"
#include "proto/codec.h"
#include "tests/lib/trial.h"

enum { PATIENCE_MS = 20000, RECORDED = 64 << 10, FETCHES = 200, FETCH_BYTES = 256 << 10 };

const char *test_transport = "stream";
const char *test_program;

static struct store_fixture store;
static struct trial trial;

static int set_up(void **state)
{
	const char *const arguments[] = {"--transport=map", "--lease=2s", "--heartbeat=100ms", NULL};

	(void)state;
	if (!store_fixture_init(&store)) return -1;
	store.remote = true;
	return store_fixture_start(&store, arguments) ? 0 : -1;
}

static int set_up_trusting(void **state)
{
	const char *const arguments[] = {"--transport=map", "--trusted-network=lo", NULL};

	(void)state;
	if (!store_fixture_init(&store)) return -1;
	store.remote = true;
	return store_fixture_start(&store, arguments) ? 0 : -1;
}

static int set_up_patient(void **state)
{
	const char *const arguments[] = {"--transport=map", "--lease=30s", NULL};

	(void)state;
	if (!store_fixture_init(&store)) return -1;
	store.remote = true;
	return store_fixture_start(&store, arguments) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return store_fixture_deinit(&store, false) ? 0 : -1;
}

/* ---- answers ---- */

static void the_same_answer_from_another_host(void **state)
{
	const char *const inside[] = {"--store", "none", NULL};
	const char *const there[] = {"--store", store.address, "--store-secret", store.secret, NULL};
	int32_t *prompt = trial_prompt(&trial, 1, trial.prompt_tokens);
	char address[160];
	const char *const local[] = {"--store", address, NULL};
	json_t *reference, *cold, *warm, *beside;

	(void)state;
	snprintf(address, sizeof address, "unix:%s", store.socket);
	reference = trial_generate(&trial, prompt, trial.prompt_tokens, inside);
	cold = trial_generate(&trial, prompt, trial.prompt_tokens, there);
	assert_string_equal(json_string_value(json_object_get(cold, "transport")), "stream");
	assert_int_equal(trial_number(cold, "prefix_hit_tokens"), 0);
	trial_same_bits(reference, cold, "cold, from another host");
	/* What it stored is found from there and from here, and is the same. */
	warm = trial_generate(&trial, prompt, trial.prompt_tokens, there);
	beside = trial_generate(&trial, prompt, trial.prompt_tokens, local);
	assert_int_equal(trial_number(warm, "prefix_hit_tokens"), trial.prompt_tokens - 1);
	assert_int_equal(trial_number(beside, "prefix_hit_tokens"), trial.prompt_tokens - 1);
	trial_same_bits(beside, warm, "warm, from another host");
	assert_true(store_fixture_stat(&store, "fetched_bytes_total") > 0);
	assert_true(store_fixture_stat(&store, "put_bytes_total") > 0);
	assert_int_equal((int)store_fixture_stat(&store, "segments{state=\"reserved\"}"), 0);
	json_decref(reference);
	json_decref(cold);
	json_decref(warm);
	json_decref(beside);
	free(prompt);
}

/* ---- refusals ---- */

static void write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(file >= 0);
	assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
	close(file);
}

/* The exit code; `word` is among what it wrote to its standard error. */
static int run(const char *const *arguments, const char *word)
{
	struct process process;
	char *errors;
	int code;

	assert_true(process_start(&process, arguments, NULL));
	code = process_wait(&process, PATIENCE_MS);
	errors = process_errors(&process);
	if (word && !strstr(errors, word)) fail_msg("\"%s\" is not in: %s", word, errors);
	free(errors);
	process_deinit(&process);
	return code;
}

static void another_secret_is_told_in_words(void **state)
{
	char other[160];
	const char *const ping[] = {
	    KVCTL_PATH, "ping", "--config=", "--store", store.address, "--store-secret", other, NULL};
	const char *const generate[] = {KV_GPU_WORKER, "generate", "--config=", "--model", trial.model,
	    "--prompt", "you", "--store", store.address, "--store-secret", other, NULL};
	const char *const without[] = {KV_GPU_WORKER, "generate", "--config=", "--model", trial.model,
	    "--prompt", "you", "--store", store.address, NULL};
	const char *const checked[] = {KV_GPU_WORKER, "generate", "--config=", "--model", trial.model,
	    "--prompt", "you", "--store", store.address, "--store-secret", "/missing", "--check", NULL};
	const char *const by_ucx[] = {KV_GPU_WORKER, "generate", "--config=", "--model", trial.model,
	    "--prompt", "you", "--store", store.address, "--store-secret", other, "--transport", "ucx",
	    NULL};
	struct kvc_options options = test_options(&store, "stranger");
	static const uint8_t wrong[KVC_SECRET_BYTES] = {1};
	struct kvc_store *opened = NULL;

	(void)state;
	snprintf(other, sizeof other, "%s/other", store.directory);
	write_text(other, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n");
	assert_int_equal(run(ping, "another secret"), 1);
	assert_int_equal(run(generate, "another secret"), 1);
	assert_int_equal(run(without, "--store-secret"), 2);
	assert_int_equal(run(checked, "missing"), 1);
	assert_int_equal(run(by_ucx, "--trusted-network"), 2);
	assert_int_equal(chmod(other, 0644), 0);
	assert_int_equal(run(ping, "0644"), 1);
	unlink(other);
	options.secret = wrong;
	assert_int_equal(kvc_open(&options, &opened), KV_REFUSED);
	assert_true(store_fixture_wait_stat(
	    &store, "connections_refused_total{reason=\"secret\"}", 3, PATIENCE_MS));
	assert_int_equal((int)store_fixture_stat(&store, "workers{state=\"connected\"}"), 0);
}

static void a_store_listens_with_a_secret_only(void **state)
{
	char socket[160], secret[160], output[2048];
	const char *const without[] = {
	    "kvstored", "--config=", socket, "--stats-socket=", "--listen=127.0.0.1:0", NULL};
	const char *const alone[] = {"kvstored", "--config=", socket, "--stats-socket=", secret, NULL};
	const char *const open_file[] = {
	    "kvstored", "--config=", socket, "--stats-socket=", secret, "--listen=127.0.0.1:0", NULL};
	const char *const nowhere[] = {
	    "kvstored", "--config=", socket, "--stats-socket=", secret, "--listen=nowhere", NULL};

	(void)state;
	snprintf(socket, sizeof socket, "--socket=%s/other.sock", store.directory);
	snprintf(secret, sizeof secret, "--secret-file=%s", store.secret);
	assert_int_equal(store_fixture_run(&store, without, output, sizeof output), 2);
	assert_non_null(strstr(output, "secret-file"));
	assert_int_equal(store_fixture_run(&store, alone, output, sizeof output), 2);
	assert_int_equal(store_fixture_run(&store, nowhere, output, sizeof output), 2);
	assert_int_equal(chmod(store.secret, 0604), 0);
	assert_int_equal(store_fixture_run(&store, open_file, output, sizeof output), 1);
	assert_non_null(strstr(output, "0604"));
}

/* ---- strangers ---- */

static int plain_connect(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)store.port)};
	int made = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(made >= 0);
	assert_int_equal(connect(made, (const struct sockaddr *)&address, sizeof address), 0);
	return made;
}

/* Everything until the other side closes; it has `wait_ms` for each piece. */
static size_t read_all(int socket, uint8_t *bytes, size_t room, int wait_ms)
{
	size_t have = 0;

	for (;;) {
		struct pollfd one = {.fd = socket, .events = POLLIN};
		ssize_t n;

		if (poll(&one, 1, wait_ms) != 1) fail_msg("the store does not close a connection");
		n = recv(socket, bytes + have, room - have, 0);
		if (n <= 0) return have;
		have += (size_t)n;
	}
}

/* Who holds connections and says nothing, or nonsense, keeps nobody out and is not kept. */
static void strangers_hold_nothing(void **state)
{
	enum { STRANGERS = 40 };
	uint8_t bytes[256];
	int sockets[STRANGERS];
	struct kvc_store *worker;

	(void)state;
	for (int i = 0; i < STRANGERS; i++) {
		sockets[i] = plain_connect();
		if (i % 4 == 1) assert_int_equal(send(sockets[i], "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
		if (i % 4 == 2) assert_int_equal(send(sockets[i], "clkvW\1\0\0half", 12, 0), 12);
	}
	worker = test_connect(&store, "worker");
	test_store_prompt(worker, 1);
	for (int i = 0; i < STRANGERS; i++) {
		assert_int_equal(read_all(sockets[i], bytes, sizeof bytes, PATIENCE_MS), 0);
		close(sockets[i]);
	}
	assert_true(store_fixture_wait_stat(
	    &store, "connections_refused_total{reason=\"handshake\"}", STRANGERS, PATIENCE_MS));
	assert_int_equal(kvc_connected(worker), 1);
	kvc_close(worker);
}

struct recording {
	uint8_t bytes[RECORDED];
	size_t length;
};

/* kvctl ping through this test, which takes down what goes to the store. */
static void record(struct recording *recording)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), client, onward;
	char here[64];
	const char *const ping[] = {
	    KVCTL_PATH, "ping", "--config=", "--store", here, "--store-secret", store.secret, NULL};
	struct process process;
	bool open = true;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
	snprintf(here, sizeof here, "tcp:127.0.0.1:%u", ntohs(address.sin_port));
	assert_true(process_start(&process, ping, NULL));
	client = accept(listener, NULL, NULL);
	onward = plain_connect();
	while (open) {
		struct pollfd both[2] = {
		    {.fd = client, .events = POLLIN}, {.fd = onward, .events = POLLIN}};
		uint8_t answer[4096];
		ssize_t n;

		assert_true(poll(both, 2, PATIENCE_MS) > 0);
		if (both[0].revents) {
			n = recv(client, recording->bytes + recording->length,
			    sizeof recording->bytes - recording->length, 0);
			open = n > 0;
			if (open) {
				send(onward, recording->bytes + recording->length, (size_t)n, MSG_NOSIGNAL);
				recording->length += (size_t)n;
			}
		}
		if (open && both[1].revents) {
			n = recv(onward, answer, sizeof answer, 0);
			open = n > 0;
			if (open) send(client, answer, (size_t)n, MSG_NOSIGNAL);
		}
	}
	close(client);
	close(onward);
	close(listener);
	assert_int_equal(process_wait(&process, PATIENCE_MS), 0);
	process_deinit(&process);
}

static void a_recorded_connection_opens_nothing(void **state)
{
	static struct recording recording;
	uint8_t answer[1024];
	double requests;
	int socket;

	(void)state;
	record(&recording);
	assert_true(recording.length > KV_SECURE_HELLO_BYTES + KV_SECURE_FINISH_BYTES + 50);
	requests = store_fixture_stat(&store, "requests_total");
	assert_true(requests >= 4);
	socket = plain_connect();
	send(socket, recording.bytes, recording.length, MSG_NOSIGNAL);
	/* The store shows itself, as to everybody, and then closes. */
	assert_true(read_all(socket, answer, sizeof answer, PATIENCE_MS) <=
	            KV_SECURE_HELLO_BYTES + KV_SECURE_FINISH_BYTES);
	close(socket);
	assert_true(store_fixture_wait_stat(
	    &store, "connections_refused_total{reason=\"secret\"}", 1, PATIENCE_MS));
	assert_int_equal(store_fixture_stat(&store, "requests_total"), requests);
}

/* ---- one that asks and does not read ---- */

struct line {
	int socket;
	struct kv_secure *secure;
	struct kv_frame_reader *reader;
	struct kv_frame_writer *writer;
	uint64_t next_id;
	const char *transport; /* NULL: stream */
};

static void line_open(struct line *line)
{
	struct kv_secure_dial dial = {.allocator = kv_heap(),
	    .address = store.address + 4,
	    .secret = store_fixture_secret,
	    .timeout_ms = PATIENCE_MS,
	    .silence_ms = PATIENCE_MS};

	memset(line, 0, sizeof *line);
	assert_ok(kv_secure_dial(&dial, &line->socket, &line->secure));
	assert_ok(kv_frame_reader_create(kv_heap(), 0, 0, &line->reader));
	assert_ok(kv_frame_writer_create(kv_heap(), 0, &line->writer));
	kv_frame_reader_secure(line->reader, line->secure);
	kv_frame_writer_secure(line->writer, line->secure);
}

static void line_close(struct line *line)
{
	kv_frame_reader_destroy(line->reader);
	kv_frame_writer_destroy(line->writer);
	kv_secure_destroy(line->secure);
	close(line->socket);
}

static void line_send(struct line *line, Kv__Request *request)
{
	uint8_t *bytes = NULL;
	size_t length;
	int idle = 0;

	request->id = ++line->next_id;
	assert_ok(kv_codec_request_pack(kv_heap(), request, &bytes, &length));
	assert_ok(kv_frame_push(line->writer, bytes, length, NULL, 0));
	kv_free(kv_heap(), bytes);
	assert_ok(kv_frame_write(line->writer, line->socket, &idle));
}

static Kv__Response *line_read(struct line *line)
{
	const uint64_t deadline = kv_now_ms() + PATIENCE_MS;
	enum kv_frame_event event = KV_FRAME_NONE;
	Kv__Response *response = NULL;
	struct kv_frame frame;

	while (event != KV_FRAME_READY) {
		struct pollfd one = {.fd = line->socket, .events = POLLIN};
		int idle = 0;

		assert_ok(kv_frame_write(line->writer, line->socket, &idle));
		assert_ok(kv_frame_read(line->reader, line->socket, &event, &frame));
		assert_int_not_equal(event, KV_FRAME_END);
		assert_true(kv_now_ms() < deadline);
		if (event == KV_FRAME_NONE) poll(&one, 1, 50);
	}
	assert_ok(kv_codec_response_unpack(kv_heap(), frame.payload, frame.length, &response));
	return response;
}

/* Say hello as the workers of store_client_test do, and open the prompt of that seed. */
static uint64_t line_attach(struct line *line, int32_t seed)
{
	static const uint32_t ends[CUTS] = {CUT_ONE, CUT_TWO, PROMPT_TOKENS};
	struct kvc_options options = test_options(&store, "greedy");
	Kv__HelloRequest hello = KV__HELLO_REQUEST__INIT;
	Kv__OpenRequest open = KV__OPEN_REQUEST__INIT;
	Kv__ModelLayout layout = KV__MODEL_LAYOUT__INIT;
	Kv__Request request = KV__REQUEST__INIT;
	Kv__Cut cuts[CUTS], *pointers[CUTS];
	int32_t prompt[PROMPT_TOKENS];
	Kv__Response *response;
	uint64_t id;

	hello.protocol_version = KV_PROTOCOL_VERSION;
	hello.client_name = (char *)(uintptr_t) "greedy";
	hello.transport = (char *)(uintptr_t)(line->transport ? line->transport : "stream");
	hello.model_id.data = options.model_id;
	hello.model_id.len = sizeof options.model_id;
	hello.model_name = (char *)(uintptr_t) "test-model";
	kv_codec_layout_to_wire(&options.layout, &layout);
	hello.layout = &layout;
	request.body_case = KV__REQUEST__BODY_HELLO;
	request.hello = &hello;
	line_send(line, &request);
	response = line_read(line);
	assert_int_equal(response->status, KV_OK);
	assert_int_equal(response->hello->has_control_page, 0);
	assert_int_equal(response->n_new_regions, 0);
	kv_codec_response_free(kv_heap(), response);
	test_prompt(prompt, seed);
	for (int i = 0; i < CUTS; i++) {
		kv__cut__init(&cuts[i]);
		cuts[i].end = ends[i];
		cuts[i].kind = i + 1 < CUTS ? KVW_CLUSTERED : KVW_PLAIN;
		pointers[i] = &cuts[i];
	}
	open.sequence_id = (char *)(uintptr_t) "";
	open.prompt.data = (uint8_t *)prompt;
	open.prompt.len = sizeof prompt;
	open.cuts = pointers;
	open.n_cuts = CUTS;
	request.body_case = KV__REQUEST__BODY_OPEN;
	request.open = &open;
	line_send(line, &request);
	response = line_read(line);
	assert_int_equal(response->status, KV_OK);
	assert_int_equal(response->open->n_shared, CUTS);
	id = response->open->shared[0]->segment_id;
	kv_codec_response_free(kv_heap(), response);
	return id;
}

/* Over UCX under that number, or in the answer (0). */
static void ask_by(
    struct line *line, uint64_t number, uint64_t segment, uint32_t layer, uint64_t offset)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__FetchRequest fetch = KV__FETCH_REQUEST__INIT;
	uint32_t bytes = 2048;
	uint64_t segments[FETCH_BYTES / 2048], offsets[FETCH_BYTES / 2048];
	uint32_t layers[FETCH_BYTES / 2048], sizes[FETCH_BYTES / 2048];

	for (unsigned i = 0; i < FETCH_BYTES / 2048; i++) {
		segments[i] = segment;
		layers[i] = layer;
		offsets[i] = offset + i;
		sizes[i] = bytes;
	}
	fetch.n_segment_ids = fetch.n_layers = fetch.n_offsets = fetch.n_bytes = FETCH_BYTES / 2048;
	fetch.segment_ids = segments;
	fetch.layers = layers;
	fetch.offsets = offsets;
	fetch.bytes = sizes;
	fetch.line_number = number;
	request.body_case = KV__REQUEST__BODY_FETCH;
	request.fetch = &fetch;
	line_send(line, &request);
}

static void ask_for(struct line *line, uint64_t segment, uint32_t layer, uint64_t offset)
{
	ask_by(line, 0, segment, layer, offset);
}

/* An answer with this status. */
static void expect(struct line *line, enum kv_status status)
{
	Kv__Response *response = line_read(line);

	assert_int_equal(response->status, status);
	if (status == KV_OK) assert_int_equal(response->fetch->data.len, FETCH_BYTES);
	kv_codec_response_free(kv_heap(), response);
}

static void one_that_does_not_read_stalls_nobody(void **state)
{
	struct kvc_store *worker = test_connect(&store, "worker");
	struct line line;
	uint64_t segment;

	(void)state;
	test_store_prompt(worker, 1);
	line_open(&line);
	segment = line_attach(&line, 1);
	for (unsigned i = 0; i < FETCHES; i++)
		ask_for(&line, segment, i % 3, i);
	/* 50 MiB are asked for; no more of it has been read than the sockets and the queue hold. */
	for (int32_t seed = 2; seed < 6; seed++)
		test_store_prompt(worker, seed);
	assert_true(store_fixture_stat(&store, "fetched_bytes_total") < 30e6);
	for (unsigned i = 0; i < FETCHES; i++)
		expect(&line, KV_OK);
	line_close(&line);
	kvc_close(worker);
}

static enum kv_status ask_for_line(struct line *line, uint8_t *address, size_t length)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__LineRequest wanted = KV__LINE_REQUEST__INIT;
	Kv__Response *response;
	enum kv_status status;

	wanted.address.data = address;
	wanted.address.len = length;
	request.body_case = KV__REQUEST__BODY_LINE;
	request.line = &wanted;
	line_send(line, &request);
	response = line_read(line);
	status = kv_status_from_wire(response->status);
	kv_codec_response_free(kv_heap(), response);
	return status;
}

/* A worker that has the secret sends UCX where nobody is, or nonsense: what comes of it is in
 * kvline, and the store goes on. The line is lost, or full: then bytes come in answers. */
static void a_line_to_nowhere_harms_nobody(void **state)
{
	struct kvc_store *worker = test_connect(&store, "worker");
	uint8_t address[KV_CODEC_MAX_ADDRESS];
	struct line line, plain;
	uint64_t segment;

	(void)state;
	test_store_prompt(worker, 1);
	line_open(&plain);
	line_attach(&plain, 1);
	memset(address, 0xff, sizeof address);
	/* It has agreed on nothing of the kind. */
	assert_int_equal(ask_for_line(&plain, address, 38), KV_PROTOCOL);
	line_close(&plain);
	line_open(&line);
	line.transport = "ucx";
	segment = line_attach(&line, 1);
	assert_int_equal(ask_for_line(&line, address, 0), KV_INVALID);
	ask_by(&line, 1, segment, 0, 0);
	expect(&line, KV_UNSUPPORTED);
	for (size_t length = 1; length <= sizeof address; length *= 8) {
		const uint64_t deadline = kv_now_ms() + PATIENCE_MS;
		enum kv_status status = KV_OK;
		size_t inside = 0;

		for (size_t i = 0; i < length; i++)
			address[i] = (uint8_t)(length * 37 + i * 101);
		assert_int_equal(ask_for_line(&line, address, length), KV_OK);
		for (uint64_t number = 2; status == KV_OK && inside == 0; number++) {
			Kv__Response *response;

			ask_by(&line, number, segment, 0, 0);
			response = line_read(&line);
			status = kv_status_from_wire(response->status);
			if (status == KV_OK) inside = response->fetch->data.len;
			kv_codec_response_free(kv_heap(), response);
			if (kv_now_ms() >= deadline) fail_msg("a line to nowhere takes bytes");
		}
		if (inside > 0)
			assert_int_equal(inside, KV_LINE_SLOT_BYTES);
		else
			assert_int_equal(status, KV_UNSUPPORTED);
	}
	ask_for(&line, segment, 0, 0);
	expect(&line, KV_OK);
	assert_int_equal(kvc_connected(worker), 1);
	line_close(&line);
	kvc_close(worker);
}

/* The end of a line's process takes as long as the system wants, and no answer waits for it: here
 * as long as who traces it has not let go of it. Nothing is left of it then. */
static void the_end_of_a_line_is_not_waited_for(void **state)
{
	struct kvc_store *worker = test_connect(&store, "worker");
	uint8_t address[38] = {0};
	struct line line;
	pid_t kvline;

	(void)state;
	test_store_prompt(worker, 1);
	line_open(&line);
	line.transport = "ucx";
	line_attach(&line, 1);
	assert_int_equal(ask_for_line(&line, address, sizeof address), KV_OK);
	kvline = process_child(store.pid, "kvline");
	assert_true(kvline > 0);
	if (ptrace(PTRACE_SEIZE, kvline, NULL, NULL) != 0) {
		line_close(&line);
		kvc_close(worker);
		skip();
	}
	line_close(&line);
	assert_true(store_fixture_wait_stat(&store, "workers{state=\"connected\"}", 1, 4000));
	assert_int_equal(process_child(store.pid, "kvline"), kvline);
	assert_int_equal(kvc_connected(worker), 1);
	assert_int_equal(waitpid(kvline, NULL, 0), kvline);
	for (int i = 0; i < 100 && process_child(store.pid, "kvline") != 0; i++)
		store_fixture_sleep(50);
	assert_int_equal(process_child(store.pid, "kvline"), 0);
	kvc_close(worker);
}

/* Only what its own sequences refer to, and only inside its units. */
static void bytes_of_others_are_not_given_out(void **state)
{
	struct kvc_store *worker = test_connect(&store, "worker");
	struct kvc_sequence *theirs = NULL;
	const struct kvc_segment *const *segments;
	struct line line;
	uint64_t segment;
	uint32_t count;

	(void)state;
	test_store_prompt(worker, 1);
	assert_ok(test_open(worker, NULL, 2, &theirs));
	assert_ok(test_write(worker, theirs, 2));
	segments = kvc_sequence_segments(theirs, &count);
	line_open(&line);
	segment = line_attach(&line, 1);
	ask_for(&line, segment, 0, 0);
	expect(&line, KV_OK);
	ask_for(&line, segments[0]->id, 0, 0);
	expect(&line, KV_NOT_FOUND);
	ask_for(&line, segment, 3, 0);
	expect(&line, KV_INVALID);
	ask_for(&line, segment, 0, test_unit_bytes(0, CUT_ONE, KVW_CLUSTERED, 0) - 100);
	expect(&line, KV_INVALID);
	ask_for(&line, segment, 0, UINT64_MAX - 1000);
	expect(&line, KV_INVALID);
	ask_for(&line, segment + 100000, 0, 0);
	expect(&line, KV_NOT_FOUND);
	line_close(&line);
	kvc_sequence_close(theirs, 0);
	kvc_close(worker);
}

/* A slow line is late, time after time, and stays. */
static void late_fetches_keep_the_line(void **state)
{
	struct kvc_options options = test_options(&store, "slow");
	struct kvc_sequence *sequence = NULL;
	const struct kvc_segment *const *list;
	struct kvc_store *worker = NULL;
	uint8_t bytes[64];
	uint32_t count;

	(void)state;
	options.fetch_ms = 20;
	assert_ok(kvc_open(&options, &worker));
	assert_ok(test_open(worker, NULL, 1, &sequence));
	assert_ok(test_write(worker, sequence, 1));
	list = kvc_sequence_segments(sequence, &count);
	assert_int_equal(kill(store.pid, SIGSTOP), 0);
	for (int i = 0; i < 4; i++) {
		struct kvc_read read = {list[0], 0, 0, sizeof bytes, bytes};

		assert_ok(kvc_fetch_start(worker, &read, 1));
		assert_int_equal(kvc_fetch_wait(worker), KV_TIMEOUT);
	}
	assert_int_equal(kill(store.pid, SIGCONT), 0);
	/* An answer to a later request has come: nothing ended the connection before. */
	test_store_prompt(worker, 2);
	assert_ok(kvc_sequence_check(sequence));
	kvc_sequence_close(sequence, 0);
	kvc_close(worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(the_same_answer_from_another_host, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(another_secret_is_told_in_words, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_store_listens_with_a_secret_only, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(strangers_hold_nothing, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_recorded_connection_opens_nothing, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(one_that_does_not_read_stalls_nobody, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(a_line_to_nowhere_harms_nobody, set_up_trusting, tear_down),
	    cmocka_unit_test_setup_teardown(
	        the_end_of_a_line_is_not_waited_for, set_up_trusting, tear_down),
	    cmocka_unit_test_setup_teardown(bytes_of_others_are_not_given_out, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(late_fetches_keep_the_line, set_up_patient, tear_down),
	};
	int failed;

	signal(SIGPIPE, SIG_IGN);
	test_program = argv[0];
	if (argc > 1) cmocka_set_test_filter(argv[1]);
	if (!trial_init(&trial, "tiny_llama")) return 77;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	trial_deinit(&trial);
	return failed;
}
