/* Reading with verification, for stores that ask for it: what a batch brought is compared with
 * units that were read whole and whose checksums are right. */
#include <string.h>

#include "common/base/crc32c.h"
#include "kvstore/client/remote_internal.h"

static enum kv_status make_room(struct kvc_remote_store *store, uint64_t bytes)
{
	uint8_t *memory;

	if (bytes <= store->verify_bytes) return KV_OK;
	memory = kv_realloc(store->base.allocator, store->verify_memory, bytes);
	if (!memory) return KV_NO_MEMORY;
	store->verify_memory = memory;
	store->verify_bytes = bytes;
	return KV_OK;
}

static enum kv_status read_unit(
    struct kvc_remote_store *store, const struct kvc_entry *entry, uint32_t layer)
{
	struct kvc_session *session = store->current;
	const struct kvc_unit *unit = &entry->units[layer];
	struct kv_transfer transfer = {
	    .offset = entry->offset[layer], .bytes = unit->bytes, .local = store->verify_memory};

	if (unit->read) {
		memcpy(store->verify_memory, unit->read, unit->bytes);
		return KV_OK;
	}
	if (!session->ops) {
		const struct kvc_read whole = {.segment = &entry->view,
		    .layer = layer,
		    .bytes = unit->bytes,
		    .destination = store->verify_memory};

		KV_TRY(kvc_stream_start(store, &whole, 1, store->fetch_ms));
		return kvc_stream_wait(store);
	}
	transfer.remote = kvc_session_region(session, entry->region[layer])->remote;
	KV_TRY(session->ops->get(session->client, &transfer, 1));
	return session->ops->wait(session->client, store->fetch_ms);
}

/* The unit of read `first`, with all reads of it. */
static enum kv_status verify_unit(struct kvc_remote_store *store, uint32_t first)
{
	const struct kvc_read *read = &store->fetch_reads[first];
	const struct kvc_entry *entry = kvc_entry_of(read->segment);
	const uint32_t layer = read->layer;
	const struct kvc_unit *unit = &entry->units[layer];
	bool same;

	KV_TRY(make_room(store, unit->bytes));
	KV_TRY(read_unit(store, entry, layer));
	same = kv_crc32c(0, store->verify_memory, unit->bytes) == unit->checksum;
	for (uint32_t i = first; same && i < store->fetch_count; i++) {
		read = &store->fetch_reads[i];
		if (kvc_entry_of(read->segment) == entry && read->layer == layer)
			same = memcmp(read->destination, store->verify_memory + read->offset, read->bytes) == 0;
	}
	if (same) return KV_OK;
	return kv_fail(KV_CORRUPT,
	    "layer %u of segment %llu in the store is not what was committed: its checksum differs",
	    layer, (unsigned long long)entry->view.id);
}

static bool seen_before(const struct kvc_remote_store *store, uint32_t at)
{
	const struct kvc_read *read = &store->fetch_reads[at];

	for (uint32_t i = at; i-- > 0;)
		if (store->fetch_reads[i].segment == read->segment &&
		    store->fetch_reads[i].layer == read->layer)
			return true;
	return false;
}

enum kv_status kvc_verify_batch(struct kvc_remote_store *store)
{
	for (uint32_t i = 0; i < store->fetch_count; i++) {
		if (!kvc_entry_of(store->fetch_reads[i].segment)->verified || seen_before(store, i))
			continue;
		KV_TRY(verify_unit(store, i));
	}
	return KV_OK;
}
