/* One request from its first byte to its last:
 *
 *     body → parse (pool thread) → engine (http_choice.c) → response, whole or as a stream →
 *     completed
 *
 * While nothing can be written the connection is suspended. The daemon does not look at a suspended
 * connection's socket, so that is watched here. */
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "gpu-worker/server/http_internal.h"
#include "gpu-worker/server/http_tokenize.h"

enum {
	STREAM_BLOCK = 8192,
	WHOLE_BLOCK = 64 << 10, /* an answer of more is told as it is taken, so that this is seen */
	UNSENT = 128 << 10,     /* bytes that the system may hold for a connection before it sends */
	SENT_KEPT = 64 << 10    /* of a stream, before what is left moves to the front */
};

static void name(struct gw_exchange *exchange)
{
	static const char *const kinds[] = {
	    [GW_ROUTE_COMPLETIONS] = "cmpl",
	    [GW_ROUTE_CHAT] = "chatcmpl",
	    [GW_ROUTE_TOKENIZE] = "req",
	    [GW_ROUTE_DETOKENIZE] = "req",
	    [GW_ROUTE_MODELS] = "req",
	    [GW_ROUTE_MODEL] = "req",
	    [GW_ROUTE_HEALTH] = "req",
	    [GW_ROUTE_METRICS] = "req",
	};
	struct gw_http_server *server = exchange->server;
	bool chat = exchange->route == GW_ROUTE_CHAT;

	exchange->own_id =
	    gw_http_request_id(exchange->connection, kinds[exchange->route], exchange->id);
	exchange->head.request_id = exchange->id;
	if (chat || exchange->route == GW_ROUTE_COMPLETIONS)
		exchange->trace = gw_traces_begin(server->options.traces, exchange->id,
		    chat ? "chat" : "completion", kv_now_ns());
}

enum kv_status gw_exchange_create(struct gw_http_server *server, struct MHD_Connection *connection,
    enum gw_route route, struct gw_exchange **exchange)
{
	struct gw_exchange *made = kv_alloc_zero(server->options.allocator, sizeof *made);

	if (made == NULL) return KV_NO_MEMORY;
	made->server = server;
	made->allocator = server->options.allocator;
	made->connection = connection;
	made->route = route;
	made->model = server->options.model;
	made->start_ms = kv_now_ms();
	kv_text_init(&made->body, made->allocator, (size_t)server->options.max_body);
	kv_text_init(&made->out, made->allocator, GW_OUT_LIMIT);
	kv_list_init(&made->node);
	kv_list_push_back(&server->exchanges, &made->node);
	name(made);
	made->late = server->draining;
	if (!made->late) server->exchange_count++;
	*exchange = made;
	return KV_OK;
}

static void drop_body(struct gw_exchange *exchange)
{
	if (exchange->server != NULL) exchange->server->connections.body_bytes -= exchange->body.length;
	kv_text_deinit(&exchange->body);
}

void gw_exchange_release(struct gw_exchange *exchange)
{
	if (exchange->connection != NULL || exchange->parsing || exchange->in_engine > 0) return;
	if (exchange->server != NULL) {
		gw_traces_end(exchange->server->options.traces, &exchange->trace,
		    !exchange->complete ? 0 : exchange->code != 0 ? exchange->code : 200, kv_now_ns());
		kv_list_remove(&exchange->node);
		if (!exchange->late) exchange->server->exchange_count--;
	}
	gw_choices_deinit(exchange);
	gw_http_request_deinit(&exchange->request);
	drop_body(exchange);
	kv_text_deinit(&exchange->out);
	kv_free(exchange->allocator, exchange);
}

/* What a client does not read waits here, where it is seen, and not in the system's memory. */
static void bound_unsent(struct MHD_Connection *connection)
{
	const struct gw_connection *own = gw_connection_of(connection);
	const int most = UNSENT;

	/* It fails for a Unix socket, whose memory is bounded. */
	if (own != NULL) (void)setsockopt(own->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof most);
}

static void suspend(struct gw_exchange *exchange)
{
	exchange->suspended = true;
	MHD_suspend_connection(exchange->connection);
}

void gw_exchange_resume(struct gw_exchange *exchange)
{
	if (!exchange->suspended) return;
	exchange->suspended = false;
	MHD_resume_connection(exchange->connection);
	if (exchange->server != NULL) exchange->server->kick = true;
}

static void unwatch(struct gw_exchange *exchange)
{
	kv_watch_close(exchange->hangup);
	exchange->hangup = NULL;
}

static void on_hangup(void *context, struct kv_watch *watch, unsigned events)
{
	struct gw_exchange *exchange = context;

	(void)watch;
	(void)events;
	gw_exchange_give_up(exchange);
}

void gw_exchange_give_up(struct gw_exchange *exchange)
{
	unwatch(exchange);
	exchange->gone = true;
	if (!exchange->begun) drop_body(exchange);
	gw_choices_cancel(exchange);
	gw_exchange_resume(exchange);
}

size_t gw_exchange_unread(const struct gw_exchange *exchange)
{
	return exchange != NULL ? exchange->out.length - exchange->sent : 0;
}

static void watch_hangup(struct gw_exchange *exchange)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CONNECTION_FD);

	if (info == NULL) return;
	if (kv_loop_watch_fd(exchange->server->options.loop, info->connect_fd, KV_LOOP_HANGUP,
	        on_hangup, exchange, &exchange->hangup) != KV_OK)
		kv_warning("http", "a connection cannot be watched: %s", kv_error_message());
}

static void fail(
    struct gw_exchange *exchange, const struct gw_http_error *error, const char *message)
{
	if (!exchange->streaming) kv_text_reset(&exchange->out);
	gw_error_body(&exchange->out, error, message, exchange->answer.sequence, exchange->streaming);
	exchange->code = error->code;
	exchange->complete = true;
	gw_exchange_resume(exchange);
}

void gw_exchange_fail(
    struct gw_exchange *exchange, enum kv_status status, int by_engine, const char *message)
{
	struct gw_http_error error = gw_http_error_of(status, by_engine);

	if (exchange->complete) return;
	if (!by_engine) gw_http_log_refusal(exchange->server, exchange->id, error.code, message);
	fail(exchange, &error, message);
	gw_choices_cancel(exchange);
}

/* On a pool thread. What is about tokens alone is answered there. */
static enum kv_status parse_body(struct gw_exchange *exchange)
{
	const char *body = kv_text(&exchange->body);
	size_t length = exchange->body.length;

	if (exchange->route == GW_ROUTE_TOKENIZE)
		return gw_http_tokenize(
		    &exchange->model, exchange->allocator, body, length, &exchange->out);
	if (exchange->route == GW_ROUTE_DETOKENIZE)
		return gw_http_detokenize(
		    &exchange->model, exchange->allocator, body, length, &exchange->out);
	return gw_http_request_parse(&exchange->request, exchange->allocator, &exchange->model,
	    exchange->route == GW_ROUTE_CHAT, body, length);
}

static void parse(void *context)
{
	struct gw_exchange *exchange = context;

	exchange->parse_status = parse_body(exchange);
	if (exchange->parse_status != KV_OK)
		snprintf(exchange->parse_message, sizeof exchange->parse_message, "%s", kv_error_message());
}

static void describe_answer(struct gw_exchange *exchange)
{
	struct gw_answer *answer = &exchange->answer;

	/* Of two requests by one name, which clients give, the answers have names of their own. */
	if (exchange->own_id)
		snprintf(answer->id, sizeof answer->id, "%s", exchange->id);
	else
		kv_request_id_make(exchange->request.chat ? "chatcmpl" : "cmpl", answer->id);
	answer->model = exchange->server->options.model.name;
	answer->created = (int64_t)(kv_wall_ms() / 1000);
	answer->chat = exchange->request.chat;
	answer->usage_event = exchange->request.usage_event;
	answer->have_tokens = exchange->request.session.have_tokens;
}

static void parsed(void *context)
{
	struct gw_exchange *exchange = context;
	enum kv_status status = exchange->parse_status;

	exchange->parsing = false;
	if (exchange->server == NULL || exchange->connection == NULL || exchange->gone) {
		gw_exchange_release(exchange);
		return;
	}
	drop_body(exchange);
	if (status != KV_OK) {
		gw_exchange_fail(exchange, status, 0, exchange->parse_message);
		return;
	}
	if (exchange->route == GW_ROUTE_TOKENIZE || exchange->route == GW_ROUTE_DETOKENIZE) {
		exchange->code = 200;
		exchange->complete = true;
		gw_exchange_resume(exchange);
		return;
	}
	describe_answer(exchange);
	status = gw_choices_submit(exchange);
	if (status != KV_OK) gw_exchange_fail(exchange, status, 0, kv_error_message());
}

static void put_health(struct gw_exchange *exchange)
{
	const struct gw_http_server *server = exchange->server;
	const struct gw_engine *engine = server->options.engine;
	uint32_t waiting = gw_engine_waiting(engine);
	int ready = server->state == GW_ENGINE_READY && !server->draining;
	const char *word = server->draining                     ? "stopping"
	                   : server->state == GW_ENGINE_READY   ? "ok"
	                   : server->state == GW_ENGINE_WAITING ? "waiting for the store"
	                   : server->state == GW_ENGINE_DRAINED ? "the store is being drained"
	                   : server->state == GW_ENGINE_FAILED  ? "failed"
	                                                        : "starting";

	kv_text_put(&exchange->out, "{\"status\":");
	kv_text_put_json(&exchange->out, word);
	if (server->reason[0] != '\0') {
		kv_text_put(&exchange->out, ",\"reason\":");
		kv_text_put_json(&exchange->out, server->reason);
	}
	kv_text_put(&exchange->out, ",\"model\":");
	kv_text_put_json(&exchange->out, server->options.model.name);
	kv_text_put(&exchange->out, ",\"store\":");
	kv_text_put_json(&exchange->out, server->options.store);
	kv_text_printf(&exchange->out, ",\"running\":%u,\"waiting\":%u}\n",
	    gw_engine_unfinished(engine) - waiting, waiting);
	exchange->code = ready ? 200 : 503;
}

static void put_model(struct gw_exchange *exchange)
{
	const struct gw_http_model *model = &exchange->server->options.model;

	kv_text_put(&exchange->out, "{\"id\":");
	kv_text_put_json(&exchange->out, model->name);
	kv_text_printf(&exchange->out,
	    ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"clusterkv\","
	    "\"context_length\":%u}",
	    (long long)model->created, model->context);
	exchange->code = 200;
}

static void put_models(struct gw_exchange *exchange)
{
	kv_text_put(&exchange->out, "{\"object\":\"list\",\"data\":[");
	put_model(exchange);
	kv_text_put(&exchange->out, "]}\n");
}

static void put_metrics(struct gw_exchange *exchange)
{
	const struct gw_http_server *server = exchange->server;
	uint32_t waiting = gw_engine_waiting(server->options.engine);

	server->options.put_metrics(server->options.metrics_context, &exchange->out);
	kv_text_printf(&exchange->out,
	    "# HELP clusterkv_worker_requests_waiting Requests that have not begun.\n"
	    "# TYPE clusterkv_worker_requests_waiting gauge\n"
	    "clusterkv_worker_requests_waiting %u\n"
	    "# HELP clusterkv_worker_ready Whether it takes in work.\n"
	    "# TYPE clusterkv_worker_ready gauge\n"
	    "clusterkv_worker_ready %d\n",
	    waiting, server->state == GW_ENGINE_READY && !server->draining);
	kv_text_printf(&exchange->out,
	    "# HELP clusterkv_worker_http_connections Connections of HTTP clients.\n"
	    "# TYPE clusterkv_worker_http_connections gauge\n"
	    "clusterkv_worker_http_connections %" PRIu32 "\n"
	    "# HELP clusterkv_worker_http_connections_ended_total Connections ended before their time: "
	    "for others to have room, or as their client was too slow.\n"
	    "# TYPE clusterkv_worker_http_connections_ended_total counter\n"
	    "clusterkv_worker_http_connections_ended_total{reason=\"room\"} %" PRIu64 "\n"
	    "clusterkv_worker_http_connections_ended_total{reason=\"slow\"} %" PRIu64 "\n",
	    server->connections.count, server->connections.made_room, server->connections.too_slow);
	exchange->head.content_type = "text/plain; version=0.0.4; charset=utf-8";
	exchange->code = 200;
}

static void begin_completion(struct gw_exchange *exchange)
{
	struct gw_http_server *server = exchange->server;

	if (kv_text_status(&exchange->body) != KV_OK) {
		gw_exchange_fail(exchange, kv_text_status(&exchange->body), 0, "no memory for the body");
		return;
	}
	if (kv_loop_work(server->options.loop, parse, parsed, exchange) != KV_OK) {
		gw_exchange_fail(exchange, KV_BUSY, 0, kv_error_message());
		return;
	}
	exchange->parsing = true;
	watch_hangup(exchange);
	suspend(exchange);
}

enum MHD_Result gw_exchange_begin(struct gw_exchange *exchange)
{
	struct gw_connection *own = gw_connection_of(exchange->connection);

	exchange->begun = true;
	if (own != NULL) gw_connection_phase(own, GW_PHASE_ANSWER);
	if (exchange->server->draining && exchange->route != GW_ROUTE_HEALTH &&
	    exchange->route != GW_ROUTE_METRICS) {
		gw_exchange_fail(exchange, KV_CANCELLED, 0, "the worker is stopping");
		return gw_exchange_answer(exchange);
	}
	switch (exchange->route) {
	case GW_ROUTE_HEALTH:
		put_health(exchange);
		break;
	case GW_ROUTE_MODELS:
		put_models(exchange);
		break;
	case GW_ROUTE_MODEL:
		put_model(exchange);
		kv_text_put(&exchange->out, "\n");
		break;
	case GW_ROUTE_METRICS:
		put_metrics(exchange);
		break;
	case GW_ROUTE_COMPLETIONS:
	case GW_ROUTE_CHAT:
	case GW_ROUTE_TOKENIZE:
	case GW_ROUTE_DETOKENIZE:
		begin_completion(exchange);
		break;
	}
	return exchange->suspended ? MHD_YES : gw_exchange_answer(exchange);
}

/* What was taken need not be kept while the client is behind. */
static void forget_sent(struct gw_exchange *exchange)
{
	struct kv_text_buffer *out = &exchange->out;

	if (exchange->sent < out->length && exchange->sent < SENT_KEPT) return;
	if (exchange->sent < out->length / 2) return;
	memmove(out->data, out->data + exchange->sent, out->length - exchange->sent);
	kv_text_cut(out, out->length - exchange->sent);
	exchange->sent = 0;
}

static size_t take(struct gw_exchange *exchange, char *buffer, size_t capacity)
{
	struct gw_connection *own = gw_connection_of(exchange->connection);
	size_t there = exchange->out.length - exchange->sent;

	if (there > capacity) there = capacity;
	memcpy(buffer, kv_text(&exchange->out) + exchange->sent, there);
	exchange->sent += there;
	if (own != NULL) own->moved += there;
	return there;
}

/* The daemon asks for more of a stream. */
static ssize_t read_stream(void *context, uint64_t position, char *buffer, size_t capacity)
{
	struct gw_exchange *exchange = context;
	size_t there;

	(void)position;
	if (exchange->gone || kv_text_status(&exchange->out) != KV_OK)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	there = take(exchange, buffer, capacity);
	if (there > 0) {
		forget_sent(exchange);
		return (ssize_t)there;
	}
	if (exchange->complete) return MHD_CONTENT_READER_END_OF_STREAM;
	suspend(exchange);
	return 0;
}

/* The same of an answer that is there as a whole. */
static ssize_t read_whole(void *context, uint64_t position, char *buffer, size_t capacity)
{
	struct gw_exchange *exchange = context;

	(void)position;
	if (exchange->gone) return MHD_CONTENT_READER_END_WITH_ERROR;
	return (ssize_t)take(exchange, buffer, capacity);
}

static enum MHD_Result answer_whole(struct gw_exchange *exchange)
{
	const size_t length = exchange->out.length;

	if (kv_text_status(&exchange->out) != KV_OK) return MHD_NO;
	exchange->answered = true;
	if (length <= WHOLE_BLOCK)
		return gw_http_respond(exchange->server, exchange->connection, exchange->code,
		    &exchange->out, &exchange->head);
	bound_unsent(exchange->connection);
	return gw_http_queue(exchange->server, exchange->connection, exchange->code,
	    MHD_create_response_from_callback(length, WHOLE_BLOCK, read_whole, exchange, NULL),
	    &exchange->head);
}

enum MHD_Result gw_exchange_answer(struct gw_exchange *exchange)
{
	struct MHD_Response *response;
	enum MHD_Result result;

	if (exchange->gone) return MHD_NO;
	if (exchange->answered) return MHD_YES;
	if (!exchange->streaming) return answer_whole(exchange);
	bound_unsent(exchange->connection);
	response = MHD_create_response_from_callback(
	    MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, exchange, NULL);
	if (response == NULL) return MHD_NO;
	MHD_add_response_header(response, "Content-Type", "text/event-stream");
	MHD_add_response_header(response, "Cache-Control", "no-cache");
	MHD_add_response_header(response, "X-Accel-Buffering", "no");
	MHD_add_response_header(response, "X-Request-Id", exchange->id);
	if (gw_http_must_close(exchange->server, exchange->connection))
		MHD_add_response_header(response, "Connection", "close");
	exchange->answered = true;
	result = MHD_queue_response(exchange->connection, 200, response);
	MHD_destroy_response(response);
	return result;
}

void gw_exchange_completed(struct gw_exchange *exchange)
{
	unwatch(exchange);
	exchange->connection = NULL;
	exchange->gone = true;
	gw_choices_cancel(exchange);
	gw_exchange_release(exchange);
}

void gw_exchange_abandon(struct gw_exchange *exchange)
{
	unwatch(exchange);
	gw_exchange_resume(exchange);
	exchange->gone = true;
	exchange->in_engine = 0;
}
