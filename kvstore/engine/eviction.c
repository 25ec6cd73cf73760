/* What all variants of eviction share, and what evicts without being asked for memory. */
#include "kvstore/engine/engine_internal.h"

#include <stdlib.h>

enum { IDLE_ROUND_MS = 1000 };

const struct kvs_eviction_ops *kvs_eviction_find(enum kvs_eviction eviction)
{
	return eviction == KVS_EVICT_S3FIFO ? &kvs_evict_s3fifo : &kvs_evict_lru;
}

static struct kvs_segment *segment_at(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_segment, place);
}

struct kvs_segment *kvs_idle_first(
    struct kvs_engine *engine, uint32_t queue, const struct kvs_tenant *tenant)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &engine->idle[queue])
	{
		if (!tenant || segment_at(node)->root->account == tenant) return segment_at(node);
	}
	return NULL;
}

/* What was just used mostly belongs at the end; a parent that its last child exposed is old, and
 * belongs near the front. */
void kvs_idle_file(struct kvs_engine *engine, struct kvs_segment *segment)
{
	struct kv_list *list = &engine->idle[segment->queue];
	struct kv_list *before = list->previous;

	kv_list_remove(&segment->place);
	before = list->previous;
	/* Each into its place would take the square of their number; kvs_idle_sort orders them. */
	if (engine->pool.adopting || before == list || segment_at(before)->rank < segment->rank) {
		kv_list_push_back(list, &segment->place);
		return;
	}
	for (before = list; before->next != list; before = before->next) {
		if (segment_at(before->next)->rank > segment->rank) break;
	}
	kv_list_push_front(before, &segment->place);
}

static int by_use(const void *a, const void *b)
{
	const uint64_t first = (*(struct kvs_segment *const *)a)->last_used,
	               second = (*(struct kvs_segment *const *)b)->last_used;

	return (first > second) - (first < second);
}

static int by_rank(const void *a, const void *b)
{
	const uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

	return (first > second) - (first < second);
}

static void sort_queue(struct kvs_engine *engine, struct kv_list *list)
{
	struct kvs_segment **segments;
	struct kv_list *node, *following;
	uint64_t *ranks;
	size_t count = 0;

	segments = kv_alloc_array(
	    engine->allocator, engine->segment_count, sizeof *segments + sizeof *ranks);
	if (!segments) {
		/* Slowly then, in the order of the ranks that they have. */
		KV_LIST_EACH_SAFE(node, following, list) kvs_idle_file(engine, segment_at(node));
		return;
	}
	ranks = (uint64_t *)(void *)(segments + engine->segment_count);
	KV_LIST_EACH(node, list)
	{
		segments[count] = segment_at(node);
		ranks[count++] = segment_at(node)->rank;
	}
	qsort(segments, count, sizeof *segments, by_use);
	qsort(ranks, count, sizeof *ranks, by_rank);
	for (size_t i = 0; i < count; i++) {
		segments[i]->rank = ranks[i];
		kv_list_move_back(list, &segments[i]->place);
	}
	kv_free(engine->allocator, segments);
}

void kvs_idle_sort(struct kvs_engine *engine)
{
	for (uint32_t queue = 0; engine->segment_count && queue < KVS_IDLE_QUEUES; queue++)
		sort_queue(engine, &engine->idle[queue]);
}

static uint64_t evict(struct kvs_engine *engine, struct kvs_segment *segment)
{
	struct kvs_segment *parent = segment->parent;
	const uint64_t bytes = segment->bytes;

	engine->counters.evictions++;
	engine->counters.evicted_bytes += bytes;
	kvs_segment_destroy(engine, segment);
	kvs_segment_settle(engine, parent);
	return bytes;
}

bool kvs_evict_one(struct kvs_engine *engine, struct kvs_tenant *tenant)
{
	struct kvs_segment *segment = engine->eviction->victim(engine, tenant);

	if (!segment) return false;
	evict(engine, segment);
	return true;
}

/* One pass over what is idle; a parent that it exposes may be met by the next one. */
static uint64_t evict_unused(struct kvs_engine *engine, const struct kvs_tenant *tenant,
    uint64_t unused_ms, uint64_t most, uint64_t now)
{
	uint64_t bytes = 0;

	for (uint32_t queue = 0; queue < KVS_IDLE_QUEUES; queue++) {
		struct kv_list *node, *following;

		KV_LIST_EACH_SAFE(node, following, &engine->idle[queue])
		{
			struct kvs_segment *segment = segment_at(node);

			if (bytes >= most) return bytes;
			if (now - segment->used_ms < unused_ms) continue;
			if (!tenant || segment->root->account == tenant) bytes += evict(engine, segment);
		}
	}
	return bytes;
}

static struct kvs_tenant *find_tenant(struct kvs_engine *engine, const char *name)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &engine->tenants)
	{
		struct kvs_tenant *tenant = KV_CONTAINER_OF(node, struct kvs_tenant, link);

		if (strcmp(tenant->name, name) == 0) return tenant;
	}
	return NULL;
}

uint64_t kvs_engine_evict_some(struct kvs_engine *engine, const struct kvs_evict_request *request)
{
	const uint64_t now = engine->environment.now_ms(engine->environment.context);
	const uint64_t most = request->bytes ? request->bytes : UINT64_MAX;
	struct kvs_tenant *tenant = NULL;
	uint64_t bytes = 0, pass;

	if (request->tenant) {
		tenant = find_tenant(engine, request->tenant);
		if (!tenant) return 0;
	}
	if (request->unused_ms > 0) {
		do {
			pass = evict_unused(engine, tenant, request->unused_ms, most - bytes, now);
			bytes += pass;
		} while (pass > 0 && bytes < most);
	} else {
		const uint64_t before = engine->counters.evicted_bytes;

		while (bytes < most && kvs_evict_one(engine, tenant))
			bytes = engine->counters.evicted_bytes - before;
	}
	kvs_pool_trim(&engine->pool);
	return bytes;
}

uint64_t kvs_engine_evict(struct kvs_engine *engine)
{
	const struct kvs_evict_request everything = {0};

	return kvs_engine_evict_some(engine, &everything);
}

void kvs_eviction_tick(struct kvs_engine *engine, uint64_t now)
{
	const struct kvs_options *options = &engine->options;
	const uint64_t before = engine->counters.evicted_bytes;

	if (options->high_bytes > 0 && engine->pool.used > options->high_bytes) {
		while (engine->pool.used > options->low_bytes && kvs_evict_one(engine, NULL)) {
		}
		engine->counters.watermark_evicted_bytes += engine->counters.evicted_bytes - before;
	}
	if (now - engine->idle_round_ms < IDLE_ROUND_MS) return;
	engine->idle_round_ms = now;
	if (options->unused_ms > 0) {
		while (evict_unused(engine, NULL, options->unused_ms, UINT64_MAX, now) > 0) {
		}
	}
	if (options->release_ms > 0)
		engine->counters.released_bytes +=
		    kvs_pool_release(&engine->pool, now, options->release_ms);
}
