/* GET and SET of a Redis server on a Unix socket, beside memcpy of the same sizes: the same cases,
 * in the same pairs of slices, as `kvctl bench --json`, which prints the same lines.
 *
 *     bench_redis SOCKET [SECONDS]
 *
 * Tuned fairly: values are sent from, and received into, place without a copy of ours; a batch is
 * one MGET; socket buffers are as large as the system lets them be.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"

enum {
	WORKING_SET = 128 << 20,
	DESTINATION = 32 << 20,
	SLICE_NS = 15 * 1000 * 1000,
	MAX_READS = 128,
	MAX_PAIRS = 1024,
	MAX_SAMPLES = 1 << 15,
	INPUT = 64 << 10
};

struct job {
	bool set;
	uint32_t bytes, reads;
};

static const struct job jobs[] = {{false, 8 << 10, 1}, {false, 8 << 10, 64}, {false, 40 << 10, 64},
    {false, 64 << 10, 1}, {false, 64 << 10, 16}, {false, 256 << 10, 1}, {false, 1 << 20, 1},
    {false, 1 << 20, 8}, {false, 4 << 20, 1}, {false, 16 << 20, 1}, {true, 8 << 10, 1},
    {true, 64 << 10, 1}, {true, 256 << 10, 1}, {true, 1 << 20, 1}, {true, 4 << 20, 1},
    {true, 16 << 20, 1}};

static int connection;
static uint8_t *source, *destination;
static uint64_t seed = 1;
static char input[INPUT]; /* received, not yet taken */
static size_t input_from, input_to;

static void die(const char *what)
{
	fprintf(stderr, "bench_redis: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t next(void)
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return seed * UINT64_C(2685821657736338717);
}

/* ---- the protocol ---- */

static void send_parts(struct iovec *parts, int count)
{
	while (count) {
		ssize_t n = writev(connection, parts, count);

		if (n < 0 && errno == EINTR) continue;
		if (n < 0) die("writev");
		while (count && (size_t)n >= parts->iov_len) {
			n -= (ssize_t)parts->iov_len;
			parts++;
			count--;
		}
		if (count) {
			parts->iov_base = (char *)parts->iov_base + n;
			parts->iov_len -= (size_t)n;
		}
	}
}

static void receive_some(void)
{
	ssize_t n;

	if (input_from == input_to) input_from = input_to = 0;
	if (input_to == sizeof input) die("a line is too long");
	n = recv(connection, input + input_to, sizeof input - input_to, 0);
	if (n <= 0) die("recv");
	input_to += (size_t)n;
}

/* One line without its end. */
static const char *take_line(void)
{
	for (;;) {
		char *start = input + input_from;
		char *end = memchr(start, '\n', input_to - input_from);

		if (end) {
			end[-1] = '\0';
			input_from = (size_t)(end - input) + 1;
			return start;
		}
		if (input_from) {
			memmove(input, start, input_to - input_from);
			input_to -= input_from;
			input_from = 0;
		}
		receive_some();
	}
}

/* The value goes where it belongs without a copy, but for what had come with the line. */
static void take_value(uint8_t *to, size_t bytes)
{
	size_t had = input_to - input_from < bytes ? input_to - input_from : bytes;

	memcpy(to, input + input_from, had);
	input_from += had;
	while (had < bytes) {
		ssize_t n = recv(connection, to + had, bytes - had, 0);

		if (n <= 0) die("recv");
		had += (size_t)n;
	}
	while (input_to - input_from < 2)
		receive_some();
	input_from += 2;
}

static void set(const char *key, const uint8_t *value, size_t bytes)
{
	char head[128];
	struct iovec parts[3] = {{head, 0}, {(void *)(uintptr_t)value, bytes}, {"\r\n", 2}};

	parts[0].iov_len = (size_t)snprintf(
	    head, sizeof head, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(key), key, bytes);
	send_parts(parts, 3);
	if (take_line()[0] != '+') die("SET was refused");
}

static void get(char keys[][32], uint32_t count, size_t bytes)
{
	char command[MAX_READS * 48];
	size_t length = (size_t)snprintf(command, sizeof command, "*%u\r\n$4\r\nMGET\r\n", count + 1);
	struct iovec part = {command, 0};

	for (uint32_t i = 0; i < count; i++)
		length += (size_t)snprintf(
		    command + length, sizeof command - length, "$%zu\r\n%s\r\n", strlen(keys[i]), keys[i]);
	part.iov_len = length;
	send_parts(&part, 1);
	if (take_line()[0] != '*') die("MGET was refused");
	for (uint32_t i = 0; i < count; i++) {
		if (strtoull(take_line() + 1, NULL, 10) != bytes) die("MGET found another length");
		take_value(destination + (size_t)i * bytes, bytes);
	}
}

/* ---- slices ---- */

static uint32_t samples[MAX_SAMPLES];
static uint32_t sample_count;

static uint64_t run_set(const struct job *job, bool plain)
{
	const uint8_t *from = source + next() % ((WORKING_SET - job->bytes) / 64) * 64;
	char key[32];
	uint64_t start;

	snprintf(key, sizeof key, "set:%u", (unsigned)(next() % 4));
	start = kv_now_ns();
	if (plain)
		memcpy(destination + next() % ((DESTINATION - job->bytes) / 64 + 1) * 64, from, job->bytes);
	else
		set(key, from, job->bytes);
	return kv_now_ns() - start;
}

static uint64_t run_get(const struct job *job, bool plain)
{
	uint64_t places = WORKING_SET / job->bytes;
	static char keys[MAX_READS][32];
	uint64_t chosen[MAX_READS];
	uint64_t start;

	for (uint32_t i = 0; i < job->reads; i++) {
		chosen[i] = next() % places;
		snprintf(keys[i], sizeof keys[i], "%u:%u", job->bytes, (unsigned)chosen[i]);
	}
	start = kv_now_ns();
	if (!plain) get(keys, job->reads, job->bytes);
	for (uint32_t i = 0; plain && i < job->reads; i++)
		memcpy(destination + (size_t)i * job->bytes, source + chosen[i] * job->bytes, job->bytes);
	return kv_now_ns() - start;
}

/* Bytes a second. */
static double slice(const struct job *job, bool plain)
{
	uint64_t end = kv_now_ns() + SLICE_NS;
	uint64_t nanoseconds = 0;
	uint64_t bytes = 0;

	do {
		uint64_t taken = job->set ? run_set(job, plain) : run_get(job, plain);

		nanoseconds += taken;
		bytes += (uint64_t)job->bytes * job->reads;
		if (!plain && sample_count < MAX_SAMPLES) samples[sample_count++] = (uint32_t)taken;
	} while (kv_now_ns() < end);
	return (double)bytes * 1e9 / (double)nanoseconds;
}

static int by_double(const void *left, const void *right)
{
	double a = *(const double *)left;
	double b = *(const double *)right;

	return a < b ? -1 : a > b;
}

static int by_number(const void *left, const void *right)
{
	uint32_t a = *(const uint32_t *)left;
	uint32_t b = *(const uint32_t *)right;

	return a < b ? -1 : a > b;
}

static double median(double *values, size_t count)
{
	qsort(values, count, sizeof *values, by_double);
	return values[count / 2];
}

static void measure(const struct job *job, size_t pairs)
{
	static double rates[MAX_PAIRS], plain_rates[MAX_PAIRS], ratios[MAX_PAIRS];

	slice(job, false);
	sample_count = 0;
	for (size_t pair = 0; pair < pairs; pair++) {
		for (size_t half = 0; half < 2; half++) {
			bool plain = (half + pair) % 2 == 0;

			*(plain ? &plain_rates[pair] : &rates[pair]) = slice(job, plain);
		}
		ratios[pair] = rates[pair] / plain_rates[pair];
	}
	qsort(samples, sample_count, sizeof samples[0], by_number);
	printf("{\"what\":\"%s\",\"bytes\":%u,\"reads\":%u,\"mixed\":false,\"clients\":1,"
	       "\"bytes_per_second\":%.0f,\"memcpy_bytes_per_second\":%.0f,\"ratio\":%.4f,"
	       "\"p50_seconds\":%.9f,\"p99_seconds\":%.9f}\n",
	    job->set ? "commit" : "fetch", job->bytes, job->reads, median(rates, pairs),
	    median(plain_rates, pairs), median(ratios, pairs), samples[sample_count / 2] / 1e9,
	    samples[(uint64_t)sample_count * 99 / 100] / 1e9);
	fflush(stdout);
}

/* What the job reads; and nothing of the job before. */
static void prepare(const struct job *job)
{
	static const char flush[] = "*1\r\n$8\r\nFLUSHALL\r\n";
	struct iovec part = {(void *)(uintptr_t)flush, sizeof flush - 1};

	send_parts(&part, 1);
	if (take_line()[0] != '+') die("FLUSHALL was refused");
	for (uint64_t i = 0; !job->set && i < WORKING_SET / job->bytes; i++) {
		char key[32];

		snprintf(key, sizeof key, "%u:%u", job->bytes, (unsigned)i);
		set(key, source + i * job->bytes, job->bytes);
	}
}

static void open_connection(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int size = 4 << 20;

	if (strlen(path) >= sizeof address.sun_path) die("the socket's path is too long");
	memcpy(address.sun_path, path, strlen(path) + 1);
	connection = socket(AF_UNIX, SOCK_STREAM, 0);
	setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	setsockopt(connection, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	if (connect(connection, (const struct sockaddr *)&address, sizeof address) != 0) die(path);
}

int main(int argc, char **argv)
{
	double seconds = argc > 2 ? strtod(argv[2], NULL) : 0.6;
	size_t pairs = (size_t)(seconds * 1e9 / (2.0 * SLICE_NS));

	if (argc < 2) {
		fprintf(stderr, "usage: bench_redis SOCKET [SECONDS]\n");
		return 2;
	}
	if (pairs < 3) pairs = 3;
	if (pairs > MAX_PAIRS) pairs = MAX_PAIRS;
	source = malloc(WORKING_SET);
	destination = malloc(DESTINATION);
	if (!source || !destination) die("malloc");
	for (uint64_t i = 0; i < WORKING_SET; i += 8) {
		uint64_t word = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

		memcpy(source + i, &word, sizeof word);
	}
	memset(destination, 1, DESTINATION);
	open_connection(argv[1]);
	for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
		prepare(&jobs[i]);
		measure(&jobs[i], pairs);
	}
	return 0;
}
