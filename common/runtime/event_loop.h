/* One event loop of a process, over libuv; the only door to it.
 *
 * All calls belong to the thread that runs the loop, except kv_waker_wake, which any thread (but no
 * signal handler) may call. Callbacks run on the loop's thread and are never called from inside the
 * function that registers them. Every object is owned by its loop: closing one early is allowed
 * from any callback, its own too; kv_loop_destroy closes what is left. A closed object gives no
 * further callback, and its pointer must not be used again.
 */
#ifndef KV_COMMON_RUNTIME_EVENT_LOOP_H
#define KV_COMMON_RUNTIME_EVENT_LOOP_H

#include "common/base/status.h"
#include "common/memory/allocator.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_loop;
struct kv_watch;
struct kv_timer;
struct kv_waker;

enum kv_loop_event {
	KV_LOOP_READABLE = 1,
	KV_LOOP_WRITABLE = 2,
	/* Asked for: the peer closed its sending side (holds from then on, so a watch that ignores it
	 * is called again and again). Not asked for: only when the descriptor failed, together with the
	 * events that were asked for, so that a read or write finds out why; no event follows then. */
	KV_LOOP_HANGUP = 4
};

typedef void (*kv_loop_callback)(void *context);
typedef void (*kv_watch_callback)(void *context, struct kv_watch *watch, unsigned events);
typedef void (*kv_loop_signal_callback)(void *context, int signal_number);
typedef bool (*kv_loop_before_block_callback)(void *context);

enum kv_status kv_loop_create(struct kv_allocator *allocator, struct kv_loop **loop);

/* Serve events until kv_loop_stop, or until nothing is registered any more (signals alone do not
 * keep a loop alive). May be called again afterwards. */
enum kv_status kv_loop_run(struct kv_loop *loop);

/* Serve what is ready now, or wait at most `timeout_ms` for the first event; for tests and drains.
 */
enum kv_status kv_loop_run_for(struct kv_loop *loop, uint64_t timeout_ms);

/* Make kv_loop_run return after the current round of callbacks. Loop thread only: another thread
 * wakes a waker whose callback stops. */
void kv_loop_stop(struct kv_loop *loop);

/* Close everything that is open, wait for work on pool threads (their done callbacks still run),
 * and free. NULL is allowed. */
void kv_loop_destroy(struct kv_loop *loop);

/* Monotonic milliseconds of the current round (one clock reading for all of its callbacks). */
uint64_t kv_loop_now_ms(const struct kv_loop *loop);

/* Report events of a descriptor while they hold (level-triggered). `events` is a mask of READABLE
 * and WRITABLE, 0 for none until kv_watch_update (a hang-up is not seen either then). The
 * descriptor stays the caller's, should be non-blocking, may be watched once, and must be closed
 * after kv_watch_close. */
enum kv_status kv_loop_watch_fd(struct kv_loop *loop, int fd, unsigned events,
    kv_watch_callback callback, void *context, struct kv_watch **watch);
enum kv_status kv_watch_update(struct kv_watch *watch, unsigned events);
void kv_watch_close(struct kv_watch *watch); /* NULL is allowed */

/* Call back after `first_ms`, then every `repeat_ms`; 0 for once (the timer still wants
 * kv_timer_close). A repeating timer does not catch up on missed rounds. */
enum kv_status kv_loop_timer(struct kv_loop *loop, uint64_t first_ms, uint64_t repeat_ms,
    kv_loop_callback callback, void *context, struct kv_timer **timer);
/* Set it anew, running or not. */
enum kv_status kv_timer_start(struct kv_timer *timer, uint64_t first_ms, uint64_t repeat_ms);
void kv_timer_stop(struct kv_timer *timer);  /* may be started again */
void kv_timer_close(struct kv_timer *timer); /* NULL is allowed */

/* Call back on the loop after kv_waker_wake; several wakes before the callback runs become one.
 * kv_waker_wake needs no lock and publishes the memory written before it. The waking threads must
 * be done before kv_waker_close. */
enum kv_status kv_loop_waker(
    struct kv_loop *loop, kv_loop_callback callback, void *context, struct kv_waker **waker);
void kv_waker_wake(struct kv_waker *waker);
void kv_waker_close(struct kv_waker *waker); /* NULL is allowed */

/* Ask before each wait for events. The callback makes progress and returns true when the loop must
 * not block in this round (more is ready now). One per loop; NULL takes it away. It does not keep
 * the loop alive. */
enum kv_status kv_loop_before_block(
    struct kv_loop *loop, kv_loop_before_block_callback callback, void *context);

/* Run `work` on a pool thread, then `done` on the loop, both with `context`, each exactly once. For
 * copies and checksums of some hundred KiB and more; at most KV_LOOP_WORK_LIMIT at a time, then
 * KV_BUSY (nothing was queued). */
enum { KV_LOOP_WORK_LIMIT = 256 };
enum kv_status kv_loop_work(
    struct kv_loop *loop, kv_loop_callback work, kv_loop_callback done, void *context);

/* SIGTERM, SIGINT and SIGHUP arrive as callbacks, and are ignored once the loop is destroyed;
 * SIGUSR1 and SIGUSR2 are a line in the log; SIGPIPE is ignored by the process from here on. */
enum kv_status kv_loop_signals(
    struct kv_loop *loop, kv_loop_signal_callback callback, void *context);

#ifdef __cplusplus
}
#endif
#endif
