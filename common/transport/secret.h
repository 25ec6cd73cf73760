/* The secret that a store and its remote workers share, in a file.
 *
 * The file holds 64 hexadecimal digits, 32 random bytes, and may end in a newline. `kvctl secret`
 * and `openssl rand -hex 32` print such a line. */
#ifndef KV_COMMON_TRANSPORT_SECRET_H
#define KV_COMMON_TRANSPORT_SECRET_H

#include "common/transport/secure_channel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KV_SECRET_TEXT = 2 * KV_SECRET_BYTES + 1 };

/* A new one, terminated. */
enum kv_status kv_secret_make(char text[KV_SECRET_TEXT]);

/* KV_REFUSED: others than its owner's group may read it, others than its owner may write it, or its
 * owner is neither root nor this user; KV_INVALID: it holds something else; KV_NOT_FOUND, KV_IO.
 * Wipe it after use with kv_secret_wipe. */
enum kv_status kv_secret_read(const char *path, uint8_t secret[KV_SECRET_BYTES]);
void kv_secret_wipe(uint8_t secret[KV_SECRET_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
