/* Objects that a killed process left in /dev/shm. */
#ifndef KV_COMMON_TRANSPORT_SHM_LEFTOVERS_H
#define KV_COMMON_TRANSPORT_SHM_LEFTOVERS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Remove from `directory` the regular files whose name starts with `prefix`, that belong to this
 * process's user and that no process on the machine has open or mapped. The last is the kernel's
 * word (a write lease is given only on a file that nobody else holds), so it holds across
 * containers that share the directory. What is in doubt stays. Returns how many were removed. */
int kv_shm_leftovers_remove(const char *directory, const char *prefix);

#ifdef __cplusplus
}
#endif
#endif
