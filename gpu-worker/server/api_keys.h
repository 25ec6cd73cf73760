/* Keys of clients, from a file: a line each; empty lines and those that begin with # are left out.
 * Only digests are kept, and a comparison takes as long whatever it finds. */
#ifndef GW_SERVER_API_KEYS_H
#define GW_SERVER_API_KEYS_H

#include "common/base/status.h"
#include "common/memory/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GW_API_KEY_LEAST = 16, GW_API_KEY_MOST = 512, GW_API_KEYS_MOST = 1024 };

struct gw_api_keys;

/* KV_REFUSED: others may read the file, or it is somebody else's; KV_INVALID: it holds no key, or
 * one that is too short, too long, or not made of visible ASCII characters. */
enum kv_status gw_api_keys_load(
    struct kv_allocator *allocator, const char *path, struct gw_api_keys **keys);
void gw_api_keys_destroy(struct gw_api_keys *keys); /* NULL is allowed */

/* Is it one of them? `authorization` is the header's value, "Bearer KEY", or NULL. */
int gw_api_keys_match(const struct gw_api_keys *keys, const char *authorization);

#ifdef __cplusplus
}
#endif
#endif
