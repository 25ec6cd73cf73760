#include "kvstore/server/http_listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST_BYTES = 64, BACKLOG = 16 };

static enum kv_status refuse(const char *address)
{
	return kv_fail(KV_INVALID,
	    "http-listen \"%.80s\": must be HOST:PORT with a numeric HOST, as 127.0.0.1:9432", address);
}

static enum kv_status split(const char *address, char host[HOST_BYTES], const char **port)
{
	const char *colon = strrchr(address, ':');
	size_t length;

	if (!colon || colon == address) return refuse(address);
	length = (size_t)(colon - address);
	if (address[0] == '[' && colon[-1] == ']') {
		address++;
		length -= 2;
	}
	if (!length || length >= HOST_BYTES) return refuse(address);
	memcpy(host, address, length);
	host[length] = '\0';
	*port = colon + 1;
	return KV_OK;
}

static enum kv_status look_up(const char *address, struct addrinfo **list)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC,
	    .ai_socktype = SOCK_STREAM,
	    .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
	char host[HOST_BYTES];
	const char *port = "";
	size_t digits;

	KV_TRY(split(address, host, &port));
	/* getaddrinfo would take a number above the largest port, and listen at another one. */
	digits = strspn(port, "0123456789");
	if (!digits || digits > 5 || port[digits] || atoi(port) < 1 || atoi(port) > 65535)
		return refuse(address);
	return getaddrinfo(host, port, &hints, list) == 0 ? KV_OK : refuse(address);
}

enum kv_status kvs_http_address_check(const char *address)
{
	struct addrinfo *list = NULL;

	if (!*address) return KV_OK;
	KV_TRY(look_up(address, &list));
	freeaddrinfo(list);
	return KV_OK;
}

static int open_listener(const struct addrinfo *where)
{
	int listener = socket(where->ai_family, where->ai_socktype, where->ai_protocol);
	int one = 1;
	int saved;

	if (listener < 0) return -1;
	(void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (fcntl(listener, F_SETFD, FD_CLOEXEC) == 0 && fcntl(listener, F_SETFL, O_NONBLOCK) == 0 &&
	    bind(listener, where->ai_addr, where->ai_addrlen) == 0 && listen(listener, BACKLOG) == 0)
		return listener;
	saved = errno;
	close(listener);
	errno = saved;
	return -1;
}

enum kv_status kvs_http_listen(const char *address, int *socket)
{
	struct addrinfo *list = NULL;
	int listener;

	KV_TRY(look_up(address, &list));
	listener = open_listener(list);
	if (listener < 0)
		kv_fail(KV_IO, "cannot listen at http-listen=%s: %s", address, strerror(errno));
	freeaddrinfo(list);
	if (listener < 0) return KV_IO;
	*socket = listener;
	return KV_OK;
}
