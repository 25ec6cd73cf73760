/* kvctl: its options, its commands, and how it asks the store. */
#ifndef KVS_CTL_CTL_H
#define KVS_CTL_CTL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "common/runtime/config.h"
#include "common/runtime/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ctl_settings {
	const char *stats_socket, *socket, *worker_socket;
	const char *request; /* trace: its id; NULL: all */
	const char *store, *store_secret; /* instead of socket; "": not given */
	const char *transport, *trusted_network; /* bench */
	bool json;
	double interval; /* seconds between two lines of stat; 0: one shot */
	uint32_t count;  /* lines of stat (0: no end), or pings (0: three) */
	double wait;     /* seconds that ready and drain wait */
	bool once;       /* top: one table */
	bool off;        /* drain: no more */
	bool verify;     /* bench: compare what is read with what was written */
	uint32_t clients;
	double seconds; /* bench: for each figure */
	uint64_t working_set;
	uint64_t timeout_ms;
};

extern const struct kv_program ctl_program;

enum { CTL_ADDRESS_BYTES = 300 };
/* The store that --store or --socket names, as kvc_open takes it, and its secret where it takes one
 * (*remote is true then). */
enum kv_status ctl_store(const struct ctl_settings *settings, char address[CTL_ADDRESS_BYTES],
    uint8_t secret[32], bool *remote);

/* The commands print to standard output themselves. */
enum kv_status ctl_stat(const struct ctl_settings *settings);
enum kv_status ctl_ping(const struct ctl_settings *settings);
enum kv_status ctl_ready(const struct ctl_settings *settings);
enum kv_status ctl_describe(const struct ctl_settings *settings);
enum kv_status ctl_top(const struct ctl_settings *settings);
enum kv_status ctl_evict(const struct ctl_settings *settings);
enum kv_status ctl_drain(const struct ctl_settings *settings);
enum kv_status ctl_bench(const struct ctl_settings *settings);
enum kv_status ctl_secret(const struct ctl_settings *settings);
enum kv_status ctl_trace(const struct ctl_settings *settings);
/* For the table: what a request's id must look like. */
enum kv_status ctl_trace_check(const char *id);

/* Send one command to the stats socket; `answer` gets its text as it comes.
 * KV_DISCONNECTED names the path when nobody is there; KV_TIMEOUT; KV_PROTOCOL carries the store's
 * ERROR line. */
enum kv_status ctl_ask(
    const struct ctl_settings *settings, const char *command, struct kv_text_buffer *answer);

/* Who is asked: its stats socket, the option that names it, and its own name in messages. */
struct ctl_peer {
	const char *path, *option, *name;
};
enum kv_status ctl_ask_peer(const struct ctl_settings *settings, const struct ctl_peer *peer,
    const char *command, struct kv_text_buffer *answer);

/* Walk the `STAT name value` lines of an answer, which is cut into strings on the way: start with
 * *cursor = the text, until false. */
bool ctl_next_stat(char **cursor, const char **name, const char **value);

/* A copy of one value, "" when it is not there. */
void ctl_find_stat(const char *answer, const char *name, char *value, size_t size);
double ctl_find_number(const char *answer, const char *name);
/* Bytes of the arena that hold something. */
double ctl_find_used(const char *answer);

enum { CTL_NAME_BYTES = 64 };
/* The next worker that the answer tells of: start with *cursor = the text, until false. */
bool ctl_next_worker(const char **cursor, char name[CTL_NAME_BYTES]);
/* One fact of it, "" when it is not there. */
void ctl_find_worker(
    const char *answer, const char *worker, const char *fact, char *value, size_t size);

void ctl_pause(double seconds);

#ifdef __cplusplus
}
#endif
#endif
