/* Named places where a test can make the program fail.
 *
 * A fault point is an `if (kv_fault_fires("commit-before-reply")) …` in front of what should go
 * wrong. While no fault is configured, that costs one relaxed load. The table is the process's:
 * faults are switched on once, by an option, before threads start.
 */
#ifndef KV_COMMON_RUNTIME_FAULT_POINT_H
#define KV_COMMON_RUNTIME_FAULT_POINT_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KV_FAULT_LIMIT = 32, KV_FAULT_NAME_SIZE = 48 };

/* `name=count@skip,name2=count…`: after `skip` passes (0 when not given) the point fires `count`
 * times; `name` alone means once, `name=always` without end. `known` is the NULL-terminated list of
 * the program's points, or NULL for any name. Replaces what was configured; NULL or "" switches all
 * off. KV_INVALID leaves the faults as they were. */
enum kv_status kv_fault_configure(const char *text, const char *const *known);

/* Count one pass of this point; true when it should fail now. Any thread. */
bool kv_fault_fires(const char *name);

/* Count one pass of this point; where it fires, stop the process as by SIGSTOP, and go on when it
 * is continued. For tests that signal a process at a certain moment. Any thread. */
void kv_fault_stop(const char *name);

/* How often the point has fired since it was configured. */
uint64_t kv_fault_fired(const char *name);

#ifdef __cplusplus
}
#endif
#endif
