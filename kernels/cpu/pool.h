/* The compute threads of the CPU backend.
 *
 * One thread (the engine's) calls kn_pool_run; it takes part, and returns when every task is done.
 * Threads spin for a short time between runs and then sleep, so that an idle worker costs nothing
 * and two workers on one machine do not starve each other. Tasks are claimed one by one: which
 * thread runs a task must not change its result.
 */
#ifndef KN_CPU_POOL_H
#define KN_CPU_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"

struct kn_pool;

/* `thread` in [0, threads) names the scratch memory that the task may use. */
typedef void kn_pool_task(void *context, uint32_t task, uint32_t thread);

/* `threads` ≥ 1 counts the caller. `scratch_bytes` of 64-byte aligned memory for each thread. */
enum kv_status kn_pool_create(
    struct kv_allocator *allocator, uint32_t threads, size_t scratch_bytes, struct kn_pool **pool);
void kn_pool_destroy(struct kn_pool *pool);
void kn_pool_run(struct kn_pool *pool, kn_pool_task *task, void *context, uint32_t task_count);
uint32_t kn_pool_threads(const struct kn_pool *pool);
void *kn_pool_scratch(struct kn_pool *pool, uint32_t thread);
size_t kn_pool_scratch_bytes(const struct kn_pool *pool);

#endif
