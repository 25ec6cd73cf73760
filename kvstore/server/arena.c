/* Memory for the engine: the transport, its regions, and the control page. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/random.h"
#include "common/transport/machine_memory.h"
#include "common/transport/transport_map.h"
#include "kvstore/server/server_internal.h"

/* ---- the transport ---- */

static void on_transport(void *context, struct kv_watch *watch, unsigned events)
{
	/* The progress before the next wait does the work. */
	(void)context;
	(void)watch;
	(void)events;
}

static bool before_block(void *context)
{
	struct kvs_server *server = context;

	server->progressed++;
	while (server->transport->server_progress(server->transport_server)) {
	}
	return server->transport->server_arm(server->transport_server) != 0;
}

static enum kv_status start_transport(
    struct kvs_server *server, const struct kv_transport_ops *transport)
{
	struct kv_transport_server *created = NULL;
	enum kv_status status;
	int descriptor;

	KV_TRY(transport->server_create(server->allocator, &created));
	KV_TRY_GOTO(status, transport->server_address(created, &server->address), fail);
	descriptor = transport->server_descriptor(created);
	if (descriptor >= 0)
		KV_TRY_GOTO(status,
		    kv_loop_watch_fd(server->loop, descriptor, KV_LOOP_READABLE, on_transport, server,
		        &server->transport_watch),
		    fail);
	server->transport = transport;
	server->transport_server = created;
	return KV_OK;
fail:
	transport->server_destroy(created);
	return status;
}

/* Room for the arena in /dev/shm, where UCX puts it. */
static enum kv_status check_shm(const struct kvs_server *server)
{
	struct kv_machine_memory machine;
	char asked[KV_PARSE_TEXT_SIZE];
	char there[KV_PARSE_TEXT_SIZE];

	KV_TRY(kv_machine_memory_read("", &machine));
	if (machine.shm_room >= server->settings->memory) return KV_OK;
	return kv_fail(KV_LIMIT,
	    "/dev/shm has room for %s, the arena may take %s: enlarge it, or use --transport=map",
	    kv_format_size(machine.shm_room & ~UINT64_C(0xfffff), there),
	    kv_format_size(server->settings->memory, asked));
}

static enum kv_status start_ucx(struct kvs_server *server)
{
	KV_TRY(check_shm(server));
	return start_transport(server, &kv_transport_ucx);
}

enum kv_status kvs_arena_start(struct kvs_server *server)
{
	enum kvs_transport_choice choice = (enum kvs_transport_choice)server->settings->transport;
	char why[512] = "it was asked for";

	if (server->settings->isolation) {
		snprintf(why, sizeof why, "isolation is on, UCX is not opened");
		/* Another process of the same user does not trace it or take its descriptors either. */
		prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
		KV_TRY(start_transport(server, &kv_transport_map));
	} else if (choice == KVS_TRANSPORT_UCX) {
		KV_TRY(start_ucx(server));
	} else if (choice == KVS_TRANSPORT_MAP) {
		KV_TRY(start_transport(server, &kv_transport_map));
	} else if (start_ucx(server) == KV_OK) {
		snprintf(why, sizeof why, "it works here and /dev/shm has room");
	} else {
		snprintf(why, sizeof why, "%s", kv_error_message());
		KV_TRY(start_transport(server, &kv_transport_map));
	}
	kv_info(KVS_MODULE, "transport=%s because: %s", server->transport->name, why);
	return kv_loop_before_block(server->loop, before_block, server);
}

void kvs_arena_stop(struct kvs_server *server)
{
	if (!server->transport) return;
	kvs_spares_free(server);
	kv_loop_before_block(server->loop, NULL, NULL);
	kv_watch_close(server->transport_watch);
	server->transport->server_destroy(server->transport_server);
	server->transport = NULL;
}

/* ---- the engine's environment ---- */

static uint64_t engine_now(void *context)
{
	(void)context;
	return kv_now_ms();
}

static uint64_t engine_random(void *context)
{
	(void)context;
	return kv_random_entropy();
}

static enum kv_status region_create(void *context, uint32_t index, uint64_t bytes, uint8_t **base)
{
	struct kvs_server *server = context;
	struct kvs_region *region = kvs_spare_take(server, bytes);

	if (!region) {
		/* A region of another size than was expected: the spares must not add to the limit. */
		kvs_spares_free(server);
		KV_TRY(kvs_region_make(server, bytes, &region));
	}
	region->index = index;
	region->serial = ++server->region_serial;
	kv_list_push_back(&server->regions, &region->node);
	*base = region->base;
	return KV_OK;
}

static void region_destroy(void *context, uint32_t index)
{
	struct kvs_server *server = context;
	struct kv_list *node;

	KV_LIST_EACH(node, &server->regions)
	{
		struct kvs_region *region = KV_CONTAINER_OF(node, struct kvs_region, node);

		if (region->index != index) continue;
		kvs_peers_region_gone(server, region);
		kvs_region_free(server, region);
		return;
	}
}

static void region_owned(void *context, uint32_t index, const char *tenant)
{
	struct kvs_server *server = context;
	struct kv_list *node;

	KV_LIST_EACH(node, &server->regions)
	{
		struct kvs_region *region = KV_CONTAINER_OF(node, struct kvs_region, node);

		if (region->index == index) snprintf(region->tenant, sizeof region->tenant, "%s", tenant);
	}
}

static void lease_changed(void *context, uint32_t slot, uint64_t epoch)
{
	struct kvs_server *server = context;
	struct kvw_control_page *page;

	if (epoch) server->slot_page[slot] = server->joining_page;
	page = server->slot_page[slot] ? server->slot_page[slot] : server->page;
	atomic_store_explicit((_Atomic uint64_t *)&page->lease[slot], epoch, memory_order_release);
	/* What the engine does next, reusing memory above all, must not be seen before this word. */
	atomic_thread_fence(memory_order_seq_cst);
}

struct kvs_environment kvs_arena_environment(struct kvs_server *server)
{
	return (struct kvs_environment){.context = server,
	    .now_ms = engine_now,
	    .random64 = engine_random,
	    .region_create = region_create,
	    .region_destroy = region_destroy,
	    .region_owned = region_owned,
	    .lease_changed = lease_changed};
}

/* ---- the control page ---- */

enum kv_status kvs_control_page_start(struct kvs_server *server)
{
	return kv_control_page_create(&server->page, &server->page_descriptor);
}

void kvs_control_page_fill(struct kvs_server *server)
{
	kvs_control_page_write(server, server->page);
}

void kvs_control_page_write(const struct kvs_server *server, void *untyped)
{
	struct kvw_control_page *page = untyped;

	page->magic = KVW_CONTROL_MAGIC;
	page->version = KV_PROTOCOL_VERSION;
	atomic_store_explicit((_Atomic uint64_t *)&page->boot_generation,
	    kvs_engine_generation(server->engine), memory_order_release);
}

static void end_page(void *untyped)
{
	struct kvw_control_page *page = untyped;

	if (page)
		atomic_store_explicit((_Atomic uint64_t *)&page->boot_generation, 0, memory_order_release);
}

void kvs_control_page_end(struct kvs_server *server)
{
	struct kv_list *node;

	end_page(server->page);
	KV_LIST_EACH(node, &server->tenants)
	end_page(KV_CONTAINER_OF(node, struct kvs_tenant, node)->page);
	/* The leases that end now are seen after this word, not as ones that have lapsed. */
	atomic_thread_fence(memory_order_seq_cst);
}

void kvs_control_page_stop(struct kvs_server *server)
{
	if (server->page) kv_control_page_destroy(server->page, server->page_descriptor);
	server->page = NULL;
}
