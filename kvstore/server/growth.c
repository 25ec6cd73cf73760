/* Making memory without keeping anybody waiting for it longer than one region takes.
 *
 * A region takes a tenth of a second to a second, and a large reservation wants several. So regions
 * are made ahead, one a turn of the loop; a reservation that wants more waits for them while
 * heartbeats are answered; and one spare is kept for the next.
 */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kvstore/server/server_internal.h"

enum { RETRY_MS = 5000, NEXT_TURN_MS = 1 };

enum kv_status kvs_region_make(
    struct kvs_server *server, uint64_t bytes, struct kvs_region **region)
{
	struct kvs_region *made = kv_alloc_zero(server->allocator, sizeof *made);
	uint64_t start = kv_now_ns();
	enum kv_status status;

	if (!made) return KV_NO_MEMORY;
	kv_sd_extend_timeout(server->notify, 30000);
	kv_list_init(&made->node);
	status = server->transport->region_create(
	    server->transport_server, bytes, &made->region, &made->base);
	if (status != KV_OK) {
		kv_free(server->allocator, made);
		return status;
	}
	made->bytes = bytes;
	kv_info(KVS_MODULE, "memory made bytes=%llu seconds=%.3f", (unsigned long long)bytes,
	    kv_seconds_since(start));
	*region = made;
	return KV_OK;
}

void kvs_region_free(struct kvs_server *server, struct kvs_region *region)
{
	kv_list_remove(&region->node);
	server->transport->region_destroy(server->transport_server, region->region);
	kv_free(server->allocator, region);
}

/* ---- spares ---- */

struct kvs_region *kvs_spare_take(struct kvs_server *server, uint64_t bytes)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &server->spares)
	{
		struct kvs_region *spare = KV_CONTAINER_OF(node, struct kvs_region, node);

		if (spare->bytes != bytes) continue;
		kv_list_remove(&spare->node);
		server->spare_bytes -= bytes;
		return spare;
	}
	return NULL;
}

void kvs_spares_free(struct kvs_server *server)
{
	struct kv_list *node;

	while ((node = kv_list_first(&server->spares)))
		kvs_region_free(server, KV_CONTAINER_OF(node, struct kvs_region, node));
	server->spare_bytes = 0;
}

/* The size that the engine asks for when it grows next, 0 at the limit. */
static uint64_t next_bytes(const struct kvs_server *server, const struct kvs_statistics *now)
{
	uint64_t taken = now->region_bytes + server->spare_bytes;
	uint64_t left = taken < now->limit_bytes ? now->limit_bytes - taken : 0;

	return left < server->usual_region ? left : server->usual_region;
}

static bool can_grow(const struct kvs_server *server, const struct kvs_statistics *now)
{
	return kv_now_ms() >= server->grow_again_ms && next_bytes(server, now) > 0;
}

/* ---- reservations that wait ---- */

bool kvs_growth_needed(struct kvs_server *server, uint64_t bytes)
{
	struct kvs_statistics now;
	uint64_t held;

	kvs_engine_statistics(server->engine, &now);
	held = now.leased_bytes + now.reserved_bytes + now.quarantined_bytes;
	/* What cannot be had is refused at once, and not after everything was taken. */
	if (held > now.limit_bytes || bytes > now.limit_bytes - held) return false;
	return now.free_bytes + server->spare_bytes < bytes && can_grow(server, &now);
}

void kvs_growth_start(struct kvs_server *server)
{
	if (server->growth) kv_timer_start(server->growth, NEXT_TURN_MS, 0);
}

/* For memory that is made, or for what the disk tier keeps for the moment of a copy. */
static bool must_wait(struct kvs_server *server, const struct kvs_peer *peer)
{
	if (peer->growing_until_ms)
		return kvs_disk_holds(server) && kv_now_ms() < peer->growing_until_ms;
	return kvs_growth_needed(server, peer->growing_bytes);
}

/* Serve the reservations that have what they need, or will not get it. */
static void serve_waiting(struct kvs_server *server)
{
	struct kv_list *node;
	struct kv_list *following;

	KV_LIST_EACH_SAFE(node, following, &server->peers)
	{
		struct kvs_peer *peer = KV_CONTAINER_OF(node, struct kvs_peer, node);

		if (peer->growing && !must_wait(server, peer)) kvs_peer_grown(peer);
	}
	kvs_disk_grown(server);
}

/* The largest wish of those that wait. */
static uint64_t wished_bytes(const struct kvs_server *server)
{
	const struct kv_list *node;
	uint64_t most = kvs_disk_wished_bytes(server);

	KV_LIST_EACH(node, &server->peers)
	{
		const struct kvs_peer *peer =
		    KV_CONTAINER_OF((struct kv_list *)(uintptr_t)node, struct kvs_peer, node);

		if (peer->growing && peer->growing_bytes > most) most = peer->growing_bytes;
	}
	return most;
}

/* Nobody has reserved anything for a while: memory that is made ahead goes back, too. */
static bool at_rest(struct kvs_server *server, const struct kvs_statistics *now)
{
	const uint64_t after = server->settings->release_idle_ms;

	if (now->reserves != server->reserves_seen || !server->reserved_ms) {
		server->reserves_seen = now->reserves;
		server->reserved_ms = kv_now_ms();
	}
	return after > 0 && kv_now_ms() - server->reserved_ms >= after;
}

static bool wants_more(struct kvs_server *server)
{
	struct kvs_statistics now;
	uint64_t wished = wished_bytes(server);

	kvs_engine_statistics(server->engine, &now);
	if (!can_grow(server, &now)) return false;
	if (now.free_bytes + server->spare_bytes < wished) return true;
	if (at_rest(server, &now)) return false;
	return !server->spare_bytes && now.free_bytes < server->usual_region / 2;
}

static void make_spare(struct kvs_server *server)
{
	struct kvs_statistics now;
	struct kvs_region *spare = NULL;

	kvs_engine_statistics(server->engine, &now);
	if (kvs_region_make(server, next_bytes(server, &now), &spare) == KV_OK) {
		kv_list_push_back(&server->spares, &spare->node);
		server->spare_bytes += spare->bytes;
		return;
	}
	server->grow_again_ms = kv_now_ms() + RETRY_MS;
	kv_warning(KVS_MODULE, "the arena cannot grow: %s", kv_error_message());
}

static void on_growth(void *context)
{
	struct kvs_server *server = context;

	if (wants_more(server)) make_spare(server);
	serve_waiting(server);
	if (wants_more(server)) kvs_growth_start(server);
}

enum kv_status kvs_growth_open(struct kvs_server *server)
{
	return kv_loop_timer(server->loop, NEXT_TURN_MS, 0, on_growth, server, &server->growth);
}

void kvs_growth_tick(struct kvs_server *server)
{
	struct kvs_statistics now;

	kvs_engine_statistics(server->engine, &now);
	if (at_rest(server, &now) && !wished_bytes(server)) kvs_spares_free(server);
	serve_waiting(server);
	if (wants_more(server)) kvs_growth_start(server);
}
