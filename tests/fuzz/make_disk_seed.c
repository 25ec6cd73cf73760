/* Writes the seed of the disk header's fuzz target: the front of a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore/disk/disk_format.h"

enum { TOKENS = 32, LAYERS = 2 };

int main(int argc, char **argv)
{
	static uint8_t front[8192];
	static const uint8_t model[KVW_MODEL_ID_BYTES] = {1}, key[KVW_KEY_BYTES] = {2};
	uint32_t token_ids[TOKENS] = {0}, checksums[LAYERS] = {3, 4};
	const struct kvs_saved saved = {.tenant = "uid-1",
	    .model_id = model,
	    .layout = {.layers = LAYERS,
	        .kv_heads = 2,
	        .head_dim = 8,
	        .dense_layers = 1,
	        .sinks = 4,
	        .cluster_tokens = 8},
	    .tokens = TOKENS,
	    .layers = LAYERS,
	    .token_ids = token_ids,
	    .checksums = checksums,
	    .key = key,
	    .parent_key = key};
	uint64_t front_bytes = 0, file_bytes = 0;
	FILE *file;
	int failed;

	if (argc != 2 || kvs_disk_sizes(&saved, &front_bytes, &file_bytes) != KV_OK ||
	    front_bytes > sizeof front || kvs_disk_encode(&saved, front) != KV_OK)
		return 2;
	file = fopen(argv[1], "wb");
	if (!file) return 1;
	/* What is needed of it: the rest of the front is zeros. */
	failed = fwrite(front, 1, KVS_DISK_HEADER + 4 * (TOKENS + LAYERS), file) == 0;
	return fclose(file) != 0 || failed;
}
