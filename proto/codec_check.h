/* The limits of codec.h, message by message. For codec.c only. */
#ifndef KV_PROTO_CODEC_CHECK_H
#define KV_PROTO_CODEC_CHECK_H

#include "common/base/status.h"
#include "proto/control.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* KV_OK, or KV_PROTOCOL naming the field, what it holds and what is allowed. */
enum kv_status kv_codec_check_request(const Kv__Request *request);
enum kv_status kv_codec_check_response(const Kv__Response *response);

#ifdef __cplusplus
}
#endif
#endif
