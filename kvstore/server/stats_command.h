/* The words of the stats socket: pure, so that it can be fuzzed. */
#ifndef KVS_SERVER_STATS_COMMAND_H
#define KVS_SERVER_STATS_COMMAND_H

#include <stdint.h>

#include "common/runtime/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum kvs_stats_command {
	KVS_COMMAND_NONE, /* an empty line */
	KVS_COMMAND_STATS,
	KVS_COMMAND_STORE,
	KVS_COMMAND_WORKERS,
	KVS_COMMAND_JSON,
	KVS_COMMAND_METRICS,
	KVS_COMMAND_INFO,
	KVS_COMMAND_HEALTH,
	KVS_COMMAND_READY,
	KVS_COMMAND_VERSION,
	KVS_COMMAND_HELP,
	KVS_COMMAND_QUIT,
	KVS_COMMAND_RESET,
	KVS_COMMAND_EVICT,
	KVS_COMMAND_DRAIN,
	KVS_COMMAND_DRAIN_OFF,
	KVS_COMMAND_UNKNOWN
};

/* What `evict`, `evict SIZE` or `evict tenant NAME` names: bytes 0 and tenant "": everything. */
struct kvs_evict_target {
	uint64_t bytes;
	char tenant[64];
};
/* 0 when the line is none of these. */
int kvs_stats_evict_target(const char *line, struct kvs_evict_target *target);

/* One line without its end; words are separated by blanks. */
enum kvs_stats_command kvs_stats_parse(const char *line);

/* The answer to an unknown command: quotes at most 40 printable bytes of it. */
void kvs_stats_unknown(const char *line, struct kv_text_buffer *text);

#ifdef __cplusplus
}
#endif
#endif
