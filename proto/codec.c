#include "proto/codec.h"

#include "common/base/check.h"
#include "proto/codec_check.h"

#include <stdbool.h>
#include <string.h>

/* What unpacking one message may allocate in all, freed blocks included. A full frame of sane
 * content needs less than half; a frame that is made to expand (empty submessages, packed small
 * numbers) is cut off here. */
enum {
	REQUEST_BUDGET = 24 << 20,
	RESPONSE_BUDGET = 48 << 20,
	BLOCK_OVERHEAD = 64 /* an allocator's own cost of a block, so that many tiny ones count */
};

/* protobuf-c's allocator interface over a kv_allocator and a budget. */
struct bridge {
	struct kv_allocator *allocator;
	size_t left;
	bool exhausted, no_memory;
};

static void *bridge_alloc(void *data, size_t size)
{
	struct bridge *bridge = data;
	void *block;

	if (size > bridge->left || bridge->left - size < BLOCK_OVERHEAD) {
		bridge->exhausted = true;
		return NULL;
	}
	block = kv_alloc(bridge->allocator, size);
	if (!block) {
		bridge->no_memory = true;
		return NULL;
	}
	bridge->left -= size + BLOCK_OVERHEAD;
	return block;
}

static void bridge_free(void *data, void *block)
{
	struct bridge *bridge = data;

	kv_free(bridge->allocator, block);
}

static ProtobufCAllocator bridge_interface(struct bridge *bridge)
{
	ProtobufCAllocator interface;

	interface.alloc = bridge_alloc;
	interface.free = bridge_free;
	interface.allocator_data = bridge;
	return interface;
}

static void free_message(struct kv_allocator *allocator, ProtobufCMessage *message)
{
	struct bridge bridge = {.allocator = allocator};
	ProtobufCAllocator interface = bridge_interface(&bridge);

	if (message) protobuf_c_message_free_unpacked(message, &interface);
}

static enum kv_status unpack(struct kv_allocator *allocator,
    const ProtobufCMessageDescriptor *descriptor, size_t budget, const uint8_t *bytes,
    size_t length, ProtobufCMessage **message)
{
	struct bridge bridge = {.allocator = allocator, .left = budget};
	ProtobufCAllocator interface = bridge_interface(&bridge);
	ProtobufCMessage *unpacked;

	if (length > KV_CODEC_MAX_MESSAGE) {
		return kv_fail(KV_PROTOCOL, "a message of %zu bytes, at most %d are allowed", length,
		    KV_CODEC_MAX_MESSAGE);
	}
	unpacked = protobuf_c_message_unpack(descriptor, &interface, length, bytes);
	if (unpacked) {
		*message = unpacked;
		return KV_OK;
	}
	if (bridge.no_memory) return KV_NO_MEMORY; /* kv_alloc has said what for */
	if (bridge.exhausted) {
		return kv_fail(KV_PROTOCOL,
		    "a message of %zu bytes unpacks to more than %zu bytes of memory", length, budget);
	}
	return kv_fail(KV_PROTOCOL, "%zu bytes that are no %s", length, descriptor->short_name);
}

enum kv_status kv_codec_request_unpack(
    struct kv_allocator *allocator, const uint8_t *bytes, size_t length, Kv__Request **request)
{
	ProtobufCMessage *message = NULL;
	enum kv_status status;

	KV_TRY(unpack(allocator, &kv__request__descriptor, REQUEST_BUDGET, bytes, length, &message));
	status = kv_codec_check_request((Kv__Request *)message);
	if (status != KV_OK) {
		free_message(allocator, message);
		return status;
	}
	*request = (Kv__Request *)message;
	return KV_OK;
}

enum kv_status kv_codec_response_unpack(
    struct kv_allocator *allocator, const uint8_t *bytes, size_t length, Kv__Response **response)
{
	ProtobufCMessage *message = NULL;
	enum kv_status status;

	KV_TRY(unpack(allocator, &kv__response__descriptor, RESPONSE_BUDGET, bytes, length, &message));
	status = kv_codec_check_response((Kv__Response *)message);
	if (status != KV_OK) {
		free_message(allocator, message);
		return status;
	}
	*response = (Kv__Response *)message;
	return KV_OK;
}

void kv_codec_request_free(struct kv_allocator *allocator, Kv__Request *request)
{
	if (request) free_message(allocator, &request->base);
}

void kv_codec_response_free(struct kv_allocator *allocator, Kv__Response *response)
{
	if (response) free_message(allocator, &response->base);
}

static enum kv_status pack(struct kv_allocator *allocator, const ProtobufCMessage *message,
    uint8_t **bytes, size_t *length)
{
	size_t size = protobuf_c_message_get_packed_size(message);
	uint8_t *block;

	if (size == 0 || size > KV_CODEC_MAX_MESSAGE) {
		return kv_fail(
		    KV_PROTOCOL, "a message of %zu bytes, 1 to %d are allowed", size, KV_CODEC_MAX_MESSAGE);
	}
	block = kv_alloc(allocator, size);
	if (!block) return KV_NO_MEMORY;
	KV_CHECK(protobuf_c_message_pack(message, block) == size);
	*bytes = block;
	*length = size;
	return KV_OK;
}

enum kv_status kv_codec_request_pack(
    struct kv_allocator *allocator, const Kv__Request *request, uint8_t **bytes, size_t *length)
{
	KV_TRY(kv_codec_check_request(request));
	return pack(allocator, &request->base, bytes, length);
}

enum kv_status kv_codec_response_pack(
    struct kv_allocator *allocator, const Kv__Response *response, uint8_t **bytes, size_t *length)
{
	KV_TRY(kv_codec_check_response(response));
	return pack(allocator, &response->base, bytes, length);
}

void kv_codec_layout_to_wire(const struct kvw_model_layout *layout, Kv__ModelLayout *wire)
{
	wire->layers = layout->layers;
	wire->kv_heads = layout->kv_heads;
	wire->head_dim = layout->head_dim;
	wire->kv_type = layout->kv_type;
	wire->dense_layers = layout->dense_layers;
	wire->sinks = layout->sinks;
	wire->cluster_tokens = layout->cluster_tokens;
	wire->index_digest.len = sizeof layout->index_digest;
	/* protobuf-c has no constant bytes; packing only reads them. */
	wire->index_digest.data = (uint8_t *)(uintptr_t)layout->index_digest;
}

enum kv_status kv_codec_layout_from_wire(
    const Kv__ModelLayout *wire, struct kvw_model_layout *layout)
{
	if (!wire) return kv_fail(KV_PROTOCOL, "the message holds no layout of a model");
	if (wire->index_digest.len != sizeof layout->index_digest) {
		return kv_fail(KV_PROTOCOL, "index_digest has %zu bytes, %zu are expected",
		    wire->index_digest.len, sizeof layout->index_digest);
	}
	layout->layers = wire->layers;
	layout->kv_heads = wire->kv_heads;
	layout->head_dim = wire->head_dim;
	layout->kv_type = wire->kv_type;
	layout->dense_layers = wire->dense_layers;
	layout->sinks = wire->sinks;
	layout->cluster_tokens = wire->cluster_tokens;
	memcpy(layout->index_digest, wire->index_digest.data, sizeof layout->index_digest);
	return KV_OK;
}
