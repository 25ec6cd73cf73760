/* S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023).
 *
 * What is new waits in a small queue, a tenth of the bytes; what was found there again moves to the
 * main queue, the rest goes and only its key is remembered. What comes back while its key is
 * remembered starts in the main queue. There, what was found since it was last looked at gets
 * another round. So one long scan does not push out what is used.
 *
 * Queues are by bytes, since segments differ in length. Ranks are the order of arrival; only idle
 * segments lie in the lists, so a parent is met when its last child has gone. It was found at least
 * as often as that child.
 */
#include "kvstore/engine/engine_internal.h"

enum { SMALL, MAIN };
enum { MOST_FOUND = 3, LEAST_GHOSTS = 64 };

static uint64_t ghost_key(const struct kvs_segment *segment)
{
	uint64_t key;

	memcpy(&key, segment->key, sizeof key);
	return key;
}

static enum kv_status create(struct kvs_engine *engine)
{
	struct kvs_s3fifo *s3 = &engine->s3fifo;

	s3->capacity = engine->options.max_segments;
	if (s3->capacity < LEAST_GHOSTS) s3->capacity = LEAST_GHOSTS;
	s3->keys = kv_alloc_array_zero(engine->allocator, s3->capacity, sizeof *s3->keys);
	if (!s3->keys) return KV_NO_MEMORY;
	return kv_hash_map_create(engine->allocator, s3->capacity, sizeof(uint64_t),
	    engine->environment.random64(engine->environment.context), &s3->ghosts);
}

static void destroy(struct kvs_engine *engine)
{
	kv_hash_map_destroy(engine->s3fifo.ghosts);
	kv_free(engine->allocator, engine->s3fifo.keys);
}

/* ---- keys of what has gone ---- */

static void drop_oldest_ghost(struct kvs_s3fifo *s3)
{
	const uint64_t serial = s3->next - s3->count, key = s3->keys[serial % s3->capacity];
	uint64_t known;

	/* It may have come back, and gone again later. */
	if (kv_hash_map_find(s3->ghosts, &key, &known) && known == serial)
		kv_hash_map_remove(s3->ghosts, &key, NULL);
	s3->count--;
}

static void remember(struct kvs_s3fifo *s3, uint64_t key)
{
	const uint32_t wanted = s3->main_count > LEAST_GHOSTS ? s3->main_count : LEAST_GHOSTS;
	const uint32_t limit = wanted < s3->capacity ? wanted : s3->capacity;

	while (s3->count >= limit)
		drop_oldest_ghost(s3);
	s3->keys[s3->next % s3->capacity] = key;
	kv_hash_map_remove(s3->ghosts, &key, NULL);
	if (kv_hash_map_insert(s3->ghosts, &key, s3->next) != KV_OK) return;
	s3->next++;
	s3->count++;
}

/* ---- queues ---- */

static void enter(struct kvs_engine *engine, struct kvs_segment *segment, uint32_t queue)
{
	segment->queue = (uint8_t)queue;
	segment->rank = ++engine->s3fifo.clock;
	engine->s3fifo.bytes[queue] += segment->bytes;
	if (queue == MAIN) engine->s3fifo.main_count++;
}

static void leave(struct kvs_engine *engine, const struct kvs_segment *segment)
{
	engine->s3fifo.bytes[segment->queue] -= segment->bytes;
	if (segment->queue == MAIN) engine->s3fifo.main_count--;
}

static void stored(struct kvs_engine *engine, struct kvs_segment *segment)
{
	const uint64_t key = ghost_key(segment);

	segment->found = 0;
	enter(engine, segment, kv_hash_map_remove(engine->s3fifo.ghosts, &key, NULL) ? MAIN : SMALL);
}

static void found(struct kvs_engine *engine, struct kvs_segment *segment)
{
	(void)engine;
	if (segment->found < MOST_FOUND) segment->found++;
}

static void idle(struct kvs_engine *engine, struct kvs_segment *segment)
{
	(void)engine;
	(void)segment;
}

static void gone(struct kvs_engine *engine, struct kvs_segment *segment)
{
	if (segment->queue == SMALL && segment->provenance == KVW_EXACT)
		remember(&engine->s3fifo, ghost_key(segment));
	leave(engine, segment);
}

/* To the end of the main queue. */
static void another_round(struct kvs_engine *engine, struct kvs_segment *segment, uint8_t times)
{
	leave(engine, segment);
	enter(engine, segment, MAIN);
	segment->found = times;
	kvs_idle_file(engine, segment);
}

static struct kvs_segment *victim(struct kvs_engine *engine, const struct kvs_tenant *tenant)
{
	const struct kvs_s3fifo *s3 = &engine->s3fifo;

	for (;;) {
		struct kvs_segment *small = kvs_idle_first(engine, SMALL, tenant);
		struct kvs_segment *old = kvs_idle_first(engine, MAIN, tenant);

		if (small && (!old || s3->bytes[SMALL] > (s3->bytes[SMALL] + s3->bytes[MAIN]) / 10)) {
			if (small->found == 0) return small;
			another_round(engine, small, 0);
		} else if (old) {
			if (old->found == 0) return old;
			another_round(engine, old, old->found - 1);
		} else {
			return NULL;
		}
	}
}

const struct kvs_eviction_ops kvs_evict_s3fifo = {
    .name = "s3fifo",
    .create = create,
    .destroy = destroy,
    .stored = stored,
    .found = found,
    .idle = idle,
    .gone = gone,
    .victim = victim,
};
