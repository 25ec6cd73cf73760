#include "kvstore/server/http_listen.h"

#include "common/transport/tcp_socket.h"

enum kv_status kvs_http_address_check(const char *address)
{
	if (!*address || kv_tcp_numeric_check(address, 0) == KV_OK) return KV_OK;
	return kv_fail(KV_INVALID,
	    "http-listen \"%.80s\": must be HOST:PORT with a numeric HOST and a PORT of 1 to 65535, as "
	    "127.0.0.1:9432", address);
}

enum kv_status kvs_http_listen(const char *address, int *socket)
{
	char where[KV_TCP_TEXT];

	KV_TRY(kvs_http_address_check(address));
	if (kv_tcp_listen(address, KV_TCP_BACKLOG, socket, where) == KV_OK) return KV_OK;
	return kv_fail_prefix(KV_IO, "http-listen");
}
