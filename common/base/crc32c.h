/* CRC-32C (Castagnoli; reflected polynomial 0x82f63b78, as in iSCSI, RFC 3720 appendix B.4).
 *
 * Uses the SSE4.2 instruction in three interleaved streams where the processor has it, else eight
 * lookup tables. Both give the same value. Thread-safe.
 */
#ifndef KV_COMMON_BASE_CRC32C_H
#define KV_COMMON_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The checksum of `bytes` after data whose checksum is `before` (0 for none):
 * kv_crc32c(kv_crc32c(0, a, n), b, m) is the checksum of a followed by b. */
uint32_t kv_crc32c(uint32_t before, const void *bytes, size_t size);

/* The same by tables only, to check the other against. */
uint32_t kv_crc32c_portable(uint32_t before, const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif
#endif
