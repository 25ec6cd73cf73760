/* Large memory for the CPU backend: 2 MiB aligned and on huge pages where that pays. */
#ifndef KN_CPU_MEMORY_H
#define KN_CPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "common/memory/allocator.h"

/* 64-byte aligned; from 1 MiB on 2 MiB aligned with huge pages asked for. NULL when out of memory
 * (with kv_fail). The contents are undefined. */
void *kn_memory_create(struct kv_allocator *allocator, size_t bytes);
void kn_memory_destroy(struct kv_allocator *allocator, void *memory);

/* CPUs that this process may run on, at least 1. */
uint32_t kn_usable_cpus(void);

#endif
