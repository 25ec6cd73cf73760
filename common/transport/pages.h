/* Shared pages: mapping them well aligned, having them there before they are used, huge ones. */
#ifndef KV_COMMON_TRANSPORT_PAGES_H
#define KV_COMMON_TRANSPORT_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KV_PAGE_BYTES = 4096, KV_HUGE_PAGE_BYTES = 2 << 20 };

/* `bytes` rounded up to whole pages; KV_INVALID for 0 and for what does not fit in an address. */
enum kv_status kv_pages_round(uint64_t bytes, size_t *rounded);

/* Reserve addresses (no memory) for a mapping of `bytes` that is to be put there with MAP_FIXED.
 * They start at a multiple of the huge page size where `bytes` is at least one huge page. NULL when
 * the address space is exhausted. Release with munmap. */
void *kv_pages_reserve(size_t bytes);

/* Map `bytes` (rounded) of a descriptor shared and aligned as above; `writable` 0 or 1. NULL with
 * errno set on failure. */
void *kv_pages_map(int descriptor, size_t bytes, int writable);

/* Fault all pages in, for reading or (allocating them) for writing. 0, or -1 with errno: no memory.
 */
int kv_pages_populate(void *memory, size_t bytes, int writable);

/* Allocate all pages of a new writable mapping, huge ones where they are to be had: much faster
 * than small ones first, which collapse would copy. 0, or -1 with errno: no memory. */
int kv_pages_allocate(void *memory, size_t bytes);

/* Ask for huge pages in place of the small ones that are there. Best effort. */
void kv_pages_collapse(void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
