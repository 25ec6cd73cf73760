/* The device thread: runs operations in an order that is legal, but as unlucky as it may be.
 *
 * Seed 0 runs nothing before the host waits for it, and then of what can run the operation issued
 * last. Seed 1 runs everything as soon as it is queued. Other seeds draw.
 */
#include <pthread.h>
#include <algorithm>
#include <deque>

#include "tests/lib/cuda_on_cpu/sanitizers.h"
#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
/* What the host waits for: its targets (none: everything), or that `budget` operations ran. */
struct request {
	uint64_t number;
	operations targets;
	size_t budget;
	int done;
};

/* Never destroyed: the thread may still wait while the process ends. */
static operations *const pending = new operations;
static std::deque<struct request *> *const requests = new std::deque<struct request *>;
static int request_count; /* the futex that the thread sleeps on */
static bool started;
static uint64_t operation_number, request_number, random_state;
__thread int in_host_function;

void operation_begin(struct operation *op)
{
	order_acquire(&op->queued_token);
	for (const operation_ref &before : op->after)
		order_acquire(&before->done_token);
}

static bool is_ready(const operation_ref &op)
{
	return std::all_of(op->after.begin(), op->after.end(),
	    [](const operation_ref &before) { return before->done; });
}

static void mark_needed(const operation_ref &op, uint64_t request)
{
	std::vector<struct operation *> open{op.get()};
	while (!open.empty()) {
		struct operation *o = open.back();
		open.pop_back();
		if (o->done || o->needed_by == request) continue;
		o->needed_by = request;
		for (const operation_ref &before : o->after)
			open.push_back(before.get());
	}
}

/* The index of the operation to run next. There is one: the oldest is always ready. */
static size_t choose(const struct request *r)
{
	if (settings.seed == 1) return 0;
	std::vector<size_t> ready;
	for (size_t i = 0; i < pending->size(); i++)
		if ((settings.seed != 0 || (*pending)[i]->needed_by == r->number) &&
		    is_ready((*pending)[i]))
			ready.push_back(i);
	return settings.seed == 0 ? ready.back() : ready[next_random(&random_state) % ready.size()];
}

/* ---- running one operation ---- */

struct host_call {
	struct operation *op;
	int done;
};

static void run_host_call(struct operation *op)
{
	operation_begin(op);
	in_host_function = 1;
	op->work->run(op);
	in_host_function = 0;
	order_release(&op->done_token);
}

static void *host_call_main(void *argument)
{
	struct host_call *call = static_cast<struct host_call *>(argument);
	run_host_call(call->op);
	__atomic_store_n(&call->done, 1, __ATOMIC_RELEASE);
	quiet_wake(&call->done);
	return nullptr;
}

/* Under ThreadSanitizer each host function gets a thread: its stack is new, and so is its clock. */
static void run_of_host(struct operation *op)
{
	if (!under_tsan) {
		run_host_call(op);
		return;
	}
	struct host_call call = {op, 0};
	pthread_t thread;
	if (pthread_create(&thread, nullptr, host_call_main, &call) != 0)
		die_plainly("no thread for a host function");
	pthread_detach(thread);
	quiet_wait(&call.done, 0);
}

/* Copies and the like: their memory accesses are those of a context without any other order. */
static void run_in_order(struct operation *op)
{
	void *here = under_tsan ? __tsan_get_current_fiber() : nullptr;
	void *fresh = under_tsan ? __tsan_create_fiber(0) : nullptr;
	if (under_tsan) {
		__tsan_set_fiber_name(fresh, op->work->name);
		__tsan_switch_to_fiber(fresh, 1);
	}
	operation_begin(op);
	op->work->run(op);
	order_release(&op->done_token);
	if (under_tsan) {
		__tsan_switch_to_fiber(here, 1);
		__tsan_destroy_fiber(fresh);
	}
}

static void run(struct operation *op, bool *memory_open)
{
	if (*memory_open == op->work->of_host) {
		*memory_open = !op->work->of_host;
		if (*memory_open)
			device_memory_open();
		else
			device_memory_close();
	}
	if (op->work->of_host)
		run_of_host(op);
	else if (op->work->orders_threads)
		op->work->run(op);
	else
		run_in_order(op);
}

/* ---- the thread ---- */

static bool is_served(const struct request *r)
{
	if (r->budget == 0 || pending->empty()) return true;
	return !r->targets.empty() && std::all_of(r->targets.begin(), r->targets.end(),
	                                  [](const operation_ref &op) { return op->done; });
}

/* With the lock held, but while an operation runs. */
static void serve(struct request *r)
{
	bool memory_open = false;
	for (const operation_ref &op : r->targets.empty() ? *pending : r->targets)
		mark_needed(op, r->number);
	for (; !is_served(r); r->budget--) {
		size_t i = choose(r);
		operation_ref op = (*pending)[i];
		pending->erase(pending->begin() + static_cast<ptrdiff_t>(i));
		state_lock.unlock();
		run(op.get(), &memory_open);
		state_lock.lock();
		op->done = true;
		op->after.clear();
	}
	if (memory_open) device_memory_close();
}

static void *device_main(void *)
{
	faults_prepare_thread();
	tsan_ignore();
	state_lock.lock();
	for (;;) {
		while (requests->empty()) {
			int seen = request_count;
			state_lock.unlock();
			quiet_wait(&request_count, seen);
			state_lock.lock();
		}
		struct request *r = requests->front();
		requests->pop_front();
		serve(r);
		__atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
		quiet_wake(&r->done);
	}
	return nullptr;
}

static void start(void)
{
	pthread_t thread;
	random_state = settings.seed * 0x9e3779b97f4a7c15u | 1;
	if (pthread_create(&thread, nullptr, device_main, nullptr) != 0)
		die_plainly("no thread for the device");
	pthread_detach(thread);
	started = true;
}

/* With the lock held, which is released while the device runs. */
static void ask(const operations &targets, size_t budget)
{
	struct request r = {++request_number, targets, budget, 0};
	requests->push_back(&r);
	request_count++;
	quiet_wake(&request_count);
	state_lock.unlock();
	quiet_wait(&r.done, 0);
	state_lock.lock();
}

operation_ref device_queue(work_ref work, operations after)
{
	if (!started) start();
	operation_ref op = std::make_shared<struct operation>();
	op->number = ++operation_number;
	op->work = std::move(work);
	op->after = std::move(after);
	order_release(&op->queued_token);
	pending->push_back(op);
	if (settings.seed == 1)
		ask({}, SIZE_MAX);
	else if (settings.seed > 1 && next_random(&random_state) % 4 == 0)
		ask({}, 1 + next_random(&random_state) % 3);
	return op;
}

static bool all_done(const operations &targets)
{
	return std::all_of(
	    targets.begin(), targets.end(), [](const operation_ref &op) { return op->done; });
}

static void learn_from(const operations &targets)
{
	for (const operation_ref &op : targets)
		order_acquire(&op->done_token);
}

void device_wait(const operations &targets)
{
	if (!all_done(targets)) ask(targets, SIZE_MAX);
	learn_from(targets);
}

bool device_poll(const operations &targets)
{
	bool done = all_done(targets);
	if (done)
		learn_from(targets);
	else
		ask(targets, 1);
	return done;
}
} // namespace emu
