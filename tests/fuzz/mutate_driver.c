/* Runs a fuzz target without libFuzzer: each file of the command line as it is, cut, and with
 * deterministic mutations. The work is bounded by counts, so the same inputs run on every machine.
 *
 *     fuzz_NAME MUTATIONS FILE…
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Numbers that parsers get wrong. */
static const uint64_t edges[] = {0, 1, 7, 8, 9, 31, 32, 127, 128, 255, 256, 65535, 65536,
    0x7fffffff, 0x80000000u, 0xffffffffu, 0x100000000u, 0x7fffffffffffffffu, 0x8000000000000000u,
    0xfffffffffffffff0u, 0xffffffffffffffffu};

/* The interesting bytes of these formats lie at the front: mutate there more often. */
static size_t pick_offset(struct kv_random *random, size_t size)
{
	size_t range = kv_random_below(random, 4) && size > 4096 ? 4096 : size;

	return (size_t)kv_random_below(random, range);
}

static size_t mutate(struct kv_random *random, uint8_t *data, size_t size)
{
	uint64_t steps = 1 + kv_random_below(random, 4);

	while (steps-- > 0 && size > 0) {
		size_t at = pick_offset(random, size), left = size - at;
		size_t from = pick_offset(random, size), length = (size_t)kv_random_below(random, 64);
		uint64_t edge = edges[kv_random_below(random, sizeof edges / sizeof edges[0])];
		size_t width = (size_t)1 << kv_random_below(random, 4);

		switch (kv_random_below(random, 6)) {
		case 0:
			data[at] = (uint8_t)kv_random_next(random);
			break;
		case 1:
			data[at] ^= (uint8_t)(1u << kv_random_below(random, 8));
			break;
		case 2:
		case 3:
			memcpy(data + at, &edge, width < left ? width : left);
			break;
		case 4:
			if (length > left) length = left;
			if (length > size - from) length = size - from;
			memmove(data + at, data + from, length);
			break;
		default:
			size = at;
			break;
		}
	}
	return size;
}

static uint8_t *read_file(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data = NULL;
	long length;

	if (!file) return NULL;
	if (fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) >= 0 &&
	    fseek(file, 0, SEEK_SET) == 0) {
		data = malloc((size_t)length + 1);
		*size = data ? fread(data, 1, (size_t)length, file) : 0;
	}
	fclose(file);
	return data;
}

/* The target sees a block of exactly `size` bytes, so that a sanitizer sees a read behind it. */
static int run_exact(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	if (!copy) return 1;
	memcpy(copy, data, size);
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
	return 0;
}

static int run_file(const char *path, unsigned long mutations)
{
	struct kv_random random;
	size_t size = 0;
	uint8_t *data = read_file(path, &size), *work = malloc(size + 1);
	int failed = !data || !work;

	if (failed) fprintf(stderr, "%s: cannot be read\n", path);
	kv_random_seed(&random, size);
	if (!failed) failed = run_exact(data, size);
	for (unsigned long i = 0; !failed && i < mutations; i++) {
		memcpy(work, data, size);
		failed = run_exact(work, mutate(&random, work, size));
	}
	free(data);
	free(work);
	return failed;
}

int main(int argc, char **argv)
{
	unsigned long mutations = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;

	if (argc < 3) {
		fprintf(stderr, "usage: %s MUTATIONS FILE...\n", argv[0]);
		return 2;
	}
	for (int i = 2; i < argc; i++) {
		if (run_file(argv[i], mutations)) return 1;
	}
	return 0;
}
