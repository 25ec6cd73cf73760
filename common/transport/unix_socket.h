/* Unix stream sockets: listen, connect, accept, and who is at the other end.
 *
 * All descriptors are close-on-exec and non-blocking.
 */
#ifndef KV_COMMON_TRANSPORT_UNIX_SOCKET_H
#define KV_COMMON_TRANSPORT_UNIX_SOCKET_H

#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KV_UNIX_BACKLOG = 64, KV_UNIX_MODE = 0660 };

/* KV_OK when a socket can have this path; else KV_INVALID, as from those below. */
enum kv_status kv_unix_path_check(const char *path);

/* Could this process listen at `path`, or could it if the one that does did not? Changes nothing;
 * fails as kv_unix_listen does. */
enum kv_status kv_unix_listen_check(const char *path);

/* Listen at `path` with file mode `mode` (KV_UNIX_MODE). A socket left behind by a dead process is
 * removed; KV_EXISTS when somebody answers there, or when the path is something other than a
 * socket. KV_INVALID: the path is empty or longer than a socket address holds. KV_IO. */
enum kv_status kv_unix_listen(const char *path, uint32_t mode, int *socket);

/* Close a listening socket and remove its file, if the file is still that socket. */
void kv_unix_unlisten(int socket, const char *path);

/* Take one connection. *socket becomes -1 when none is waiting (or the peer has gone already).
 * KV_LIMIT: out of descriptors: stop polling for a while. */
enum kv_status kv_unix_accept(int listener, int *socket);

/* Connect at once (a Unix socket does not wait). KV_DISCONNECTED: nothing there, or nobody
 * listening; KV_BUSY: the backlog is full, try again; KV_REFUSED: no permission; KV_INVALID as
 * above. */
enum kv_status kv_unix_connect(const char *path, int *socket);

struct kv_unix_peer {
	int32_t pid; /* 0 when the peer lives in another pid namespace */
	uint32_t uid, gid;
};

/* Who connected, as the kernel saw it then. */
enum kv_status kv_unix_peer(int socket, struct kv_unix_peer *peer);

#ifdef __cplusplus
}
#endif
#endif
