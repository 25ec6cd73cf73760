/* A made-up environment for the store's engine: time stands still until a test moves it, numbers
 * repeat, regions are heap blocks, and what the engine did to the control page can be read. */
#ifndef TESTS_LIB_ENGINE_WORLD_H
#define TESTS_LIB_ENGINE_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/random.h"
#include "kvstore/engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ENGINE_WORLD_REGIONS = 4096 };

struct engine_world {
	uint64_t now; /* milliseconds */
	struct kv_random random;
	struct kvw_control_page page;
	uint8_t *region[ENGINE_WORLD_REGIONS];
	uint64_t region_bytes[ENGINE_WORLD_REGIONS]; /* stay when the region is gone */
	bool region_live[ENGINE_WORLD_REGIONS];
	uint32_t regions_made, regions_live, regions_refused;
	uint32_t max_regions;
	bool refuse_regions;
	/* As a mapping does: memory of a region that is gone stays readable, is full of a pattern, and
	 * serves another region of this number. Without it, it is freed, and no number comes twice. */
	bool keeps_memory;
	/* The engine did what it must not. Does not return. */
	void (*broken)(void *context, const char *what);
	void *context; /* for `broken` */
};

/* Two layers, the first dense, one KV head of 4 numbers, 2 sinks, 4 tokens in a cluster. */
extern const struct kvw_model_layout engine_world_layout;

/* Begin anew at 1000 ms. With `keeps_memory`, set before, the memory of an earlier begin is used
 * again: such a world must be all zero before the first. */
void engine_world_begin(struct engine_world *world, uint64_t seed, uint32_t max_regions,
    void (*broken)(void *context, const char *what), void *context);
struct kvs_environment engine_world_environment(struct engine_world *world);
/* Memory (from calloc) that the engine was told of as region `index`. */
void engine_world_adopt(struct engine_world *world, uint32_t index, uint8_t *base, uint64_t bytes);
/* Broken when a region or a lease is left. */
void engine_world_check_empty(struct engine_world *world);
/* Free what keeps_memory kept. */
void engine_world_free(struct engine_world *world);

/* Bytes of segments of that layout. */
uint64_t engine_world_bytes(const struct kvs_new_segment *segments, uint32_t count);
/* Would so many bytes fit, beside the segments of a list, if nobody else had anything? quota 0:
 * there is none. */
bool engine_world_fits_alone(const struct kvs_engine *engine, const uint64_t *list, uint32_t length,
    uint64_t asked, uint64_t quota);

#ifdef __cplusplus
}
#endif
#endif
