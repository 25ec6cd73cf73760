/* The server and its exchanges. Private to this folder. */
#ifndef GW_SERVER_HTTP_INTERNAL_H
#define GW_SERVER_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <stdbool.h>

#include "common/base/log.h"
#include "common/collect/list.h"
#include "gpu-worker/server/http_completion.h"
#include "gpu-worker/server/http_connections.h"
#include "gpu-worker/server/http_server.h"
#include "gpu-worker/server/trace.h"

struct gw_http_server {
	struct gw_http_options options;
	struct MHD_Daemon *daemon;
	struct kv_watch *watch; /* of the daemon's epoll descriptor */
	struct kv_timer *timer; /* of the daemon's next deadline */
	int listen_fd;
	char address[128];
	enum gw_engine_state state;
	char reason[GW_EVENT_TEXT_BYTES];
	bool draining;
	/* A connection came, was resumed or is to end: the daemon must run before the loop sleeps. */
	bool kick;
	struct gw_connections connections;
	uint32_t exchange_count;
	struct kv_list exchanges;
	struct kv_log_limit refusals;
};

enum { GW_OUT_LIMIT = 256 << 20 }; /* bytes of one answer */

enum gw_route {
	GW_ROUTE_COMPLETIONS,
	GW_ROUTE_CHAT,
	GW_ROUTE_TOKENIZE,
	GW_ROUTE_DETOKENIZE,
	GW_ROUTE_MODELS,
	GW_ROUTE_MODEL, /* the one that is served */
	GW_ROUTE_HEALTH,
	GW_ROUTE_METRICS
};

/* What a response says besides its body; NULL leaves it out. */
struct gw_http_head {
	const char *content_type; /* NULL: JSON */
	const char *allow;        /* the method that the path takes */
	const char *request_id;   /* as the log names it */
	int authenticate;         /* a key is wanted */
	int close;                /* nothing more is taken from this connection */
};

/* One of the answers to a request's prompt: what the engine works on. */
struct gw_choice {
	struct gw_exchange *exchange;
	uint32_t index;
	uint64_t engine_id;
	bool in_engine, ended;
	struct gw_session_request asked;
	struct gw_token_record *records; /* [max_tokens], owned; NULL: not asked for */
	uint32_t told;                   /* records that a stream has told */
	size_t text_offset;              /* characters of the answer before the next of them */
	struct kv_text_buffer text;      /* of an answer that is told whole */
	enum gw_finish finish;
	json_t *report; /* a reference, once it has ended */
};

/* One request and its answer. It lives as long as anybody works on it: the connection, a pool
 * thread, the engine. */
struct gw_exchange {
	struct kv_list node;           /* in the server's list */
	struct gw_http_server *server; /* NULL once the server is gone */
	struct kv_allocator *allocator;
	struct MHD_Connection *connection; /* NULL once the daemon is done with it */
	enum gw_route route;
	bool begun, suspended, answered; /* body is there; connection waits; response is queued */
	bool gone;                       /* the client went away */
	bool late;                       /* came while the server drained: nothing waits for it */
	struct kv_watch *hangup;

	struct gw_http_model model; /* for the pool thread, which may outlive the server */
	struct kv_text_buffer body;
	struct gw_http_request request;
	enum kv_status parse_status;
	char parse_message[512];
	bool parsing;
	struct gw_choice *choices; /* [choice_count], once the request is parsed */
	uint32_t choice_count;
	uint32_t in_engine; /* choices that the engine has */

	unsigned code; /* of the response; 0: not known yet */
	struct gw_http_head head;
	bool streaming, complete;
	struct kv_text_buffer out;
	size_t sent; /* of `out` */
	struct gw_answer answer;
	uint64_t start_ms;
	char id[KV_REQUEST_ID_BYTES]; /* the request's: the client's, or made here */
	bool own_id;                  /* made here */
	struct gw_trace_ref trace;
};

/* http_exchange.c */
enum kv_status gw_exchange_create(struct gw_http_server *server, struct MHD_Connection *connection,
    enum gw_route route, struct gw_exchange **exchange);
/* The whole body is there. */
enum MHD_Result gw_exchange_begin(struct gw_exchange *exchange);
/* The connection may be written to: queue the response, if it is known. */
enum MHD_Result gw_exchange_answer(struct gw_exchange *exchange);
/* Give it up for a reason that the client is told, unless it has been told one. */
void gw_exchange_fail(
    struct gw_exchange *exchange, enum kv_status status, int by_engine, const char *message);
/* More of the answer is in `out`, or all of it. */
void gw_exchange_resume(struct gw_exchange *exchange);
/* The connection ends before its time. */
void gw_exchange_give_up(struct gw_exchange *exchange);
/* Bytes of its answer that the client has not taken; 0 for NULL. */
size_t gw_exchange_unread(const struct gw_exchange *exchange);
/* The engine has given a choice back: free the exchange if nobody works on it any more. */
void gw_exchange_release(struct gw_exchange *exchange);
/* The daemon is done with the connection's request. */
void gw_exchange_completed(struct gw_exchange *exchange);
/* Nothing will come from server and engine any more. */
void gw_exchange_abandon(struct gw_exchange *exchange);

/* http_choice.c: hand the parsed request's choices to the engine; KV_BUSY and the like when one of
 * them was not taken: the others are on their way back. */
enum kv_status gw_choices_submit(struct gw_exchange *exchange);
void gw_choices_cancel(struct gw_exchange *exchange);
void gw_choices_deinit(struct gw_exchange *exchange);
void gw_choice_event(struct gw_choice *choice, const struct gw_engine_event *event);

/* http_server.c */
/* The client's X-Request-Id where it can be taken, else a new one of this kind; true then. */
bool gw_http_request_id(
    struct MHD_Connection *connection, const char *kind, char id[KV_REQUEST_ID_BYTES]);
/* A line of the log for an answer that is an error before the engine has it. */
void gw_http_log_refusal(
    struct gw_http_server *server, const char *id, unsigned code, const char *message);
/* Whether the answer is the connection's last: who came beyond a limit is not asked to stay, and
 * behind chunks nothing is taken for a request. */
bool gw_http_must_close(const struct gw_http_server *server, struct MHD_Connection *connection);
/* Takes `response`, which may be NULL: then MHD_NO. */
enum MHD_Result gw_http_queue(struct gw_http_server *server, struct MHD_Connection *connection,
    unsigned code, struct MHD_Response *response, const struct gw_http_head *head);
enum MHD_Result gw_http_respond(struct gw_http_server *server, struct MHD_Connection *connection,
    unsigned code, const struct kv_text_buffer *body, const struct gw_http_head *head);
enum MHD_Result gw_http_refuse(struct gw_http_server *server, struct MHD_Connection *connection,
    const struct gw_http_error *error, const char *message, const struct gw_http_head *head);

#endif
