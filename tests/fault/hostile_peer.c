#define _DEFAULT_SOURCE /* setgroups */
#include "tests/fault/hostile_peer.h"

#include "tests/lib/store_client_test.h"

#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/transport/frame.h"
#include "common/transport/transport_map.h"
#include "common/transport/unix_socket.h"

enum { ANSWER_MS = 10000 };

bool hostile_connect(struct hostile_peer *peer, const char *path)
{
	memset(peer, 0, sizeof *peer);
	peer->staging = -1;
	if (kv_unix_connect(path, &peer->socket) != KV_OK ||
	    kv_frame_reader_create(kv_heap(), 0, KV_FRAME_MAX_DESCRIPTORS, &peer->reader) != KV_OK ||
	    kv_frame_writer_create(kv_heap(), 0, &peer->writer) != KV_OK) {
		fprintf(stderr, "cannot connect: %s\n", kv_error_message());
		return false;
	}
	return true;
}

void hostile_close(struct hostile_peer *peer)
{
	for (uint32_t i = 0; i < peer->descriptor_count; i++)
		close(peer->descriptors[i]);
	if (peer->memory) kv_staging_destroy(peer->memory, HOSTILE_STAGING, peer->staging);
	kv_frame_reader_destroy(peer->reader);
	kv_frame_writer_destroy(peer->writer);
	close(peer->socket);
}

bool hostile_write(struct hostile_peer *peer, const uint8_t *bytes, size_t length, int descriptor)
{
	int idle = 0;

	return kv_frame_push(peer->writer, bytes, length, &descriptor, descriptor >= 0) == KV_OK &&
	       kv_frame_write(peer->writer, peer->socket, &idle) == KV_OK;
}

bool hostile_send(struct hostile_peer *peer, Kv__Request *request, int descriptor)
{
	uint8_t *bytes = NULL;
	size_t length = 0;
	bool sent;

	request->id = ++peer->id;
	if (kv_codec_request_pack(kv_heap(), request, &bytes, &length) != KV_OK) return false;
	sent = hostile_write(peer, bytes, length, descriptor);
	kv_free(kv_heap(), bytes);
	return sent;
}

static void take_descriptors(struct hostile_peer *peer, const Kv__Response *response)
{
	bool page =
	    response->body_case == KV__RESPONSE__BODY_HELLO && response->hello->has_control_page;
	size_t next = 0;
	int taken;

	while ((taken = kv_frame_take_descriptor(peer->reader)) >= 0) {
		uint64_t bytes =
		    page || next >= response->n_new_regions ? 0 : response->new_regions[next]->bytes;

		if (!page) next++;
		page = false;
		if (peer->descriptor_count == HOSTILE_DESCRIPTORS) {
			close(taken);
			continue;
		}
		peer->bytes[peer->descriptor_count] = bytes;
		peer->descriptors[peer->descriptor_count++] = taken;
	}
}

enum kv_status hostile_read(struct hostile_peer *peer, Kv__Response **response)
{
	enum kv_frame_event event = KV_FRAME_NONE;
	struct kv_frame frame;

	*response = NULL;
	if (kv_frame_read(peer->reader, peer->socket, &event, &frame) != KV_OK || event == KV_FRAME_END)
		return KV_DISCONNECTED;
	if (event == KV_FRAME_NONE) return KV_OK;
	KV_TRY(kv_codec_response_unpack(kv_heap(), frame.payload, frame.length, response));
	take_descriptors(peer, *response);
	return KV_OK;
}

Kv__Response *hostile_call(struct hostile_peer *peer, Kv__Request *request, int descriptor)
{
	uint64_t deadline = store_fixture_now() + ANSWER_MS;

	if (!hostile_send(peer, request, descriptor)) return NULL;
	while (store_fixture_now() < deadline) {
		struct pollfd one = {.fd = peer->socket, .events = POLLIN};
		Kv__Response *response = NULL;
		int idle = 0;

		if (kv_frame_writer_queued(peer->writer)) {
			one.events |= POLLOUT;
			if (kv_frame_write(peer->writer, peer->socket, &idle) != KV_OK) return NULL;
		}
		poll(&one, 1, 100);
		if (hostile_read(peer, &response) != KV_OK) return NULL;
		if (!response) continue;
		/* News of regions and refusals at the door answer no request. */
		if (response->id == request->id || response->status) return response;
		kv_codec_response_free(kv_heap(), response);
	}
	return NULL;
}

static uint32_t status_of(Kv__Response *response)
{
	uint32_t status = response ? response->status : (uint32_t)KV_DISCONNECTED;

	kv_codec_response_free(kv_heap(), response);
	return status;
}

void hostile_greet(struct hostile_greeting *greeting, Kv__Request *request)
{
	Kv__HelloRequest *hello = &greeting->hello;

	kv__hello_request__init(hello);
	kv__model_layout__init(&greeting->layout);
	memset(greeting->model, 7, sizeof greeting->model);
	greeting->model_layout = test_layout();
	kv_codec_layout_to_wire(&greeting->model_layout, &greeting->layout);
	hello->protocol_version = KV_PROTOCOL_VERSION;
	hello->client_name = (char *)(uintptr_t) "hostile";
	hello->client_kind = (char *)(uintptr_t) "gpu-worker";
	hello->model_id.data = greeting->model;
	hello->model_id.len = sizeof greeting->model;
	hello->layout = &greeting->layout;
	hello->transport = (char *)(uintptr_t) "map";
	hello->staging_descriptor = true;
	hello->staging_bytes = HOSTILE_STAGING;
	request->body_case = KV__REQUEST__BODY_HELLO;
	request->hello = hello;
}

uint32_t hostile_hello(struct hostile_peer *peer, int staging, uint64_t staging_bytes)
{
	Kv__Request request = KV__REQUEST__INIT;
	struct hostile_greeting greeting;

	if (staging < 0 && kv_staging_create(HOSTILE_STAGING, &peer->memory, &peer->staging) != KV_OK)
		return (uint32_t)KV_IO;
	hostile_greet(&greeting, &request);
	if (staging >= 0) greeting.hello.staging_bytes = staging_bytes;
	return status_of(hostile_call(peer, &request, staging < 0 ? peer->staging : staging));
}

uint64_t hostile_open(struct hostile_peer *peer, int32_t seed, uint32_t *status)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__OpenRequest open = KV__OPEN_REQUEST__INIT;
	Kv__Cut cut = KV__CUT__INIT;
	Kv__Cut *pointer = &cut;
	int32_t prompt[PROMPT_TOKENS];
	uint8_t digest[KV_CODEC_DIGEST_BYTES] = {0};
	Kv__Response *response;
	uint64_t sequence = 0;

	test_prompt(prompt, seed);
	cut.end = PROMPT_TOKENS;
	open.prompt.data = (uint8_t *)prompt;
	open.prompt.len = sizeof prompt;
	open.policy_digest.data = digest;
	open.policy_digest.len = sizeof digest;
	open.cuts = &pointer;
	open.n_cuts = 1;
	request.body_case = KV__REQUEST__BODY_OPEN;
	request.open = &open;
	response = hostile_call(peer, &request, -1);
	if (response && response->body_case == KV__RESPONSE__BODY_OPEN)
		sequence = response->open->sequence;
	*status = status_of(response);
	return sequence;
}

uint64_t hostile_reserve(struct hostile_peer *peer, uint64_t sequence)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__ReserveRequest reserve = KV__RESERVE_REQUEST__INIT;
	Kv__NewSegment wanted = KV__NEW_SEGMENT__INIT;
	Kv__NewSegment *pointer = &wanted;
	Kv__Response *response;
	uint64_t segment = 0;

	wanted.tokens = CUT_ONE;
	reserve.sequence = sequence;
	reserve.segments = &pointer;
	reserve.n_segments = 1;
	request.body_case = KV__REQUEST__BODY_RESERVE;
	request.reserve = &reserve;
	response = hostile_call(peer, &request, -1);
	if (response && response->body_case == KV__RESPONSE__BODY_RESERVE &&
	    response->reserve->n_segments)
		segment = response->reserve->segments[0]->segment_id;
	status_of(response);
	return segment;
}

uint32_t hostile_put(struct hostile_peer *peer, uint64_t segment, uint64_t bytes)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__PutRequest put = KV__PUT_REQUEST__INIT;

	put.segment_id = segment;
	put.bytes = bytes;
	request.body_case = KV__REQUEST__BODY_PUT;
	request.put = &put;
	return status_of(hostile_call(peer, &request, -1));
}

bool hostile_may_run(void)
{
	if (geteuid() == 0) return true;
	printf("skipped: only root can be other users\n");
	return false;
}

bool hostile_store_start(struct store_fixture *fixture, const char *const *arguments)
{
	return store_fixture_init(fixture) && chmod(fixture->directory, 0711) == 0 &&
	       store_fixture_start(fixture, arguments);
}

void hostile_become(uid_t user)
{
	if (setgroups(0, NULL) != 0 || setgid((gid_t)user) != 0 || setuid(user) != 0) _exit(100);
}

int hostile_run(uid_t user, int (*attack)(void *context), void *context, unsigned wait_ms)
{
	uint64_t deadline = store_fixture_now() + wait_ms;
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGPIPE, SIG_IGN);
		hostile_become(user);
		_exit(attack(context));
	}
	while (pid > 0 && store_fixture_now() < deadline) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
		store_fixture_sleep(5);
	}
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	return -1;
}
