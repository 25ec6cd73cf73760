/* Runs a fuzz target without libFuzzer: each file of the command line as it is, then mutations of
 * them, so many or for so long.
 *
 *     fuzz_NAME [--seed SEED] MUTATIONS FILE…
 *     fuzz_NAME [--seed SEED] SECONDSs FILE…
 *
 * A number of mutations is the same inputs on every machine. Those of a time are others each time:
 * the seed is printed, and makes the same ones again. The target runs in a child process, on input
 * in memory that both share: whatever ends the child, be it abort, a sanitizer or a loop without
 * end, the input is written to a file in the current folder.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/parse.h"
#include "common/base/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { GROWTH = 4096, HANG_MS = 20000, LOOK_MS = 10 };

struct file {
	const char *path;
	uint8_t *data;
	size_t size;
};

/* What to run. */
struct work {
	const char *program;
	uint64_t seed, mutations, seconds;
	struct file *files;
	size_t file_count, capacity; /* capacity: of an input */
};

/* The input under way, as the child says and the parent reads. */
struct shared {
	volatile uint64_t number, size;
	volatile int running; /* 0: between inputs, or at the end */
	uint8_t data[];
};

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

static size_t mutate(struct kv_random *random, uint8_t *data, size_t size, size_t capacity)
{
	uint64_t steps = 1 + kv_random_below(random, 4);

	while (steps-- > 0 && size > 0) {
		size_t at = pick_offset(random, size), left = size - at;
		size_t from = pick_offset(random, size), length = (size_t)kv_random_below(random, 64);
		uint64_t edge = edges[kv_random_below(random, sizeof edges / sizeof edges[0])];
		size_t width = (size_t)1 << kv_random_below(random, 4);

		switch (kv_random_below(random, 7)) {
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
		case 5: /* a run of bytes once more */
			if (length > left) length = left;
			if (length > capacity - size) length = capacity - size;
			memmove(data + at + length, data + at, left);
			size += length;
			break;
		default:
			size = at;
			break;
		}
	}
	return size;
}

static int read_file(struct file *file)
{
	FILE *stream = fopen(file->path, "rb");
	long length;

	if (stream && fseek(stream, 0, SEEK_END) == 0 && (length = ftell(stream)) >= 0 &&
	    fseek(stream, 0, SEEK_SET) == 0) {
		file->data = malloc((size_t)length + 1);
		if (file->data) file->size = fread(file->data, 1, (size_t)length, stream);
	}
	if (stream) fclose(stream);
	if (!file->data) fprintf(stderr, "%s: cannot be read\n", file->path);
	return !file->data;
}

/* The target sees a block of exactly `size` bytes, so that a sanitizer sees a read behind it. */
static void run_exact(struct shared *shared, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	if (!copy) exit(1);
	memcpy(copy, shared->data, size);
	shared->size = size;
	shared->number++;
	shared->running = 1;
	LLVMFuzzerTestOneInput(copy, size);
	shared->running = 0;
	free(copy);
}

/* The child's part. */
static void run_all(const struct work *work, struct shared *shared)
{
	uint64_t start = kv_now_ns();
	struct kv_random random;

	for (size_t i = 0; i < work->file_count; i++) {
		memcpy(shared->data, work->files[i].data, work->files[i].size);
		run_exact(shared, work->files[i].size);
	}
	kv_random_seed(&random, work->seed);
	for (uint64_t i = 0;; i++) {
		const struct file *file = &work->files[kv_random_below(&random, work->file_count)];

		if (work->seconds ? kv_seconds_since(start) >= (double)work->seconds : i >= work->mutations)
			break;
		memcpy(shared->data, file->data, file->size);
		run_exact(shared, mutate(&random, shared->data, file->size, work->capacity));
	}
	printf("%s: seed %llu, %llu inputs in %.1f s\n", work->program, (unsigned long long)work->seed,
	    (unsigned long long)shared->number, kv_seconds_since(start));
}

/* The child's status. One that is at the same input for too long is ended. */
static int wait_for(pid_t child, const struct shared *shared)
{
	uint64_t number = 0, since = kv_now_ms();
	pid_t waited;
	int status = 0;

	while ((waited = waitpid(child, &status, WNOHANG)) == 0) {
		if (!shared->running || shared->number != number) {
			number = shared->number;
			since = kv_now_ms();
		} else if (kv_now_ms() - since > HANG_MS) {
			fprintf(stderr, "one input for more than %d s\n", HANG_MS / 1000);
			kill(child, SIGKILL);
		}
		poll(NULL, 0, LOOK_MS);
	}
	return waited == child ? status : -1;
}

/* Keep the input, and say how to run it again. */
static void report(const struct work *work, const struct shared *shared)
{
	char path[256], folder[PATH_MAX];
	unsigned long long seed = work->seed, number = shared->number;
	FILE *file;

	if (!shared->running) {
		fprintf(stderr, "%s: failed between inputs, after %llu, seed %llu\n", work->program, number,
		    seed);
		return;
	}
	snprintf(path, sizeof path, "%s-%llu-%llu.input", work->program, seed, number);
	file = fopen(path, "wb");
	if (!file || fwrite(shared->data, 1, shared->size, file) != shared->size)
		fprintf(stderr, "%s: cannot be written: %s\n", path, strerror(errno));
	if (file) fclose(file);
	fprintf(stderr, "%s: failed at input %llu of seed %llu, written to %s/%s\nagain: %s 0 %s\n",
	    work->program, number, seed, getcwd(folder, sizeof folder) ? folder : ".", path,
	    work->program, path);
}

static int run(const struct work *work)
{
	size_t bytes = sizeof(struct shared) + work->capacity;
	FILE *file = tmpfile();
	struct shared *shared = MAP_FAILED;
	pid_t child;

	if (file && ftruncate(fileno(file), (off_t)bytes) == 0)
		shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	if (file) fclose(file);
	if (shared == MAP_FAILED) {
		perror("memory for inputs");
		return 1;
	}
	printf("%s: seed %llu\n", work->program, (unsigned long long)work->seed);
	fflush(stdout);
	child = fork();
	if (child < 0) {
		perror("fork");
		return 1;
	}
	if (child == 0) {
		run_all(work, shared);
		exit(0);
	}
	if (wait_for(child, shared) == 0) return 0;
	report(work, shared);
	return 1;
}

/* "10s" is a time, "10" a number. */
static int parse_amount(const char *text, struct work *work)
{
	char digits[24];
	size_t length = strlen(text);

	if (length < 2 || text[length - 1] != 's') return kv_parse_u64(text, &work->mutations) != KV_OK;
	snprintf(digits, sizeof digits, "%.*s", (int)length - 1, text);
	return kv_parse_u64(digits, &work->seconds) != KV_OK || work->seconds == 0;
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/');
	struct work work = {.program = slash ? slash + 1 : argv[0], .seed = 1};
	int at = 1, failed = 0, seeded = argc > 2 && strcmp(argv[1], "--seed") == 0;

	if (seeded) at += 2;
	if (argc < at + 2 || (seeded && kv_parse_u64(argv[2], &work.seed) != KV_OK) ||
	    parse_amount(argv[at], &work)) {
		fprintf(stderr, "usage: %s [--seed SEED] MUTATIONS|SECONDSs FILE...\n", argv[0]);
		return 2;
	}
	if (work.seconds && !seeded) work.seed = kv_random_entropy();
	work.file_count = (size_t)(argc - at - 1);
	work.files = calloc(work.file_count, sizeof *work.files);
	for (size_t i = 0; work.files && i < work.file_count && !failed; i++) {
		work.files[i].path = argv[(size_t)at + 1 + i];
		failed = read_file(&work.files[i]);
		if (work.capacity < work.files[i].size + GROWTH)
			work.capacity = work.files[i].size + GROWTH;
	}
	if (work.files && !failed) failed = run(&work);
	for (size_t i = 0; work.files && i < work.file_count; i++)
		free(work.files[i].data);
	failed |= !work.files;
	free(work.files);
	return failed;
}
