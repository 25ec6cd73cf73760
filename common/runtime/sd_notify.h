/* Messages to the service manager, over NOTIFY_SOCKET.
 *
 * Without NOTIFY_SOCKET the object is there and does nothing, so no caller asks. A message that the
 * manager does not take is dropped: it never blocks, and it never fails the service.
 */
#ifndef KV_COMMON_RUNTIME_SD_NOTIFY_H
#define KV_COMMON_RUNTIME_SD_NOTIFY_H

#include "common/base/status.h"
#include "common/memory/allocator.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_sd_notify;

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. KV_INVALID when one of them is malformed. */
enum kv_status kv_sd_open(struct kv_allocator *allocator, struct kv_sd_notify **notify);
void kv_sd_close(struct kv_sd_notify *notify); /* NULL is allowed */

/* All that follow allow a NULL `notify`. */
bool kv_sd_enabled(const struct kv_sd_notify *notify);

void kv_sd_ready(struct kv_sd_notify *notify);
void kv_sd_stopping(struct kv_sd_notify *notify);
void kv_sd_reloading(struct kv_sd_notify *notify); /* followed by kv_sd_ready when done */
void kv_sd_watchdog(struct kv_sd_notify *notify);

/* Allow this start, stop or reload `milliseconds` more from now. */
void kv_sd_extend_timeout(struct kv_sd_notify *notify, uint64_t milliseconds);

/* One line that `systemctl status` shows. */
void kv_sd_status(struct kv_sd_notify *notify, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* The manager's watchdog period in ms, 0 when it has none; ping at half of it or more often. */
uint64_t kv_sd_watchdog_ms(const struct kv_sd_notify *notify);

/* Have the manager keep a descriptor over a restart under `name` (letters, digits, - and _), or
 * drop all of that name. Waits for a manager that is busy, until the deadline (kv_now_ms), which is
 * that of a whole row of them. KV_UNSUPPORTED when there is no manager. */
enum { KV_SD_PATIENCE_MS = 1000 };
enum kv_status kv_sd_store_fd(
    struct kv_sd_notify *notify, const char *name, int fd, uint64_t deadline_ms);
enum kv_status kv_sd_remove_fd(struct kv_sd_notify *notify, const char *name, uint64_t deadline_ms);

/* Descriptors that the manager hands to this process (LISTEN_FDS, LISTEN_FDNAMES, LISTEN_PID): call
 * `take` for each with its name ("unknown" without one); it then owns the descriptor, which is set
 * close-on-exec. Returns how many. */
typedef void (*kv_sd_take_fd)(void *context, const char *name, int fd);
unsigned kv_sd_take_fds(kv_sd_take_fd take, void *context);
/* Bytes of memory that the descriptors hold which the manager hands to this process, before they
 * are taken: memory that is neither free nor anybody else's. */
uint64_t kv_sd_passed_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
