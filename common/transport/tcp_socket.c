#include "common/transport/tcp_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct host_port {
	char host[KV_TCP_HOST];
	char port[8];
};

static enum kv_status refuse(const char *address)
{
	return kv_fail(KV_INVALID,
	    "\"%.100s\" is no address: write HOST:PORT, with an IPv6 address in brackets", address);
}

static enum kv_status split(const char *address, struct host_port *parts)
{
	const char *colon = strrchr(address, ':');
	const char *begin = address;
	size_t length, digits;

	if (!colon || colon == address) return refuse(address);
	length = (size_t)(colon - address);
	if (address[0] == '[') {
		if (colon[-1] != ']' || length < 3) return refuse(address);
		begin++;
		length -= 2;
	} else if (memchr(address, ':', length)) {
		return refuse(address);
	}
	digits = strspn(colon + 1, "0123456789");
	if (length >= sizeof parts->host || !digits || digits > 5 || colon[1 + digits] ||
	    atoi(colon + 1) > 65535)
		return refuse(address);
	memcpy(parts->host, begin, length);
	parts->host[length] = '\0';
	memcpy(parts->port, colon + 1, digits + 1);
	return KV_OK;
}

enum kv_status kv_tcp_address_check(const char *address, int port_zero)
{
	struct host_port parts;

	KV_TRY(split(address, &parts));
	return atoi(parts.port) || port_zero ? KV_OK : refuse(address);
}

static enum kv_status look_up(const char *address, int flags, struct addrinfo **list)
{
	const struct addrinfo hints = {
	    .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
	struct host_port parts;
	int error;

	KV_TRY(split(address, &parts));
	error = getaddrinfo(parts.host, parts.port, &hints, list);
	if (!error) return KV_OK;
	return kv_fail(!(flags & AI_PASSIVE) ? KV_DISCONNECTED
	               : error == EAI_NONAME ? KV_USAGE
	                                     : KV_IO,
	    "cannot find host \"%s\": %s", parts.host, gai_strerror(error));
}

enum kv_status kv_tcp_numeric_check(const char *address, int port_zero)
{
	struct addrinfo *list = NULL;

	KV_TRY(kv_tcp_address_check(address, port_zero));
	KV_TRY(look_up(address, AI_NUMERICHOST | AI_PASSIVE, &list));
	freeaddrinfo(list);
	return KV_OK;
}

static bool prepare(int socket)
{
	return fcntl(socket, F_SETFD, FD_CLOEXEC) == 0 && fcntl(socket, F_SETFL, O_NONBLOCK) == 0;
}

static void set(int socket, int option, unsigned value)
{
	(void)setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value);
}

/* A peer whose cable was cut says nothing: probes find out, and so does what stays unacknowledged.
 * Where an option is unknown, the heartbeats above still tell. */
static void watch_silence(int socket, uint32_t silence_ms)
{
	const unsigned seconds = silence_ms / 1000;
	int one = 1;

	set(socket, TCP_NODELAY, 1);
	(void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
	set(socket, TCP_KEEPIDLE, 1);
	set(socket, TCP_KEEPINTVL, 1);
	set(socket, TCP_KEEPCNT, seconds > 2 ? seconds - 1 : 2);
#ifdef TCP_USER_TIMEOUT
	set(socket, TCP_USER_TIMEOUT, silence_ms);
#endif
}

static void say_where(const struct sockaddr *address, socklen_t length, char *text)
{
	char host[INET6_ADDRSTRLEN + 16] = "?";
	char port[8] = "?";

	(void)getnameinfo(
	    address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
	snprintf(text, KV_TCP_TEXT, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

/* A socket with this address, -1 with errno. */
static int bind_socket(const struct addrinfo *where)
{
	int made = socket(where->ai_family, where->ai_socktype, where->ai_protocol);
	int one = 1;
	int saved;

	if (made < 0) return -1;
	(void)setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (prepare(made) && bind(made, where->ai_addr, where->ai_addrlen) == 0) return made;
	saved = errno;
	close(made);
	errno = saved;
	return -1;
}

/* With the first of the host's addresses that is one of this machine, -1 with errno. One in use is
 * that, too: who asks for the name reaches whoever has it, and not us at the next. */
static int bind_first(const struct addrinfo *list)
{
	int made = -1;

	for (; list && made < 0; list = list->ai_next) {
		made = bind_socket(list);
		if (made < 0 && errno == EADDRINUSE) break;
	}
	return made;
}

enum kv_status kv_tcp_listen(const char *address, int backlog, int *listener, char *where)
{
	struct sockaddr_storage bound;
	socklen_t length = sizeof bound;
	struct addrinfo *list = NULL;
	int made, error;

	KV_TRY(look_up(address, AI_PASSIVE, &list));
	made = bind_first(list);
	error = made >= 0 && listen(made, backlog) == 0 ? 0 : errno;
	freeaddrinfo(list);
	if (error) {
		if (made >= 0) close(made);
		return kv_fail(error == EADDRINUSE ? KV_EXISTS : KV_IO, "cannot listen at %s: %s", address,
		    strerror(error));
	}
	if (getsockname(made, (struct sockaddr *)&bound, &length) == 0)
		say_where((const struct sockaddr *)&bound, length, where);
	else
		snprintf(where, KV_TCP_TEXT, "%s", address);
	*listener = made;
	return KV_OK;
}

enum kv_status kv_tcp_listen_check(const char *address)
{
	struct addrinfo *list = NULL;
	int made, error;

	KV_TRY(look_up(address, AI_PASSIVE, &list));
	made = bind_first(list);
	error = made >= 0 || errno == EADDRINUSE ? 0 : errno;
	freeaddrinfo(list);
	if (made >= 0) close(made);
	if (!error) return KV_OK;
	return kv_fail(KV_IO, "cannot listen at %s: %s", address, strerror(error));
}

enum kv_status kv_tcp_accept(int listener, uint32_t silence_ms, int *accepted, char *from)
{
	struct sockaddr_storage peer;
	socklen_t length = sizeof peer;
	int taken;

	*accepted = -1;
	do {
		length = sizeof peer;
		taken = accept(listener, (struct sockaddr *)&peer, &length);
	} while (taken < 0 && (errno == EINTR || errno == ECONNABORTED));
	if (taken < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			return kv_fail(KV_LIMIT, "cannot take a connection: %s", strerror(errno));
		return KV_OK;
	}
	if (!prepare(taken)) {
		close(taken);
		return KV_OK;
	}
	watch_silence(taken, silence_ms);
	say_where((const struct sockaddr *)&peer, length, from);
	*accepted = taken;
	return KV_OK;
}

/* -1 with errno when this one cannot even be tried. */
static int begin_connect(const struct addrinfo *where, uint32_t silence_ms)
{
	int made = socket(where->ai_family, where->ai_socktype, where->ai_protocol);
	int saved;

	if (made < 0) return -1;
	if (prepare(made)) {
		watch_silence(made, silence_ms);
		if (connect(made, where->ai_addr, where->ai_addrlen) == 0 || errno == EINPROGRESS)
			return made;
	}
	saved = errno;
	close(made);
	errno = saved;
	return -1;
}

enum kv_status kv_tcp_look_up(const char *address, struct addrinfo **found, uint32_t *count)
{
	KV_TRY(look_up(address, AI_ADDRCONFIG, found));
	*count = 0;
	for (const struct addrinfo *at = *found; at; at = at->ai_next)
		++*count;
	return KV_OK;
}

void kv_tcp_forget(struct addrinfo *found)
{
	freeaddrinfo(found);
}

enum kv_status kv_tcp_connect(const char *address, const struct addrinfo *found, uint32_t which,
    uint32_t silence_ms, int *connecting)
{
	int made;

	for (; which; which--)
		found = found->ai_next;
	made = begin_connect(found, silence_ms);
	if (made < 0)
		return kv_fail(errno == EMFILE || errno == ENFILE ? KV_LIMIT : KV_DISCONNECTED,
		    "cannot connect to %s: %s", address, strerror(errno));
	*connecting = made;
	return KV_OK;
}

enum kv_status kv_tcp_connected(int socket, const char *address)
{
	socklen_t length = sizeof(int);
	int error = 0;

	if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
	if (!error) return KV_OK;
	return kv_fail(KV_DISCONNECTED, "cannot connect to %s: %s", address, strerror(error));
}
