#include "gpu-worker/server/stats_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/collect/list.h"
#include "common/transport/unix_socket.h"

enum {
	MAX_READERS = 16,
	MAX_LINE = 256,
	MAX_ANSWER = 4 << 20,
	STAY_MS = 10000,  /* from its first moment to its last */
	PAUSE_MS = 1000,  /* before accepting again, after a failure */
	LINES_A_TURN = 16
};

struct reader {
	struct kv_list node;
	struct gw_stats_socket *owner;
	int socket;
	struct kv_watch *watch;
	struct kv_timer *timer; /* the end of its stay */
	char input[MAX_LINE];
	size_t length;
	struct kv_text_buffer answer;
	size_t sent;
	bool quits; /* it has said so */
	bool ended; /* all that it sent was read */
};

struct gw_stats_socket {
	struct kv_allocator *allocator;
	struct kv_loop *loop;
	const struct gw_traces *traces;
	char *path;
	int listener;
	struct kv_watch *watch;
	struct kv_timer *again; /* listens again */
	struct kv_list readers; /* the oldest first */
	uint32_t reader_count;
	struct kv_log_limit log;
};

static bool answer_trace(
    const struct gw_traces *traces, const char *id, uint64_t now_ns, struct kv_text_buffer *out)
{
	static const char json_word[] = "json ";
	bool json = strncmp(id, json_word, sizeof json_word - 1) == 0;

	if (json) id += sizeof json_word - 1;
	if (kv_request_id_check(id) != KV_OK) {
		kv_text_printf(out, "ERROR %s\r\n", kv_error_message());
		return true;
	}
	if (!gw_traces_put(traces, id, json, now_ns, out)) kv_text_put(out, "NOT_FOUND\r\n");
	return true;
}

bool gw_stats_answer(const struct gw_traces *traces, const char *line, uint64_t now_ns,
    struct kv_text_buffer *out)
{
	static const char trace_word[] = "trace ";

	if (line[0] == '\0') return true;
	if (strncmp(line, trace_word, sizeof trace_word - 1) == 0)
		return answer_trace(traces, line + sizeof trace_word - 1, now_ns, out);
	if (strcmp(line, "traces") == 0 || strcmp(line, "traces json") == 0)
		gw_traces_put_list(traces, strcmp(line, "traces") != 0, now_ns, out);
	else if (strcmp(line, "help") == 0)
		kv_text_put(out, "traces [json]\r\ntrace [json] ID\r\nhelp\r\nquit\r\nEND\r\n");
	else if (strcmp(line, "quit") == 0)
		return false;
	else
		kv_text_put(out, "ERROR unknown command, try help\r\n");
	return true;
}

static void drop(struct reader *reader)
{
	struct gw_stats_socket *owner = reader->owner;

	kv_list_remove(&reader->node);
	owner->reader_count--;
	kv_watch_close(reader->watch);
	kv_timer_close(reader->timer);
	close(reader->socket);
	kv_text_deinit(&reader->answer);
	kv_free(owner->allocator, reader);
}

/* 1: all is sent; 0: the socket takes no more now; -1: the reader is gone. */
static int send_answer(struct reader *reader)
{
	while (reader->sent < reader->answer.length) {
		ssize_t n = send(reader->socket, kv_text(&reader->answer) + reader->sent,
		    reader->answer.length - reader->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR) continue;
		if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
		reader->sent += (size_t)n;
	}
	kv_text_reset(&reader->answer);
	reader->sent = 0;
	return 1;
}

/* Answer the first whole line that is there; false when there is none. */
static bool run_line(struct reader *reader)
{
	char *end = memchr(reader->input, '\n', reader->length);
	size_t taken;

	if (end == NULL) return false;
	/* A line ends where it does, not at a zero byte. */
	for (char *at = reader->input; at < end; at++)
		if (*at == '\0') *at = '?';
	*end = '\0';
	taken = (size_t)(end - reader->input) + 1;
	if (end > reader->input && end[-1] == '\r') end[-1] = '\0';
	if (!gw_stats_answer(
	        reader->owner->traces, reader->input, kv_now_ns(), &reader->answer))
		reader->quits = true;
	reader->length -= taken;
	memmove(reader->input, reader->input + taken, reader->length);
	return true;
}

/* Answer while answers go out. False when the reader is to be dropped. */
static bool serve(struct reader *reader)
{
	for (int turn = 0;; turn++) {
		int sent = send_answer(reader);

		if (sent < 0) return false;
		if (sent == 0) return true;
		if (reader->quits) return false;
		if (turn == LINES_A_TURN) return true;
		if (!run_line(reader)) break;
		if (kv_text_status(&reader->answer) != KV_OK) return false;
	}
	if (reader->ended) return false;
	if (reader->length < sizeof reader->input) return true;
	kv_text_put(&reader->answer, "ERROR line too long, try help\r\n");
	(void)send_answer(reader);
	return false;
}

static bool receive(struct reader *reader)
{
	size_t room = sizeof reader->input - reader->length;
	ssize_t n;

	if (room == 0 || reader->ended) return true;
	n = recv(reader->socket, reader->input + reader->length, room, MSG_DONTWAIT);
	if (n < 0) return errno == EAGAIN || errno == EINTR;
	if (n == 0) reader->ended = true;
	reader->length += (size_t)n;
	return true;
}

static void on_reader(void *context, struct kv_watch *watch, unsigned events)
{
	struct reader *reader = context;
	bool behind;

	if ((events & KV_LOOP_READABLE) != 0 && !receive(reader)) {
		drop(reader);
		return;
	}
	if (!serve(reader)) {
		drop(reader);
		return;
	}
	/* While an answer or a line waits, no more is read. */
	behind = reader->answer.length > 0 || memchr(reader->input, '\n', reader->length) != NULL;
	kv_watch_update(watch, behind ? KV_LOOP_WRITABLE : KV_LOOP_READABLE);
}

static void on_stay_over(void *context)
{
	drop(context);
}

static enum kv_status create_reader(struct gw_stats_socket *owner, int socket)
{
	struct reader *reader = kv_alloc_zero(owner->allocator, sizeof *reader);
	enum kv_status status;

	if (reader == NULL) return KV_NO_MEMORY;
	reader->owner = owner;
	reader->socket = socket;
	kv_text_init(&reader->answer, owner->allocator, MAX_ANSWER);
	status =
	    kv_loop_watch_fd(owner->loop, socket, KV_LOOP_READABLE, on_reader, reader, &reader->watch);
	if (status == KV_OK)
		status = kv_loop_timer(owner->loop, STAY_MS, 0, on_stay_over, reader, &reader->timer);
	if (status != KV_OK) {
		kv_watch_close(reader->watch);
		kv_free(owner->allocator, reader);
		return status;
	}
	/* Who stays and asks nothing must not keep others out. */
	if (owner->reader_count == MAX_READERS)
		drop(KV_CONTAINER_OF(kv_list_first(&owner->readers), struct reader, node));
	kv_list_push_back(&owner->readers, &reader->node);
	owner->reader_count++;
	return KV_OK;
}

static void listen_again(void *context)
{
	struct gw_stats_socket *owner = context;

	kv_watch_update(owner->watch, KV_LOOP_READABLE);
}

static void on_listener(void *context, struct kv_watch *watch, unsigned events)
{
	struct gw_stats_socket *owner = context;

	(void)events;
	for (int turn = 0; turn < MAX_READERS; turn++) {
		int socket = -1;
		enum kv_status status = kv_unix_accept(owner->listener, &socket);

		if (status == KV_OK && socket < 0) return;
		if (status == KV_OK) status = create_reader(owner, socket);
		if (status == KV_OK) continue;
		kv_warning_limited(&owner->log, "stats", "stats reader refused: %s", kv_error_message());
		if (socket >= 0) {
			close(socket);
			continue;
		}
		/* The connection still waits, so that the loop would bring us back at once. */
		kv_watch_update(watch, 0);
		kv_timer_start(owner->again, PAUSE_MS, 0);
		return;
	}
}

enum kv_status gw_stats_socket_create(struct kv_allocator *allocator, struct kv_loop *loop,
    const char *path, const struct gw_traces *traces, struct gw_stats_socket **socket)
{
	struct gw_stats_socket *made = kv_alloc_zero(allocator, sizeof *made);
	enum kv_status status;

	if (made == NULL) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->loop = loop;
	made->traces = traces;
	made->listener = -1;
	kv_list_init(&made->readers);
	made->path = kv_strdup(allocator, path);
	if (made->path == NULL) {
		status = KV_NO_MEMORY;
		goto fail;
	}
	KV_TRY_GOTO(status, kv_unix_listen(path, KV_UNIX_MODE, &made->listener), fail);
	KV_TRY_GOTO(status,
	    kv_loop_watch_fd(
	        loop, made->listener, KV_LOOP_READABLE, on_listener, made, &made->watch),
	    fail);
	KV_TRY_GOTO(status, kv_loop_timer(loop, 0, 0, listen_again, made, &made->again), fail);
	kv_timer_stop(made->again);
	*socket = made;
	return KV_OK;
fail:
	gw_stats_socket_destroy(made);
	return status;
}

void gw_stats_socket_destroy(struct gw_stats_socket *socket)
{
	struct kv_list *node;

	if (socket == NULL) return;
	while ((node = kv_list_first(&socket->readers)) != NULL)
		drop(KV_CONTAINER_OF(node, struct reader, node));
	kv_timer_close(socket->again);
	kv_watch_close(socket->watch);
	if (socket->listener >= 0) kv_unix_unlisten(socket->listener, socket->path);
	kv_free(socket->allocator, socket->path);
	kv_free(socket->allocator, socket);
}
