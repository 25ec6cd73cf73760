/* A peer that greets properly and then sends nonsense: numbers of its own invention in well-formed
 * messages, and damaged bytes. The store answers or closes, keeps serving others, and ends cleanly.
 */
#include "tests/lib/store_client_test.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/transport/transport_map.h"
#include "tests/fault/hostile_peer.h"

const char *test_transport = "map";
const char *test_program;

static struct store_fixture fixture;

enum { CONNECTIONS = 150, MESSAGES = 40, LIST = 12 };

static int set_up(void **state)
{
	static const char *const arguments[] = {
	    "--transport=map", "--memory=8MiB", "--max-workers=4", NULL};

	(void)state;
	return store_fixture_init(&fixture) && store_fixture_start(&fixture, arguments) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

struct peer {
	struct hostile_peer wire;
	struct kv_random *random;
	bool damages;            /* sends broken bytes, too */
	uint64_t sequence;       /* the last handle that an answer named */
	uint64_t segments[LIST]; /* the last ids that an answer named */
	uint32_t segment_count;
};

/* Mostly small and near to what exists, sometimes anything. */
static uint64_t number(struct peer *peer)
{
	switch (kv_random_below(peer->random, 6)) {
	case 0:
		return kv_random_next(peer->random);
	case 1:
		return UINT64_MAX - kv_random_below(peer->random, 4);
	case 2:
		return kv_random_below(peer->random, 70000);
	default:
		return kv_random_below(peer->random, 8);
	}
}

static uint32_t number32(struct peer *peer)
{
	return (uint32_t)number(peer);
}

static uint64_t some_sequence(struct peer *peer)
{
	return kv_random_below(peer->random, 4) ? peer->sequence : number(peer);
}

static uint64_t some_segment(struct peer *peer)
{
	if (!peer->segment_count || !kv_random_below(peer->random, 5)) return number(peer);
	return peer->segments[kv_random_below(peer->random, peer->segment_count)];
}

/* Send, now and then with damaged bytes. */
static void send_request(struct peer *peer, Kv__Request *request, int descriptor)
{
	uint8_t *bytes = NULL;
	size_t length = 0;

	request->id = kv_random_below(peer->random, 200) ? 1 + number(peer) : 0;
	if (kv_codec_request_pack(kv_heap(), request, &bytes, &length) != KV_OK) return;
	if (peer->damages && descriptor < 0 && !kv_random_below(peer->random, 10))
		bytes[kv_random_below(peer->random, length)] ^=
		    (uint8_t)(1 << kv_random_below(peer->random, 8));
	(void)hostile_write(&peer->wire, bytes, length, descriptor);
	kv_free(kv_heap(), bytes);
}

static void remember(struct peer *peer, const Kv__Response *response)
{
	if (response->status) return;
	if (response->body_case == KV__RESPONSE__BODY_OPEN) peer->sequence = response->open->sequence;
	if (response->body_case != KV__RESPONSE__BODY_RESERVE) return;
	peer->segment_count = 0;
	for (size_t i = 0; i < response->reserve->n_segments && i < LIST; i++)
		peer->segments[peer->segment_count++] = response->reserve->segments[i]->segment_id;
}

/* Take what has been answered; false when the store has closed. */
static bool read_answers(struct peer *peer, int wait_ms)
{
	struct pollfd one = {.fd = peer->wire.socket, .events = POLLIN};

	poll(&one, 1, wait_ms);
	for (;;) {
		Kv__Response *response;
		enum kv_status status = hostile_read(&peer->wire, &response);

		if (status == KV_DISCONNECTED) return false;
		assert_ok(status);
		if (!response) return true;
		remember(peer, response);
		kv_codec_response_free(kv_heap(), response);
	}
}

static void send_hello(struct peer *peer, int staging)
{
	Kv__Request request = KV__REQUEST__INIT;
	struct hostile_greeting greeting;

	hostile_greet(&greeting, &request);
	if (!kv_random_below(peer->random, 10)) greeting.layout.layers = number32(peer);
	if (!kv_random_below(peer->random, 10)) greeting.layout.head_dim = number32(peer);
	if (!kv_random_below(peer->random, 10)) greeting.hello.staging_bytes = number(peer);
	send_request(peer, &request, staging);
}

static void send_open(struct peer *peer)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__OpenRequest open = KV__OPEN_REQUEST__INIT;
	int32_t prompt[PROMPT_TOKENS];
	uint8_t digest[32] = {0};
	Kv__Cut cuts[LIST];
	Kv__Cut *pointers[LIST];
	size_t count = kv_random_below(peer->random, LIST);

	test_prompt(prompt, (int32_t)kv_random_below(peer->random, 3));
	for (size_t i = 0; i < count; i++) {
		kv__cut__init(&cuts[i]);
		cuts[i].end = i + 1 == count ? PROMPT_TOKENS : 100 * (uint32_t)(i + 1);
		if (!kv_random_below(peer->random, 12)) cuts[i].end = number32(peer);
		cuts[i].kind = (uint32_t)kv_random_below(peer->random, 2);
		if (!kv_random_below(peer->random, 12)) cuts[i].kind = number32(peer);
		pointers[i] = &cuts[i];
	}
	open.sequence_id =
	    (char *)(uintptr_t)(kv_random_below(peer->random, 2) ? "" : "hostile-sequence");
	open.prompt.data = (uint8_t *)prompt;
	open.prompt.len = sizeof prompt;
	open.policy_digest.data = digest;
	open.policy_digest.len = sizeof digest;
	open.cuts = pointers;
	open.n_cuts = count;
	request.body_case = KV__REQUEST__BODY_OPEN;
	request.open = &open;
	send_request(peer, &request, -1);
}

static void send_reserve(struct peer *peer)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__ReserveRequest reserve = KV__RESERVE_REQUEST__INIT;
	Kv__NewSegment segments[LIST];
	Kv__NewSegment *pointers[LIST];
	size_t count = kv_random_below(peer->random, 4);

	for (size_t i = 0; i < count; i++) {
		kv__new_segment__init(&segments[i]);
		segments[i].start = 100 * (uint32_t)i;
		segments[i].tokens = 100;
		if (!kv_random_below(peer->random, 4)) segments[i].start = number32(peer);
		if (!kv_random_below(peer->random, 4)) segments[i].tokens = number32(peer);
		if (!kv_random_below(peer->random, 4)) segments[i].kind = number32(peer);
		if (!kv_random_below(peer->random, 4)) segments[i].provenance = number32(peer);
		pointers[i] = &segments[i];
	}
	reserve.sequence = some_sequence(peer);
	reserve.segments = pointers;
	reserve.n_segments = count;
	request.body_case = KV__REQUEST__BODY_RESERVE;
	request.reserve = &reserve;
	send_request(peer, &request, -1);
}

static void send_put(struct peer *peer)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__PutRequest put = KV__PUT_REQUEST__INIT;

	put.segment_id = some_segment(peer);
	put.layer = (uint32_t)kv_random_below(peer->random, 3);
	put.bytes = test_unit_bytes(0, 100, KVW_CLUSTERED, put.layer);
	if (!kv_random_below(peer->random, 4)) put.layer = number32(peer);
	if (!kv_random_below(peer->random, 4)) put.bytes = number(peer);
	put.staging_offset = kv_random_below(peer->random, 4) ? 0 : number(peer);
	request.body_case = KV__REQUEST__BODY_PUT;
	request.put = &put;
	send_request(peer, &request, -1);
}

static void send_commit(struct peer *peer)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__CommitRequest commit = KV__COMMIT_REQUEST__INIT;
	uint64_t ids[LIST];
	uint64_t replaced[LIST];
	uint32_t sums[LIST * 3] = {0};
	size_t count = 1 + kv_random_below(peer->random, 3);

	for (size_t i = 0; i < LIST; i++) {
		ids[i] = i < peer->segment_count && kv_random_below(peer->random, 6) ? peer->segments[i]
		                                                                     : some_segment(peer);
		replaced[i] = some_segment(peer);
	}
	commit.sequence = some_sequence(peer);
	commit.segment_ids = ids;
	commit.n_segment_ids = count;
	commit.checksums = sums;
	commit.n_checksums = kv_random_below(peer->random, 2) ? 3 * count : 0;
	commit.replaced_ids = replaced;
	commit.n_replaced_ids = kv_random_below(peer->random, 4) ? 0 : 2;
	request.body_case = KV__REQUEST__BODY_COMMIT;
	request.commit = &commit;
	send_request(peer, &request, -1);
}

static void send_small(struct peer *peer)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__CloseRequest close_request = KV__CLOSE_REQUEST__INIT;
	Kv__ReleaseRequest release = KV__RELEASE_REQUEST__INIT;
	Kv__HeartbeatRequest heartbeat = KV__HEARTBEAT_REQUEST__INIT;
	Kv__PushRequest push = KV__PUSH_REQUEST__INIT;
	int32_t tokens[LIST] = {1, 2, 3};
	uint64_t id = some_segment(peer);

	switch (kv_random_below(peer->random, 4)) {
	case 0:
		close_request.sequence = some_sequence(peer);
		close_request.keep = kv_random_below(peer->random, 2) != 0;
		request.body_case = KV__REQUEST__BODY_CLOSE;
		request.close = &close_request;
		break;
	case 1:
		release.sequence = some_sequence(peer);
		release.segment_ids = &id;
		release.n_segment_ids = 1;
		request.body_case = KV__REQUEST__BODY_RELEASE;
		request.release = &release;
		break;
	case 2:
		heartbeat.lease_epoch = number(peer);
		request.body_case = KV__REQUEST__BODY_HEARTBEAT;
		request.heartbeat = &heartbeat;
		break;
	default:
		push.sequence = some_sequence(peer);
		push.decoded_before = number32(peer);
		push.tokens.data = (uint8_t *)tokens;
		push.tokens.len = sizeof tokens;
		request.body_case = KV__REQUEST__BODY_PUSH;
		request.push = &push;
		break;
	}
	send_request(peer, &request, -1);
}

static void talk_nonsense(struct peer *peer, int staging)
{
	void (*const senders[])(struct peer *) = {
	    send_open, send_reserve, send_put, send_commit, send_small};

	send_hello(peer, staging);
	for (int i = 0; i < MESSAGES; i++) {
		uint64_t kind = i ? kv_random_below(peer->random, 5) : 0;

		senders[kind](peer);
		/* Sometimes many at once, sometimes in step. */
		if ((kind < 2 || kv_random_below(peer->random, 3)) && !read_answers(peer, 1000)) return;
	}
	read_answers(peer, 20);
}

/* How many descriptors the store has open. */
static int descriptors(void)
{
	char path[64];
	DIR *directory;
	int count = 0;

	snprintf(path, sizeof path, "/proc/%ld/fd", (long)fixture.pid);
	directory = opendir(path);
	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* Connections that we closed are closed over there a moment later. */
static bool come_back_to(int count)
{
	uint64_t deadline = store_fixture_now() + 3000;

	while (descriptors() > count && store_fixture_now() < deadline)
		store_fixture_sleep(10);
	return descriptors() <= count;
}

static bool understood(void)
{
	return store_fixture_stat(&fixture, "sequences_opened_total") > 20 &&
	       store_fixture_stat(&fixture, "reserves_total") > 20 &&
	       store_fixture_stat(&fixture, "put_bytes_total") > 0;
}

static void test_nonsense(void **state)
{
	struct kv_random random;
	char answer[256];
	uint8_t *memory = NULL;
	int staging = -1;
	int before = descriptors();

	(void)state;
	kv_random_seed(&random, 4);
	assert_ok(kv_staging_create(HOSTILE_STAGING, &memory, &staging));
	/* Until it was understood often enough for this to mean something. */
	for (int i = 0; i < CONNECTIONS || (i < 10 * CONNECTIONS && !understood()); i++) {
		/* The first one is honest: else the model may be known with a damaged layout ever after. */
		struct peer peer = {.random = &random, .damages = i % 2 == 1};

		assert_true(hostile_connect(&peer.wire, fixture.socket));
		talk_nonsense(&peer, staging);
		hostile_close(&peer.wire);
		assert_true(store_fixture_ask(&fixture, "health", answer, sizeof answer));
	}
	kv_staging_destroy(memory, HOSTILE_STAGING, staging);
	assert_true(understood());
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"reserved\"}", 0, 3000));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"quarantined\"}", 0, 3000));
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 0, 3000));
	/* Regions have a descriptor each; a connection that is gone has none, though we still live. */
	/* One more may be held for the next region. */
	assert_true(come_back_to(before + 2 + (int)store_fixture_stat(&fixture, "regions")));
}

static enum kv_status status_of(Kv__Response *response)
{
	enum kv_status status;

	assert_non_null(response);
	status = kv_status_from_wire(response->status);
	kv_codec_response_free(kv_heap(), response);
	return status;
}

/* Say hello without a model; the answer's status. */
static enum kv_status visit(struct hostile_peer *peer)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__HelloRequest hello = KV__HELLO_REQUEST__INIT;
	uint64_t start = store_fixture_now();
	Kv__Response *response;

	hello.protocol_version = KV_PROTOCOL_VERSION;
	request.body_case = KV__REQUEST__BODY_HELLO;
	request.hello = &hello;
	response = hostile_call(peer, &request, -1);
	assert_in_range(store_fixture_now() - start, 0, 5000);
	return status_of(response);
}

/* Visitors who stay do not take the workers' places. */
static void test_visitors(void **state)
{
	enum { VISITORS = 30 };
	struct hostile_peer visitors[VISITORS];
	int welcome = 0;

	(void)state;
	for (int i = 0; i < VISITORS; i++) {
		assert_true(hostile_connect(&visitors[i], fixture.socket));
		welcome += visit(&visitors[i]) == KV_OK;
	}
	assert_in_range(welcome, 1, 16);
	kvc_close(test_connect(&fixture, "worker"));
	for (int i = 0; i < VISITORS; i++)
		hostile_close(&visitors[i]);
}

static enum kv_status put_layer(struct hostile_peer *peer, uint64_t segment, uint32_t layer)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__PutRequest put = KV__PUT_REQUEST__INIT;

	put.segment_id = segment;
	put.layer = layer;
	put.bytes = test_unit_bytes(0, CUT_ONE, KVW_CLUSTERED, layer);
	request.body_case = KV__REQUEST__BODY_PUT;
	request.put = &put;
	return status_of(hostile_call(peer, &request, -1));
}

static enum kv_status commit_one(
    struct hostile_peer *peer, uint64_t sequence, uint64_t segment, uint32_t sums[3])
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__CommitRequest commit = KV__COMMIT_REQUEST__INIT;

	commit.sequence = sequence;
	commit.segment_ids = &segment;
	commit.n_segment_ids = 1;
	commit.checksums = sums;
	commit.n_checksums = 3;
	request.body_case = KV__REQUEST__BODY_COMMIT;
	request.commit = &commit;
	return status_of(hostile_call(peer, &request, -1));
}

/* What was copied last is what counts, whatever was there when it was copied before. */
static void test_false_sums(void **state)
{
	struct hostile_peer peer;
	uint64_t sequence, segment;
	uint32_t status, sums[3];

	(void)state;
	assert_true(hostile_connect(&peer, fixture.socket));
	assert_int_equal(hostile_hello(&peer, -1, 0), KV_OK);
	sequence = hostile_open(&peer, 1, &status);
	for (int round = 0; round < 4; round++) {
		/* 0: a sum that never was. 1: of a unit that was written over. 2: of one that was never
		 * copied. 3: all are right. */
		segment = hostile_reserve(&peer, sequence);
		for (uint32_t layer = 0; layer < 3; layer++) {
			uint64_t bytes = test_unit_bytes(0, CUT_ONE, KVW_CLUSTERED, layer);

			memset(peer.memory, 16 * round + (int)layer + 1, bytes);
			sums[layer] = kv_crc32c(0, peer.memory, bytes);
			if (round != 2 || layer != 1) assert_int_equal(put_layer(&peer, segment, layer), KV_OK);
			if (round != 1 || layer != 2) continue;
			peer.memory[bytes / 2] ^= 1;
			assert_int_equal(put_layer(&peer, segment, layer), KV_OK);
		}
		if (round == 0) sums[0] ^= 1;
		assert_int_equal(
		    commit_one(&peer, sequence, segment, sums), round < 3 ? KV_CORRUPT : KV_OK);
		assert_true(store_fixture_wait_stat(
		    &fixture, "checksum_mismatches_total", round < 3 ? round + 1 : 3, 0));
	}
	hostile_close(&peer);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_nonsense, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_visitors, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_false_sums, set_up, tear_down),
	};

	signal(SIGPIPE, SIG_IGN);
	(void)argc;
	test_program = argv[0];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
