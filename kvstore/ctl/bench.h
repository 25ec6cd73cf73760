/* kvctl bench: what its two halves share, the plan with its figures and one client. */
#ifndef KVS_CTL_BENCH_H
#define KVS_CTL_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "kvstore/client/store_client.h"
#include "kvstore/ctl/ctl.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	BENCH_UNIT_TOKENS = 4096,
	BENCH_UNIT_BYTES = 16 << 20, /* of rows; the unit has some more */
	BENCH_MAX_UNITS = 16,
	BENCH_MAX_READS = 128,
	BENCH_MAX_CLIENTS = 64,
	BENCH_MAX_SAMPLES = 1 << 15 /* latencies that a client keeps of a case */
};

/* One thing to measure. */
struct bench_case {
	bool commit;
	uint32_t bytes; /* of a read, or of what is committed (rounded up to whole tokens) */
	uint32_t reads; /* in one call; or segments of one commit */
	bool mixed;     /* each read has between a half and twice as many */
};

/* What all clients of a run share. */
struct bench_run {
	const struct ctl_settings *settings;
	const uint8_t *source; /* the bytes of all units, in pages like the arena's */
	uint32_t units;
};

/* Calls that one client made of one kind. */
struct bench_tally {
	uint64_t bytes, nanoseconds, calls;
};

struct bench_client;

/* Connect; the first one writes the units, the others find them. Errors as of kvc_open and
 * kvc_reserve. */
enum kv_status bench_client_open(
    const struct bench_run *run, uint32_t index, struct bench_client **client);
void bench_client_close(struct bench_client *client);
const char *bench_client_lanes(const struct bench_client *client);
const char *bench_client_transport(const struct bench_client *client);
/* A byte of the arena where it can be seen, else NULL. */
const uint8_t *bench_client_arena(const struct bench_client *client);

/* Make calls of one kind until `end_ns` of kv_now_ns, at least one: memcpy of the sizes that
 * `measured` has, or the thing itself. KV_CORRUPT when bytes are wrong (with verify). */
enum kv_status bench_client_slice(struct bench_client *client, const struct bench_case *measured,
    bool plain, uint64_t end_ns, struct bench_tally *tally);

/* Forget the latencies of the case before. */
void bench_client_begin(struct bench_client *client);
/* Of each call of the thing itself, in nanoseconds. */
const uint32_t *bench_client_samples(const struct bench_client *client, uint32_t *count);

/* bench_pages.c: memory that is made as the store makes its arena, so that copies from it meet
 * pages of the same size. Release with bench_pages_free. */
enum kv_status bench_pages_make(uint64_t bytes, uint8_t **memory);
void bench_pages_free(uint8_t *memory, uint64_t bytes);
/* The share of the mapping around `address` that lies in huge pages; negative: unknown. */
double bench_pages_huge(const uint8_t *address);

/* Keep this thread on one of the processors that it may use, counted round: short slices end before
 * the kernel has spread the threads. Best effort. */
void bench_pin(uint32_t index);

/* What a case came to. Rates in bytes a second, of all clients together. */
struct bench_result {
	const struct bench_case *measured;
	uint32_t clients;
	double rate, plain_rate;    /* medians */
	double ratio;               /* median of those of the pairs */
	double p50, p90, p99, most; /* seconds of a call */
	uint64_t calls;
};
/* bench_report.c */
void bench_print_head(const struct ctl_settings *settings, const struct bench_client *client,
    const struct bench_run *run);
void bench_print(const struct ctl_settings *settings, const struct bench_result *result);
double bench_median(double *values, uint32_t count);
/* Fill in the times from the samples of all clients. */
enum kv_status bench_percentiles(
    struct bench_client *const *clients, uint32_t count, struct bench_result *result);

#ifdef __cplusplus
}
#endif
#endif
