/* Control messages out of arbitrary bytes. The first byte chooses request or response; what unpack
 * accepts must pack again and be accepted again. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what)
{
	if (condition) return;
	fprintf(stderr, "codec: %s (%s)\n", what, kv_error_message());
	abort();
}

static int has_unknown(const ProtobufCMessage *message);

/* The messages of one field: a pointer, or an array of them with its count elsewhere. */
static int field_has_unknown(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
	const char *base = (const char *)message, *member = base + field->offset;
	const ProtobufCMessage *one = NULL, *const *many = NULL;
	size_t count = 0, i;

	if (field->label != PROTOBUF_C_LABEL_REPEATED) {
		memcpy(&one, member, sizeof one);
		return one && has_unknown(one);
	}
	memcpy(&count, base + field->quantifier_offset, sizeof count);
	memcpy(&many, member, sizeof many);
	for (i = 0; i < count; i++) {
		if (has_unknown(many[i])) return 1;
	}
	return 0;
}

/* Fields that this version does not know are carried along by protobuf-c, also malformed ones that
 * it cannot read again (field number 0). */
static int has_unknown(const ProtobufCMessage *message)
{
	unsigned i;

	if (message->n_unknown_fields > 0) return 1;
	for (i = 0; i < message->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
		uint32_t chosen = 0;

		if (field->type != PROTOBUF_C_TYPE_MESSAGE) continue;
		if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
			memcpy(&chosen, (const char *)message + field->quantifier_offset, sizeof chosen);
			if (chosen != field->id) continue;
		}
		if (field_has_unknown(message, field)) return 1;
	}
	return 0;
}

static void try_request(struct kv_allocator *allocator, const uint8_t *bytes, size_t length)
{
	Kv__Request *request = NULL, *second = NULL;
	uint8_t *packed = NULL;
	size_t packed_length = 0;

	if (kv_codec_request_unpack(allocator, bytes, length, &request) != KV_OK) return;
	require(kv_codec_request_pack(allocator, request, &packed, &packed_length) == KV_OK,
	    "an accepted request does not pack");
	if (!has_unknown(&request->base)) {
		require(kv_codec_request_unpack(allocator, packed, packed_length, &second) == KV_OK,
		    "a packed request is not accepted");
		require(second->id == request->id && second->body_case == request->body_case,
		    "a request changes on the way");
	}
	kv_codec_request_free(allocator, request);
	kv_codec_request_free(allocator, second);
	kv_free(allocator, packed);
}

static void try_response(struct kv_allocator *allocator, const uint8_t *bytes, size_t length)
{
	Kv__Response *response = NULL, *second = NULL;
	uint8_t *packed = NULL;
	size_t packed_length = 0;

	if (kv_codec_response_unpack(allocator, bytes, length, &response) != KV_OK) return;
	/* A response of defaults only has no bytes, which pack refuses. */
	if (kv_codec_response_pack(allocator, response, &packed, &packed_length) == KV_OK &&
	    !has_unknown(&response->base)) {
		require(kv_codec_response_unpack(allocator, packed, packed_length, &second) == KV_OK,
		    "a packed response is not accepted");
		require(second->id == response->id && second->status == response->status,
		    "a response changes on the way");
	}
	kv_codec_response_free(allocator, response);
	kv_codec_response_free(allocator, second);
	kv_free(allocator, packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct kv_allocator *allocator;

	if (!allocator) allocator = kv_allocator_create("fuzz", 0);
	if (!allocator || size == 0) return 0;
	if (data[0] % 2 == 0)
		try_request(allocator, data + 1, size - 1);
	else
		try_response(allocator, data + 1, size - 1);
	require(kv_allocator_stats(allocator).blocks == 0, "a message leaks");
	return 0;
}
