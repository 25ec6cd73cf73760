/* The store's memory, registered with the backend region by region as it is attached. A region that
 * is not taken is read by the host. */
#include <string.h>

#include "gpu-worker/pipeline/device_step.h"

static enum kv_status have_room(struct gw_store_memory *memory)
{
	uint32_t capacity = memory->capacity > 0 ? 2 * memory->capacity : 16;
	struct gw_registered *regions;

	if (memory->count < memory->capacity) return KV_OK;
	regions = kv_realloc(memory->pipeline->options.allocator, memory->regions,
		capacity * sizeof *regions);
	if (regions == NULL) return KV_NO_MEMORY;
	memory->regions = regions;
	memory->capacity = capacity;
	return KV_OK;
}

static void attached(void *context, uint8_t *start, uint64_t bytes, int writable)
{
	struct gw_store_memory *memory = context;
	const struct kn_device *device = &memory->pipeline->device;
	enum kv_status status = have_room(memory);

	if (status == KV_OK)
		status = device->ops->memory_register(device->backend, start, bytes,
			writable ? KN_READ_WRITE : KN_READ_ONLY);
	if (status != KV_OK) {
		if (!memory->refused)
			kv_warning("pipeline", "the store's memory is not for the %s backend to read, steps "
				"that need it are the host's: %s", device->ops->name, kv_error_message());
		memory->refused = 1;
		return;
	}
	memory->regions[memory->count++] = (struct gw_registered){start, bytes};
	memory->changes++;
}

static void detached(void *context, uint8_t *start)
{
	struct gw_store_memory *memory = context;
	const struct kn_device *device = &memory->pipeline->device;

	for (uint32_t i = 0; i < memory->count; i++) {
		if (memory->regions[i].memory != start) continue;
		gw_pipeline_settle(memory->pipeline);
		device->ops->memory_unregister(device->backend, start);
		memory->regions[i] = memory->regions[--memory->count];
		memory->changes++;
		return;
	}
}

int gw_store_memory_open(struct gw_pipeline *pipeline, struct gw_store_memory *memory)
{
	memory->pipeline = pipeline;
	memory->watch = (struct kvc_memory_watch){memory, attached, detached};
	memory->watching = kvc_watch_memory(pipeline->options.store, &memory->watch) == KV_OK;
	return memory->watching;
}

void gw_store_memory_close(struct gw_store_memory *memory)
{
	if (memory->watching) (void)kvc_watch_memory(memory->pipeline->options.store, NULL);
	while (memory->count > 0)
		detached(memory, memory->regions[0].memory);
	if (memory->pipeline != NULL)
		kv_free(memory->pipeline->options.allocator, memory->regions);
	*memory = (struct gw_store_memory){0};
}

int gw_store_memory_has(const struct gw_store_memory *memory, const uint8_t *start, uint64_t bytes)
{
	for (uint32_t i = 0; i < memory->count; i++) {
		const struct gw_registered *region = &memory->regions[i];

		if (start < region->memory || start >= region->memory + region->bytes) continue;
		return bytes <= region->bytes - (uint64_t)(start - region->memory);
	}
	return 0;
}
