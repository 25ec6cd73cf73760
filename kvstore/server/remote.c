/* Workers on other hosts, up to the moment at which they have shown that they know the secret.
 *
 * Whoever reaches the address can come this far: each connection has less than 4 KiB and five
 * seconds, and there are few of them. When one more comes the oldest goes, so that those who hold
 * connections open and say nothing keep nobody out who is quick. */
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/transport/line.h"
#include "common/transport/secret.h"
#include "kvstore/server/server_internal.h"

struct arrival {
	struct kv_list node;
	struct kvs_server *server;
	int socket;
	struct kv_watch *watch;
	struct kv_secure *secure;
	uint64_t since_ms;
	char from[KV_TCP_TEXT];
};

static struct arrival *arrival_of(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct arrival, node);
}

/* Its socket and channel are somebody else's by now, or are closed here. */
static void forget(struct arrival *arrival)
{
	struct kvs_server *server = arrival->server;

	kv_list_remove(&arrival->node);
	server->remote.arriving_count--;
	kv_watch_close(arrival->watch);
	if (arrival->socket >= 0) close(arrival->socket);
	kv_secure_destroy(arrival->secure);
	kv_free(server->allocator, arrival);
}

static void refuse(struct arrival *arrival, enum kv_status status, const char *why)
{
	struct kvs_server *server = arrival->server;

	kv_metrics_add(
	    server->metrics, status == KV_REFUSED ? KVS_REFUSED_SECRET : KVS_REFUSED_HANDSHAKE, 1);
	kv_warning_limited(&server->peer_log, KVS_MODULE,
	    "remote connection refused from=%s reason=\"%s\"", arrival->from, why);
	forget(arrival);
}

static void on_arrival(void *context, struct kv_watch *watch, unsigned events)
{
	struct arrival *arrival = context;
	struct kvs_server *server = arrival->server;
	enum kv_secure_event event = KV_SECURE_READS;
	enum kv_status status = kv_secure_handshake(arrival->secure, arrival->socket, &event);
	struct kv_secure *secure = arrival->secure;
	int socket = arrival->socket;
	char from[KV_TCP_TEXT];

	(void)events;
	if (status != KV_OK) {
		refuse(arrival, status, kv_error_message());
		return;
	}
	if (event != KV_SECURE_DONE) {
		kv_watch_update(watch, event == KV_SECURE_READS ? KV_LOOP_READABLE : KV_LOOP_WRITABLE);
		return;
	}
	memcpy(from, arrival->from, sizeof from);
	arrival->secure = NULL;
	arrival->socket = -1;
	forget(arrival);
	kvs_peer_arrived(server, socket, secure, from);
}

static enum kv_status welcome(struct kvs_server *server, int socket, const char *from)
{
	struct arrival *arrival = kv_alloc_zero(server->allocator, sizeof *arrival);
	enum kv_status status;

	if (!arrival) return KV_NO_MEMORY;
	arrival->server = server;
	arrival->socket = socket;
	arrival->since_ms = kv_now_ms();
	memcpy(arrival->from, from, sizeof arrival->from);
	KV_TRY_GOTO(status,
	    kv_secure_create(
	        server->allocator, KV_SECURE_STORE, server->remote.secret, &arrival->secure),
	    fail);
	KV_TRY_GOTO(status,
	    kv_loop_watch_fd(
	        server->loop, socket, KV_LOOP_READABLE, on_arrival, arrival, &arrival->watch),
	    fail);
	kv_list_push_back(&server->remote.arriving, &arrival->node);
	server->remote.arriving_count++;
	return KV_OK;
fail:
	kv_secure_destroy(arrival->secure);
	kv_free(server->allocator, arrival);
	return status;
}

static void on_listener(void *context, struct kv_watch *watch, unsigned events)
{
	struct kvs_server *server = context;
	struct kvs_remote *remote = &server->remote;

	(void)events;
	for (int turn = 0; turn < KVS_FRAMES_A_TURN; turn++) {
		char from[KV_TCP_TEXT];
		int socket = -1;
		enum kv_status status =
		    kv_tcp_accept(remote->listener, (uint32_t)server->settings->lease_ms, &socket, from);

		if (status != KV_OK) {
			kv_warning(KVS_MODULE, "cannot accept a connection: %s", kv_error_message());
			remote->listen_again_ms = kv_now_ms() + 1000;
			kv_watch_update(watch, 0);
			return;
		}
		if (socket < 0) return;
		kv_metrics_add(server->metrics, KVS_REMOTE_CONNECTIONS, 1);
		if (remote->arriving_count >= KVS_MAX_ARRIVING)
			refuse(arrival_of(kv_list_first(&remote->arriving)), KV_LIMIT,
			    "others came before it had shown the secret");
		if (welcome(server, socket, from) == KV_OK) continue;
		kv_warning_limited(
		    &server->peer_log, KVS_MODULE, "connection refused: %s", kv_error_message());
		close(socket);
	}
}

static enum kv_status trust_network(struct kvs_server *server)
{
	const char *named = server->settings->trusted_network;
	struct kvs_remote *remote = &server->remote;

	if (!named || !*named) return KV_OK;
	KV_TRY(kv_trusted_network_find(named, &remote->network));
	remote->trusts = true;
	kv_warning(KVS_MODULE,
	    "trusted network device=%s address=%s: key/values that workers on other hosts fetch by UCX "
	    "go over it neither encrypted nor authenticated, everybody on it can read and change them",
	    remote->network.device, remote->network.rdma ? "rdma" : remote->network.address);
	return KV_OK;
}

enum kv_status kvs_remote_listen(struct kvs_server *server)
{
	const struct kvs_settings *settings = server->settings;
	struct kvs_remote *remote = &server->remote;

	if (!settings->listen || !*settings->listen) return KV_OK;
	KV_TRY(kv_secret_read(settings->secret_file, remote->secret));
	KV_TRY(kv_tcp_listen(settings->listen, KV_TCP_BACKLOG, &remote->listener, remote->where));
	kv_info(KVS_MODULE, "workers of other hosts may connect listen=%s tenant=%s", remote->where,
	    settings->remote_tenant);
	KV_TRY(trust_network(server));
	return kv_loop_watch_fd(
	    server->loop, remote->listener, KV_LOOP_READABLE, on_listener, server, &remote->watch);
}

void kvs_remote_tick(struct kvs_server *server, uint64_t now)
{
	struct kvs_remote *remote = &server->remote;
	struct kv_list *node;

	if (remote->trusts) kv_line_reap();
	while ((node = kv_list_first(&remote->arriving)) &&
	       now - arrival_of(node)->since_ms >= KVS_GREETING_MS)
		refuse(arrival_of(node), KV_TIMEOUT, "did not show the secret in time");
	if (remote->listen_again_ms && now >= remote->listen_again_ms) {
		remote->listen_again_ms = 0;
		kv_watch_update(remote->watch, KV_LOOP_READABLE);
	}
}

void kvs_remote_stop(struct kvs_server *server)
{
	struct kvs_remote *remote = &server->remote;
	struct kv_list *node;

	kv_watch_close(remote->watch);
	remote->watch = NULL;
	if (remote->listener >= 0) close(remote->listener);
	remote->listener = -1;
	while ((node = kv_list_first(&remote->arriving)))
		forget(arrival_of(node));
	kv_secret_wipe(remote->secret);
}
