#include "common/runtime/event_loop.h"

#include "common/base/log.h"
#include "common/collect/list.h"

#include <signal.h>
#include <stdatomic.h>
#include <uv.h>

enum { SIGNAL_COUNT = 5 };

static const int watched_signals[SIGNAL_COUNT] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

/* Starts each object that the loop owns; `handle.data` of libuv points here. */
struct owned {
	struct kv_list link;
	struct kv_loop *loop;
	uv_handle_t *handle;
	bool closing;
};

struct kv_watch {
	struct owned owned;
	uv_poll_t poll;
	kv_watch_callback callback;
	void *context;
	unsigned events;
};

struct kv_timer {
	struct owned owned;
	uv_timer_t timer;
	kv_loop_callback callback;
	void *context;
};

struct kv_waker {
	struct owned owned;
	uv_async_t async;
	/* Orders what the waking thread wrote before the callback, also where libuv folds two wakes. */
	atomic_uint wakes;
	kv_loop_callback callback;
	void *context;
};

struct work_item {
	struct kv_list link;
	uv_work_t request;
	struct kv_loop *loop;
	kv_loop_callback work;
	kv_loop_callback done;
	void *context;
};

struct kv_loop {
	uv_loop_t uv;
	struct kv_allocator *allocator;
	struct kv_list objects;
	struct kv_list free_work;
	uv_prepare_t prepare;
	uv_idle_t idle;
	uv_timer_t limit; /* of kv_loop_run_for */
	uv_signal_t signals[SIGNAL_COUNT];
	bool signals_open;
	kv_loop_before_block_callback before_block;
	void *before_block_context;
	kv_loop_signal_callback on_signal;
	void *signal_context;
	struct kv_log_limit signal_log;
	struct work_item work[KV_LOOP_WORK_LIMIT];
};

static enum kv_status uv_failure(int code, const char *what)
{
	enum kv_status status = code == UV_ENOMEM                        ? KV_NO_MEMORY
	                        : code == UV_EMFILE || code == UV_ENFILE ? KV_LIMIT
	                                                                 : KV_IO;

	return kv_fail(status, "%s: %s", what, uv_strerror(code));
}

static void free_owned(uv_handle_t *handle)
{
	struct owned *owned = handle->data;

	kv_list_remove(&owned->link);
	kv_free(owned->loop->allocator, owned);
}

static void adopt(struct kv_loop *loop, struct owned *owned, uv_handle_t *handle)
{
	owned->loop = loop;
	owned->handle = handle;
	handle->data = owned;
	kv_list_push_back(&loop->objects, &owned->link);
}

static void close_owned(struct owned *owned)
{
	if (owned->closing) return;
	owned->closing = true;
	uv_close(owned->handle, free_owned);
}

static void on_limit(uv_timer_t *timer)
{
	(void)timer; /* its expiry has ended the wait, which is all that it is for */
}

static void on_prepare(uv_prepare_t *prepare);

static void open_built_in_handles(struct kv_loop *loop)
{
	/* These initialisers only fill memory; libuv documents them as never failing. */
	uv_prepare_init(&loop->uv, &loop->prepare);
	uv_idle_init(&loop->uv, &loop->idle);
	uv_timer_init(&loop->uv, &loop->limit);
	uv_unref((uv_handle_t *)&loop->prepare);
	uv_unref((uv_handle_t *)&loop->idle);
	loop->prepare.data = loop;
}

enum kv_status kv_loop_create(struct kv_allocator *allocator, struct kv_loop **loop)
{
	struct kv_loop *made = kv_alloc_zero(allocator, sizeof *made);
	int code;

	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	code = uv_loop_init(&made->uv);
	if (code) {
		kv_free(allocator, made);
		return uv_failure(code, "cannot create an event loop");
	}
	kv_list_init(&made->objects);
	kv_list_init(&made->free_work);
	for (int i = 0; i < KV_LOOP_WORK_LIMIT; i++) {
		made->work[i].loop = made;
		kv_list_push_back(&made->free_work, &made->work[i].link);
	}
	open_built_in_handles(made);
	*loop = made;
	return KV_OK;
}

enum kv_status kv_loop_run(struct kv_loop *loop)
{
	uv_run(&loop->uv, UV_RUN_DEFAULT);
	return KV_OK;
}

enum kv_status kv_loop_run_for(struct kv_loop *loop, uint64_t timeout_ms)
{
	if (timeout_ms == 0) {
		uv_run(&loop->uv, UV_RUN_NOWAIT);
		return KV_OK;
	}
	uv_update_time(&loop->uv);
	uv_timer_start(&loop->limit, on_limit, timeout_ms, 0);
	uv_run(&loop->uv, UV_RUN_ONCE);
	uv_timer_stop(&loop->limit);
	return KV_OK;
}

void kv_loop_stop(struct kv_loop *loop)
{
	uv_stop(&loop->uv);
}

/* Who asks twice for the end, as `timeout` and impatient people do, must not turn a clean one into
 * a death by signal: libuv gives the signals their default effect back. */
static void close_signals(struct kv_loop *loop)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};

	for (int i = 0; i < SIGNAL_COUNT; i++) {
		uv_close((uv_handle_t *)&loop->signals[i], NULL);
		sigaction(watched_signals[i], &ignore, NULL);
	}
}

void kv_loop_destroy(struct kv_loop *loop)
{
	struct kv_list *position;
	struct kv_list *following;

	if (!loop) return;
	uv_close((uv_handle_t *)&loop->prepare, NULL);
	uv_close((uv_handle_t *)&loop->idle, NULL);
	uv_close((uv_handle_t *)&loop->limit, NULL);
	if (loop->signals_open) close_signals(loop);
	/* A done callback that runs meanwhile may register something new: look again each time. */
	do {
		KV_LIST_EACH_SAFE(position, following, &loop->objects)
		{
			close_owned(KV_CONTAINER_OF(position, struct owned, link));
		}
		uv_run(&loop->uv, UV_RUN_ONCE);
	} while (uv_loop_close(&loop->uv) == UV_EBUSY);
	kv_free(loop->allocator, loop);
}

uint64_t kv_loop_now_ms(const struct kv_loop *loop)
{
	return uv_now(&loop->uv);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct kv_watch *watch = poll->data;
	unsigned seen = 0;

	if (events & UV_READABLE) seen |= KV_LOOP_READABLE;
	if (events & UV_WRITABLE) seen |= KV_LOOP_WRITABLE;
	if (events & UV_DISCONNECT) seen |= KV_LOOP_HANGUP;
	if (status < 0) seen |= watch->events | KV_LOOP_HANGUP;
	watch->callback(watch->context, watch, seen);
}

enum kv_status kv_loop_watch_fd(struct kv_loop *loop, int fd, unsigned events,
    kv_watch_callback callback, void *context, struct kv_watch **watch)
{
	struct kv_watch *made = kv_alloc_zero(loop->allocator, sizeof *made);
	enum kv_status status;
	int code;

	if (!made) return KV_NO_MEMORY;
	code = uv_poll_init(&loop->uv, &made->poll, fd);
	if (code) {
		kv_free(loop->allocator, made);
		return kv_fail(KV_INVALID, "descriptor %d cannot be watched: %s", fd, uv_strerror(code));
	}
	made->callback = callback;
	made->context = context;
	adopt(loop, &made->owned, (uv_handle_t *)&made->poll);
	status = kv_watch_update(made, events);
	if (status != KV_OK) {
		kv_watch_close(made);
		return status;
	}
	*watch = made;
	return KV_OK;
}

enum kv_status kv_watch_update(struct kv_watch *watch, unsigned events)
{
	int wanted = 0;
	int code;

	if (watch->owned.closing) return kv_fail(KV_INVALID, "the watch is closed already");
	if (events & KV_LOOP_READABLE) wanted |= UV_READABLE;
	if (events & KV_LOOP_WRITABLE) wanted |= UV_WRITABLE;
	if (events & KV_LOOP_HANGUP) wanted |= UV_DISCONNECT;
	code = wanted ? uv_poll_start(&watch->poll, wanted, on_poll) : uv_poll_stop(&watch->poll);
	if (code) return uv_failure(code, "cannot watch a descriptor");
	watch->events = events;
	return KV_OK;
}

void kv_watch_close(struct kv_watch *watch)
{
	if (watch) close_owned(&watch->owned);
}

static void on_timer(uv_timer_t *handle)
{
	struct kv_timer *timer = handle->data;

	timer->callback(timer->context);
}

enum kv_status kv_loop_timer(struct kv_loop *loop, uint64_t first_ms, uint64_t repeat_ms,
    kv_loop_callback callback, void *context, struct kv_timer **timer)
{
	struct kv_timer *made = kv_alloc_zero(loop->allocator, sizeof *made);

	if (!made) return KV_NO_MEMORY;
	uv_timer_init(&loop->uv, &made->timer);
	made->callback = callback;
	made->context = context;
	adopt(loop, &made->owned, (uv_handle_t *)&made->timer);
	kv_timer_start(made, first_ms, repeat_ms);
	*timer = made;
	return KV_OK;
}

enum kv_status kv_timer_start(struct kv_timer *timer, uint64_t first_ms, uint64_t repeat_ms)
{
	if (timer->owned.closing) return kv_fail(KV_INVALID, "the timer is closed already");
	/* The loop's clock is that of its last wait; what was long since then must not shorten this. */
	uv_update_time(&timer->owned.loop->uv);
	uv_timer_start(&timer->timer, on_timer, first_ms, repeat_ms);
	return KV_OK;
}

void kv_timer_stop(struct kv_timer *timer)
{
	if (!timer->owned.closing) uv_timer_stop(&timer->timer);
}

void kv_timer_close(struct kv_timer *timer)
{
	if (timer) close_owned(&timer->owned);
}

static void on_async(uv_async_t *async)
{
	struct kv_waker *waker = async->data;

	atomic_exchange_explicit(&waker->wakes, 0, memory_order_acquire);
	waker->callback(waker->context);
}

enum kv_status kv_loop_waker(
    struct kv_loop *loop, kv_loop_callback callback, void *context, struct kv_waker **waker)
{
	struct kv_waker *made = kv_alloc_zero(loop->allocator, sizeof *made);
	int code;

	if (!made) return KV_NO_MEMORY;
	code = uv_async_init(&loop->uv, &made->async, on_async);
	if (code) {
		kv_free(loop->allocator, made);
		return uv_failure(code, "cannot create a waker");
	}
	made->callback = callback;
	made->context = context;
	adopt(loop, &made->owned, (uv_handle_t *)&made->async);
	*waker = made;
	return KV_OK;
}

void kv_waker_wake(struct kv_waker *waker)
{
	atomic_fetch_add_explicit(&waker->wakes, 1, memory_order_release);
	uv_async_send(&waker->async);
}

void kv_waker_close(struct kv_waker *waker)
{
	if (waker) close_owned(&waker->owned);
}

static void on_idle(uv_idle_t *idle)
{
	(void)
	    idle; /* an active idle handle keeps the loop from blocking; there is nothing to do here */
}

static void on_prepare(uv_prepare_t *prepare)
{
	struct kv_loop *loop = prepare->data;

	if (loop->before_block(loop->before_block_context))
		uv_idle_start(&loop->idle, on_idle);
	else
		uv_idle_stop(&loop->idle);
}

enum kv_status kv_loop_before_block(
    struct kv_loop *loop, kv_loop_before_block_callback callback, void *context)
{
	loop->before_block = callback;
	loop->before_block_context = context;
	if (callback) {
		uv_prepare_start(&loop->prepare, on_prepare);
	} else {
		uv_prepare_stop(&loop->prepare);
		uv_idle_stop(&loop->idle);
	}
	return KV_OK;
}

static void on_work(uv_work_t *request)
{
	struct work_item *item = request->data;

	item->work(item->context);
}

static void on_work_done(uv_work_t *request, int status)
{
	struct work_item *item = request->data;
	kv_loop_callback done = item->done;
	void *context = item->context;

	(void)status; /* nothing here cancels, so the work has run */
	/* Given back first: the callback may queue the next piece at the limit. */
	kv_list_push_back(&item->loop->free_work, &item->link);
	done(context);
}

enum kv_status kv_loop_work(
    struct kv_loop *loop, kv_loop_callback work, kv_loop_callback done, void *context)
{
	struct kv_list *node = kv_list_pop_front(&loop->free_work);
	struct work_item *item;
	int code;

	if (!node)
		return kv_fail(KV_BUSY, "%d pieces of work are queued already; queue more when one is done",
		    (int)KV_LOOP_WORK_LIMIT);
	item = KV_CONTAINER_OF(node, struct work_item, link);
	item->work = work;
	item->done = done;
	item->context = context;
	item->request.data = item;
	code = uv_queue_work(&loop->uv, &item->request, on_work, on_work_done);
	if (code) {
		kv_list_push_back(&loop->free_work, &item->link);
		return uv_failure(code, "cannot queue work");
	}
	return KV_OK;
}

static void on_signal(uv_signal_t *handle, int signal_number)
{
	struct kv_loop *loop = handle->data;

	if (signal_number == SIGUSR1 || signal_number == SIGUSR2)
		kv_warning_limited(&loop->signal_log, "loop", "ignored %s: it means nothing here",
		    signal_number == SIGUSR1 ? "SIGUSR1" : "SIGUSR2");
	else
		loop->on_signal(loop->signal_context, signal_number);
}

enum kv_status kv_loop_signals(
    struct kv_loop *loop, kv_loop_signal_callback callback, void *context)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};

	loop->on_signal = callback;
	loop->signal_context = context;
	if (loop->signals_open) return KV_OK;
	for (int i = 0; i < SIGNAL_COUNT; i++) {
		int code = uv_signal_init(&loop->uv, &loop->signals[i]);

		/* Only the first one can fail: it opens the pipe that the others share. */
		if (code) return uv_failure(code, "cannot receive signals");
		loop->signals[i].data = loop;
		uv_unref((uv_handle_t *)&loop->signals[i]);
	}
	loop->signals_open = true;
	for (int i = 0; i < SIGNAL_COUNT; i++) {
		int code = uv_signal_start(&loop->signals[i], on_signal, watched_signals[i]);

		if (code) return uv_failure(code, "cannot receive a signal");
	}
	sigaction(SIGPIPE, &ignore, NULL);
	return KV_OK;
}
