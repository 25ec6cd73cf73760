/* The channel as its callers see it: making one, sessions, calls and their tickets. */
#include "kvstore/client/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/check.h"
#include "common/transport/secret.h"
#include "kvstore/client/channel_internal.h"

static enum kv_status copy_settings(
    struct kvc_channel *channel, const struct kvc_channel_settings *settings)
{
	struct kv_allocator *allocator = channel->allocator;

	channel->path = kv_strdup(allocator, settings->path);
	channel->name = kv_strdup(allocator, settings->name ? settings->name : "");
	channel->kind = kv_strdup(allocator, settings->kind ? settings->kind : "gpu-worker");
	channel->model_name = kv_strdup(allocator, settings->model_name ? settings->model_name : "");
	channel->transport = kv_strdup(allocator, settings->transport ? settings->transport : "auto");
	if (!channel->path || !channel->name || !channel->kind || !channel->model_name ||
	    !channel->transport)
		return KV_NO_MEMORY;
	channel->remote = settings->secret != NULL;
	if (channel->remote) memcpy(channel->secret, settings->secret, sizeof channel->secret);
	channel->has_model = settings->model_id != NULL;
	if (settings->model_id) memcpy(channel->model_id, settings->model_id, sizeof channel->model_id);
	channel->layout = settings->layout;
	channel->staging_descriptor = settings->staging_descriptor;
	channel->staging_bytes = settings->staging_bytes;
	return KV_OK;
}

static enum kv_status open_wake_pipe(int wake[2])
{
	if (pipe(wake) != 0) {
		wake[0] = wake[1] = -1;
		return kv_fail(KV_IO, "cannot make a pipe: %s", strerror(errno));
	}
	for (int i = 0; i < 2; i++) {
		if (fcntl(wake[i], F_SETFL, O_NONBLOCK) != 0 || fcntl(wake[i], F_SETFD, FD_CLOEXEC) != 0)
			return kv_fail(KV_IO, "cannot set up a pipe: %s", strerror(errno));
	}
	return KV_OK;
}

static enum kv_status init_locks(struct kvc_channel *channel)
{
	pthread_condattr_t attributes;
	int failed;

	if (pthread_mutex_init(&channel->lock, NULL) != 0)
		return kv_fail(KV_NO_MEMORY, "cannot make a mutex");
	failed = pthread_condattr_init(&attributes);
	if (!failed) {
		pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
		failed = pthread_cond_init(&channel->changed, &attributes);
		pthread_condattr_destroy(&attributes);
	}
	if (!failed) return KV_OK;
	pthread_mutex_destroy(&channel->lock);
	return kv_fail(KV_NO_MEMORY, "cannot make a condition variable");
}

static void free_channel(struct kvc_channel *channel)
{
	struct kv_allocator *allocator = channel->allocator;

	kv_frame_writer_destroy(channel->writer);
	if (channel->wake[0] >= 0) close(channel->wake[0]);
	if (channel->wake[1] >= 0) close(channel->wake[1]);
	kv_free(allocator, channel->path);
	kv_free(allocator, channel->name);
	kv_free(allocator, channel->kind);
	kv_free(allocator, channel->model_name);
	kv_free(allocator, channel->transport);
	if (channel->remote) kv_secret_wipe(channel->secret);
	kv_free(allocator, channel);
}

enum kv_status kvc_channel_create(
    const struct kvc_channel_settings *settings, struct kvc_channel **channel)
{
	struct kvc_channel *created = kv_alloc_zero(settings->allocator, sizeof *created);
	enum kv_status status;
	int failed;

	if (!created) return KV_NO_MEMORY;
	created->allocator = settings->allocator;
	created->wake[0] = created->wake[1] = created->socket = -1;
	created->welcome.page_descriptor = -1;
	kv_list_init(&created->announced);
	kv_list_init(&created->pushers);
	KV_TRY_GOTO(status, copy_settings(created, settings), fail);
	KV_TRY_GOTO(status, open_wake_pipe(created->wake), fail);
	KV_TRY_GOTO(status, kv_frame_writer_create(created->allocator, 0, &created->writer), fail);
	KV_TRY_GOTO(status, init_locks(created), fail);
	failed = pthread_create(&created->thread, NULL, kvc_channel_main, created);
	if (failed) {
		status = kv_fail(KV_NO_MEMORY, "cannot start a thread: %s", strerror(failed));
		goto fail_locks;
	}
	*channel = created;
	return KV_OK;
fail_locks:
	pthread_cond_destroy(&created->changed);
	pthread_mutex_destroy(&created->lock);
fail:
	free_channel(created);
	return status;
}

void kvc_channel_destroy(struct kvc_channel *channel)
{
	if (!channel) return;
	pthread_mutex_lock(&channel->lock);
	channel->stopping = true;
	kvc_channel_wake(channel);
	pthread_mutex_unlock(&channel->lock);
	pthread_join(channel->thread, NULL);
	for (uint32_t i = 0; i < KVC_CHANNEL_TICKETS; i++)
		kvc_channel_free(channel, channel->tickets[i].response);
	KV_CHECK(kv_list_empty(&channel->pushers));
	pthread_cond_destroy(&channel->changed);
	pthread_mutex_destroy(&channel->lock);
	free_channel(channel);
}

/* ---- under the lock ---- */

void kvc_channel_wake(struct kvc_channel *channel)
{
	/* A full pipe wakes as well as one more byte would. */
	if (write(channel->wake[1], "w", 1) < 0) return;
}

bool kvc_channel_wait(struct kvc_channel *channel, uint64_t deadline_ms)
{
	uint64_t now = kv_now_ms();
	struct timespec until;
	uint64_t left;

	if (now >= deadline_ms) return false;
	left = deadline_ms - now;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)(left / 1000);
	until.tv_nsec += (long)(left % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(&channel->changed, &channel->lock, &until);
	return true;
}

uint64_t kvc_channel_next_id(struct kvc_channel *channel, uint8_t whose)
{
	return ++channel->next_id << 8 | whose;
}

enum kv_status kvc_channel_send(struct kvc_channel *channel, Kv__Request *request)
{
	bool hello = request->body_case == KV__REQUEST__BODY_HELLO;
	int descriptor = channel->staging_descriptor;
	uint8_t *bytes = NULL;
	size_t length = 0;
	enum kv_status status;
	int idle = 0;

	KV_TRY(kv_codec_request_pack(channel->allocator, request, &bytes, &length));
	status = kv_frame_push(channel->writer, bytes, length, &descriptor,
	    hello && request->hello->staging_descriptor ? 1 : 0);
	kv_free(channel->allocator, bytes);
	if (status != KV_OK) return status;
	/* The caller sends at once and saves a switch of threads; what is left, or has failed, the
	 * channel's thread finds out. */
	if (kv_frame_write(channel->writer, channel->socket, &idle) != KV_OK || !idle)
		kvc_channel_wake(channel);
	return KV_OK;
}

void kvc_channel_drop_regions(struct kvc_channel *channel)
{
	struct kv_list *node;

	while ((node = kv_list_pop_front(&channel->announced))) {
		struct kvc_announcement *announcement =
		    KV_CONTAINER_OF(node, struct kvc_announcement, node);

		if (announcement->region.descriptor >= 0) close(announcement->region.descriptor);
		kv_free(channel->allocator, announcement);
	}
	channel->announced_count = 0;
}

/* ---- sessions ---- */

uint64_t kvc_channel_session(const struct kvc_channel *channel)
{
	return atomic_load_explicit(&channel->session, memory_order_acquire);
}

int kvc_channel_draining(struct kvc_channel *channel)
{
	int draining;

	pthread_mutex_lock(&channel->lock);
	draining = channel->draining;
	pthread_mutex_unlock(&channel->lock);
	return draining;
}

int kvc_channel_alive(struct kvc_channel *channel)
{
	int alive;

	pthread_mutex_lock(&channel->lock);
	alive = atomic_load_explicit(&channel->session, memory_order_relaxed) != 0;
	if (alive && channel->page) {
		const _Atomic uint64_t *word =
		    (const _Atomic uint64_t *)&channel->page->lease[channel->welcome.slot];

		alive = atomic_load_explicit(word, memory_order_acquire) == channel->welcome.epoch;
	}
	pthread_mutex_unlock(&channel->lock);
	return alive;
}

enum kv_status kvc_channel_wait_session(struct kvc_channel *channel, uint32_t wait_ms)
{
	/* The first attempt ends by itself: hello has a deadline. It counts from when a name is looked
	 * up. */
	uint64_t look_up = kv_now_ms() + kvc_channel_hello_ms(channel) + 1000;
	uint64_t last = kv_now_ms() + wait_ms;
	enum kv_status status = KV_OK;

	pthread_mutex_lock(&channel->lock);
	while (!atomic_load_explicit(&channel->session, memory_order_relaxed)) {
		uint64_t until;
		bool final = channel->attempt_status == KV_PROTOCOL ||
		             channel->attempt_status == KV_REFUSED || channel->attempt_status == KV_INVALID;

		if (channel->attempts && (final || kv_now_ms() >= last)) {
			status = kv_fail(channel->attempt_status, "%s", channel->attempt_text);
			break;
		}
		until = last > look_up ? last : look_up;
		if (channel->hello_by_ms) until = channel->hello_by_ms + 1000;
		if (!kvc_channel_wait(channel, channel->attempts ? last : until)) {
			status = kv_fail(KV_TIMEOUT, "the store at %s did not answer%s", channel->path,
			    channel->remote && !channel->hello_by_ms ? ": its name is still being looked up"
			                                             : "");
			break;
		}
	}
	pthread_mutex_unlock(&channel->lock);
	return status;
}

bool kvc_channel_ends(struct kvc_channel *channel, uint64_t session, uint32_t wait_ms)
{
	const uint64_t deadline = kv_now_ms() + wait_ms;
	bool ended, in_time = true;

	pthread_mutex_lock(&channel->lock);
	while (!(ended = atomic_load_explicit(&channel->session, memory_order_relaxed) != session) &&
	       in_time)
		in_time = kvc_channel_wait(channel, deadline);
	pthread_mutex_unlock(&channel->lock);
	return ended;
}

void kvc_channel_drop(struct kvc_channel *channel)
{
	pthread_mutex_lock(&channel->lock);
	channel->give_up = true;
	kvc_channel_wake(channel);
	pthread_mutex_unlock(&channel->lock);
}

void kvc_channel_let_go(struct kvc_channel *channel, uint64_t generation, uint64_t epoch)
{
	pthread_mutex_lock(&channel->lock);
	if (channel->let_go_generation != generation) channel->let_go_count = 0;
	channel->let_go_generation = generation;
	if (channel->let_go_count == KVC_MAX_LET_GO)
		memmove(channel->let_go, channel->let_go + 1,
		    --channel->let_go_count * sizeof *channel->let_go);
	channel->let_go[channel->let_go_count++] = epoch;
	pthread_mutex_unlock(&channel->lock);
}

enum kv_status kvc_channel_welcome(struct kvc_channel *channel, struct kvc_welcome *welcome)
{
	enum kv_status status = KV_OK;
	int descriptor = -1;

	pthread_mutex_lock(&channel->lock);
	if (!atomic_load_explicit(&channel->session, memory_order_relaxed)) {
		status = kv_fail(KV_DISCONNECTED, "no connection to the store at %s: %s", channel->path,
		    channel->attempt_text);
	} else if (channel->welcome.page_descriptor >= 0) {
		descriptor = fcntl(channel->welcome.page_descriptor, F_DUPFD_CLOEXEC, 0);
		if (descriptor < 0)
			status = kv_fail(KV_IO, "cannot duplicate a descriptor: %s", strerror(errno));
	}
	if (status == KV_OK) {
		*welcome = channel->welcome;
		welcome->page_descriptor = descriptor;
	}
	pthread_mutex_unlock(&channel->lock);
	return status;
}

bool kvc_channel_take_region(struct kvc_channel *channel, struct kvc_announced *announced)
{
	struct kv_list *node;

	pthread_mutex_lock(&channel->lock);
	node = kv_list_pop_front(&channel->announced);
	if (node) {
		struct kvc_announcement *announcement =
		    KV_CONTAINER_OF(node, struct kvc_announcement, node);

		*announced = announcement->region;
		channel->announced_count--;
		kv_free(channel->allocator, announcement);
	}
	pthread_mutex_unlock(&channel->lock);
	return node != NULL;
}

/* ---- calls ---- */

static enum kv_status find_ticket(struct kvc_channel *channel, uint32_t *ticket)
{
	for (uint32_t i = 0; i < KVC_CHANNEL_TICKETS; i++) {
		if (channel->tickets[i].state == KVC_TICKET_FREE) {
			*ticket = i;
			return KV_OK;
		}
	}
	return kv_fail(KV_BUSY, "%d calls to the store are under way, that is the limit",
	    (int)KVC_CHANNEL_TICKETS);
}

static enum kv_status check_session(const struct kvc_channel *channel, uint64_t session)
{
	uint64_t current = atomic_load_explicit(&channel->session, memory_order_relaxed);

	if (!current)
		return kv_fail(KV_DISCONNECTED, "the connection to the store at %s is lost", channel->path);
	if (current != session)
		return kv_fail(KV_STALE, "the store at %s was connected to anew: open the sequence again",
		    channel->path);
	return KV_OK;
}

enum kv_status kvc_channel_start(
    struct kvc_channel *channel, uint64_t session, Kv__Request *request, uint32_t *ticket)
{
	uint32_t index = 0;
	enum kv_status status;

	pthread_mutex_lock(&channel->lock);
	KV_TRY_GOTO(status, check_session(channel, session), out);
	KV_TRY_GOTO(status, find_ticket(channel, &index), out);
	request->id = kvc_channel_next_id(channel, (uint8_t)index);
	KV_TRY_GOTO(status, kvc_channel_send(channel, request), out);
	channel->tickets[index].state = KVC_TICKET_WAITING;
	channel->tickets[index].id = request->id;
	*ticket = index;
out:
	pthread_mutex_unlock(&channel->lock);
	return status;
}

bool kvc_channel_done(struct kvc_channel *channel, uint32_t ticket)
{
	bool done;

	pthread_mutex_lock(&channel->lock);
	done = channel->tickets[ticket].state == KVC_TICKET_DONE;
	pthread_mutex_unlock(&channel->lock);
	return done;
}

void kvc_channel_abandon(struct kvc_channel *channel, uint32_t ticket)
{
	struct kvc_ticket *entry = &channel->tickets[ticket];
	Kv__Response *response;

	pthread_mutex_lock(&channel->lock);
	response = entry->response;
	entry->response = NULL;
	/* An answer that comes now finds nobody who waits under its id. */
	entry->state = KVC_TICKET_FREE;
	pthread_mutex_unlock(&channel->lock);
	kvc_channel_free(channel, response);
}

enum kv_status kvc_channel_await(struct kvc_channel *channel, uint32_t ticket, uint64_t until_ms)
{
	const struct kvc_ticket *entry = &channel->tickets[ticket];
	bool in_time = true, waiting;

	pthread_mutex_lock(&channel->lock);
	while ((waiting = entry->state == KVC_TICKET_WAITING) && in_time)
		in_time = kvc_channel_wait(channel, until_ms);
	pthread_mutex_unlock(&channel->lock);
	if (!waiting) return KV_OK;
	return kv_fail(KV_TIMEOUT, "the store at %s did not answer in time", channel->path);
}

enum kv_status kvc_channel_finish(
    struct kvc_channel *channel, uint32_t ticket, uint32_t deadline_ms, Kv__Response **response)
{
	struct kvc_ticket *entry = &channel->tickets[ticket];
	uint64_t deadline = kv_now_ms() + deadline_ms;
	enum kv_status status = KV_OK;
	Kv__Response *answer = NULL;
	bool in_time = true;

	pthread_mutex_lock(&channel->lock);
	while (entry->state == KVC_TICKET_WAITING && in_time)
		in_time = kvc_channel_wait(channel, deadline);
	if (entry->state == KVC_TICKET_WAITING) {
		status = kv_fail(
		    KV_TIMEOUT, "the store at %s did not answer within %u ms", channel->path, deadline_ms);
		channel->give_up = true;
		kvc_channel_wake(channel);
	} else {
		answer = entry->response;
		if (!answer)
			status =
			    kv_fail(KV_DISCONNECTED, "the connection to the store at %s broke", channel->path);
	}
	entry->response = NULL;
	entry->state = KVC_TICKET_FREE;
	pthread_mutex_unlock(&channel->lock);
	if (answer && answer->status) {
		status = answer->never ? KV_TOO_LARGE : kv_status_from_wire(answer->status);
		kv_fail(status, "%s", answer->message);
		kvc_channel_free(channel, answer);
		answer = NULL;
	}
	if (answer && response)
		*response = answer;
	else
		kvc_channel_free(channel, answer);
	return status;
}

enum kv_status kvc_channel_call(struct kvc_channel *channel, uint64_t session, Kv__Request *request,
    uint32_t deadline_ms, Kv__Response **response)
{
	uint32_t ticket;

	KV_TRY(kvc_channel_start(channel, session, request, &ticket));
	return kvc_channel_finish(channel, ticket, deadline_ms, response);
}

void kvc_channel_free(struct kvc_channel *channel, Kv__Response *response)
{
	kv_codec_response_free(channel->allocator, response);
}
