/* Who may come in, and as what. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/transport_map.h"
#include "kvstore/server/server_internal.h"

static enum kv_status check_version(const Kv__HelloRequest *hello)
{
	if (hello->protocol_version == KV_PROTOCOL_VERSION) return KV_OK;
	return kv_fail(KV_PROTOCOL,
	    "this store (%s) speaks protocol version %d, the peer (%s) speaks %u: install the same "
	    "release "
	    "of both",
	    KV_VERSION, (int)KV_PROTOCOL_VERSION, hello->build[0] ? hello->build : "unknown",
	    hello->protocol_version);
}

enum kv_status kvs_check_draining(const struct kvs_server *server)
{
	if (!server->draining) return KV_OK;
	return kv_fail(KV_DRAINING,
	    "the store is being drained and takes in no new work: try another one, or later");
}

/* Of one on another host: the encrypted stream, unless it asks for a line and may have one. */
static enum kv_status agree_remote(struct kvs_peer *peer, const char *asked)
{
	if (strcmp(asked, "auto") == 0 || strcmp(asked, KVS_STREAM) == 0) return KV_OK;
	if (strcmp(asked, KVS_BY_UCX) != 0)
		return kv_fail(KV_REFUSED,
		    "the worker asks for transport=%s, but workers on other hosts have their bytes through "
		    "the encrypted stream: use auto, or stream",
		    asked);
	if (!peer->server->remote.trusts)
		return kv_fail(KV_REFUSED,
		    "the worker asks for transport=ucx, but this store trusts no network: start kvstored "
		    "with --trusted-network, or use transport=stream, which is encrypted");
	peer->by_ucx = true;
	return KV_OK;
}

static enum kv_status check_transport(struct kvs_peer *peer, const Kv__HelloRequest *hello)
{
	const char *ours = peer->server->transport->name;
	const bool fits = strcmp(hello->transport, "auto") == 0 || strcmp(hello->transport, ours) == 0;

	if (peer->secure) return agree_remote(peer, hello->transport);
	if (!fits)
		return kv_fail(KV_REFUSED,
		    "the worker asks for transport=%s, this store serves transport=%s: use auto, or start "
		    "the "
		    "store with --transport=%s",
		    hello->transport, ours, hello->transport);
	if (peer->server->transport == &kv_transport_ucx &&
	    peer->credentials.uid != (uint32_t)geteuid())
		return kv_fail(KV_REFUSED,
		    "the worker runs as user %u, the store as %u: ucx needs the same user, start the store "
		    "with --transport=map",
		    peer->credentials.uid, (unsigned)geteuid());
	return KV_OK;
}

static enum kv_status take_staging(struct kvs_peer *peer, const Kv__HelloRequest *hello)
{
	int descriptor;

	if (peer->secure || peer->server->transport != &kv_transport_map) return KV_OK;
	descriptor = kv_frame_take_descriptor(peer->reader);
	if (!hello->staging_descriptor || descriptor < 0)
		return kv_fail(KV_PROTOCOL, "a worker passes staging memory with its hello");
	if (!hello->staging_bytes || hello->staging_bytes > KVS_MAX_STAGING) {
		close(descriptor);
		return kv_fail(KV_LIMIT, "staging memory of %llu bytes is above the limit of %llu",
		    (unsigned long long)hello->staging_bytes, (unsigned long long)KVS_MAX_STAGING);
	}
	KV_TRY(kv_staging_accept(descriptor, hello->staging_bytes, &peer->staging));
	peer->staging_bytes = hello->staging_bytes;
	return KV_OK;
}

static enum kv_status add_to_engine(struct kvs_peer *peer, const Kv__HelloRequest *hello)
{
	struct kvs_server *server = peer->server;
	struct kvs_peer_request request = {
	    .name = peer->name, .model_id = hello->model_id.data, .model_name = hello->model_name};
	enum kv_status status;

	KV_TRY(kv_codec_layout_from_wire(hello->layout, &request.layout));
	KV_TRY(kvw_model_layout_check(&request.layout));
	/* Else all share what they store: whoever gets in can read the arena. */
	if (server->settings->isolation || server->quotas.named) request.tenant = peer->tenant->name;
	if (server->settings->isolation && !peer->secure) KV_TRY(kvs_tenant_page(peer->tenant));
	server->joining_page = peer->tenant->page;
	status = kvs_peer_add(server->engine, &request, &peer->slot, &peer->epoch);
	if (status == KV_LIMIT && kvs_peers_make_room(server))
		status = kvs_peer_add(server->engine, &request, &peer->slot, &peer->epoch);
	if (status != KV_OK) return status;
	peer->slot_taken = true;
	return KV_OK;
}

static void sanitize_name(char *name, size_t size, const char *given, int pid)
{
	size_t length = 0;

	for (; *given && length + 1 < size; given++) {
		char c = *given;
		bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		            c == '.' || c == '_' || c == '-';

		name[length++] = fine ? c : '_';
	}
	name[length] = '\0';
	if (!length) snprintf(name, size, "pid-%d", pid);
}

static void greet(struct kvs_peer *peer, struct kvs_answer *answer)
{
	const struct kvs_server *server = peer->server;
	Kv__HelloResponse *hello = &answer->body.hello;

	kv__hello_response__init(hello);
	hello->boot_generation = kvs_engine_generation(server->engine);
	hello->transport = (char *)(uintptr_t)(peer->by_ucx   ? KVS_BY_UCX
	                                       : peer->secure ? KVS_STREAM
	                                                      : server->transport->name);
	hello->lease_ms = kvs_engine_lease_ms(server->engine);
	hello->heartbeat_ms = (uint32_t)server->settings->heartbeat_ms;
	hello->build = (char *)(uintptr_t)KV_VERSION;
	hello->protocol_version = KV_PROTOCOL_VERSION;
	if (peer->slot_taken) {
		hello->lease_slot = peer->slot;
		hello->lease_epoch = peer->epoch;
	}
	/* What shares no memory with the store has no use for these. */
	if (peer->slot_taken && !peer->secure) {
		hello->transport_address.data = (uint8_t *)(uintptr_t)server->address.bytes;
		hello->transport_address.len = server->address.length;
		hello->has_control_page = true;
	}
	answer->response.body_case = KV__RESPONSE__BODY_HELLO;
	answer->response.hello = hello;
}

static enum kv_status admit_worker(struct kvs_peer *peer, const Kv__HelloRequest *hello)
{
	struct kvs_server *server = peer->server;

	KV_TRY(kvs_check_draining(server));
	KV_TRY(check_transport(peer, hello));
	KV_TRY(take_staging(peer, hello));
	KV_TRY(add_to_engine(peer, hello));
	KV_TRY(kv_state_move(&peer->state, KVS_WORKING, peer));
	peer->worker = kvs_worker_arrived(server, peer, hello);
	if (kv_log_allows(&server->worker_log, KVS_MODULE))
		kv_info(KVS_MODULE, "worker joined name=%s slot=%u pid=%d uid=%u from=%s model=%s",
		    peer->name, peer->slot, (int)peer->credentials.pid, peer->credentials.uid,
		    peer->secure ? peer->from : "here", hello->model_name);
	return KV_OK;
}

static enum kv_status admit_guest(struct kvs_peer *peer)
{
	KV_TRY(kvs_tenant_check_guests(peer->tenant));
	return kv_state_move(&peer->state, KVS_GUEST, peer);
}

enum kv_status kvs_handle_hello(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const Kv__HelloRequest *hello = request->hello;
	struct kv_metrics *metrics = peer->server->metrics;
	enum kv_status status;

	answer->close_after = true;
	sanitize_name(peer->name, sizeof peer->name, hello->client_name, (int)peer->credentials.pid);
	status = check_version(hello);
	if (status != KV_OK) {
		kv_metrics_add(metrics, KVS_REFUSED_VERSION, 1);
		kv_warning_limited(&peer->server->peer_log, KVS_MODULE,
		    "peer refused name=%s pid=%d from=%s: %s", peer->name, (int)peer->credentials.pid,
		    peer->from, kv_error_message());
		return status;
	}
	if (hello->model_id.len)
		status = admit_worker(peer, hello);
	else
		status = admit_guest(peer);
	if (status != KV_OK) {
		kv_metrics_add(metrics, KVS_REFUSED_HELLO, 1);
		kv_warning_limited(&peer->server->peer_log, KVS_MODULE,
		    "peer refused name=%s pid=%d from=%s: %s", peer->name, (int)peer->credentials.pid,
		    peer->from, kv_error_message());
		return status;
	}
	greet(peer, answer);
	answer->close_after = false;
	return KV_OK;
}

enum kv_status kvs_handle_heartbeat(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	(void)answer;
	if (!peer->slot_taken) return KV_OK;
	for (size_t i = 0; i < request->heartbeat->n_let_go; i++)
		kvs_mourned_let_go(peer->server, peer->credentials.pid, request->heartbeat->let_go[i]);
	return kvs_peer_heartbeat(peer->server->engine, peer->slot, request->heartbeat->lease_epoch);
}

enum kv_status kvs_handle_counters(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	(void)answer;
	if (peer->worker) kvs_worker_counters(peer->server, peer->worker, request->counters);
	peer->leaving = request->counters->leaving;
	return KV_OK;
}
