/* How much memory this machine, this process's cgroup and /dev/shm still have.
 *
 * Asked before an arena region is made: shared memory that is not there kills the process later,
 * when the page is touched.
 */
#ifndef KV_COMMON_TRANSPORT_MACHINE_MEMORY_H
#define KV_COMMON_TRANSPORT_MACHINE_MEMORY_H

#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kv_machine_memory {
	uint64_t available; /* MemAvailable, bytes */
	uint64_t
	    cgroup_limit;     /* the tightest limit above this process, UINT64_MAX when there is none */
	uint64_t cgroup_room; /* what that limit leaves, page cache not counted; UINT64_MAX likewise */
	uint64_t shm_room;    /* free in /dev/shm; 0 where there is none */
	uint64_t total;       /* MemTotal, bytes: UINT64_MAX when it is not told */
};

/* `root` is put before every path ("" outside of tests). KV_IO when /proc/meminfo cannot be read; a
 * cgroup or /dev/shm that cannot be read counts as no limit and no room. */
enum kv_status kv_machine_memory_read(const char *root, struct kv_machine_memory *memory);

/* KV_LIMIT, with what is asked and what is there, when `bytes` more would not leave a reserve of a
 * sixteenth of what is available. `shm`: they come from /dev/shm. */
enum kv_status kv_machine_memory_check(
    const struct kv_machine_memory *memory, uint64_t bytes, int shm);

#ifdef __cplusplus
}
#endif
#endif
