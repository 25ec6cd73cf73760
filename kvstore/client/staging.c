#include "kvstore/client/staging.h"

#include "common/base/check.h"

#include <stddef.h>
#include <string.h>

void kvc_staging_init(struct kvc_staging *staging, uint64_t size)
{
	memset(staging, 0, sizeof *staging);
	staging->size = size;
}

static struct kvc_staging_block *block_at(struct kvc_staging *staging, uint32_t index)
{
	return &staging->blocks[(staging->first + index) % KVC_STAGING_BLOCKS];
}

bool kvc_staging_take(struct kvc_staging *staging, uint64_t bytes, uint64_t *offset)
{
	uint64_t start = staging->head;
	uint64_t skipped = 0;
	struct kvc_staging_block *block;

	if (staging->count == KVC_STAGING_BLOCKS || bytes > staging->size) return false;
	if (!staging->count) start = staging->head = staging->used = 0;
	if (start + bytes > staging->size) {
		skipped = staging->size - start;
		start = 0;
	}
	if (staging->used + skipped + bytes > staging->size) return false;
	block = block_at(staging, staging->count++);
	*block = (struct kvc_staging_block){.offset = start, .bytes = skipped + bytes, .held = true};
	staging->used += skipped + bytes;
	staging->head = start + bytes;
	*offset = start;
	return true;
}

void kvc_staging_give(struct kvc_staging *staging, uint64_t offset)
{
	struct kvc_staging_block *found = NULL;

	for (uint32_t i = 0; i < staging->count && !found; i++) {
		struct kvc_staging_block *block = block_at(staging, i);

		if (block->held && block->offset == offset) found = block;
	}
	KV_CHECK(found != NULL);
	if (!found) return;
	found->held = false;
	while (staging->count && !block_at(staging, 0)->held) {
		staging->used -= block_at(staging, 0)->bytes;
		staging->first = (staging->first + 1) % KVC_STAGING_BLOCKS;
		staging->count--;
	}
}
