/* Control messages as bytes: pack and unpack with limits.
 *
 * Works on whole frame payloads (common/transport/frame.h). A message that unpack accepts holds
 * every limit below, so the callers index its arrays without asking again; meaning (does that
 * sequence exist, do these cuts ascend) is theirs to judge.
 */
#ifndef KV_PROTO_CODEC_H
#define KV_PROTO_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "proto/control.pb-c.h"
#include "proto/wire_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KV_PROTOCOL_VERSION = 1,
	KV_CODEC_MAX_MESSAGE = 8 << 20,
	KV_CODEC_MAX_TOKEN_BYTES = 4 << 20, /* prompts, decoded tokens: u32 each */
	KV_CODEC_MAX_CUTS = 4096,
	KV_CODEC_MAX_SEGMENTS = 4096,    /* in any list of segments or their ids */
	KV_CODEC_MAX_UNITS = 256,        /* layers */
	KV_CODEC_MAX_CHECKSUMS = 262144, /* units of one commit */
	KV_CODEC_MAX_REGIONS = 253,      /* told of in one response: as many as descriptors pass */
	KV_CODEC_MAX_GONE = 4096,        /* regions that are no more, in one response */
	KV_CODEC_MAX_BLOB = 4096,        /* transport addresses and region blobs */
	KV_CODEC_MAX_ADDRESS = 1024,    /* of a line */
	KV_CODEC_MAX_PARAMETERS = 16384,
	KV_CODEC_MAX_SAMPLER = 4096,
	KV_CODEC_MAX_STRING = 256,        /* bytes, without the terminator */
	KV_CODEC_MAX_MESSAGE_TEXT = 1024, /* Response.message */
	KV_CODEC_MAX_COUNTERS = 64,
	KV_CODEC_MAX_LET_GO = 64,
	KV_CODEC_MAX_READS = 4096,     /* of one fetch */
	KV_CODEC_MAX_DATA = 1 << 20,   /* bytes of units in one put or in the answer to one fetch */
	KV_CODEC_DIGEST_BYTES = 32
};

/* What holds of an unpacked message, besides the counts above:
 *  - a request has a body, and every submessage that its handler needs is there (layout in hello);
 *  - strings are valid UTF-8 without control characters; sequence ids fit KVW_MAX_SEQUENCE_ID;
 *  - model_id is empty or KVW_MODEL_ID_BYTES; policy_digest empty or 32 bytes; index_digest 8;
 *    a hello with a model_id has a layout;
 *  - token arrays are whole u32s; checksums and unit arrays of a segment go together;
 *    names and values of counters are equally many, values finite; a fetch asks for at least one
 *    byte, in arrays of one length, and for no more than an answer may hold. */

/* KV_PROTOCOL with a sentence when the bytes are no such message or exceed a limit; KV_NO_MEMORY.
 * Memory used while unpacking is bounded whatever the bytes say. */
enum kv_status kv_codec_request_unpack(
    struct kv_allocator *allocator, const uint8_t *bytes, size_t length, Kv__Request **request);
enum kv_status kv_codec_response_unpack(
    struct kv_allocator *allocator, const uint8_t *bytes, size_t length, Kv__Response **response);

/* For messages that came from unpack. NULL is allowed. */
void kv_codec_request_free(struct kv_allocator *allocator, Kv__Request *request);
void kv_codec_response_free(struct kv_allocator *allocator, Kv__Response *response);

/* A new block with the packed message; the caller frees it with kv_free. The same limits hold:
 * KV_PROTOCOL when the other side would refuse it. */
enum kv_status kv_codec_request_pack(
    struct kv_allocator *allocator, const Kv__Request *request, uint8_t **bytes, size_t *length);
enum kv_status kv_codec_response_pack(
    struct kv_allocator *allocator, const Kv__Response *response, uint8_t **bytes, size_t *length);

/* Into an initialised wire message; index_digest is borrowed from `layout`. */
void kv_codec_layout_to_wire(const struct kvw_model_layout *layout, Kv__ModelLayout *wire);
/* Copies the numbers as they are: kvw_model_layout_check judges them. KV_PROTOCOL when `wire` is
 * NULL or its digest has another length. */
enum kv_status kv_codec_layout_from_wire(
    const Kv__ModelLayout *wire, struct kvw_model_layout *layout);

#ifdef __cplusplus
}
#endif
#endif
