#include "tests/lib/engine_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct kvw_model_layout engine_world_layout = {
    .layers = 2,
    .kv_heads = 1,
    .head_dim = 4,
    .kv_type = KVW_KV_F16,
    .dense_layers = 1,
    .sinks = 2,
    .cluster_tokens = 4,
    .index_digest = {1, 2, 3, 4, 5, 6, 7, 8},
};

static void broken(struct engine_world *world, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

static void broken(struct engine_world *world, const char *format, ...)
{
	char what[160];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof what, format, arguments);
	va_end(arguments);
	world->broken(world->context, what);
	abort();
}

static uint64_t now_ms(void *context)
{
	return ((struct engine_world *)context)->now;
}

static uint64_t random64(void *context)
{
	return kv_random_next(&((struct engine_world *)context)->random);
}

static enum kv_status region_create(void *context, uint32_t index, uint64_t bytes, uint8_t **base)
{
	struct engine_world *world = context;

	if (world->refuse_regions) {
		world->regions_refused++;
		return kv_fail(KV_LIMIT, "the machine has no memory");
	}
	if (index >= world->max_regions) broken(world, "region %u is asked for", index);
	if (world->region_live[index] || (!world->keeps_memory && world->region_bytes[index]))
		broken(world, "region %u is made twice", index);
	if (world->region_bytes[index] < bytes) {
		free(world->region[index]);
		world->region[index] = calloc(1, bytes);
		if (!world->region[index]) broken(world, "no memory for region %u", index);
		world->region_bytes[index] = bytes;
	}
	world->region_live[index] = true;
	world->regions_made++;
	world->regions_live++;
	*base = world->region[index];
	return KV_OK;
}

static void region_destroy(void *context, uint32_t index)
{
	struct engine_world *world = context;

	if (index >= world->max_regions || !world->region_live[index])
		broken(world, "region %u goes, but is not there", index);
	world->region_live[index] = false;
	world->regions_live--;
	if (world->keeps_memory) {
		memset(world->region[index], 0xdd, world->region_bytes[index]);
	} else {
		free(world->region[index]);
		world->region[index] = NULL;
	}
}

static void lease_changed(void *context, uint32_t slot, uint64_t epoch)
{
	struct engine_world *world = context;

	if (slot >= KVW_CONTROL_SLOTS) broken(world, "slot %u has no word", slot);
	if ((epoch == 0) == (world->page.lease[slot] == 0))
		broken(world, "the word of slot %u becomes %llu, it was %llu", slot,
		    (unsigned long long)epoch, (unsigned long long)world->page.lease[slot]);
	world->page.lease[slot] = epoch;
}

void engine_world_begin(struct engine_world *world, uint64_t seed, uint32_t max_regions,
    void (*when_broken)(void *context, const char *what), void *context)
{
	if (!world->keeps_memory) {
		memset(world->region, 0, sizeof world->region);
		memset(world->region_bytes, 0, sizeof world->region_bytes);
	}
	memset(world->region_live, 0, sizeof world->region_live);
	memset(&world->page, 0, sizeof world->page);
	world->now = 1000;
	kv_random_seed(&world->random, seed);
	world->regions_made = world->regions_live = world->regions_refused = 0;
	world->max_regions = max_regions < ENGINE_WORLD_REGIONS ? max_regions : ENGINE_WORLD_REGIONS;
	world->refuse_regions = false;
	world->broken = when_broken;
	world->context = context;
}

struct kvs_environment engine_world_environment(struct engine_world *world)
{
	return (struct kvs_environment){
	    .context = world,
	    .now_ms = now_ms,
	    .random64 = random64,
	    .region_create = region_create,
	    .region_destroy = region_destroy,
	    .lease_changed = lease_changed,
	};
}

void engine_world_adopt(struct engine_world *world, uint32_t index, uint8_t *base, uint64_t bytes)
{
	if (index >= world->max_regions || world->region_bytes[index])
		broken(world, "region %u cannot be adopted", index);
	world->region[index] = base;
	world->region_bytes[index] = bytes;
	world->region_live[index] = true;
	world->regions_live++;
}

void engine_world_check_empty(struct engine_world *world)
{
	if (world->regions_live) broken(world, "%u regions are left", world->regions_live);
	for (uint32_t slot = 0; slot < KVW_CONTROL_SLOTS; slot++)
		if (world->page.lease[slot]) broken(world, "the lease of slot %u is left", slot);
}

void engine_world_free(struct engine_world *world)
{
	for (uint32_t i = 0; i < ENGINE_WORLD_REGIONS; i++)
		free(world->region[i]);
}

uint64_t engine_world_bytes(const struct kvs_new_segment *segments, uint32_t count)
{
	uint64_t bytes = 0, part = 0;

	for (uint32_t i = 0; i < count; i++)
		if (kvw_segment_bytes(&engine_world_layout, segments[i].kind, segments[i].start,
		        segments[i].tokens, &part) == KV_OK)
			bytes += part;
	return bytes;
}

bool engine_world_fits_alone(const struct kvs_engine *engine, const uint64_t *list, uint32_t length,
    uint64_t asked, uint64_t quota)
{
	struct kvs_statistics statistics;

	for (uint32_t i = 0; i < length; i++) {
		struct kvs_segment_view view;

		if (kvs_segment_find(engine, list[i], &view) == KV_OK)
			asked += engine_world_bytes(
			    &(struct kvs_new_segment){
			        .start = view.start, .tokens = view.tokens, .kind = view.kind},
			    1);
	}
	kvs_engine_statistics(engine, &statistics);
	return asked <= statistics.limit_bytes && (quota == 0 || asked <= quota);
}
