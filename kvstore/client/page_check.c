#include "kvstore/client/page_check.h"

#include <stdatomic.h>
#include <stdbool.h>

#ifdef KV_FAULT_POINTS
#include "common/runtime/fault_point.h"
#endif

/* A planted fault, which the simulation must find. */
static bool skips_generation(void)
{
#ifdef KV_FAULT_POINTS
	return kv_fault_fires("skip-generation-check");
#else
	return false;
#endif
}

enum kv_status kvc_page_check(
    const struct kvw_control_page *page, uint32_t slot, uint64_t epoch, uint64_t generation)
{
	uint64_t held, running;

	/* The copies come before these loads: a word that still stands means that nothing of it had
	 * been reused when they were made. */
	atomic_thread_fence(memory_order_acquire);
	held = atomic_load_explicit((const _Atomic uint64_t *)&page->lease[slot], memory_order_acquire);
	/* Second: a store that stops says so here before it ends the leases. */
	running = atomic_load_explicit(
	    (const _Atomic uint64_t *)&page->boot_generation, memory_order_acquire);
	if (running == 0) return kv_fail(KV_DISCONNECTED, "the store stops");
	if (running != generation && !skips_generation())
		return kv_fail(KV_STALE, "the store was started anew");
	if (held != epoch) return kv_fail(KV_STALE, "the lease of this worker has lapsed");
	return KV_OK;
}
