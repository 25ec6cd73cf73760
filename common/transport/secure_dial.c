#include "common/transport/secure_dial.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/tcp_socket.h"

enum { SLICE_MS = 100 };

static enum kv_status wait_for(
    const struct kv_secure_dial *dial, int socket, short events, const char *what)
{
	for (;;) {
		struct pollfd one = {.fd = socket, .events = events};
		const uint64_t now = kv_now_ms();
		uint64_t left;
		int ready;

		if (dial->cancelled && dial->cancelled(dial->context))
			return kv_fail(KV_CANCELLED, "closing");
		if (now >= dial->deadline_ms)
			return kv_fail(KV_DISCONNECTED, "%s does not answer (%s)", dial->address, what);
		left = dial->deadline_ms - now;
		ready = poll(&one, 1, (int)(left < SLICE_MS ? left : SLICE_MS));
		if (ready < 0 && errno != EINTR) return kv_fail(KV_IO, "cannot poll: %s", strerror(errno));
		if (ready > 0) return KV_OK;
	}
}

static enum kv_status shake_hands(
    const struct kv_secure_dial *dial, int socket, struct kv_secure *secure)
{
	enum kv_secure_event event = KV_SECURE_WRITES;

	while (event != KV_SECURE_DONE) {
		enum kv_status status = kv_secure_handshake(secure, socket, &event);

		if (status != KV_OK) return kv_fail_prefix(status, "%s", dial->address);
		if (event != KV_SECURE_DONE)
			KV_TRY(
			    wait_for(dial, socket, event == KV_SECURE_READS ? POLLIN : POLLOUT, "handshake"));
	}
	return KV_OK;
}

enum kv_status kv_secure_dial(
    const struct kv_secure_dial *dial, int *socket, struct kv_secure **secure)
{
	struct kv_secure *created = NULL;
	enum kv_status status;
	int made = -1;

	KV_TRY(kv_tcp_connect(dial->address, dial->silence_ms, dial->attempt, &made));
	KV_TRY_GOTO(status, wait_for(dial, made, POLLOUT, "connecting"), fail);
	KV_TRY_GOTO(status, kv_tcp_connected(made, dial->address), fail);
	KV_TRY_GOTO(
	    status, kv_secure_create(dial->allocator, KV_SECURE_WORKER, dial->secret, &created), fail);
	KV_TRY_GOTO(status, shake_hands(dial, made, created), fail);
	*socket = made;
	*secure = created;
	return KV_OK;
fail:
	kv_secure_destroy(created);
	close(made);
	return status;
}
