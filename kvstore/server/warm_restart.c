/* Keeping the arena over a restart: at the end its regions and an index of them go to the service
 * manager's descriptor store, at the start they are taken from there.
 *
 * What comes from there is believed as little as what a peer sends. Nothing here fails the store:
 * at worst it starts empty, and says why. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/collect/hash_map.h"
#include "common/transport/transport_map.h"
#include "kvstore/server/server_internal.h"
#include "kvstore/server/warm_index.h"

static const char index_name[] = "clusterkv-index";
static const char region_name[] = "clusterkv-region-";

enum { NAME_BYTES = 64, EXTEND_EVERY_MS = 1000, EXTEND_MS = 30000, KEEP_MS = 5000 };

static bool can_keep(const struct kvs_server *server)
{
	return server->settings->warm_restart && kv_sd_enabled(server->notify) &&
	       server->transport == &kv_transport_map;
}

/* ---- the end: what is kept ---- */

struct keeping {
	struct kvs_server *server;
	struct kvs_index_writer writer;
	struct kv_hash_map *places; /* one more than the place in the index, by segment id */
	uint32_t regions;
};

static struct kvs_region *find_region(struct kvs_server *server, uint32_t index)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &server->regions)
	{
		struct kvs_region *region = KV_CONTAINER_OF(node, struct kvs_region, node);

		if (region->index == index) return region;
	}
	return NULL;
}

/* Note which regions hold something, as many as the manager takes. */
static enum kv_status note_regions(void *context, const struct kvs_saved *saved)
{
	struct keeping *keeping = context;

	for (uint32_t layer = 0; layer < saved->layers; layer++) {
		struct kvs_region *region = find_region(keeping->server, saved->units[layer].region);

		if (!region || region->kept || keeping->regions == KVS_INDEX_MAX_REGIONS) continue;
		region->kept = true;
		keeping->regions++;
		kvs_index_region(&keeping->writer, (uint32_t)region->serial, region->bytes, region->tenant);
	}
	return keeping->writer.status;
}

/* With the numbers that the index uses; one that lost its parent or a region is left out. */
static enum kv_status note_segment(void *context, const struct kvs_saved *saved)
{
	struct keeping *keeping = context;
	struct kvs_unit units[KVW_MAX_LAYERS];
	struct kvs_saved copy = *saved;
	uint64_t place = 0;

	if (saved->parent) {
		if (!kv_hash_map_find(keeping->places, &saved->parent, &place)) return KV_OK;
		copy.parent = place;
	}
	for (uint32_t layer = 0; layer < saved->layers; layer++) {
		const struct kvs_region *region = find_region(keeping->server, saved->units[layer].region);

		if (!region || !region->kept) return KV_OK;
		units[layer] = saved->units[layer];
		units[layer].region = (uint32_t)region->serial;
	}
	copy.units = units;
	kvs_index_segment(&keeping->writer, &copy);
	return kv_hash_map_insert(keeping->places, &saved->id, keeping->writer.segments);
}

static enum kv_status store_regions(struct kvs_server *server, uint64_t deadline_ms)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &server->regions)
	{
		struct kvs_region *region = KV_CONTAINER_OF(node, struct kvs_region, node);
		struct kv_transport_blob blob;
		char name[NAME_BYTES];
		int descriptor = -1;

		if (!region->kept) continue;
		snprintf(name, sizeof name, "%s%u", region_name, (unsigned)region->serial);
		KV_TRY(server->transport->region_export(
		    server->transport_server, region->region, &blob, &descriptor));
		KV_TRY(kv_sd_store_fd(server->notify, name, descriptor, deadline_ms));
	}
	return KV_OK;
}

static void unstore_regions(struct kvs_server *server)
{
	const uint64_t deadline_ms = kv_now_ms() + KV_SD_PATIENCE_MS;
	struct kv_list *node;

	KV_LIST_EACH(node, &server->regions)
	{
		const struct kvs_region *region = KV_CONTAINER_OF(node, struct kvs_region, node);
		char name[NAME_BYTES];

		if (!region->kept) continue;
		snprintf(name, sizeof name, "%s%u", region_name, (unsigned)region->serial);
		(void)kv_sd_remove_fd(server->notify, name, deadline_ms);
	}
}

static enum kv_status write_index(struct keeping *keeping, int *descriptor)
{
	struct kvs_engine *engine = keeping->server->engine;

	KV_TRY(kvs_engine_save(engine, note_regions, keeping));
	KV_TRY(kvs_engine_save(engine, note_segment, keeping));
	KV_TRY(kvs_index_end(
	    &keeping->writer, kvs_engine_generation(engine), keeping->server->settings->isolation));
	return kv_kept_create(keeping->writer.bytes, keeping->writer.length, descriptor);
}

void kvs_warm_keep(struct kvs_server *server)
{
	struct keeping keeping = {.server = server};
	uint64_t deadline_ms;
	enum kv_status status;
	int descriptor = -1;

	if (!can_keep(server)) return;
	kvs_index_begin(&keeping.writer, server->allocator);
	KV_TRY_GOTO(status,
	    kv_hash_map_create(
	        server->allocator, KVS_INDEX_MAX_KEPT, sizeof(uint64_t), 1, &keeping.places),
	    out);
	KV_TRY_GOTO(status, write_index(&keeping, &descriptor), out);
	if (!keeping.writer.segments) goto out;
	/* The index last: without it the regions mean nothing. */
	deadline_ms = kv_now_ms() + KEEP_MS;
	status = store_regions(server, deadline_ms);
	if (status == KV_OK)
		status = kv_sd_store_fd(server->notify, index_name, descriptor, deadline_ms);
	if (status != KV_OK) unstore_regions(server);
out:
	if (status != KV_OK)
		kv_warning(KVS_MODULE, "the arena is not kept: %s", kv_error_message());
	else
		kv_info(KVS_MODULE, "arena kept for the next start segments=%u regions=%u",
		    keeping.writer.segments, keeping.regions);
	if (descriptor >= 0) close(descriptor);
	kv_hash_map_destroy(keeping.places);
	kvs_index_free(&keeping.writer);
}

/* ---- the start: what was kept ---- */

struct kept_region {
	uint32_t number, index;
	int descriptor; /* -1 once the transport has it */
	uint64_t bytes; /* 0: it is not in use */
	const uint8_t *base;
};

struct warming {
	struct kvs_server *server;
	int index;
	struct kept_region regions[KVS_INDEX_MAX_REGIONS];
	uint32_t region_count;
	uint64_t *ids; /* of the segments by their place, 0: dropped */
	uint32_t restored, dropped, corrupt;
	uint64_t extended_ms;
	uint64_t removed_by_ms; /* until then a manager that is busy is waited for */
};

static void take_descriptor(void *context, const char *name, int descriptor)
{
	struct warming *warming = context;
	size_t prefix = sizeof region_name - 1;
	uint64_t number = 0;

	if (strcmp(name, index_name) == 0 && warming->index < 0) {
		warming->index = descriptor;
	} else if (strncmp(name, region_name, prefix) == 0 &&
	           kv_parse_u64(name + prefix, &number) == KV_OK && number <= UINT32_MAX &&
	           warming->region_count < KVS_INDEX_MAX_REGIONS) {
		warming->regions[warming->region_count++] =
		    (struct kept_region){.number = (uint32_t)number, .descriptor = descriptor};
	} else {
		kv_warning(KVS_MODULE, "the service manager passed a descriptor of no use name=%s", name);
		close(descriptor);
		return;
	}
	/* Kept there, it would be given to a start after a crash, long after the memory was let go. */
	(void)kv_sd_remove_fd(warming->server->notify, name, warming->removed_by_ms);
}

static struct kept_region *find_kept(struct warming *warming, uint32_t number)
{
	for (uint32_t i = 0; i < warming->region_count; i++)
		if (warming->regions[i].number == number) return &warming->regions[i];
	return NULL;
}

static enum kv_status adopt_region(
    struct warming *warming, const struct kvs_index_region *entry, struct kept_region *kept)
{
	struct kvs_server *server = warming->server;
	struct kvs_region *region = kv_alloc_zero(server->allocator, sizeof *region);
	int descriptor = kept->descriptor;
	enum kv_status status;

	if (!region) return KV_NO_MEMORY;
	kept->descriptor = -1;
	kv_list_init(&region->node);
	region->bytes = entry->bytes;
	snprintf(region->tenant, sizeof region->tenant, "%s", entry->tenant);
	status = kv_map_region_adopt(
	    server->transport_server, descriptor, entry->bytes, &region->region, &region->base);
	if (status != KV_OK) {
		kv_free(server->allocator, region);
		return status;
	}
	status = kvs_restore_region(
	    server->engine, region->tenant, region->bytes, region->base, &region->index);
	if (status != KV_OK) {
		kvs_region_free(server, region);
		return status;
	}
	region->serial = ++server->region_serial;
	kv_list_push_back(&server->regions, &region->node);
	kept->bytes = region->bytes;
	kept->base = region->base;
	kept->index = region->index;
	return KV_OK;
}

static enum kv_status restore_regions(struct warming *warming, struct kvs_index_reader *reader)
{
	while (reader->regions) {
		struct kvs_index_region entry;
		struct kept_region *kept;
		enum kv_status status;

		KV_TRY(kvs_index_next_region(reader, &entry));
		kept = find_kept(warming, entry.number);
		if (!kept || kept->descriptor < 0)
			status = kv_fail(KV_NOT_FOUND, "it was not passed");
		else
			status = adopt_region(warming, &entry, kept);
		if (status != KV_OK)
			kv_warning(KVS_MODULE, "memory of the last run is not used region=%u: %s", entry.number,
			    kv_error_message());
	}
	return KV_OK;
}

/* Put this run's regions into the units, and check every byte. */
static enum kv_status check_units(struct warming *warming, struct kvs_index_segment *segment)
{
	for (uint32_t layer = 0; layer < segment->saved.layers; layer++) {
		struct kvs_unit *unit = &segment->units[layer];
		const struct kept_region *kept = find_kept(warming, unit->region);

		if (!kept || !kept->bytes)
			return kv_fail(KV_NOT_FOUND, "its memory (region %u) is not there", unit->region);
		if (unit->bytes > kept->bytes || unit->offset > kept->bytes - unit->bytes)
			return kv_fail(KV_INVALID, "layer %u leaves region %u", layer, unit->region);
		if (kv_crc32c(0, kept->base + unit->offset, (size_t)unit->bytes) !=
		    segment->checksums[layer])
			return kv_fail(KV_CORRUPT, "layer %u is damaged: its checksum differs", layer);
		unit->region = kept->index;
	}
	return KV_OK;
}

static enum kv_status restore_segment(
    struct warming *warming, struct kvs_index_segment *segment, uint32_t place)
{
	struct kvs_saved *saved = &segment->saved;

	KV_TRY(check_units(warming, segment));
	if (saved->parent) {
		if (saved->parent > place || !warming->ids[saved->parent - 1])
			return kv_fail(KV_NOT_FOUND, "what comes before it in its prompt was dropped");
		saved->parent = warming->ids[saved->parent - 1];
	}
	return kvs_restore_segment(warming->server->engine, saved, &warming->ids[place]);
}

static void extend(struct warming *warming)
{
	if (kv_now_ms() - warming->extended_ms < EXTEND_EVERY_MS) return;
	warming->extended_ms = kv_now_ms();
	kv_sd_extend_timeout(warming->server->notify, EXTEND_MS);
}

static enum kv_status restore_segments(
    struct warming *warming, struct kvs_index_reader *reader, struct kvs_index_segment *segment)
{
	uint32_t count = reader->segments;

	for (uint32_t place = 0; place < count; place++) {
		enum kv_status status;

		extend(warming);
		KV_TRY(kvs_index_next_segment(reader, segment));
		status = restore_segment(warming, segment, place);
		if (status == KV_OK) {
			warming->restored++;
			continue;
		}
		warming->dropped++;
		warming->corrupt += status == KV_CORRUPT;
		kv_warning(KVS_MODULE, "segment of the last run dropped place=%u tokens=%u at=%u: %s",
		    place, segment->saved.tokens, segment->saved.start, kv_error_message());
	}
	return KV_OK;
}

static enum kv_status restore(struct warming *warming, const uint8_t *bytes, size_t length)
{
	struct kvs_server *server = warming->server;
	struct kvs_index_segment *segment = NULL;
	struct kvs_index_reader reader;
	enum kv_status status;

	KV_TRY(kvs_index_open(&reader, bytes, length));
	if (reader.separate_tenants != server->settings->isolation)
		return kv_fail(
		    KV_REFUSED, "it was written with isolation=%s", reader.separate_tenants ? "yes" : "no");
	warming->ids = kv_alloc_array_zero(server->allocator, reader.segments, sizeof *warming->ids);
	segment = kv_alloc(server->allocator, sizeof *segment);
	status = warming->ids && segment ? KV_OK : KV_NO_MEMORY;
	if (status == KV_OK) status = restore_regions(warming, &reader);
	if (status == KV_OK) status = restore_segments(warming, &reader, segment);
	kv_free(server->allocator, segment);
	kv_free(server->allocator, warming->ids);
	kvs_restore_end(server->engine);
	return status;
}

static enum kv_status restore_from(struct warming *warming)
{
	const uint8_t *bytes = NULL;
	enum kv_status status;
	size_t length = 0;
	int descriptor = warming->index;

	warming->index = -1;
	KV_TRY(kv_kept_map(descriptor, KVS_INDEX_MAX_BYTES, &bytes, &length));
	status = restore(warming, bytes, length);
	kv_kept_unmap(bytes, length);
	return status;
}

static void report(struct warming *warming, enum kv_status status, uint64_t start)
{
	struct kv_metrics *metrics = warming->server->metrics;

	kv_metrics_add(metrics, KVS_RESTORED, warming->restored);
	kv_metrics_add(metrics, KVS_RESTORE_CORRUPT, warming->corrupt);
	kv_metrics_add(metrics, KVS_RESTORE_OTHER, warming->dropped - warming->corrupt);
	if (status != KV_OK) {
		kv_metrics_add(metrics, KVS_RESTORE_REFUSED, 1);
		kv_warning(KVS_MODULE, "the index of the last run is refused: %s", kv_error_message());
	}
	kv_info(KVS_MODULE, "arena of the last run segments=%u dropped=%u corrupt=%u seconds=%.3f",
	    warming->restored, warming->dropped, warming->corrupt, kv_seconds_since(start));
}

void kvs_warm_start(struct kvs_server *server)
{
	struct warming *warming = kv_alloc_zero(server->allocator, sizeof *warming);
	uint64_t start = kv_now_ns();

	if (!warming) return;
	warming->server = server;
	warming->index = -1;
	warming->removed_by_ms = kv_now_ms() + KV_SD_PATIENCE_MS;
	kv_sd_take_fds(take_descriptor, warming);
	if (warming->index >= 0 && can_keep(server))
		report(warming, restore_from(warming), start);
	else if (warming->region_count || warming->index >= 0)
		kv_warning(KVS_MODULE,
		    "memory of the last run was passed and is not used: it needs its index, "
		    "transport=map and warm-restart=yes");
	if (warming->index >= 0) close(warming->index);
	for (uint32_t i = 0; i < warming->region_count; i++)
		if (warming->regions[i].descriptor >= 0) close(warming->regions[i].descriptor);
	kv_free(server->allocator, warming);
}
