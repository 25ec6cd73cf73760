/* What the stats socket answers to one command or one HTTP request. */
#ifndef KVS_SERVER_STATS_ANSWER_H
#define KVS_SERVER_STATS_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/runtime/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvs_server;

/* Who asks: reset, evict and drain are for root and the store's own user. */
struct kvs_asker {
	int32_t pid;
	uint32_t uid;
	bool trusted;
};

/* Append the answer to one line. Returns false when the asker wants to leave. */
bool kvs_answer_line(struct kvs_server *server, const struct kvs_asker *asker, const char *line,
    struct kv_text_buffer *text);

/* Append the response to a GET of `path`. */
void kvs_answer_get(struct kvs_server *server, const char *path, struct kv_text_buffer *text);

/* Append a response without content but the reason. */
void kvs_answer_refusal(int status, struct kv_text_buffer *text);

/* The page at /, dashboard.html: it shows /stats.json, again and again. And what a browser may load
 * and run for it: its own style and script. */
extern const char kvs_stats_page[], kvs_stats_page_policy[];

#ifdef __cplusplus
}
#endif
#endif
