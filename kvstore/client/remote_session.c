/* Sessions: the transport's client, the control page and the attached regions of one connection. */
#define _DEFAULT_SOURCE /* MADV_REMOVE */

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/transport_map.h"
#include "kvstore/client/page_check.h"
#include "kvstore/client/remote_internal.h"

#define MODULE "store-client"

enum { ENDS_MS = 500 }; /* for a store that stops, to close its connections */

/* What the region is in this process; NULL where its memory is not shared. */
static uint8_t *memory_of(const struct kvc_session *session, const struct kvc_attached *region)
{
	return (uint8_t *)(uintptr_t)session->ops->direct_read(region->remote, 0, region->bytes);
}

static void tell_attached(const struct kvc_remote_store *store, const struct kvc_session *session,
    const struct kvc_attached *region)
{
	const struct kvc_memory_watch *watch = store->base.watch;
	uint8_t *memory = watch ? memory_of(session, region) : NULL;

	if (!memory) return;
	watch->attached(watch->context, memory, region->bytes,
	    session->ops->direct_write(region->remote, 0, region->bytes) != NULL);
}

static void tell_detached(const struct kvc_remote_store *store, const struct kvc_session *session,
    const struct kvc_attached *region)
{
	const struct kvc_memory_watch *watch = store->base.watch;
	uint8_t *memory = watch ? memory_of(session, region) : NULL;

	if (memory) watch->detached(watch->context, memory);
}

void kvc_session_show_memory(struct kvc_store *base)
{
	struct kvc_remote_store *store = kvc_remote_of(base);
	struct kv_list *node;

	KV_LIST_EACH(node, &store->sessions)
	{
		const struct kvc_session *session = KV_CONTAINER_OF(node, struct kvc_session, node);

		for (uint32_t i = 0; i < session->region_count; i++)
			tell_attached(store, session, &session->regions[i]);
	}
}

void kvc_session_destroy(struct kvc_remote_store *store, struct kvc_session *session)
{
	struct kv_allocator *allocator = store->base.allocator;

	if (!session) return;
	kv_list_remove(&session->node);
	for (uint32_t i = 0; i < session->region_count; i++)
		tell_detached(store, session, &session->regions[i]);
	if (session->client) session->ops->client_destroy(session->client);
	if (session->page) kv_control_page_unmap(session->page);
	kv_line_close(session->line);
	kv_free(allocator, session->regions);
	kv_free(allocator, session);
}

void kvc_session_retire(struct kvc_remote_store *store, struct kvc_session *session)
{
	uint64_t generation = session->generation;
	uint64_t epoch = session->epoch;

	kvc_session_destroy(store, session);
	kvc_channel_let_go(store->channel, generation, epoch);
}

static enum kv_status take_page(struct kvc_session *session, struct kvc_welcome *welcome)
{
	const void *page = NULL;
	int descriptor = welcome->page_descriptor;

	if (descriptor < 0) return KV_OK;
	welcome->page_descriptor = -1;
	KV_TRY(kv_control_page_map(descriptor, &page));
	session->page = page;
	return KV_OK;
}

/* Who asks for UCX and does not get it at the start is told so; later the stream will do. */
static enum kv_status begin_line(struct kvc_remote_store *store, struct kvc_session *session)
{
	enum kv_status status;

	if (strcmp(session->transport, KVC_BY_UCX) != 0) return KV_OK;
	status = kvc_line_open(store, session);
	if (status == KV_OK || !store->current) return status;
	kv_warning(MODULE, "no UCX to the store, its stream is used: %s", kv_error_message());
	return KV_OK;
}

static enum kv_status create_session(
    struct kvc_remote_store *store, struct kvc_welcome *welcome, struct kvc_session **session)
{
	struct kvc_session *created = kv_alloc_zero(store->base.allocator, sizeof *created);
	enum kv_status status;

	if (!created) return KV_NO_MEMORY;
	kv_list_init(&created->node);
	created->number = welcome->session;
	created->generation = welcome->generation;
	created->epoch = welcome->epoch;
	created->slot = welcome->slot;
	memcpy(created->transport, welcome->transport, sizeof created->transport);
	if (store->on_other_host) {
		KV_TRY_GOTO(status, begin_line(store, created), fail);
		*session = created;
		return KV_OK;
	}
	created->ops = kv_transport_find(welcome->transport);
	if (!created->ops) {
		status = kv_fail(KV_UNSUPPORTED, "the store uses the transport \"%s\", unknown here",
		    welcome->transport);
		goto fail;
	}
	if (store->faulty) created->ops = kv_transport_faulty(created->ops);
	KV_TRY_GOTO(status, take_page(created, welcome), fail);
	KV_TRY_GOTO(status,
	    created->ops->client_create(store->base.allocator, &welcome->address, &created->client),
	    fail);
	*session = created;
	return KV_OK;
fail:
	kvc_session_destroy(store, created);
	return status;
}

/* Staging memory was made before it was known whether the store wants it. Where units are written
 * in place its pages go back; the mapping stays for a later session that may need it. */
static void empty_staging(struct kvc_remote_store *store)
{
	if (store->staging.count) return;
	if (madvise(store->staging_memory, store->staging_bytes, MADV_REMOVE) != 0)
		kv_debug(MODULE, "staging memory stays although it is not used");
}

enum kv_status kvc_session_adopt(struct kvc_remote_store *store)
{
	uint64_t number = kvc_channel_session(store->channel);
	struct kvc_session *old = store->current;
	struct kvc_session *session = NULL;
	struct kvc_welcome welcome;
	enum kv_status status;

	if (number && old && old->number == number) return KV_OK;
	KV_TRY(kvc_channel_welcome(store->channel, &welcome));
	status = create_session(store, &welcome, &session);
	if (welcome.page_descriptor >= 0) close(welcome.page_descriptor);
	if (status != KV_OK && kvc_channel_ends(store->channel, welcome.session, ENDS_MS))
		return kv_fail(KV_DISCONNECTED, "the store ended while it was connected to");
	if (status != KV_OK) return status;
	kv_list_push_back(&store->sessions, &session->node);
	store->current = session;
	if (old && !old->users) kvc_session_retire(store, old);
	if (strcmp(session->transport, "map") != 0) empty_staging(store);
	kvc_session_lanes(store);
	return KV_OK;
}

/* ---- regions ---- */

struct kvc_attached *kvc_session_region(struct kvc_session *session, uint32_t index)
{
	uint32_t low = 0;
	uint32_t high = session->region_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (session->regions[middle].index < index)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < session->region_count && session->regions[low].index == index)
		return &session->regions[low];
	return NULL;
}

static enum kv_status add_region(
    struct kvc_remote_store *store, struct kvc_session *session, const struct kvc_attached *region)
{
	uint32_t at = session->region_count;

	if (session->region_count == session->region_capacity) {
		uint32_t capacity = session->region_capacity ? 2 * session->region_capacity : 16;
		struct kvc_attached *regions =
		    kv_realloc(store->base.allocator, session->regions, capacity * sizeof *regions);

		if (!regions) return KV_NO_MEMORY;
		session->regions = regions;
		session->region_capacity = capacity;
	}
	while (at && session->regions[at - 1].index > region->index) {
		session->regions[at] = session->regions[at - 1];
		at--;
	}
	session->regions[at] = *region;
	session->region_count++;
	return KV_OK;
}

/* The store keeps no segment there any more, so none of ours can point into it. */
static void detach_one(
    const struct kvc_remote_store *store, struct kvc_session *session, uint32_t index)
{
	struct kvc_attached *region = kvc_session_region(session, index);
	size_t behind; /* regions; with stream there are none */

	if (!region) return;
	tell_detached(store, session, region);
	session->ops->region_detach(session->client, region->remote);
	behind = (size_t)(session->regions + session->region_count - (region + 1));
	memmove(region, region + 1, behind * sizeof *region);
	session->region_count--;
}

static enum kv_status attach_one(struct kvc_remote_store *store, struct kvc_announced *announced)
{
	struct kvc_session *session = store->current;
	struct kvc_attached region = {.index = announced->index, .bytes = announced->bytes};

	if (!session->ops) {
		if (announced->descriptor >= 0) close(announced->descriptor);
		return kv_fail(KV_PROTOCOL, "the store tells of memory that is on another host");
	}
	if (kvc_session_region(session, announced->index)) {
		if (announced->descriptor >= 0) close(announced->descriptor);
		return kv_fail(KV_PROTOCOL, "the store told twice of region %u", announced->index);
	}
	KV_TRY(session->ops->region_attach(session->client, &announced->blob, announced->descriptor,
	    announced->bytes, &region.remote));
	KV_TRY(add_region(store, session, &region));
	tell_attached(store, session, &region);
	return KV_OK;
}

enum kv_status kvc_session_attach(struct kvc_remote_store *store)
{
	enum kv_status status = KV_OK;
	struct kvc_announced announced;
	bool fresh = false;

	while (kvc_channel_take_region(store->channel, &announced)) {
		if (announced.session != store->current->number || status != KV_OK) {
			if (announced.descriptor >= 0) close(announced.descriptor);
			continue;
		}
		if (announced.gone) {
			detach_one(store, store->current, announced.index);
			continue;
		}
		status = attach_one(store, &announced);
		if (status != KV_OK)
			kv_warning(MODULE, "cannot attach region %u of the store: %s", announced.index,
			    kv_error_message());
		fresh = true;
	}
	/* The store tells of a region once: without this one only a new connection helps. */
	if (status != KV_OK) kvc_channel_drop(store->channel);
	if (fresh) kvc_session_lanes(store);
	return status;
}

void kvc_session_lanes(struct kvc_remote_store *store)
{
	const struct kvc_session *session = store->current;

	if (session->line)
		snprintf(store->lanes, sizeof store->lanes, "%s/%s", store->network.rdma ? "rc" : "tcp",
		    store->network.device);
	else
		snprintf(store->lanes, sizeof store->lanes, "%s",
		    session->ops ? session->ops->lanes(session->client) : KVC_STREAM);
	kvc_channel_set_lanes(store->channel, store->lanes);
}

/* ---- does it still hold? ---- */

enum kv_status kvc_session_check(
    const struct kvc_remote_store *store, const struct kvc_session *session)
{
	const struct kvw_control_page *page = session->page;
	uint64_t number = kvc_channel_session(store->channel);

	if (!number) return kv_fail(KV_DISCONNECTED, "the connection to the store is lost");
	if (number != session->number)
		return kv_fail(
		    KV_STALE, "the store was connected to anew, what was attached before is gone");
	if (!page) return KV_OK;
	return kvc_page_check(page, session->slot, session->epoch, session->generation);
}

enum kv_status kvc_session_resolve(struct kvc_session *session, struct kvc_entry *entry)
{
	uint32_t layers = entry->sequence->store->layout.layers;

	for (uint32_t layer = 0; layer < layers; layer++) {
		struct kvc_unit *unit = &entry->units[layer];
		const struct kvc_attached *region = kvc_session_region(session, entry->region[layer]);
		uint64_t offset = entry->offset[layer];

		unit->staged = KVC_NOT_STAGED;
		/* It is named by its segment, and lies where this host does not see. */
		if (!session->ops) continue;
		if (!region)
			return kv_fail(KV_PROTOCOL, "segment %llu lies in region %u, which is not attached",
			    (unsigned long long)entry->view.id, entry->region[layer]);
		if (offset % KVW_ALIGNMENT || offset > region->bytes ||
		    unit->bytes > region->bytes - offset)
			return kv_fail(KV_PROTOCOL, "segment %llu does not lie inside region %u",
			    (unsigned long long)entry->view.id, entry->region[layer]);
		unit->read = session->ops->direct_read(region->remote, offset, unit->bytes);
	}
	return KV_OK;
}
