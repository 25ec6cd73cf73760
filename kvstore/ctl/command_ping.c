/* kvctl ping: a hello and a heartbeat on the control socket, as a worker would send them. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/frame.h"
#include "common/transport/secret.h"
#include "common/transport/secure_dial.h"
#include "common/transport/unix_socket.h"
#include "kvstore/ctl/ctl.h"
#include "proto/codec.h"

struct line {
	int socket;
	struct kv_secure *secure; /* NULL: on this host */
	struct kv_frame_reader *reader;
	struct kv_frame_writer *writer;
	uint64_t deadline;
};

static enum kv_status receive(struct line *line, Kv__Response **response)
{
	for (;;) {
		enum kv_frame_event event = KV_FRAME_NONE;
		struct kv_frame frame;
		struct pollfd one = {.fd = line->socket, .events = POLLIN};
		uint64_t now = kv_now_ms();

		KV_TRY(kv_frame_read(line->reader, line->socket, &event, &frame));
		if (event == KV_FRAME_READY)
			return kv_codec_response_unpack(kv_heap(), frame.payload, frame.length, response);
		if (event == KV_FRAME_END)
			return kv_fail(KV_DISCONNECTED, "the store closed the connection");
		if (now >= line->deadline)
			return kv_fail(KV_TIMEOUT, "the store accepts connections but does not answer");
		poll(&one, 1, (int)(line->deadline - now));
	}
}

/* One request and its answer; *seconds is how long it took. */
static enum kv_status call(
    struct line *line, const Kv__Request *request, double *seconds, Kv__Response **response)
{
	uint64_t start = kv_now_ns();
	uint8_t *bytes = NULL;
	size_t length = 0;
	int idle = 0;
	enum kv_status status;

	KV_TRY(kv_codec_request_pack(kv_heap(), request, &bytes, &length));
	status = kv_frame_push(line->writer, bytes, length, NULL, 0);
	kv_free(kv_heap(), bytes);
	if (status != KV_OK) return status;
	KV_TRY(kv_frame_write(line->writer, line->socket, &idle));
	KV_TRY(receive(line, response));
	*seconds = kv_seconds_since(start);
	if ((*response)->status == KV_OK) return KV_OK;
	status = kv_fail(kv_status_from_wire((*response)->status), "%s", (*response)->message);
	kv_codec_response_free(kv_heap(), *response);
	*response = NULL;
	return status;
}

static enum kv_status greet(struct line *line, double *seconds, Kv__Response **response)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__HelloRequest hello = KV__HELLO_REQUEST__INIT;

	hello.protocol_version = KV_PROTOCOL_VERSION;
	hello.client_name = (char *)(uintptr_t) "kvctl";
	hello.client_kind = (char *)(uintptr_t) "kvctl";
	hello.pid = (uint32_t)getpid();
	hello.transport = (char *)(uintptr_t) "auto";
	hello.build = (char *)(uintptr_t)KV_VERSION;
	request.id = 1;
	request.body_case = KV__REQUEST__BODY_HELLO;
	request.hello = &hello;
	KV_TRY(call(line, &request, seconds, response));
	if ((*response)->body_case == KV__RESPONSE__BODY_HELLO) return KV_OK;
	kv_codec_response_free(kv_heap(), *response);
	*response = NULL;
	return kv_fail(KV_PROTOCOL, "the store answered hello with something else");
}

static enum kv_status beat(struct line *line, uint64_t id, double *seconds)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__HeartbeatRequest heartbeat = KV__HEARTBEAT_REQUEST__INIT;
	Kv__Response *response = NULL;

	request.id = id;
	request.body_case = KV__REQUEST__BODY_HEARTBEAT;
	request.heartbeat = &heartbeat;
	KV_TRY(call(line, &request, seconds, &response));
	kv_codec_response_free(kv_heap(), response);
	return KV_OK;
}

static void print_result(const struct ctl_settings *settings, const Kv__HelloResponse *hello,
    double first, double shortest)
{
	struct kv_text_buffer text;

	if (!settings->json) {
		printf(
		    "%s answers: version %s, transport %s, generation %016llx, hello %.3f ms, round trip "
		    "%.3f ms\n",
		    settings->store[0] ? settings->store : settings->socket, hello->build, hello->transport,
		    (unsigned long long)hello->boot_generation, 1e3 * first, 1e3 * shortest);
		return;
	}
	kv_text_init(&text, kv_heap(), 4096);
	kv_text_put(&text, "{\"socket\":");
	kv_text_put_json(&text, settings->store[0] ? settings->store : settings->socket);
	kv_text_put(&text, ",\"version\":");
	kv_text_put_json(&text, hello->build);
	kv_text_put(&text, ",\"transport\":");
	kv_text_put_json(&text, hello->transport);
	kv_text_printf(&text, ",\"boot_generation\":\"%016llx\",\"hello_seconds\":%.9f",
	    (unsigned long long)hello->boot_generation, first);
	kv_text_printf(&text, ",\"round_trip_seconds\":%.9f}", shortest);
	printf("%s\n", kv_text(&text));
	kv_text_deinit(&text);
}

static enum kv_status talk(const struct ctl_settings *settings, struct line *line)
{
	uint32_t count = settings->count ? settings->count : 3;
	Kv__Response *response = NULL;
	double shortest = 1e9;
	double first = 0;
	enum kv_status status = KV_OK;

	KV_TRY(greet(line, &first, &response));
	for (uint32_t i = 0; i < count && status == KV_OK; i++) {
		double seconds = 0;

		line->deadline = kv_now_ms() + settings->timeout_ms;
		status = beat(line, 2 + i, &seconds);
		if (status == KV_OK && seconds < shortest) shortest = seconds;
	}
	if (status == KV_OK) print_result(settings, response->hello, first, shortest);
	kv_codec_response_free(kv_heap(), response);
	return status;
}

static void set_deadline(void *context, uint64_t deadline_ms)
{
	struct line *line = context;

	line->deadline = deadline_ms;
}

static enum kv_status connect_line(const struct ctl_settings *settings, struct line *line)
{
	char address[CTL_ADDRESS_BYTES];
	uint8_t secret[KV_SECRET_BYTES];
	struct kv_secure_dial dial = {.allocator = kv_heap(),
	    .secret = secret,
	    .timeout_ms = (uint32_t)settings->timeout_ms,
	    .silence_ms = (uint32_t)settings->timeout_ms,
	    .found = set_deadline,
	    .context = line};
	bool remote = false;
	enum kv_status status;

	KV_TRY(ctl_store(settings, address, secret, &remote));
	dial.address = strchr(address, ':') + 1;
	if (!remote) return kv_unix_connect(dial.address, &line->socket);
	status = kv_secure_dial(&dial, &line->socket, &line->secure);
	kv_secret_wipe(secret);
	return status;
}

/* With the option and what it names: another socket may have been meant. */
static enum kv_status name_store(const struct ctl_settings *settings, enum kv_status status)
{
	const bool by_address = settings->store[0] != '\0';

	if (status == KV_OK || status == KV_USAGE) return status;
	return kv_fail_prefix(status, "%s %s", by_address ? "--store" : "--socket",
	    by_address ? settings->store : settings->socket);
}

enum kv_status ctl_ping(const struct ctl_settings *settings)
{
	struct line line = {.socket = -1, .deadline = kv_now_ms() + settings->timeout_ms};
	enum kv_status status = connect_line(settings, &line);

	if (status != KV_OK) return name_store(settings, status);
	status = kv_frame_reader_create(kv_heap(), 0, 4, &line.reader);
	if (status == KV_OK) status = kv_frame_writer_create(kv_heap(), 0, &line.writer);
	if (status == KV_OK && line.secure) {
		kv_frame_reader_secure(line.reader, line.secure);
		kv_frame_writer_secure(line.writer, line.secure);
	}
	if (status == KV_OK) status = talk(settings, &line);
	if (line.secure) kv_secure_finish(line.secure, line.socket);
	kv_frame_reader_destroy(line.reader);
	kv_frame_writer_destroy(line.writer);
	kv_secure_destroy(line.secure);
	close(line.socket);
	return name_store(settings, status);
}
