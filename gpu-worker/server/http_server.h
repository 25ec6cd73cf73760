/* The HTTP API, on the event loop.
 *
 *     POST /v1/completions  POST /v1/chat/completions  GET /v1/models
 *     POST /tokenize  POST /detokenize  GET /health  GET /metrics
 *
 * Requests are parsed on pool threads, answered by the engine, and written as they come. A client
 * that goes away ends its sequence.
 */
#ifndef GW_SERVER_HTTP_SERVER_H
#define GW_SERVER_HTTP_SERVER_H

#include "common/runtime/text_buffer.h"
#include "gpu-worker/server/api_keys.h"
#include "gpu-worker/server/engine.h"
#include "gpu-worker/server/http_request.h"
#include "gpu-worker/server/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_http_server;

struct gw_http_options {
	struct kv_allocator *allocator;
	struct kv_loop *loop;
	struct gw_engine *engine; /* its events are handed to gw_http_server_event */
	struct gw_http_model model;
	const char *store;  /* for /health */
	const char *listen; /* HOST:PORT, [HOST]:PORT or :PORT; port 0 takes a free one */
	int listen_fd;      /* a listening socket to take over instead, or -1 */
	uint64_t max_body, idle_ms;
	/* All at once, of which who waits for its client goes for others; and of one address, 0 for no
	 * limit. */
	uint32_t max_connections, address_connections;
	/* What a client has for a head, a body, and to take an answer: so long, and beyond that as long
	 * as this many bytes a second allow. */
	uint64_t client_ms, client_rate;
	uint64_t stream_backlog;        /* bytes of a stream that may wait to be read */
	const struct gw_api_keys *keys; /* NULL: nobody needs one. Not for /health and /metrics. */
	/* The worker's counters for Prometheus. */
	void (*put_metrics)(void *context, struct kv_text_buffer *out);
	void *metrics_context;
	struct gw_traces *traces; /* NULL: nobody asks for them */
};

/* KV_OK when `listen` has one of its forms; else KV_INVALID. Nothing is looked up. Any thread. */
enum kv_status gw_http_address_check(const char *listen);
/* What a start would find: an address that can be had (or is in use), and descriptors. KV_USAGE,
 * KV_IO. Any thread. */
enum kv_status gw_http_listen_check(const char *listen, uint32_t max_connections);

/* All other functions belong to the loop's thread. */
enum kv_status gw_http_server_create(
    const struct gw_http_options *options, struct gw_http_server **server);
/* After the engine: nothing may come from it any more. NULL is allowed. */
void gw_http_server_destroy(struct gw_http_server *server);

/* "127.0.0.1:8080": where it really listens. Borrowed. */
const char *gw_http_server_address(const struct gw_http_server *server);

void gw_http_server_event(struct gw_http_server *server, const struct gw_engine_event *event);

/* From now on all that is asked is answered with 503 and "stopping"; /health too. It goes on
 * listening until it is destroyed, so that nobody is left without an answer. */
void gw_http_server_drain(struct gw_http_server *server);
/* Requests that are not answered to their end, but for those that came while it drained. */
uint32_t gw_http_server_busy(const struct gw_http_server *server);

#ifdef __cplusplus
}
#endif
#endif
