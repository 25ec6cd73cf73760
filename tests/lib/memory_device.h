/* A device of nothing but memory, for unit tests of what keeps backend memory: buffers, transfers
 * and copies, at once; no other operation. */
#ifndef TESTS_LIB_MEMORY_DEVICE_H
#define TESTS_LIB_MEMORY_DEVICE_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Buffers come from `allocator`. unified: what the backend says of itself. */
struct kn_device kvt_memory_device(struct kv_allocator *allocator, int unified);

#ifdef __cplusplus
}
#endif
#endif
