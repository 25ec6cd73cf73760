#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/base/clock.h"
#include "kernels/cpu/memory.h"

/* A run is published in one word, `ticket`: run number, task count, next task. A thread claims a
 * task by moving `next` on with compare-and-swap, which fails when the run has changed meanwhile;
 * once it has a claim the run cannot end before that task does, so the fields beside the ticket are
 * stable. */
enum { COUNT_BITS = 20, MAX_TASKS = (1 << COUNT_BITS) - 1, RUN_BITS = 64 - 2 * COUNT_BITS };
enum { SPIN_ROUNDS = 64, SPIN_NS = 40000 };

struct worker {
	struct kn_pool *pool;
	uint32_t index;
	pthread_t thread;
};

struct kn_pool {
	_Alignas(64) _Atomic uint64_t ticket;
	_Alignas(64) _Atomic uint32_t finished; /* tasks of this run that are done */
	_Alignas(64) _Atomic uint32_t sleepers; /* workers that sleep, or are about to */
	_Atomic bool caller_sleeps;
	_Atomic bool stop;
	_Alignas(64) kn_pool_task *task;
	void *context;
	struct kv_allocator *allocator;
	uint32_t threads, started;
	bool
	    spin; /* false where there are more threads than CPUs: then spinning only takes time away */
	size_t scratch_bytes;
	uint8_t *scratch;
	struct worker *workers;
	pthread_mutex_t lock;
	pthread_cond_t work, done;
};

static uint64_t make_ticket(uint64_t run, uint32_t count, uint32_t next)
{
	return (run & ((1u << RUN_BITS) - 1)) << (2 * COUNT_BITS) | (uint64_t)count << COUNT_BITS |
	       next;
}

static uint32_t ticket_count(uint64_t ticket)
{
	return (uint32_t)(ticket >> COUNT_BITS) & MAX_TASKS;
}

static uint32_t ticket_next(uint64_t ticket)
{
	return (uint32_t)ticket & MAX_TASKS;
}

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/* Claim and run tasks until none is left; what the last look at the ticket showed is returned. */
static uint64_t work_off(struct kn_pool *pool, uint32_t thread)
{
	for (;;) {
		uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);

		if (ticket_next(ticket) >= ticket_count(ticket)) return ticket;
		if (!atomic_compare_exchange_weak_explicit(
		        &pool->ticket, &ticket, ticket + 1, memory_order_acq_rel, memory_order_relaxed))
			continue;
		pool->task(pool->context, ticket_next(ticket), thread);
		/* Sequentially consistent, as the flag: either we see the sleeper or it sees us. */
		uint32_t finished = atomic_fetch_add(&pool->finished, 1) + 1;

		if (finished == ticket_count(ticket) && atomic_load(&pool->caller_sleeps)) {
			pthread_mutex_lock(&pool->lock);
			pthread_cond_signal(&pool->done);
			pthread_mutex_unlock(&pool->lock);
		}
	}
}

/* Spin until the ticket is no longer `seen` (true) or the time is up (false). Every round ends with
 * a yield, so that a thread with work gets the CPU at once where the machine is busy. */
static bool spin_for_work(struct kn_pool *pool, uint64_t seen)
{
	uint64_t start = kv_now_ns();

	do {
		for (int i = 0; i < SPIN_ROUNDS; i++) {
			if (atomic_load_explicit(&pool->ticket, memory_order_acquire) != seen) return true;
			relax();
		}
		sched_yield();
	} while (kv_now_ns() - start < SPIN_NS);
	return false;
}

static void *worker_main(void *argument)
{
	struct worker *worker = argument;
	struct kn_pool *pool = worker->pool;

	while (!atomic_load(&pool->stop)) {
		uint64_t seen = work_off(pool, worker->index);

		if (pool->spin && spin_for_work(pool, seen)) continue;
		/* No deadline: the owner wakes every sleeper when it publishes work and when it stops. */
		pthread_mutex_lock(&pool->lock);
		atomic_fetch_add(&pool->sleepers, 1);
		while (atomic_load(&pool->ticket) == seen && !atomic_load(&pool->stop))
			pthread_cond_wait(&pool->work, &pool->lock);
		atomic_fetch_sub(&pool->sleepers, 1);
		pthread_mutex_unlock(&pool->lock);
	}
	return NULL;
}

static void wake_workers(struct kn_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
}

/* Wait until all claimed tasks are done: short spin, then sleep. A task uses the caller's memory,
 * so there is nothing to give up to at a deadline. */
static void wait_finished(struct kn_pool *pool, uint32_t count)
{
	uint64_t start = kv_now_ns();

	do {
		for (int i = 0; i < SPIN_ROUNDS; i++) {
			if (atomic_load_explicit(&pool->finished, memory_order_acquire) == count) return;
			relax();
		}
		sched_yield();
	} while (kv_now_ns() - start < SPIN_NS);
	pthread_mutex_lock(&pool->lock);
	atomic_store(&pool->caller_sleeps, true);
	while (atomic_load(&pool->finished) != count)
		pthread_cond_wait(&pool->done, &pool->lock);
	atomic_store(&pool->caller_sleeps, false);
	pthread_mutex_unlock(&pool->lock);
}

static void run_some(struct kn_pool *pool, kn_pool_task *task, void *context, uint32_t count)
{
	uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_relaxed);

	pool->task = task;
	pool->context = context;
	atomic_store_explicit(&pool->finished, 0, memory_order_relaxed);
	atomic_store(&pool->ticket, make_ticket((ticket >> (2 * COUNT_BITS)) + 1, count, 0));
	if (atomic_load(&pool->sleepers) > 0) wake_workers(pool);
	work_off(pool, 0);
	wait_finished(pool, count);
}

struct shifted_task {
	kn_pool_task *task;
	void *context;
	uint32_t first;
};

static void run_shifted(void *context, uint32_t task, uint32_t thread)
{
	const struct shifted_task *shifted = context;

	shifted->task(shifted->context, shifted->first + task, thread);
}

void kn_pool_run(struct kn_pool *pool, kn_pool_task *task, void *context, uint32_t task_count)
{
	if (pool->threads == 1 || task_count == 1) {
		for (uint32_t i = 0; i < task_count; i++)
			task(context, i, 0);
		return;
	}
	struct shifted_task shifted = {task, context, 0};

	for (; task_count - shifted.first > MAX_TASKS; shifted.first += MAX_TASKS)
		run_some(pool, run_shifted, &shifted, MAX_TASKS);
	if (shifted.first > 0)
		run_some(pool, run_shifted, &shifted, task_count - shifted.first);
	else if (task_count > 0)
		run_some(pool, task, context, task_count);
}

static enum kv_status start_workers(struct kn_pool *pool)
{
	for (uint32_t i = 1; i < pool->threads; i++) {
		struct worker *worker = &pool->workers[i];

		worker->pool = pool;
		worker->index = i;
		if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0)
			return kv_fail(KV_LIMIT,
			    "cannot start compute thread %u of %u: lower --threads or raise the process limit",
			    i, pool->threads);
		pool->started = i;
	}
	return KV_OK;
}

enum kv_status kn_pool_create(
    struct kv_allocator *allocator, uint32_t threads, size_t scratch_bytes, struct kn_pool **out)
{
	if (threads == 0 || threads > 4096)
		return kv_fail(KV_INVALID, "%u compute threads: give 1 to 4096", threads);
	scratch_bytes = (scratch_bytes + 63) & ~(size_t)63;
	struct kn_pool *pool = kv_alloc_zero(allocator, sizeof *pool);

	if (!pool) return KV_NO_MEMORY;
	pool->allocator = allocator;
	pool->threads = threads;
	pool->scratch_bytes = scratch_bytes;
	pool->spin = threads <= kn_usable_cpus();
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->work, NULL);
	pthread_cond_init(&pool->done, NULL);
	enum kv_status status = KV_NO_MEMORY;

	pool->workers = kv_alloc_array_zero(allocator, threads, sizeof *pool->workers);
	if (!pool->workers) goto undo;
	pool->scratch = kv_alloc_array(allocator, threads, scratch_bytes);
	if (!pool->scratch) goto undo;
	KV_TRY_GOTO(status, start_workers(pool), undo);
	*out = pool;
	return KV_OK;
undo:
	kn_pool_destroy(pool);
	return status;
}

void kn_pool_destroy(struct kn_pool *pool)
{
	if (!pool) return;
	atomic_store(&pool->stop, true);
	/* A new run number without tasks ends the spinning. */
	uint64_t ticket = atomic_load(&pool->ticket);

	atomic_store(&pool->ticket, make_ticket((ticket >> (2 * COUNT_BITS)) + 1, 0, 0));
	wake_workers(pool);
	for (uint32_t i = 1; i <= pool->started; i++)
		pthread_join(pool->workers[i].thread, NULL);
	pthread_cond_destroy(&pool->done);
	pthread_cond_destroy(&pool->work);
	pthread_mutex_destroy(&pool->lock);
	kv_free(pool->allocator, pool->scratch);
	kv_free(pool->allocator, pool->workers);
	kv_free(pool->allocator, pool);
}

uint32_t kn_pool_threads(const struct kn_pool *pool)
{
	return pool->threads;
}

void *kn_pool_scratch(struct kn_pool *pool, uint32_t thread)
{
	return pool->scratch + pool->scratch_bytes * thread;
}

size_t kn_pool_scratch_bytes(const struct kn_pool *pool)
{
	return pool->scratch_bytes;
}
