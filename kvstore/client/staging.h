/* A ring of staging memory for units on their way to the store.
 *
 * Blocks are taken in ring order and may be given back in any order; room comes back from the
 * oldest on. One thread.
 */
#ifndef KVC_STAGING_H
#define KVC_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVC_STAGING_BLOCKS = 128 };

struct kvc_staging_block {
	uint64_t offset, bytes; /* bytes includes what was skipped at the ring's end */
	bool held;
};

struct kvc_staging {
	uint64_t size;
	uint64_t head, used;   /* where the next block starts; bytes between tail and head */
	uint32_t first, count; /* of blocks, oldest first */
	struct kvc_staging_block blocks[KVC_STAGING_BLOCKS];
};

void kvc_staging_init(struct kvc_staging *staging, uint64_t size);

/* Take `bytes` (a multiple of 64). False: no room now; the caller gives blocks back and asks again.
 */
bool kvc_staging_take(struct kvc_staging *staging, uint64_t bytes, uint64_t *offset);

/* Give back the block at `offset`, once. */
void kvc_staging_give(struct kvc_staging *staging, uint64_t offset);

#ifdef __cplusplus
}
#endif
#endif
