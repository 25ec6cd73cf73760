/* The TCP address at which the statistics are served by HTTP, for those who cannot use a Unix
 * socket. */
#ifndef KVS_SERVER_HTTP_LISTEN_H
#define KVS_SERVER_HTTP_LISTEN_H

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* KV_OK for "" and for HOST:PORT with a numeric HOST ([HOST] for IPv6) and a PORT of 1 to 65535;
 * else KV_INVALID. Nothing is opened. */
enum kv_status kvs_http_address_check(const char *address);

/* Listen there; close the socket with close. KV_IO when the address cannot be had. */
enum kv_status kvs_http_listen(const char *address, int *socket);

#ifdef __cplusplus
}
#endif
#endif
