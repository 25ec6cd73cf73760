#include "tests/fault/mixed_trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/mixed_load.h"

enum { SLOTS = 1 << 18 };

struct numbers {
	uint64_t keys[SLOTS];
	uint32_t values[SLOTS]; /* 0: free */
	uint32_t count;
};

bool mixed_trace_open(int *descriptor)
{
	char path[] = "/tmp/clusterkv-trace-XXXXXX";

	*descriptor = mkstemp(path);
	if (*descriptor < 0) return false;
	unlink(path);
	return fcntl(*descriptor, F_SETFL, O_APPEND) == 0;
}

/* Numbers from 1 on; 0 when there are too many. */
static uint32_t number_of(struct numbers *numbers, uint64_t key)
{
	uint32_t slot = (uint32_t)(key % SLOTS);

	while (numbers->values[slot] && numbers->keys[slot] != key)
		slot = (slot + 1) % SLOTS;
	if (numbers->values[slot]) return numbers->values[slot];
	if (numbers->count + 1 >= SLOTS) return 0;
	numbers->keys[slot] = key;
	return numbers->values[slot] = ++numbers->count;
}

static bool write_lines(int descriptor, FILE *file, struct numbers *numbers)
{
	struct mixed_record record;
	off_t at = 0;

	for (; pread(descriptor, &record, sizeof record, at) == (ssize_t)sizeof record;
	     at += (off_t)sizeof record) {
		for (uint32_t i = 0; i < record.count; i++) {
			const uint32_t number = number_of(numbers, record.segments[i].key);

			if (number == 0) return false;
			fprintf(
			    file, "%s%" PRIu32 ":%" PRIu32, i ? " " : "", number, record.segments[i].tokens);
		}
		fputc('\n', file);
	}
	return true;
}

bool mixed_trace_write(int descriptor, const char *path)
{
	struct numbers *numbers = calloc(1, sizeof *numbers);
	FILE *file = fopen(path, "w");
	bool done = numbers && file && write_lines(descriptor, file, numbers);

	if (file && fclose(file) != 0) done = false;
	if (!done) fprintf(stderr, "%s: cannot be written: %s\n", path, strerror(errno));
	free(numbers);
	close(descriptor);
	return done;
}
