#include "common/transport/secure_dial.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/tcp_socket.h"

enum { SLICE_MS = 100 };

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

enum kv_status kv_secure_dial(
    const struct kv_secure_dial *dial, int *socket, struct kv_secure **secure)
{
	struct kv_secure *created = NULL;
	struct addrinfo *found = NULL;
	enum kv_status status;
	uint64_t deadline_ms;
	uint32_t count = 0;
	int made = -1;

	KV_TRY(kv_tcp_look_up(dial->address, &found, &count));
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
