/* kvstored without its main(): sockets, peers, the arena and the statistics around the engine.
 *
 * One thread, the loop's; copies and checksums run on the loop's pool.
 */
#ifndef KVS_SERVER_SERVER_H
#define KVS_SERVER_SERVER_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "common/runtime/event_loop.h"
#include "common/runtime/sd_notify.h"
#include "kvstore/server/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvs_server;

/* Set everything up and listen. `settings` are complete (kvs_settings_complete), borrowed, and may
 * change where they are reloadable. KV_EXISTS when another store serves the socket; KV_LIMIT when
 * the transport that was asked for has no room. */
enum kv_status kvs_server_create(struct kv_allocator *allocator,
    const struct kvs_settings *settings, struct kv_loop *loop, struct kv_sd_notify *notify,
    struct kvs_server **server);

/* Close every connection, remove the sockets, give all memory back. NULL is allowed. False when a
 * read or write on a pool thread does not end within end_wait_ms, as on a disk that hangs: the
 * arena was handed over as at any other end, the rest is left, and the process is to _exit. */
bool kvs_server_destroy(struct kvs_server *server);

#ifdef __cplusplus
}
#endif
#endif
