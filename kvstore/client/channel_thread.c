/* The channel's thread: connect, greet, serve the socket, notice silence, begin again. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/runtime/fault_point.h"
#include "common/transport/line.h"
#include "common/transport/transport_map.h"
#include "kvstore/client/channel_internal.h"

#define MODULE "store-client"

static void record_attempt(struct kvc_channel *channel, enum kv_status status)
{
	bool news = channel->attempt_status != status || !channel->attempts;

	channel->attempts++;
	channel->attempt_status = status;
	snprintf(channel->attempt_text, sizeof channel->attempt_text, "%s", kv_error_message());
	if (news) kv_debug(MODULE, "no connection yet: %s", channel->attempt_text);
	pthread_cond_broadcast(&channel->changed);
}

/* ---- the end of a connection ---- */

static void fail_tickets(struct kvc_channel *channel)
{
	for (uint32_t i = 0; i < KVC_CHANNEL_TICKETS; i++) {
		if (channel->tickets[i].state == KVC_TICKET_WAITING)
			channel->tickets[i].state = KVC_TICKET_DONE;
	}
}

/* Everything that waits fails now. The lock is held. */
static void disconnect(struct kvc_channel *channel)
{
	atomic_store_explicit(&channel->session, 0, memory_order_release);
	channel->give_up = false;
	if (channel->secure) kv_secure_finish(channel->secure, channel->socket);
	if (channel->socket >= 0) close(channel->socket);
	channel->socket = -1;
	kv_frame_reader_destroy(channel->reader);
	channel->reader = NULL;
	if (channel->secure && channel->writer) kv_frame_writer_secure(channel->writer, NULL);
	kv_secure_destroy(channel->secure);
	channel->secure = NULL;
	if (channel->page) kv_control_page_unmap(channel->page);
	channel->page = NULL;
	if (channel->welcome.page_descriptor >= 0) close(channel->welcome.page_descriptor);
	channel->welcome.page_descriptor = -1;
	kvc_channel_drop_regions(channel);
	fail_tickets(channel);
	kvc_push_lost(channel);
	pthread_cond_broadcast(&channel->changed);
}

static void lose(struct kvc_channel *channel)
{
	char why[256];
	bool stood;

	snprintf(why, sizeof why, "%s", kv_error_message());
	pthread_mutex_lock(&channel->lock);
	stood = atomic_load_explicit(&channel->session, memory_order_relaxed) != 0;
	kv_fail(KV_DISCONNECTED, "%s", why);
	record_attempt(channel, KV_DISCONNECTED);
	disconnect(channel);
	pthread_mutex_unlock(&channel->lock);
	if (stood) kv_warning(MODULE, "lost the store path=%s reason=\"%s\"", channel->path, why);
}

/* ---- hello ---- */

static uint64_t process_id(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t id;
	static pid_t of; /* a child is another process */
	uint64_t value;

	pthread_mutex_lock(&lock);
	while (!id || of != getpid()) {
		id = kv_random_entropy();
		of = getpid();
	}
	value = id;
	pthread_mutex_unlock(&lock);
	return value;
}

static enum kv_status send_hello(struct kvc_channel *channel)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__HelloRequest hello = KV__HELLO_REQUEST__INIT;
	Kv__ModelLayout layout = KV__MODEL_LAYOUT__INIT;

	kv_fault_stop("client.connect");
	hello.protocol_version = KV_PROTOCOL_VERSION;
	hello.client_name = channel->name;
	hello.client_kind = channel->kind;
	hello.pid = (uint32_t)getpid();
	hello.transport = channel->transport;
	hello.build = (char *)(uintptr_t)KV_VERSION;
	hello.process_id = process_id();
	if (channel->has_model) {
		hello.model_id.data = channel->model_id;
		hello.model_id.len = sizeof channel->model_id;
		hello.model_name = channel->model_name;
		kv_codec_layout_to_wire(&channel->layout, &layout);
		hello.layout = &layout;
	}
	hello.staging_descriptor = channel->staging_descriptor >= 0;
	hello.staging_bytes = hello.staging_descriptor ? channel->staging_bytes : 0;
	request.body_case = KV__REQUEST__BODY_HELLO;
	request.hello = &hello;
	request.id = kvc_channel_next_id(channel, KVC_ID_HELLO);
	return kvc_channel_send(channel, &request);
}

static enum kv_status map_page(struct kvc_channel *channel, struct kvc_welcome *welcome)
{
	int descriptor = kv_frame_take_descriptor(channel->reader);
	const void *page = NULL;
	const struct kvw_control_page *control;
	uint64_t generation;

	if (descriptor < 0)
		return kv_fail(KV_PROTOCOL, "the store's hello came without its control page");
	welcome->page_descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
	KV_TRY(kv_control_page_map(descriptor, &page));
	control = page;
	generation = atomic_load_explicit(
	    (const _Atomic uint64_t *)&control->boot_generation, memory_order_acquire);
	if (welcome->page_descriptor >= 0 && control->magic == KVW_CONTROL_MAGIC && !generation) {
		kv_control_page_unmap(page);
		return kv_fail(KV_DISCONNECTED, "the store at %s stops", channel->path);
	}
	if (welcome->page_descriptor < 0 || control->magic != KVW_CONTROL_MAGIC ||
	    generation != welcome->generation || welcome->slot >= KVW_CONTROL_SLOTS) {
		kv_control_page_unmap(page);
		return kv_fail(KV_PROTOCOL, "the store's control page is not what its hello says");
	}
	channel->page = control;
	return KV_OK;
}

static const char *expected_remote(const struct kvc_channel *channel)
{
	return strcmp(channel->transport, KVC_BY_UCX) == 0 ? KVC_BY_UCX : KVC_STREAM;
}

static enum kv_status accept_hello(struct kvc_channel *channel, const Kv__Response *response)
{
	const Kv__HelloResponse *hello = response->hello;
	struct kvc_welcome *welcome = &channel->welcome;

	if (response->status)
		return kv_fail(kv_status_from_wire(response->status), "%s", response->message);
	if (response->body_case != KV__RESPONSE__BODY_HELLO || !hello || welcome->session)
		return kv_fail(KV_PROTOCOL, "the store answered hello with something else");
	if (hello->protocol_version != KV_PROTOCOL_VERSION)
		return kv_fail(KV_PROTOCOL,
		    "the store at %s (%.32s) speaks protocol version %u, this worker (%s) speaks %d: "
		    "install "
		    "the same release of both",
		    channel->path, hello->build[0] ? hello->build : "unknown", hello->protocol_version,
		    KV_VERSION, (int)KV_PROTOCOL_VERSION);
	if (hello->transport_address.len > sizeof welcome->address.bytes || !hello->lease_ms ||
	    !hello->heartbeat_ms || strlen(hello->transport) >= sizeof welcome->transport)
		return kv_fail(KV_PROTOCOL, "the store's hello is malformed");
	*welcome = (struct kvc_welcome){.generation = hello->boot_generation,
	    .epoch = hello->lease_epoch,
	    .slot = hello->lease_slot,
	    .lease_ms = hello->lease_ms,
	    .heartbeat_ms = hello->heartbeat_ms,
	    .page_descriptor = -1};
	snprintf(welcome->transport, sizeof welcome->transport, "%s", hello->transport);
	snprintf(welcome->build, sizeof welcome->build, "%s", hello->build);
	if (hello->transport_address.len)
		memcpy(welcome->address.bytes, hello->transport_address.data, hello->transport_address.len);
	welcome->address.length = (uint32_t)hello->transport_address.len;
	/* What reaches another host and was agreed to here, and no such one on this host. */
	if (channel->remote ? strcmp(welcome->transport, expected_remote(channel)) != 0
	                    : strcmp(welcome->transport, KVC_STREAM) == 0)
		return kv_fail(KV_PROTOCOL, "the store's hello tells of the wrong transport");
	if (hello->has_control_page) KV_TRY(map_page(channel, welcome));
	welcome->session = ++channel->sessions;
	return KV_OK;
}

/* ---- answers ---- */

static enum kv_status announce(struct kvc_channel *channel, const Kv__Region *region)
{
	struct kvc_announcement *announcement;

	if (channel->announced_count >= KVC_MAX_ANNOUNCED ||
	    region->descriptor_blob.len > KV_TRANSPORT_MAX_BLOB)
		return kv_fail(KV_PROTOCOL, "the store tells of more memory than is sensible");
	announcement = kv_alloc_zero(channel->allocator, sizeof *announcement);
	if (!announcement) return KV_NO_MEMORY;
	announcement->region.session = channel->welcome.session;
	announcement->region.index = region->index;
	announcement->region.bytes = region->bytes;
	announcement->region.descriptor =
	    region->has_descriptor ? kv_frame_take_descriptor(channel->reader) : -1;
	if (region->descriptor_blob.len)
		memcpy(announcement->region.blob.bytes, region->descriptor_blob.data,
		    region->descriptor_blob.len);
	announcement->region.blob.length = (uint32_t)region->descriptor_blob.len;
	kv_list_push_back(&channel->announced, &announcement->node);
	channel->announced_count++;
	if (region->has_descriptor && announcement->region.descriptor < 0)
		return kv_fail(KV_PROTOCOL, "the store tells of a region without passing it");
	return KV_OK;
}

/* A region that is gone before anybody attached it must not be attached any more. */
static bool take_back(struct kvc_channel *channel, uint32_t index)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &channel->announced)
	{
		struct kvc_announcement *announcement =
		    KV_CONTAINER_OF(node, struct kvc_announcement, node);

		if (announcement->region.gone || announcement->region.index != index) continue;
		if (announcement->region.descriptor >= 0) close(announcement->region.descriptor);
		kv_list_remove(node);
		kv_free(channel->allocator, announcement);
		channel->announced_count--;
		return true;
	}
	return false;
}

static enum kv_status announce_gone(struct kvc_channel *channel, uint32_t index)
{
	struct kvc_announcement *announcement;

	if (take_back(channel, index)) return KV_OK;
	if (channel->announced_count >= KVC_MAX_ANNOUNCED)
		return kv_fail(KV_PROTOCOL, "the store tells of more memory than is sensible");
	announcement = kv_alloc_zero(channel->allocator, sizeof *announcement);
	if (!announcement) return KV_NO_MEMORY;
	announcement->region.session = channel->welcome.session;
	announcement->region.index = index;
	announcement->region.gone = true;
	announcement->region.descriptor = -1;
	kv_list_push_back(&channel->announced, &announcement->node);
	channel->announced_count++;
	return KV_OK;
}

/* Take the answer to a hello or to something of the thread's own. */
static enum kv_status take_own(struct kvc_channel *channel, const Kv__Response *response)
{
	switch (response->id & 0xff) {
	case KVC_ID_HELLO:
		return accept_hello(channel, response);
	case KVC_ID_PUSH:
		kvc_push_answered(channel, response);
		return KV_OK;
	default:
		channel->answered_id = response->id;
		return KV_OK;
	}
}

static void hand_out(struct kvc_channel *channel, Kv__Response *response)
{
	uint64_t index = response->id & 0xff;
	struct kvc_ticket *ticket = index < KVC_CHANNEL_TICKETS ? &channel->tickets[index] : NULL;

	if (!ticket || ticket->state != KVC_TICKET_WAITING || ticket->id != response->id) {
		kvc_channel_free(channel, response);
		return;
	}
	ticket->response = response;
	ticket->state = KVC_TICKET_DONE;
	pthread_cond_broadcast(&channel->changed);
}

static enum kv_status take_frame(struct kvc_channel *channel, const struct kv_frame *frame)
{
	Kv__Response *response = NULL;
	enum kv_status status;
	bool stale;

	KV_TRY(kv_codec_response_unpack(channel->allocator, frame->payload, frame->length, &response));
	pthread_mutex_lock(&channel->lock);
	channel->heard_ms = kv_now_ms();
	channel->draining = response->draining;
	status = KV_OK;
	/* The lease has lapsed, whatever was asked. Regions that are gone by now may be read here until
	 * the lease word is looked at: they stay mapped as long as this session does. */
	stale = response->status == KV_STALE;
	/* A store that refuses a connection for want of room answers before it has read anything. */
	if (!channel->welcome.session && !response->id && response->status)
		status = kv_fail(kv_status_from_wire(response->status), "%s", response->message);
	/* A hello's page comes before the regions, and both come in the order of the message. */
	if (status == KV_OK && (response->id & 0xff) >= KVC_ID_PUSH)
		status = take_own(channel, response);
	for (size_t i = 0; status == KV_OK && i < response->n_new_regions; i++)
		status = announce(channel, response->new_regions[i]);
	for (size_t i = 0; status == KV_OK && !stale && i < response->n_gone_regions; i++)
		status = announce_gone(channel, response->gone_regions[i]);
	if (status == KV_OK && (response->id & 0xff) < KVC_ID_PUSH) {
		hand_out(channel, response);
		response = NULL;
	}
	pthread_mutex_unlock(&channel->lock);
	if (status == KV_OK && stale) status = kv_fail(KV_STALE, "the lease has lapsed");
	kvc_channel_free(channel, response);
	return status;
}

/* Read all that is there. */
static enum kv_status read_frames(struct kvc_channel *channel)
{
	for (;;) {
		enum kv_frame_event event = KV_FRAME_NONE;
		struct kv_frame frame;
		enum kv_status status = kv_frame_read(channel->reader, channel->socket, &event, &frame);

		if (status != KV_OK) return kv_fail_prefix(status, "the store at %s", channel->path);
		if (event == KV_FRAME_NONE) return KV_OK;
		if (event == KV_FRAME_END)
			return kv_fail(KV_DISCONNECTED, "the store at %s closed the connection", channel->path);
		KV_TRY(take_frame(channel, &frame));
	}
}

static enum kv_status write_frames(struct kvc_channel *channel, int *idle)
{
	enum kv_status status;

	pthread_mutex_lock(&channel->lock);
	status = kv_frame_write(channel->writer, channel->socket, idle);
	pthread_mutex_unlock(&channel->lock);
	return status;
}

/* ---- waiting ---- */

static void drain_pipe(int descriptor)
{
	char bytes[64];

	while (read(descriptor, bytes, sizeof bytes) == (ssize_t)sizeof bytes) {
	}
}

/* Poll until `until` for the socket (when there is one) and the pipe, then serve the socket. */
static enum kv_status serve_once(struct kvc_channel *channel, uint64_t until)
{
	uint64_t now = kv_now_ms();
	struct pollfd polls[2] = {
	    {.fd = channel->wake[0], .events = POLLIN}, {.fd = channel->socket, .events = POLLIN}};
	nfds_t count = channel->socket >= 0 ? 2 : 1;
	int idle = 1;
	int ready;

	if (channel->socket >= 0) {
		KV_TRY(write_frames(channel, &idle));
		if (!idle) polls[1].events |= POLLOUT;
	}
	ready = poll(polls, count, until > now ? (int)(until - now) : 0);
	if (ready < 0 && errno != EINTR) return kv_fail(KV_IO, "cannot poll: %s", strerror(errno));
	if (ready > 0 && polls[0].revents) drain_pipe(channel->wake[0]);
	if (ready > 0 && count == 2 && (polls[1].revents & (POLLIN | POLLHUP | POLLERR)))
		KV_TRY(read_frames(channel));
	return KV_OK;
}

/* ---- a connection's life ---- */

static enum kv_status prepare(struct kvc_channel *channel)
{
	struct kv_secure *secure = NULL;
	int socket = -1;
	enum kv_status status;

	KV_TRY(kvc_channel_connect(channel, &socket, &secure));
	pthread_mutex_lock(&channel->lock);
	kv_frame_writer_destroy(channel->writer);
	channel->writer = NULL;
	channel->socket = socket;
	channel->secure = secure;
	KV_TRY_GOTO(status, kv_frame_writer_create(channel->allocator, 0, &channel->writer), out);
	KV_TRY_GOTO(status,
	    kv_frame_reader_create(
	        channel->allocator, KV_CODEC_MAX_MESSAGE, KV_FRAME_MAX_DESCRIPTORS, &channel->reader),
	    out);
	if (secure) {
		kv_frame_reader_secure(channel->reader, secure);
		kv_frame_writer_secure(channel->writer, secure);
	}
	channel->welcome.session = 0;
	status = send_hello(channel);
out:
	pthread_mutex_unlock(&channel->lock);
	return status;
}

static void begin_session(struct kvc_channel *channel)
{
	uint64_t now = kv_now_ms();

	pthread_mutex_lock(&channel->lock);
	channel->attempts = 0;
	channel->attempt_status = KV_OK;
	channel->backoff_ms = KVC_BACKOFF_FIRST_MS;
	channel->heartbeat_ms = now + channel->welcome.heartbeat_ms;
	channel->counters_ms = now;
	channel->counters_new = true;
	atomic_store_explicit(&channel->session, channel->welcome.session, memory_order_release);
	pthread_cond_broadcast(&channel->changed);
	pthread_mutex_unlock(&channel->lock);
	kv_info(MODULE, "connected path=%s generation=%016llx transport=%s slot=%u", channel->path,
	    (unsigned long long)channel->welcome.generation, channel->welcome.transport,
	    channel->welcome.slot);
}

static enum kv_status connect_store(struct kvc_channel *channel)
{
	uint64_t deadline;

	KV_TRY(prepare(channel));
	deadline = channel->hello_by_ms; /* only this thread sets it */
	while (!channel->welcome.session) {
		if (kv_now_ms() >= deadline)
			return kv_fail(KV_DISCONNECTED,
			    "the store at %s accepts connections but does not answer", channel->path);
		if (kvc_channel_stopping(channel)) return kv_fail(KV_CANCELLED, "closing");
		KV_TRY(serve_once(channel, deadline));
	}
	begin_session(channel);
	return KV_OK;
}

static enum kv_status send_heartbeat(struct kvc_channel *channel)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__HeartbeatRequest heartbeat = KV__HEARTBEAT_REQUEST__INIT;

	heartbeat.lease_epoch = channel->welcome.epoch;
	if (channel->let_go_generation == channel->welcome.generation) {
		heartbeat.let_go = channel->let_go;
		heartbeat.n_let_go = channel->let_go_count;
	}
	request.body_case = KV__REQUEST__BODY_HEARTBEAT;
	request.heartbeat = &heartbeat;
	request.id = kvc_channel_next_id(channel, KVC_ID_OTHER);
	return kvc_channel_send(channel, &request);
}

/* Send what is due; *next_ms: when to look again. The lock is held. */
static enum kv_status send_due(struct kvc_channel *channel, uint64_t *next_ms)
{
	uint64_t now = kv_now_ms();
	uint64_t silent = channel->heard_ms + channel->welcome.lease_ms;

	if (channel->give_up)
		return kv_fail(KV_DISCONNECTED,
		    "given up: a call was not answered in time, or memory could not be attached");
	if (now >= silent)
		return kv_fail(KV_DISCONNECTED, "nothing was heard from the store for %u ms",
		    channel->welcome.lease_ms);
	if (now >= channel->heartbeat_ms) {
		if (channel->remote) kv_line_reap();
		channel->heartbeat_ms = now + channel->welcome.heartbeat_ms;
		KV_TRY(send_heartbeat(channel));
	}
	if (now >= channel->counters_ms) {
		channel->counters_ms = now + KVC_COUNTERS_MS;
		if (channel->counters_new) KV_TRY(kvc_send_counters(channel, false));
	}
	*next_ms = channel->heartbeat_ms < silent ? channel->heartbeat_ms : silent;
	if (channel->counters_ms < *next_ms) *next_ms = channel->counters_ms;
	return kvc_push_due(channel, now, false, next_ms);
}

/* Until the connection breaks or the channel is closed. */
static enum kv_status serve_session(struct kvc_channel *channel)
{
	while (!kvc_channel_stopping(channel)) {
		uint64_t next = 0;
		enum kv_status status;

		pthread_mutex_lock(&channel->lock);
		status = send_due(channel, &next);
		pthread_mutex_unlock(&channel->lock);
		KV_TRY(status);
		KV_TRY(serve_once(channel, next));
	}
	return KV_OK;
}

/* The last pushes and counters go out, and the store has them when we leave: it answers in order.
 */
static void say_goodbye(struct kvc_channel *channel)
{
	uint64_t deadline = kv_now_ms() + KVC_LAST_WORDS_MS;
	uint64_t next = deadline;
	enum kv_status status;
	bool waiting = true;

	pthread_mutex_lock(&channel->lock);
	status = kvc_push_due(channel, kv_now_ms(), true, &next);
	if (status == KV_OK) status = kvc_send_counters(channel, true);
	pthread_mutex_unlock(&channel->lock);
	while (status == KV_OK && waiting && kv_now_ms() < deadline) {
		status = serve_once(channel, deadline);
		pthread_mutex_lock(&channel->lock);
		waiting = channel->answered_id != channel->counters_id || kvc_push_outstanding(channel);
		pthread_mutex_unlock(&channel->lock);
	}
}

static void back_off(struct kvc_channel *channel)
{
	uint64_t until = kv_now_ms() + channel->backoff_ms;

	channel->backoff_ms *= 2;
	if (channel->backoff_ms > KVC_BACKOFF_LAST_MS) channel->backoff_ms = KVC_BACKOFF_LAST_MS;
	while (!kvc_channel_stopping(channel) && kv_now_ms() < until)
		serve_once(channel, until);
}

void *kvc_channel_main(void *context)
{
	struct kvc_channel *channel = context;
	enum kv_status status;

	channel->backoff_ms = KVC_BACKOFF_FIRST_MS;
	while (!kvc_channel_stopping(channel)) {
		status = connect_store(channel);
		if (status == KV_OK) {
			status = serve_session(channel);
			if (status == KV_OK) break;
			lose(channel);
		} else {
			pthread_mutex_lock(&channel->lock);
			record_attempt(channel, status);
			disconnect(channel);
			pthread_mutex_unlock(&channel->lock);
		}
		back_off(channel);
	}
	if (kvc_channel_session(channel)) say_goodbye(channel);
	pthread_mutex_lock(&channel->lock);
	disconnect(channel);
	pthread_mutex_unlock(&channel->lock);
	return NULL;
}
