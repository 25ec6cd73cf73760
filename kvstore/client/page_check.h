/* Whether what was copied out of the arena may be used: the words of the store's control page. */
#ifndef KVC_PAGE_CHECK_H
#define KVC_PAGE_CHECK_H

#include <stdint.h>

#include "common/base/status.h"
#include "proto/wire_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* KV_OK: nothing that this lease protects had been reused when the copies that the caller made were
 * made. KV_DISCONNECTED: the store stops. KV_STALE: another boot of the store, or the lease has
 * lapsed. To be called after the copies, by the thread that made them. */
enum kv_status kvc_page_check(
    const struct kvw_control_page *page, uint32_t slot, uint64_t epoch, uint64_t generation);

#ifdef __cplusplus
}
#endif
#endif
