/* What the channel's thread sends by itself: decoded tokens and counters. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "kvstore/client/channel_internal.h"

enum { FIRST_CAPACITY = 1024 };

static void fail_pusher(struct kvc_pusher *pusher, enum kv_status status, const char *text)
{
	pusher->failure = status;
	pusher->in_flight = 0;
	pusher->dirty = false;
	snprintf(pusher->failure_text, sizeof pusher->failure_text, "%s", text);
}

enum kv_status kvc_pusher_create(struct kvc_channel *channel, uint64_t session, uint64_t sequence,
    uint32_t decoded_so_far, struct kvc_pusher **pusher)
{
	struct kvc_pusher *created = kv_alloc_zero(channel->allocator, sizeof *created);

	if (!created) return KV_NO_MEMORY;
	/* Taken now, so that a push on the token path allocates nothing. */
	created->pending = kv_alloc_array(channel->allocator, FIRST_CAPACITY, sizeof(int32_t));
	if (!created->pending) {
		kv_free(channel->allocator, created);
		return KV_NO_MEMORY;
	}
	created->channel = channel;
	created->session = session;
	created->sequence = sequence;
	created->sent = decoded_so_far;
	created->pending_capacity = FIRST_CAPACITY;
	pthread_mutex_lock(&channel->lock);
	kv_list_push_back(&channel->pushers, &created->node);
	/* A session that has ended meanwhile takes nothing, and nobody would tell this pusher. */
	if (atomic_load_explicit(&channel->session, memory_order_relaxed) != session)
		fail_pusher(created, KV_DISCONNECTED, "the connection to the store broke");
	pthread_mutex_unlock(&channel->lock);
	*pusher = created;
	return KV_OK;
}

void kvc_pusher_destroy(struct kvc_pusher *pusher)
{
	struct kvc_channel *channel;

	if (!pusher) return;
	channel = pusher->channel;
	pthread_mutex_lock(&channel->lock);
	kv_list_remove(&pusher->node);
	pthread_mutex_unlock(&channel->lock);
	kv_free(channel->allocator, pusher->pending);
	kv_free(channel->allocator, pusher);
}

static enum kv_status pusher_status(const struct kvc_pusher *pusher)
{
	if (pusher->failure == KV_OK) return KV_OK;
	return kv_fail(pusher->failure, "%s", pusher->failure_text);
}

static enum kv_status grow(struct kvc_pusher *pusher, uint32_t count)
{
	uint32_t capacity = pusher->pending_capacity;
	int32_t *pending;

	while (capacity < count)
		capacity *= 2;
	pending = kv_realloc(pusher->channel->allocator, pusher->pending, capacity * sizeof(int32_t));
	if (!pending) return KV_NO_MEMORY;
	pusher->pending = pending;
	pusher->pending_capacity = capacity;
	return KV_OK;
}

/* Take what is new of `decoded`; under the lock. */
static enum kv_status take_tokens(struct kvc_pusher *pusher, const int32_t *decoded, uint32_t count,
    const void *sampler_state, size_t sampler_bytes)
{
	uint32_t held = pusher->sent + pusher->pending_count;
	uint32_t fresh = count - held;

	if (count < held)
		return kv_fail(KV_INVALID, "%u decoded tokens are reported after %u were", count, held);
	if (pusher->pending_count + fresh > pusher->pending_capacity)
		KV_TRY(grow(pusher, pusher->pending_count + fresh));
	if (fresh)
		memcpy(pusher->pending + pusher->pending_count, decoded + held, fresh * sizeof(int32_t));
	pusher->pending_count += fresh;
	if (sampler_bytes) memcpy(pusher->sampler, sampler_state, sampler_bytes);
	pusher->sampler_bytes = sampler_bytes;
	if (!pusher->dirty && (fresh || sampler_bytes)) {
		pusher->dirty = true;
		pusher->due_ms = kv_now_ms() + KVC_PUSH_DELAY_MS;
		kvc_channel_wake(pusher->channel);
	}
	return KV_OK;
}

enum kv_status kvc_pusher_add(struct kvc_pusher *pusher, const int32_t *decoded, uint32_t count,
    const void *sampler_state, size_t sampler_bytes)
{
	enum kv_status status;

	if (sampler_bytes > KVC_MAX_SAMPLER)
		return kv_fail(KV_LIMIT, "a sampler's state of %zu bytes is above the limit of %d",
		    sampler_bytes, (int)KVC_MAX_SAMPLER);
	pthread_mutex_lock(&pusher->channel->lock);
	status = pusher_status(pusher);
	if (status == KV_OK) status = take_tokens(pusher, decoded, count, sampler_state, sampler_bytes);
	pthread_mutex_unlock(&pusher->channel->lock);
	return status;
}

enum kv_status kvc_pusher_flush(struct kvc_pusher *pusher, uint32_t deadline_ms)
{
	struct kvc_channel *channel = pusher->channel;
	uint64_t deadline = kv_now_ms() + deadline_ms;
	bool in_time = true;
	enum kv_status status;

	pthread_mutex_lock(&channel->lock);
	if (pusher->dirty) {
		pusher->due_ms = 0;
		kvc_channel_wake(channel);
	}
	while (pusher->failure == KV_OK && (pusher->dirty || pusher->in_flight) && in_time)
		in_time = kvc_channel_wait(channel, deadline);
	status = pusher_status(pusher);
	if (status == KV_OK && (pusher->dirty || pusher->in_flight)) {
		status = kv_fail(
		    KV_TIMEOUT, "the store did not take the decoded tokens within %u ms", deadline_ms);
		channel->give_up = true;
		kvc_channel_wake(channel);
	}
	pthread_mutex_unlock(&channel->lock);
	return status;
}

/* ---- the thread's side ---- */

static enum kv_status send_push(struct kvc_pusher *pusher)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__PushRequest push = KV__PUSH_REQUEST__INIT;

	push.sequence = pusher->sequence;
	push.decoded_before = pusher->sent;
	push.tokens.data = (uint8_t *)pusher->pending;
	push.tokens.len = pusher->pending_count * sizeof(int32_t);
	push.sampler_state.data = pusher->sampler;
	push.sampler_state.len = pusher->sampler_bytes;
	request.body_case = KV__REQUEST__BODY_PUSH;
	request.push = &push;
	request.id = kvc_channel_next_id(pusher->channel, KVC_ID_PUSH);
	KV_TRY(kvc_channel_send(pusher->channel, &request));
	pusher->in_flight = request.id;
	pusher->sent += pusher->pending_count;
	pusher->pending_count = 0;
	pusher->dirty = false;
	return KV_OK;
}

enum kv_status kvc_push_due(struct kvc_channel *channel, uint64_t now, bool all, uint64_t *next_ms)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &channel->pushers)
	{
		struct kvc_pusher *pusher = KV_CONTAINER_OF(node, struct kvc_pusher, node);

		if (!pusher->dirty || pusher->session != channel->welcome.session) continue;
		/* One at a time: its answer brings the thread back here. */
		if (pusher->in_flight && !all) continue;
		if (pusher->due_ms <= now || all)
			KV_TRY(send_push(pusher));
		else if (pusher->due_ms < *next_ms)
			*next_ms = pusher->due_ms;
	}
	return KV_OK;
}

void kvc_push_answered(struct kvc_channel *channel, const Kv__Response *response)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &channel->pushers)
	{
		struct kvc_pusher *pusher = KV_CONTAINER_OF(node, struct kvc_pusher, node);

		if (pusher->in_flight != response->id) continue;
		pusher->in_flight = 0;
		if (response->status)
			fail_pusher(pusher, kv_status_from_wire(response->status), response->message);
		pthread_cond_broadcast(&channel->changed);
		return;
	}
}

void kvc_push_lost(struct kvc_channel *channel)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &channel->pushers)
	{
		struct kvc_pusher *pusher = KV_CONTAINER_OF(node, struct kvc_pusher, node);

		if (pusher->failure == KV_OK)
			fail_pusher(pusher, KV_DISCONNECTED, "the connection to the store broke");
	}
}

bool kvc_push_outstanding(const struct kvc_channel *channel)
{
	const struct kv_list *node;

	KV_LIST_EACH(node, &channel->pushers)
	{
		const struct kvc_pusher *pusher =
		    KV_CONTAINER_OF((struct kv_list *)(uintptr_t)node, struct kvc_pusher, node);

		if (pusher->in_flight) return true;
	}
	return false;
}

void kvc_channel_report(
    struct kvc_channel *channel, const struct kvc_counter *counters, uint32_t count)
{
	if (count > KVC_MAX_COUNTERS) count = KVC_MAX_COUNTERS;
	pthread_mutex_lock(&channel->lock);
	if (count) memcpy(channel->counters, counters, count * sizeof *counters);
	channel->counter_count = count;
	channel->counters_new = true;
	pthread_mutex_unlock(&channel->lock);
}

void kvc_channel_set_lanes(struct kvc_channel *channel, const char *lanes)
{
	pthread_mutex_lock(&channel->lock);
	snprintf(channel->lanes, sizeof channel->lanes, "%s", lanes);
	channel->counters_new = true;
	pthread_mutex_unlock(&channel->lock);
}

enum kv_status kvc_send_counters(struct kvc_channel *channel, bool leaving)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__CountersRequest counters = KV__COUNTERS_REQUEST__INIT;
	char *names[KVC_MAX_COUNTERS];
	double values[KVC_MAX_COUNTERS];

	for (uint32_t i = 0; i < channel->counter_count; i++) {
		names[i] = (char *)(uintptr_t)channel->counters[i].name;
		values[i] = channel->counters[i].value;
	}
	counters.names = names;
	counters.n_names = channel->counter_count;
	counters.values = values;
	counters.n_values = channel->counter_count;
	counters.lanes = channel->lanes;
	counters.leaving = leaving;
	request.body_case = KV__REQUEST__BODY_COUNTERS;
	request.counters = &counters;
	request.id = kvc_channel_next_id(channel, KVC_ID_OTHER);
	channel->counters_id = request.id;
	channel->counters_new = false;
	return kvc_channel_send(channel, &request);
}
