#include "common/transport/secure_dial.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/memory/allocator.h"
#include "common/transport/tcp_socket.h"

enum { SLICE_MS = 100, ERROR_TEXT = 256 };

static enum kv_status wait_for(const struct kv_secure_dial *dial, int socket, short events,
    uint64_t deadline_ms, const char *what)
{
	for (;;) {
		struct pollfd one = {.fd = socket, .events = events};
		const uint64_t now = kv_now_ms();
		uint64_t left;
		int ready;

		if (dial->cancelled && dial->cancelled(dial->context))
			return kv_fail(KV_CANCELLED, "closing");
		if (now >= deadline_ms)
			return kv_fail(KV_DISCONNECTED, "%s does not answer (%s)", dial->address, what);
		left = deadline_ms - now;
		ready = poll(&one, 1, (int)(left < SLICE_MS ? left : SLICE_MS));
		if (ready < 0 && errno != EINTR) return kv_fail(KV_IO, "cannot poll: %s", strerror(errno));
		if (ready > 0) return KV_OK;
	}
}

static enum kv_status connect_one(const struct kv_secure_dial *dial, const struct addrinfo *found,
    uint32_t which, uint64_t deadline_ms, int *socket)
{
	enum kv_status status;
	int made = -1;

	KV_TRY(kv_tcp_connect(dial->address, found, which, dial->silence_ms, &made));
	status = wait_for(dial, made, POLLOUT, deadline_ms, "connecting");
	if (status == KV_OK) status = kv_tcp_connected(made, dial->address);
	if (status == KV_OK)
		*socket = made;
	else
		close(made);
	return status;
}

/* Each has a share of the time that is left. */
static enum kv_status connect_any(const struct kv_secure_dial *dial, const struct addrinfo *found,
    uint32_t count, uint64_t deadline_ms, int *socket)
{
	enum kv_status status = KV_DISCONNECTED;

	for (uint32_t tried = 0; tried < count && status == KV_DISCONNECTED; tried++) {
		const uint64_t now = kv_now_ms();
		const uint64_t left = now < deadline_ms ? deadline_ms - now : 0;

		status = connect_one(dial, found, (dial->attempt % count + tried) % count,
		    now + left / (count - tried), socket);
	}
	return status;
}

static enum kv_status shake_hands(
    const struct kv_secure_dial *dial, int socket, uint64_t deadline_ms, struct kv_secure *secure)
{
	enum kv_secure_event event = KV_SECURE_WRITES;

	while (event != KV_SECURE_DONE) {
		enum kv_status status = kv_secure_handshake(secure, socket, &event);

		if (status != KV_OK) return kv_fail_prefix(status, "%s", dial->address);
		if (event != KV_SECURE_DONE)
			KV_TRY(wait_for(dial, socket, event == KV_SECURE_READS ? POLLIN : POLLOUT, deadline_ms,
			    "handshake"));
	}
	return KV_OK;
}

/* ---- the name ---- */

/* A look-up that may outlive who asked for it: the resolver cannot be interrupted. The last of both
 * sides frees it; nothing of the caller's is in it. */
struct look_up {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done, left; /* by the resolver's thread, by the caller */
	struct addrinfo *found;
	uint32_t count;
	enum kv_status status;
	char text[ERROR_TEXT];
	char address[]; /* a copy */
};

static void free_look_up(struct look_up *look_up)
{
	if (look_up->found) kv_tcp_forget(look_up->found);
	pthread_cond_destroy(&look_up->changed);
	pthread_mutex_destroy(&look_up->lock);
	kv_free(kv_heap(), look_up);
}

static void *run_look_up(void *context)
{
	struct look_up *look_up = context;
	struct addrinfo *found = NULL;
	uint32_t count = 0;
	const enum kv_status status = kv_tcp_look_up(look_up->address, &found, &count);
	bool left;

	pthread_mutex_lock(&look_up->lock);
	look_up->status = status;
	look_up->found = found;
	look_up->count = count;
	if (status != KV_OK) snprintf(look_up->text, sizeof look_up->text, "%s", kv_error_message());
	look_up->done = true;
	left = look_up->left;
	pthread_cond_signal(&look_up->changed);
	pthread_mutex_unlock(&look_up->lock);
	if (left) free_look_up(look_up);
	return NULL;
}

static struct look_up *start_look_up(const char *address)
{
	struct look_up *look_up = kv_alloc_zero(kv_heap(), sizeof *look_up + strlen(address) + 1);
	pthread_condattr_t monotonic;
	pthread_t thread;

	if (!look_up) return NULL;
	memcpy(look_up->address, address, strlen(address) + 1);
	pthread_mutex_init(&look_up->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&look_up->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	if (pthread_create(&thread, NULL, run_look_up, look_up) != 0) {
		free_look_up(look_up);
		return NULL;
	}
	pthread_detach(thread);
	return look_up;
}

static void wait_some(struct look_up *look_up)
{
	const uint64_t until = kv_now_ms() + SLICE_MS;
	const struct timespec time = {
	    .tv_sec = (time_t)(until / 1000), .tv_nsec = (long)(until % 1000) * 1000000};

	pthread_cond_timedwait(&look_up->changed, &look_up->lock, &time);
}

/* As kv_tcp_look_up, but whoever gives up does not wait for the resolver. */
static enum kv_status find_host(
    const struct kv_secure_dial *dial, struct addrinfo **found, uint32_t *count)
{
	struct look_up *look_up = dial->cancelled ? start_look_up(dial->address) : NULL;
	enum kv_status status;
	bool done;

	if (!look_up) return kv_tcp_look_up(dial->address, found, count);
	pthread_mutex_lock(&look_up->lock);
	while (!look_up->done && !dial->cancelled(dial->context))
		wait_some(look_up);
	done = look_up->done;
	look_up->left = !done;
	pthread_mutex_unlock(&look_up->lock);
	if (!done) return kv_fail(KV_CANCELLED, "closing");
	*found = look_up->found;
	*count = look_up->count;
	look_up->found = NULL;
	status = look_up->status;
	if (status != KV_OK) status = kv_fail(status, "%s", look_up->text);
	free_look_up(look_up);
	return status;
}

enum kv_status kv_secure_dial(
    const struct kv_secure_dial *dial, int *socket, struct kv_secure **secure)
{
	struct kv_secure *created = NULL;
	struct addrinfo *found = NULL;
	enum kv_status status;
	uint64_t deadline_ms;
	uint32_t count = 0;
	int made = -1;

	KV_TRY(find_host(dial, &found, &count));
	deadline_ms = kv_now_ms() + dial->timeout_ms;
	if (dial->found) dial->found(dial->context, deadline_ms);
	status = connect_any(dial, found, count, deadline_ms, &made);
	kv_tcp_forget(found);
	if (status != KV_OK) return status;
	KV_TRY_GOTO(
	    status, kv_secure_create(dial->allocator, KV_SECURE_WORKER, dial->secret, &created), fail);
	KV_TRY_GOTO(status, shake_hands(dial, made, deadline_ms, created), fail);
	*socket = made;
	*secure = created;
	return KV_OK;
fail:
	kv_secure_destroy(created);
	close(made);
	return status;
}
