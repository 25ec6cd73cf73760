/* Files that hold secrets: nobody but their owner, and at most its group, may see into them. */
#ifndef KV_COMMON_BASE_PRIVATE_FILE_H
#define KV_COMMON_BASE_PRIVATE_FILE_H

#include <stddef.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Read `path`, which messages call a `what` ("secret file"), into bytes[size]; *length of it were
 * there, `size` when it is that long or longer. It does not wait where somebody put a pipe.
 * KV_NOT_FOUND, KV_IO; KV_REFUSED: it is no regular file, others may read or change it, or it
 * belongs to neither root nor this user. Messages never say what is in it. The caller wipes the
 * bytes, also after a failure. */
enum kv_status kv_private_file_read(
    const char *what, const char *path, char *bytes, size_t size, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
