/* One question to the stats socket. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/unix_socket.h"
#include "kvstore/ctl/ctl.h"

static enum kv_status wait_for(
    const struct ctl_peer *peer, int socket, short events, uint64_t deadline)
{
	struct pollfd one = {.fd = socket, .events = events};
	uint64_t now = kv_now_ms();

	if (now >= deadline) return kv_fail(KV_TIMEOUT, "%s did not answer in time", peer->name);
	if (poll(&one, 1, (int)(deadline - now)) < 0 && errno != EINTR)
		return kv_fail(KV_IO, "cannot poll: %s", strerror(errno));
	return KV_OK;
}

static enum kv_status send_all(
    const struct ctl_peer *peer, int socket, const char *text, uint64_t deadline)
{
	size_t left = strlen(text);

	while (left) {
		ssize_t n = send(socket, text, left, MSG_NOSIGNAL);

		if (n > 0) {
			text += n;
			left -= (size_t)n;
		} else if (n < 0 && errno != EAGAIN && errno != EINTR) {
			return kv_fail(KV_DISCONNECTED, "%s closed its stats socket", peer->name);
		} else {
			KV_TRY(wait_for(peer, socket, POLLOUT, deadline));
		}
	}
	return KV_OK;
}

/* Until the peer closes: the command was followed by quit. */
static enum kv_status receive_all(const struct ctl_peer *peer, int socket,
    struct kv_text_buffer *answer, uint64_t deadline)
{
	char bytes[16384];

	for (;;) {
		ssize_t n = recv(socket, bytes, sizeof bytes, 0);

		if (n == 0) return kv_text_status(answer);
		if (n > 0)
			kv_text_append(answer, bytes, (size_t)n);
		else if (errno != EAGAIN && errno != EINTR)
			return kv_fail(KV_DISCONNECTED, "%s broke off: %s", peer->name, strerror(errno));
		else
			KV_TRY(wait_for(peer, socket, POLLIN, deadline));
	}
}

static enum kv_status check_answer(const struct ctl_peer *peer, const struct kv_text_buffer *answer)
{
	const char *text = kv_text(answer);

	if (!answer->length)
		return kv_fail(
		    KV_DISCONNECTED, "%s closed its stats socket without an answer", peer->name);
	if (strncmp(text, "ERROR", 5) == 0)
		return kv_fail(
		    KV_PROTOCOL, "%s says: %.*s", peer->name, (int)strcspn(text, "\r\n"), text);
	return KV_OK;
}

enum kv_status ctl_ask_peer(const struct ctl_settings *settings, const struct ctl_peer *peer,
    const char *command, struct kv_text_buffer *answer)
{
	uint64_t deadline = kv_now_ms() + settings->timeout_ms;
	char line[128];
	int socket = -1;
	enum kv_status status;

	kv_text_reset(answer);
	status = kv_unix_connect(peer->path, &socket);
	if (status == KV_DISCONNECTED)
		return kv_fail(KV_DISCONNECTED,
		    "%s %s: nobody listens there: does %s run, and was it given this %s?", peer->option,
		    peer->path, peer->name, peer->option);
	if (status != KV_OK) return kv_fail_prefix(status, "%s %s", peer->option, peer->path);
	snprintf(line, sizeof line, "%s\nquit\n", command);
	status = send_all(peer, socket, line, deadline);
	if (status == KV_OK) status = receive_all(peer, socket, answer, deadline);
	if (status == KV_OK) status = check_answer(peer, answer);
	close(socket);
	if (status == KV_TIMEOUT)
		return kv_fail(KV_TIMEOUT,
		    "%s %s: %s did not answer within %u ms: is it stopped, or is this no stats socket? "
		    "--timeout waits longer",
		    peer->option, peer->path, peer->name, (unsigned)settings->timeout_ms);
	if (status == KV_DISCONNECTED)
		return kv_fail_prefix(KV_DISCONNECTED, "%s %s, which should be the stats socket",
		    peer->option, peer->path);
	if (status == KV_PROTOCOL)
		return kv_fail_prefix(KV_PROTOCOL, "%s %s", peer->option, peer->path);
	return status;
}

enum kv_status ctl_ask(
    const struct ctl_settings *settings, const char *command, struct kv_text_buffer *answer)
{
	const struct ctl_peer store = {settings->stats_socket, "--stats-socket", "the store"};

	return ctl_ask_peer(settings, &store, command, answer);
}

bool ctl_next_stat(char **cursor, const char **name, const char **value)
{
	while (**cursor) {
		char *line = *cursor;
		char *end = line + strcspn(line, "\r\n");
		char *space;

		*cursor = end + strspn(end, "\r\n");
		*end = '\0';
		if (strncmp(line, "STAT ", 5) != 0) continue;
		/* Labels hold no blanks, values may. */
		space = strchr(line + 5, ' ');
		if (!space) continue;
		*space = '\0';
		*name = line + 5;
		*value = space + 1;
		return true;
	}
	return false;
}

void ctl_find_stat(const char *answer, const char *name, char *value, size_t size)
{
	char wanted[160];
	const char *found;
	size_t length;

	value[0] = '\0';
	snprintf(wanted, sizeof wanted, "STAT %s ", name);
	/* At a line's start: values are other people's words. */
	for (found = strstr(answer, wanted); found && found != answer && found[-1] != '\n';)
		found = strstr(found + 1, wanted);
	if (!found) return;
	found += strlen(wanted);
	length = strcspn(found, "\r\n");
	if (length >= size) length = size - 1;
	memcpy(value, found, length);
	value[length] = '\0';
}

double ctl_find_number(const char *answer, const char *name)
{
	char value[64];

	ctl_find_stat(answer, name, value, sizeof value);
	return strtod(value, NULL);
}

double ctl_find_used(const char *answer)
{
	static const char *const states[] = {"leased", "cached", "reserved", "quarantined"};
	char name[64];
	double used = 0;

	for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
		snprintf(name, sizeof name, "arena_bytes{state=\"%s\"}", states[i]);
		used += ctl_find_number(answer, name);
	}
	return used;
}

/* The name in a `worker:NAME:state` line; false for other lines. */
static bool worker_of(const char *line, char name[CTL_NAME_BYTES])
{
	static const char head[] = "STAT worker:";
	const char *start = line + sizeof head - 1;
	size_t length;

	if (strncmp(line, head, sizeof head - 1) != 0) return false;
	length = strcspn(start, ": \r\n");
	if (length >= CTL_NAME_BYTES || strncmp(start + length, ":state ", 7) != 0) return false;
	memcpy(name, start, length);
	name[length] = '\0';
	return true;
}

bool ctl_next_worker(const char **cursor, char name[CTL_NAME_BYTES])
{
	while (**cursor) {
		const char *line = *cursor;

		*cursor += strcspn(line, "\r\n");
		*cursor += strspn(*cursor, "\r\n");
		if (worker_of(line, name)) return true;
	}
	return false;
}

void ctl_find_worker(
    const char *answer, const char *worker, const char *fact, char *value, size_t size)
{
	char name[CTL_NAME_BYTES + 64];

	snprintf(name, sizeof name, "worker:%s:%s", worker, fact);
	ctl_find_stat(answer, name, value, size);
}

void ctl_pause(double seconds)
{
	struct timespec pause = {.tv_sec = (time_t)seconds};

	pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
	nanosleep(&pause, NULL);
}
