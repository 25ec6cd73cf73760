/* What a process needs before anything else is opened in it. */
#ifndef KV_COMMON_BASE_PROCESS_H
#define KV_COMMON_BASE_PROCESS_H

#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* To be called first in main, while there is one thread.
 *
 * Descriptors 0 to 2 are opened where the process was started without them, so that no socket or
 * file takes their number and gets the log or the answer written into it. Reading or writing what
 * was closed fails afterwards as it did before; only the log goes nowhere.
 *
 * SIGPIPE and SIGXFSZ are ignored: a reader that is gone and a limit on file sizes are errors of
 * one write, not the end of the process with all its clients. */
enum kv_status kv_process_prepare(void);

/* See that this process may have so many descriptors at once, and raise its soft limit where the
 * hard one allows that. `user` says who needs them and how many of what ("max-connections: 9
 * connections need"), `option` what to lower else. KV_USAGE: it may not have them; KV_IO. */
enum kv_status kv_process_descriptors(uint64_t needed, const char *user, const char *option);

/* To be called last, by programs whose result is what they printed: KV_IO when something that was
 * written to stdout has not got out, now or earlier. */
enum kv_status kv_process_finish(void);

#ifdef __cplusplus
}
#endif
#endif
