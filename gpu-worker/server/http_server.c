/* libmicrohttpd on the event loop: its epoll descriptor is watched, its deadline is a timer, and it
 * runs once more before the loop sleeps when a connection was resumed. */
#include "gpu-worker/server/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/tcp_socket.h"
#include "gpu-worker/server/http_head.h"
#include "gpu-worker/server/http_internal.h"

#define LOOPBACK "127.0.0.1"

/* A connection's memory takes a head that is too large to be told so, and what the daemon makes of
 * its fields. */
enum { BACKLOG = 512, CONNECTION_MEMORY = 64 << 10 };

static void arm(struct gw_http_server *server)
{
	MHD_UNSIGNED_LONG_LONG ms;

	if (MHD_get_timeout(server->daemon, &ms) == MHD_YES)
		kv_timer_start(server->timer, ms, 0);
	else
		kv_timer_stop(server->timer);
}

static void run_daemon(void *context)
{
	struct gw_http_server *server = context;

	server->kick = false;
	MHD_run(server->daemon);
	arm(server);
}

static void on_readable(void *context, struct kv_watch *watch, unsigned events)
{
	(void)watch;
	(void)events;
	run_daemon(context);
}

static bool before_block(void *context)
{
	struct gw_http_server *server = context;

	if (server->kick) run_daemon(server);
	return server->kick;
}

static const struct {
	const char *path, *method;
	enum gw_route route;
} routes[] = {
    {"/v1/completions", "POST", GW_ROUTE_COMPLETIONS},
    {"/v1/chat/completions", "POST", GW_ROUTE_CHAT},
    {"/tokenize", "POST", GW_ROUTE_TOKENIZE},
    {"/detokenize", "POST", GW_ROUTE_DETOKENIZE},
    {"/v1/models", "GET", GW_ROUTE_MODELS},
    {"/v1/models/", "GET", GW_ROUTE_MODEL}, /* and its name */
    {"/health", "GET", GW_ROUTE_HEALTH},
    {"/metrics", "GET", GW_ROUTE_METRICS},
};

enum { ROUTES = sizeof routes / sizeof routes[0] };

bool gw_http_request_id(
    struct MHD_Connection *connection, const char *kind, char id[KV_REQUEST_ID_BYTES])
{
	const char *given = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "X-Request-Id");
	bool make = given == NULL || kv_request_id_check(given) != KV_OK;

	if (make)
		kv_request_id_make(kind, id);
	else
		snprintf(id, KV_REQUEST_ID_BYTES, "%s", given);
	return make;
}

static const char *allowed(const char *method)
{
	return strcmp(method, "GET") == 0    ? "GET, HEAD, OPTIONS"
	       : strcmp(method, "POST") == 0 ? "POST, OPTIONS"
	                                     : method;
}

static bool is_chunked(struct MHD_Connection *connection)
{
	return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Transfer-Encoding") != NULL;
}

bool gw_http_must_close(const struct gw_http_server *server, struct MHD_Connection *connection)
{
	const struct gw_connection *own = gw_connection_of(connection);

	/* How chunks are framed cannot be judged: nothing behind them is taken for a request. */
	return server->draining || own == NULL || own->reserved || own->extra || is_chunked(connection);
}

enum MHD_Result gw_http_queue(struct gw_http_server *server, struct MHD_Connection *connection,
    unsigned code, struct MHD_Response *response, const struct gw_http_head *head)
{
	char id[KV_REQUEST_ID_BYTES];
	enum MHD_Result result;

	if (response == NULL) return MHD_NO;
	/* Neither an exchange nor a refusal has named it. */
	if (head->request_id == NULL) gw_http_request_id(connection, "req", id);
	MHD_add_response_header(
	    response, "X-Request-Id", head->request_id != NULL ? head->request_id : id);
	if (code != 204)
		MHD_add_response_header(response, "Content-Type",
		    head->content_type != NULL && code == 200 ? head->content_type : "application/json");
	if (code == 429 || code == 503) MHD_add_response_header(response, "Retry-After", "1");
	if (head->authenticate) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
	if (head->allow != NULL) MHD_add_response_header(response, "Allow", allowed(head->allow));
	if (head->close || gw_http_must_close(server, connection))
		MHD_add_response_header(response, "Connection", "close");
	result = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return result;
}

void gw_http_log_refusal(
    struct gw_http_server *server, const char *id, unsigned code, const char *message)
{
	if (!kv_log_allows(&server->refusals, "http")) return;
	kv_log_set_subject((struct kv_log_subject){.request = id});
	kv_info("http", "refused %u: %s", code, message);
	kv_log_set_subject((struct kv_log_subject){0});
}

enum MHD_Result gw_http_respond(struct gw_http_server *server, struct MHD_Connection *connection,
    unsigned code, const struct kv_text_buffer *body, const struct gw_http_head *head)
{
	/* The text is copied: the cast only takes the const away. */
	return gw_http_queue(server, connection, code,
	    MHD_create_response_from_buffer(
	        body->length, (void *)(uintptr_t)kv_text(body), MHD_RESPMEM_MUST_COPY),
	    head);
}

enum MHD_Result gw_http_refuse(struct gw_http_server *server, struct MHD_Connection *connection,
    const struct gw_http_error *error, const char *message, const struct gw_http_head *head)
{
	struct gw_http_head named = {0};
	struct kv_text_buffer body;
	enum MHD_Result result = MHD_NO;
	char id[KV_REQUEST_ID_BYTES];

	/* No exchange has named it. */
	if (head != NULL) named = *head;
	gw_http_request_id(connection, "req", id);
	named.request_id = id;
	gw_http_log_refusal(server, id, error->code, message);
	kv_text_init(&body, server->options.allocator, 4096);
	gw_error_body(&body, error, message, "", 0);
	if (kv_text_status(&body) == KV_OK)
		result = gw_http_respond(server, connection, error->code, &body, &named);
	kv_text_deinit(&body);
	return result;
}

static enum MHD_Result refuse_path(struct gw_http_server *server, struct MHD_Connection *connection,
    const char *url, const char *allow)
{
	static const char bad[] = "invalid_request_error";
	const struct gw_http_error missing = {404, bad, "unknown_url"};
	const struct gw_http_error method = {405, bad, "method_not_allowed"};
	char message[192];

	if (allow != NULL) {
		snprintf(message, sizeof message, "%.100s takes %s only", url, allow);
		return gw_http_refuse(
		    server, connection, &method, message, &(struct gw_http_head){.allow = allow});
	}
	snprintf(message, sizeof message, "there is no %.100s here", url);
	return gw_http_refuse(server, connection, &missing, message, NULL);
}

/* A body that says that it is too large is not even read. */
static bool announces_too_much(
    const struct gw_http_server *server, struct MHD_Connection *connection)
{
	const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");

	return length != NULL && strtoull(length, NULL, 10) > server->options.max_body;
}

static bool announces_body(struct MHD_Connection *connection)
{
	const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");

	return length != NULL && strtoull(length, NULL, 10) > 0;
}

/* HEAD is answered as GET; the daemon leaves the body out. */
static bool takes_method(const char *taken, const char *method)
{
	return strcmp(taken, method) == 0 || (strcmp(taken, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static enum MHD_Result refuse_stopping(
    struct gw_http_server *server, struct MHD_Connection *connection)
{
	struct gw_http_error error = gw_http_error_of(KV_CANCELLED, 0);

	return gw_http_refuse(server, connection, &error, "the worker is stopping", NULL);
}

/* Who looks whether it is there, and how it does, needs no key. */
static bool needs_key(
    const struct gw_http_server *server, struct MHD_Connection *connection, const char *url)
{
	if (server->options.keys == NULL || strcmp(url, "/health") == 0 || strcmp(url, "/metrics") == 0)
		return false;
	return !gw_api_keys_match(server->options.keys,
	    MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization"));
}

static enum MHD_Result refuse_key(struct gw_http_server *server, struct MHD_Connection *connection)
{
	const struct gw_http_error error = {401, "invalid_request_error", "invalid_api_key"};

	return gw_http_refuse(server, connection, &error,
	    "this worker wants a key: send Authorization: Bearer KEY with one that it knows",
	    &(struct gw_http_head){.authenticate = 1});
}

/* The index of the route, or ROUTES. */
static size_t find_route(const char *url)
{
	size_t i = 0;

	for (; i < ROUTES; i++) {
		size_t length = strlen(routes[i].path);

		if (strcmp(routes[i].path, url) == 0 && routes[i].route != GW_ROUTE_MODEL) break;
		if (routes[i].route == GW_ROUTE_MODEL && strncmp(routes[i].path, url, length) == 0 &&
		    url[length] != '\0')
			break;
	}
	return i;
}

static bool names_other_model(
    const struct gw_http_server *server, enum gw_route route, const char *url)
{
	return route == GW_ROUTE_MODEL &&
	       strcmp(url + strlen("/v1/models/"), server->options.model.name) != 0;
}

static enum MHD_Result refuse_model(
    struct gw_http_server *server, struct MHD_Connection *connection)
{
	struct gw_http_error error = gw_http_error_of(KV_NOT_FOUND, 0);
	char message[256];

	snprintf(message, sizeof message, "this worker serves %.160s and no other model",
	    server->options.model.name);
	return gw_http_refuse(server, connection, &error, message, NULL);
}

/* "204 No Content" and what may be asked. There is no answer for browsers of other origins. */
static enum MHD_Result answer_options(
    struct gw_http_server *server, struct MHD_Connection *connection, const char *methods)
{
	return gw_http_queue(server, connection, 204,
	    MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT),
	    &(struct gw_http_head){.allow = methods});
}

/* What is wrong with the request whatever it is for. True when it was refused. */
static bool refuse_head(struct gw_http_server *server, struct MHD_Connection *connection,
    const char *method, const char *version, enum MHD_Result *result)
{
	const struct gw_http_head close = {.close = 1};
	const struct gw_connection *own = gw_connection_of(connection);
	struct gw_http_error error = {400, "invalid_request_error", "invalid_url"};
	const char *message = "the request's path is too long or cannot be meant";
	bool right = own != NULL && !own->bad_url;

	if (right) {
		const struct gw_http_line line = {method, own->url, own->url_end, version};

		right = gw_http_head_check(connection, &line, &error, &message) != 0;
	}
	if (!right) *result = gw_http_refuse(server, connection, &error, message, &close);
	return !right;
}

static enum MHD_Result refuse_crowd(
    struct gw_http_server *server, struct MHD_Connection *connection)
{
	const struct gw_http_error error = {503, "server_error", "too_many_connections"};
	const struct gw_connection *own = gw_connection_of(connection);

	if (own->extra)
		return gw_http_refuse(
		    server, connection, &gw_too_many_of_address, GW_TOO_MANY_OF_ADDRESS, NULL);
	return gw_http_refuse(server, connection, &error,
	    "all connections of this worker (--max-connections) have running requests; try again",
	    NULL);
}

static bool is_crowded(struct MHD_Connection *connection, size_t route)
{
	const struct gw_connection *own = gw_connection_of(connection);

	return own != NULL && (own->reserved || own->extra) &&
	       (route == ROUTES ||
	           (routes[route].route != GW_ROUTE_HEALTH && routes[route].route != GW_ROUTE_METRICS));
}

static enum MHD_Result refuse_body(struct gw_http_server *server, struct MHD_Connection *connection)
{
	const struct gw_http_error large = {413, "invalid_request_error", "body_too_large"};
	char message[96];

	snprintf(message, sizeof message, "the body is larger than --max-body, %llu bytes",
	    (unsigned long long)server->options.max_body);
	return gw_http_refuse(server, connection, &large, message, NULL);
}

static enum MHD_Result open_exchange(struct gw_http_server *server,
    struct MHD_Connection *connection, const char *url, const char *method, void **slot)
{
	const struct gw_http_error broken = {500, "server_error", NULL};
	struct gw_exchange *exchange = NULL;
	size_t i = find_route(url);

	if (needs_key(server, connection, url)) return refuse_key(server, connection);
	if (is_crowded(connection, i)) return refuse_crowd(server, connection);
	/* Another worker may have what is not here; who drains says nothing about it. */
	if (server->draining && (i == ROUTES || !takes_method(routes[i].method, method) ||
	                            announces_too_much(server, connection)))
		return refuse_stopping(server, connection);
	if (strcmp(method, "OPTIONS") == 0 && (i < ROUTES || strcmp(url, "*") == 0))
		return answer_options(
		    server, connection, i < ROUTES ? routes[i].method : "GET, HEAD, POST, OPTIONS");
	if (i == ROUTES) return refuse_path(server, connection, url, NULL);
	if (!takes_method(routes[i].method, method))
		return refuse_path(server, connection, url, routes[i].method);
	if (names_other_model(server, routes[i].route, url)) return refuse_model(server, connection);
	if (announces_too_much(server, connection)) return refuse_body(server, connection);
	if (gw_exchange_create(server, connection, routes[i].route, &exchange) != KV_OK)
		return gw_http_refuse(server, connection, &broken, "out of memory", NULL);
	*slot = exchange;
	return MHD_YES;
}

/* The head is there. */
static enum MHD_Result begin(struct gw_http_server *server, struct MHD_Connection *connection,
    const char *url, const char *method, const char *version, void **slot)
{
	struct gw_connection *own = gw_connection_of(connection);
	enum MHD_Result result;
	bool refused, chunked = is_chunked(connection);

	refused = refuse_head(server, connection, method, version, &result);
	if (!refused) result = open_exchange(server, connection, gw_http_path(url), method, slot);
	if (own == NULL) return result;
	own->exchange = *slot;
	/* Until a body of chunks is whole the daemon may refuse it by itself. */
	own->unread = refused || chunked || (own->exchange == NULL && announces_body(connection));
	gw_connection_phase(own, own->exchange != NULL ? GW_PHASE_BODY : GW_PHASE_ANSWER);
	return result;
}

static enum MHD_Result take_body(
    struct gw_http_server *server, struct gw_exchange *exchange, const char *bytes, size_t *size)
{
	const struct gw_http_error large = {413, "invalid_request_error", "body_too_large"};
	struct gw_connection *own = gw_connection_of(exchange->connection);
	char message[96];

	if (exchange->body.length + *size > server->options.max_body) {
		/* The daemon takes no answer amid a body. */
		snprintf(message, sizeof message, "the body is larger than --max-body, %llu bytes",
		    (unsigned long long)server->options.max_body);
		if (own != NULL) {
			gw_connection_tell(server, own->fd, &large, message);
			own->unread = true;
		}
		return MHD_NO;
	}
	if (own != NULL && !gw_connection_body(own, *size)) {
		own->unread = true;
		return MHD_NO;
	}
	kv_text_append(&exchange->body, bytes, *size);
	/* What did not fit into memory is told when the body is whole. */
	if (own != NULL && kv_text_status(&exchange->body) != KV_OK)
		server->connections.body_bytes -= *size;
	*size = 0;
	return MHD_YES;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *url,
    const char *method, const char *version, const char *upload, size_t *upload_size, void **slot)
{
	struct gw_exchange *exchange = *slot;
	struct gw_connection *own = gw_connection_of(connection);

	/* One that was given up in this turn of the daemon, which still reads what it has of it. */
	if (own != NULL && own->phase == GW_PHASE_ENDING) return MHD_NO;
	if (exchange == NULL) return begin(context, connection, url, method, version, slot);
	if (*upload_size > 0) return take_body(context, exchange, upload, upload_size);
	if (own != NULL) own->unread = false;
	return exchange->begun ? gw_exchange_answer(exchange) : gw_exchange_begin(exchange);
}

static void completed(void *context, struct MHD_Connection *connection, void **slot,
    enum MHD_RequestTerminationCode code)
{
	struct gw_connection *own = gw_connection_of(connection);

	(void)context;
	(void)code;
	if (own != NULL) {
		own->exchange = NULL;
		gw_connection_phase(own, GW_PHASE_IDLE);
	}
	if (*slot != NULL) gw_exchange_completed(*slot);
	*slot = NULL;
}

static void log_daemon(void *context, const char *format, va_list arguments)
{
	char text[256];

	(void)context;
	vsnprintf(text, sizeof text, format, arguments);
	text[strcspn(text, "\n")] = '\0';
	kv_debug("http", "%s", text);
}

/* HOST:PORT, [HOST]:PORT, :PORT. */
static enum kv_status split_address(const char *listen, char host[96], const char **port)
{
	const char *colon = strrchr(listen, ':'), *start = listen, *end = colon;
	bool valid = true;

	if (colon == NULL || colon[1] == '\0')
		return kv_fail(KV_INVALID, "address \"%s\": must be HOST:PORT", listen);
	if (*start == '[' && end > start && end[-1] == ']') {
		start++;
		end--;
	}
	if ((size_t)(end - start) >= 96)
		return kv_fail(KV_INVALID, "address \"%s\": the host's name is too long", listen);
	memcpy(host, start, (size_t)(end - start));
	host[end - start] = '\0';
	*port = colon + 1;
	/* getaddrinfo would take a number above that, and listen at another port. */
	for (const char *at = *port; *at != '\0'; at++)
		if (*at < '0' || *at > '9') valid = false;
	if (!valid || strlen(*port) > 5 || strtoul(*port, NULL, 10) > UINT16_MAX)
		return kv_fail(KV_INVALID, "address \"%s\": the port must be a number from 0 to %d", listen,
		    UINT16_MAX);
	return KV_OK;
}

enum kv_status gw_http_address_check(const char *listen)
{
	const char *port;
	char host[96];

	return split_address(listen, host, &port);
}

/* As kv_tcp_listen takes it. There need not be keys, and there is no TLS: who wants other machines
 * to reach it says so. */
static enum kv_status name_host(const char *listen, char address[128])
{
	const char *port;
	char host[96];

	KV_TRY(split_address(listen, host, &port));
	snprintf(address, 128, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s",
	    host[0] != '\0' ? host : LOOPBACK, port);
	return KV_OK;
}

enum kv_status gw_http_listen_check(const char *listen, uint32_t max_connections)
{
	enum kv_status status;
	char address[128];

	KV_TRY(gw_connections_check(max_connections));
	KV_TRY(name_host(listen, address));
	status = kv_tcp_listen_check(address);
	return status == KV_OK ? KV_OK : kv_fail_prefix(status, "--listen");
}

static enum kv_status open_listener(struct gw_http_server *server)
{
	char address[128], where[KV_TCP_TEXT];
	enum kv_status status;

	if (server->options.listen_fd >= 0) {
		server->listen_fd = server->options.listen_fd;
		return KV_OK;
	}
	KV_TRY(name_host(server->options.listen, address));
	status = kv_tcp_listen(address, BACKLOG, &server->listen_fd, where);
	return status == KV_OK ? KV_OK : kv_fail_prefix(status, "--listen");
}

static int is_loopback(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)address;
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)address;

	if (address->ss_family == AF_INET) return (ntohl(four->sin_addr.s_addr) >> 24) == 127;
	return address->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

static void name_address(struct gw_http_server *server)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof address;
	char host[96], port[16];

	snprintf(server->address, sizeof server->address, "%s", server->options.listen);
	if (getsockname(server->listen_fd, (struct sockaddr *)&address, &length) != 0) return;
	if (getnameinfo((struct sockaddr *)&address, length, host, sizeof host, port, sizeof port,
	        NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		return;
	snprintf(server->address, sizeof server->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host,
	    port);
	if (!is_loopback(&address))
		kv_warning("http",
		    "listening on %s, beyond this machine: the API has no %sTLS, put a proxy "
		    "in front of it",
		    server->address,
		    server->options.keys != NULL ? "" : "authentication (--api-key-file) and no ");
}

static enum kv_status start_daemon(struct gw_http_server *server)
{
	const struct gw_http_options *o = &server->options;
	const union MHD_DaemonInfo *info;
	unsigned timeout = (unsigned)((o->idle_ms + 999) / 1000);

	/* What is ending is the daemon's for another moment: its own limit is never met. */
	server->daemon = MHD_start_daemon(
	    MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET, 0,
	    NULL, NULL, handle, server, MHD_OPTION_EXTERNAL_LOGGER, log_daemon, NULL,
	    MHD_OPTION_NOTIFY_COMPLETED, completed, server, MHD_OPTION_NOTIFY_CONNECTION,
	    gw_connection_notify, server, MHD_OPTION_URI_LOG_CALLBACK, gw_connection_url, server,
	    MHD_OPTION_CONNECTION_LIMIT, (unsigned)(4 * o->max_connections + 256),
	    MHD_OPTION_STRICT_FOR_CLIENT, gw_http_daemon_is_strict() ? 1 : 0,
	    MHD_OPTION_CONNECTION_TIMEOUT, timeout, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
	    (size_t)CONNECTION_MEMORY, MHD_OPTION_END);
	if (server->daemon == NULL)
		return kv_fail(KV_IO, "the HTTP server on %s cannot be started", server->address);
	info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	if (info == NULL) return kv_fail(KV_INTERNAL, "the HTTP server has no epoll descriptor");
	KV_TRY(kv_loop_timer(o->loop, 0, 0, run_daemon, server, &server->timer));
	KV_TRY(kv_loop_watch_fd(
	    o->loop, info->epoll_fd, KV_LOOP_READABLE, on_readable, server, &server->watch));
	KV_TRY(kv_loop_before_block(o->loop, before_block, server));
	return gw_connections_open(server);
}

enum kv_status gw_http_server_create(
    const struct gw_http_options *options, struct gw_http_server **server)
{
	struct gw_http_server *made = kv_alloc_zero(options->allocator, sizeof *made);
	enum kv_status status;

	if (made == NULL) return KV_NO_MEMORY;
	made->options = *options;
	made->listen_fd = -1;
	kv_list_init(&made->exchanges);
	gw_connections_init(made);
	status = gw_connections_check(options->max_connections);
	if (status == KV_OK) status = open_listener(made);
	if (status == KV_OK) {
		name_address(made);
		status = start_daemon(made);
	}
	if (status != KV_OK) {
		gw_http_server_destroy(made);
		return status;
	}
	*server = made;
	return KV_OK;
}

void gw_http_server_drain(struct gw_http_server *server)
{
	server->draining = true;
}

void gw_http_server_destroy(struct gw_http_server *server)
{
	struct kv_list *at, *next;

	if (server == NULL) return;
	KV_LIST_EACH(at, &server->exchanges)
	gw_exchange_abandon(KV_CONTAINER_OF(at, struct gw_exchange, node));
	gw_connections_close(server);
	kv_loop_before_block(server->options.loop, NULL, NULL);
	kv_watch_close(server->watch);
	kv_timer_close(server->timer);
	if (server->daemon != NULL) MHD_stop_daemon(server->daemon);
	if (server->listen_fd >= 0) close(server->listen_fd);
	/* What is left is in a pool thread's hands. */
	KV_LIST_EACH_SAFE(at, next, &server->exchanges)
	{
		KV_CONTAINER_OF(at, struct gw_exchange, node)->server = NULL;
		kv_list_remove(at);
	}
	kv_free(server->options.allocator, server);
}

const char *gw_http_server_address(const struct gw_http_server *server)
{
	return server->address;
}

void gw_http_server_event(struct gw_http_server *server, const struct gw_engine_event *event)
{
	if (event->kind != GW_EVENT_STATE) {
		gw_choice_event(event->request, event);
		return;
	}
	server->state = event->state;
	snprintf(server->reason, sizeof server->reason, "%s", event->text);
}

uint32_t gw_http_server_busy(const struct gw_http_server *server)
{
	return server->exchange_count;
}
