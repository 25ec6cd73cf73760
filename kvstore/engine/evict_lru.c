/* The longest unused goes first. */
#include "kvstore/engine/engine_internal.h"

static enum kv_status create(struct kvs_engine *engine)
{
	(void)engine;
	return KV_OK;
}

static void destroy(struct kvs_engine *engine)
{
	(void)engine;
}

static void nothing(struct kvs_engine *engine, struct kvs_segment *segment)
{
	(void)engine;
	(void)segment;
}

static void idle(struct kvs_engine *engine, struct kvs_segment *segment)
{
	(void)engine;
	segment->rank = segment->last_used;
}

static struct kvs_segment *victim(struct kvs_engine *engine, const struct kvs_tenant *tenant)
{
	return kvs_idle_first(engine, 0, tenant);
}

const struct kvs_eviction_ops kvs_evict_lru = {
    .name = "lru",
    .create = create,
    .destroy = destroy,
    .stored = nothing,
    .found = nothing,
    .idle = idle,
    .gone = nothing,
    .victim = victim,
};
