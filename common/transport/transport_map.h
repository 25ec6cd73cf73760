/* Sealed memory that crosses a process boundary beside the regions of the map transport: a client's
 * staging memory and the store's control page.
 *
 * All of it is memfd. What a peer maps it maps only after checking the seals and the size: memory
 * that can shrink under a mapping means SIGBUS.
 */
#ifndef KV_COMMON_TRANSPORT_TRANSPORT_MAP_H
#define KV_COMMON_TRANSPORT_TRANSPORT_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/transport/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The client's half: zeroed memory of `bytes` (a positive multiple of the page size), mapped
 * writable and sealed against growing, shrinking and further seals. The caller passes the
 * descriptor to the store and ends with kv_staging_destroy. KV_NO_MEMORY, KV_INVALID, KV_IO. */
enum kv_status kv_staging_create(uint64_t bytes, uint8_t **memory, int *descriptor);
void kv_staging_destroy(uint8_t *memory, uint64_t bytes, int descriptor);

/* The store's half: take a peer's staging memory. Closes the descriptor on failure; else the caller
 * closes *accepted. KV_REFUSED when it is not memory of exactly `bytes` sealed SHRINK and GROW. */
enum kv_status kv_staging_accept(int descriptor, uint64_t bytes, int *accepted);
/* Copy from it. It is read and not mapped: reading a hole through a mapping would allocate the page
 * and charge it to this process. The contents may change at any moment: check the copy. Any thread.
 * KV_IO when less is there. */
enum kv_status kv_staging_read(int accepted, uint64_t offset, uint64_t bytes, uint8_t *target);

/* The store's half: one zeroed page, writable through *page for the store alone; everybody who gets
 * the descriptor can only read it. The descriptor stays the caller's. */
enum kv_status kv_control_page_create(void **page, int *descriptor);
void kv_control_page_destroy(void *page, int descriptor);

/* The client's half: map the page read-only. Takes the descriptor (closes it), also on failure. */
enum kv_status kv_control_page_map(int descriptor, const void **page);
void kv_control_page_unmap(const void *page);

/* ---- memory that outlives the process ---- */

/* A region of the map transport that an earlier process of this store made and filled: mapped
 * read-only, for nobody can write to it any more. Then as if region_create had made it. Takes the
 * descriptor, also on failure. KV_REFUSED when it is not such memory of `bytes`. */
enum kv_status kv_map_region_adopt(struct kv_transport_server *server, int descriptor,
    uint64_t bytes, struct kv_region **region, uint8_t **base);

/* Memory with these bytes, sealed so that nobody changes them. The descriptor is the caller's. */
enum kv_status kv_kept_create(const void *bytes, size_t length, int *descriptor);
/* Map such memory: *length is whole pages, what is behind the bytes are zeros. Takes the
 * descriptor, also on failure. KV_REFUSED when it is no such memory, or longer than `limit`. */
enum kv_status kv_kept_map(int descriptor, uint64_t limit, const uint8_t **bytes, size_t *length);
void kv_kept_unmap(const uint8_t *bytes, size_t length);

#ifdef __cplusplus
}
#endif
#endif
