/* Every allocation of a worker's client, and of the store, fails once: no leak, no crash, no wrong
 * byte, and the next attempt goes well. */
#include "tests/lib/store_client_test.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/memory/allocator.h"
#include "common/runtime/event_loop.h"
#include "common/transport/frame.h"
#include "common/transport/transport_map.h"
#include "common/transport/unix_socket.h"
#include "kvstore/server/server.h"
#include "proto/codec.h"

const char *test_transport;
const char *test_program;

static struct store_fixture fixture;

enum { STAGING = 1 << 20, MOST = 400 };

/* ---- the client ---- */

static enum kv_status use_store(const struct kvc_options *options, int *wrong)
{
	struct kvc_store *store = NULL;
	struct kvc_sequence *sequence = NULL;
	int32_t decoded[3] = {1, 2, 3};
	enum kv_status status;

	KV_TRY(kvc_open(options, &store));
	KV_TRY_GOTO(status, test_open(store, NULL, 1, &sequence), out);
	KV_TRY_GOTO(status, test_write(store, sequence, 1), out);
	KV_TRY_GOTO(status, kvc_push(sequence, decoded, 3, "state", 5), out);
	KV_TRY_GOTO(status, kvc_flush(sequence), out);
	*wrong = test_compare(store, sequence, 1) > 0;
out:
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
	return status;
}

static void walk_client(const struct store_fixture *where)
{
	unsigned failures = 0;
	bool reached = true;

	for (uint64_t n = 1; reached && n < MOST; n++) {
		struct kv_allocator *allocator = kv_allocator_create("client under test", 0);
		struct kvc_options options = test_options(where, "hungry");
		enum kv_status status;
		int wrong = 0;

		options.allocator = allocator;
		options.call_ms = 2000;
		kv_allocator_fail_at(allocator, n);
		status = use_store(&options, &wrong);
		reached = kv_allocator_stats(allocator).failures > 0;
		failures += status != KV_OK;
		assert_int_equal(wrong, 0);
		/* Without a failure, nothing fails. */
		if (!reached) assert_int_equal(status, KV_OK);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		kv_allocator_destroy(allocator);
	}
	assert_false(reached);
	assert_true(failures > 10);
}

static void test_client(void **state)
{
	char transport[32];
	const char *arguments[] = {transport, NULL};

	(void)state;
	snprintf(transport, sizeof transport, "--transport=%s", test_transport);
	assert_true(store_fixture_init(&fixture));
	assert_true(store_fixture_start(&fixture, arguments));
	walk_client(&fixture);
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"reserved\"}", 0, 3000));
	assert_true(store_fixture_wait_stat(&fixture, "sequences{state=\"active\"}", 0, 3000));
	assert_true(store_fixture_deinit(&fixture, false));
}

static void test_local(void **state)
{
	(void)state;
	walk_client(NULL);
}

/* ---- the store, in this process ---- */

struct served {
	struct kv_loop *loop;
	struct kvs_server *server;
	int socket;
	struct kv_frame_writer *writer;
	struct kv_frame_reader *reader;
	uint64_t sequence, segment;
};

/* Let the store work until it answers or closes. */
static enum kv_status await_answer(struct served *served)
{
	for (int i = 0; i < 2000; i++) {
		enum kv_frame_event event = KV_FRAME_NONE;
		Kv__Response *response = NULL;
		struct kv_frame frame;
		enum kv_status status;

		KV_TRY(kv_loop_run_for(served->loop, 1));
		KV_TRY(kv_frame_read(served->reader, served->socket, &event, &frame));
		if (event == KV_FRAME_END) return kv_fail(KV_DISCONNECTED, "closed");
		if (event == KV_FRAME_NONE) continue;
		KV_TRY(kv_codec_response_unpack(kv_heap(), frame.payload, frame.length, &response));
		status = (enum kv_status)response->status;
		if (status == KV_OK && response->body_case == KV__RESPONSE__BODY_OPEN)
			served->sequence = response->open->sequence;
		if (status == KV_OK && response->body_case == KV__RESPONSE__BODY_RESERVE)
			served->segment = response->reserve->segments[0]->segment_id;
		kv_codec_response_free(kv_heap(), response);
		return status;
	}
	return kv_fail(KV_TIMEOUT, "no answer");
}

static enum kv_status ask(struct served *served, Kv__Request *request, int descriptor)
{
	uint8_t *bytes = NULL;
	size_t length = 0;
	int idle = 0;
	enum kv_status status;

	request->id = 1;
	KV_TRY(kv_codec_request_pack(kv_heap(), request, &bytes, &length));
	status = kv_frame_push(served->writer, bytes, length, &descriptor, descriptor >= 0);
	kv_free(kv_heap(), bytes);
	if (status != KV_OK) return status;
	KV_TRY(kv_frame_write(served->writer, served->socket, &idle));
	return await_answer(served);
}

static enum kv_status greet(struct served *served, int staging)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__HelloRequest hello = KV__HELLO_REQUEST__INIT;
	Kv__ModelLayout wire = KV__MODEL_LAYOUT__INIT;
	struct kvw_model_layout layout = test_layout();
	uint8_t model[32] = {7};

	kv_codec_layout_to_wire(&layout, &wire);
	hello.protocol_version = KV_PROTOCOL_VERSION;
	hello.model_id.data = model;
	hello.model_id.len = sizeof model;
	hello.layout = &wire;
	hello.transport = (char *)(uintptr_t) "auto";
	hello.staging_descriptor = true;
	hello.staging_bytes = STAGING;
	request.body_case = KV__REQUEST__BODY_HELLO;
	request.hello = &hello;
	return ask(served, &request, staging);
}

static enum kv_status open_and_reserve(struct served *served)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__OpenRequest open = KV__OPEN_REQUEST__INIT;
	Kv__ReserveRequest reserve = KV__RESERVE_REQUEST__INIT;
	Kv__NewSegment segment = KV__NEW_SEGMENT__INIT;
	Kv__NewSegment *segments[1] = {&segment};
	int32_t prompt[PROMPT_TOKENS];

	test_prompt(prompt, 1);
	open.prompt.data = (uint8_t *)prompt;
	open.prompt.len = sizeof prompt;
	request.body_case = KV__REQUEST__BODY_OPEN;
	request.open = &open;
	KV_TRY(ask(served, &request, -1));
	segment.tokens = CUT_ONE;
	segment.kind = KVW_CLUSTERED;
	reserve.sequence = served->sequence;
	reserve.segments = segments;
	reserve.n_segments = 1;
	request.body_case = KV__REQUEST__BODY_RESERVE;
	request.reserve = &reserve;
	return ask(served, &request, -1);
}

static enum kv_status put_and_commit(struct served *served)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__PutRequest put = KV__PUT_REQUEST__INIT;
	Kv__CommitRequest commit = KV__COMMIT_REQUEST__INIT;
	Kv__CloseRequest close_request = KV__CLOSE_REQUEST__INIT;

	for (uint32_t layer = 0; layer < 3; layer++) {
		put.segment_id = served->segment;
		put.layer = layer;
		put.bytes = test_unit_bytes(0, CUT_ONE, KVW_CLUSTERED, layer);
		request.body_case = KV__REQUEST__BODY_PUT;
		request.put = &put;
		KV_TRY(ask(served, &request, -1));
	}
	commit.sequence = served->sequence;
	commit.segment_ids = &served->segment;
	commit.n_segment_ids = 1;
	request.body_case = KV__REQUEST__BODY_COMMIT;
	request.commit = &commit;
	KV_TRY(ask(served, &request, -1));
	close_request.sequence = served->sequence;
	request.body_case = KV__REQUEST__BODY_CLOSE;
	request.close = &close_request;
	return ask(served, &request, -1);
}

static enum kv_status talk(struct served *served, int staging)
{
	enum kv_status status;

	KV_TRY(kv_unix_connect(fixture.socket, &served->socket));
	status = kv_frame_reader_create(kv_heap(), 0, 16, &served->reader);
	if (status == KV_OK) status = kv_frame_writer_create(kv_heap(), 0, &served->writer);
	if (status == KV_OK) status = greet(served, staging);
	if (status == KV_OK) status = open_and_reserve(served);
	if (status == KV_OK) status = put_and_commit(served);
	close(served->socket);
	kv_frame_reader_destroy(served->reader);
	kv_frame_writer_destroy(served->writer);
	kv_loop_run_for(served->loop, 5);
	return status;
}

static enum kv_status serve(
    struct kv_allocator *allocator, const struct kvs_settings *settings, int staging)
{
	struct served served = {0};
	enum kv_status status;

	KV_TRY(kv_loop_create(allocator, &served.loop));
	status = kvs_server_create(allocator, settings, served.loop, NULL, &served.server);
	if (status == KV_OK) status = talk(&served, staging);
	kvs_server_destroy(served.server);
	kv_loop_destroy(served.loop);
	return status;
}

static void test_server(void **state)
{
	struct kvs_settings settings = {.memory = 8 << 20,
	    .transport = KVS_TRANSPORT_MAP,
	    .verify = KVS_VERIFY_COMMIT,
	    .lease_ms = 3000,
	    .heartbeat_ms = 500,
	    .orphan_ms = 600000,
	    .max_workers = 8,
	    .max_sequences = 16};
	uint8_t *memory = NULL;
	unsigned failures = 0;
	bool reached = true;
	int staging = -1;

	(void)state;
	kv_log_set_level(getenv("KVT_LOG") ? KV_LOG_DEBUG : KV_LOG_ERROR);
	assert_true(store_fixture_init(&fixture));
	assert_ok(kv_staging_create(STAGING, &memory, &staging));
	settings.socket = fixture.socket;
	settings.stats_socket = fixture.stats;
	for (uint64_t n = 1; reached && n < MOST; n++) {
		struct kv_allocator *allocator = kv_allocator_create("store under test", 0);
		enum kv_status status;

		kv_allocator_fail_at(allocator, n);
		status = serve(allocator, &settings, staging);
		reached = kv_allocator_stats(allocator).failures > 0;
		failures += status != KV_OK;
		if (!reached) assert_ok(status);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		kv_allocator_destroy(allocator);
		assert_int_equal(access(fixture.socket, F_OK), -1);
	}
	assert_false(reached);
	assert_true(failures > 20);
	kv_staging_destroy(memory, STAGING, staging);
	kv_log_set_level(KV_LOG_INFO);
	assert_true(store_fixture_deinit(&fixture, false));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest remote[] = {
	    cmocka_unit_test(test_client),
	};
	const struct CMUnitTest local[] = {
	    cmocka_unit_test(test_local),
	    cmocka_unit_test(test_server),
	};

	signal(SIGPIPE, SIG_IGN);
	kv_log_set_level(KV_LOG_ERROR);
	test_program = argv[0];
	test_transport = argc > 1 ? argv[1] : "local";
	if (argc > 2) cmocka_set_test_filter(argv[2]);
	return strcmp(test_transport, "local") == 0 ? cmocka_run_group_tests(local, NULL, NULL)
	                                            : cmocka_run_group_tests(remote, NULL, NULL);
}
