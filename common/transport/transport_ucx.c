#include "common/transport/transport_ucx.h"

#include "common/base/log.h"
#include "common/transport/machine_memory.h"
#include "common/transport/pages.h"
#include "common/transport/shm_leftovers.h"

#include <string.h>
#include <sys/mman.h>

struct kv_transport_server {
	struct kv_allocator *allocator;
	struct kv_ucx_endpoint_set ucx;
};

struct kv_region {
	ucp_mem_h memory;
	void *base;
	size_t bytes;
};

static enum kv_status server_create(
    struct kv_allocator *allocator, struct kv_transport_server **server)
{
	struct kv_transport_server *created = kv_alloc_zero(allocator, sizeof *created);
	enum kv_status status;

	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	/* UCX takes an object's name away as soon as it has filled it; a kill in between leaves it. */
	kv_shm_leftovers_remove("/dev/shm", "ucx_shm_posix_");
	status = kv_ucx_open(&created->ucx);
	if (status != KV_OK) {
		kv_free(allocator, created);
		return status;
	}
	*server = created;
	return KV_OK;
}

static void server_destroy(struct kv_transport_server *server)
{
	if (!server) return;
	kv_ucx_close(&server->ucx);
	kv_free(server->allocator, server);
}

static enum kv_status server_address(
    struct kv_transport_server *server, struct kv_transport_blob *blob)
{
	ucp_address_t *address;
	ucs_status_t result;
	size_t length;

	result = kv_ucx.ucp_worker_get_address(server->ucx.worker, &address, &length);
	if (result != UCS_OK) {
		return kv_fail(
		    KV_INTERNAL, "UCX does not tell its address: %s", kv_ucx.ucs_status_string(result));
	}
	if (length > sizeof blob->bytes) {
		kv_ucx.ucp_worker_release_address(server->ucx.worker, address);
		return kv_fail(KV_LIMIT,
		    "UCX's address has %zu bytes, at most %zu can be told: name fewer transports in "
		    "UCX_TLS",
		    length, sizeof blob->bytes);
	}
	memcpy(blob->bytes, address, length);
	blob->length = (uint32_t)length;
	kv_ucx.ucp_worker_release_address(server->ucx.worker, address);
	return KV_OK;
}

/* Let UCX allocate at `place` (reserved addresses, which the mapping takes over). */
static ucs_status_t map_at(ucp_context_h context, void *place, size_t bytes, ucp_mem_h *memory)
{
	ucp_mem_map_params_t parameters;

	memset(&parameters, 0, sizeof parameters);
	parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
	parameters.length = bytes;
	parameters.flags = UCP_MEM_MAP_ALLOCATE;
	if (place) {
		parameters.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
		parameters.address = place;
		parameters.flags |= UCP_MEM_MAP_FIXED;
	}
	return kv_ucx.ucp_mem_map(context, &parameters, memory);
}

static enum kv_status map_region(struct kv_transport_server *server, struct kv_region *region)
{
	ucp_mem_attr_t attributes;
	ucs_status_t result;
	/* Huge pages need an address of their alignment, which UCX would not choose. */
	void *place = kv_pages_reserve(region->bytes);

	result = map_at(server->ucx.context, place, region->bytes, &region->memory);
	if (result != UCS_OK && place) {
		munmap(place, region->bytes);
		result = map_at(server->ucx.context, NULL, region->bytes, &region->memory);
	}
	if (result != UCS_OK) {
		return kv_fail(KV_LIMIT, "UCX gives no %zu bytes of shared memory: %s", region->bytes,
		    kv_ucx.ucs_status_string(result));
	}
	memset(&attributes, 0, sizeof attributes);
	attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
	result = kv_ucx.ucp_mem_query(region->memory, &attributes);
	if (result != UCS_OK || attributes.length < region->bytes) {
		kv_ucx.ucp_mem_unmap(server->ucx.context, region->memory);
		return kv_fail(KV_INTERNAL, "UCX does not tell where its memory is");
	}
	region->base = attributes.address;
	return KV_OK;
}

static enum kv_status region_create(
    struct kv_transport_server *server, uint64_t bytes, struct kv_region **region, uint8_t **base)
{
	struct kv_machine_memory machine;
	struct kv_region *created;
	enum kv_status status;
	size_t size;

	KV_TRY(kv_pages_round(bytes, &size));
	KV_TRY(kv_machine_memory_read("", &machine));
	KV_TRY(kv_machine_memory_check(&machine, size, 1));
	created = kv_alloc_zero(server->allocator, sizeof *created);
	if (!created) return KV_NO_MEMORY;
	created->bytes = size;
	status = map_region(server, created);
	if (status != KV_OK) {
		kv_free(server->allocator, created);
		return status;
	}
	kv_pages_collapse(created->base, size);
	*base = created->base;
	*region = created;
	return KV_OK;
}

static void region_destroy(struct kv_transport_server *server, struct kv_region *region)
{
	ucs_status_t result;

	if (!region) return;
	result = kv_ucx.ucp_mem_unmap(server->ucx.context, region->memory);
	if (result != UCS_OK) {
		kv_error("transport", "UCX keeps a region bytes=%zu reason=\"%s\"", region->bytes,
		    kv_ucx.ucs_status_string(result));
	}
	kv_free(server->allocator, region);
}

static enum kv_status region_export(struct kv_transport_server *server, struct kv_region *region,
    struct kv_transport_blob *blob, int *descriptor)
{
	struct kv_ucx_region_blob head;
	ucs_status_t result;
	size_t length;
	void *key;

	result = kv_ucx.ucp_rkey_pack(server->ucx.context, region->memory, &key, &length);
	if (result != UCS_OK) {
		return kv_fail(
		    KV_INTERNAL, "UCX gives no key for a region: %s", kv_ucx.ucs_status_string(result));
	}
	if (length > sizeof blob->bytes - sizeof head) {
		kv_ucx.ucp_rkey_buffer_release(key);
		return kv_fail(KV_LIMIT, "UCX's key for a region has %zu bytes, at most %zu can be told",
		    length, sizeof blob->bytes - sizeof head);
	}
	memset(&head, 0, sizeof head);
	head.base = (uint64_t)(uintptr_t)region->base;
	head.bytes = region->bytes;
	head.key_bytes = (uint32_t)length;
	memcpy(blob->bytes, &head, sizeof head);
	memcpy(blob->bytes + sizeof head, key, length);
	blob->length = (uint32_t)(sizeof head + length);
	kv_ucx.ucp_rkey_buffer_release(key);
	*descriptor = -1;
	return KV_OK;
}

static int server_descriptor(struct kv_transport_server *server)
{
	return server->ucx.event;
}

static unsigned server_progress(struct kv_transport_server *server)
{
	return kv_ucx.ucp_worker_progress(server->ucx.worker);
}

static int server_arm(struct kv_transport_server *server)
{
	return kv_ucx.ucp_worker_arm(server->ucx.worker) == UCS_ERR_BUSY;
}

const struct kv_transport_ops kv_transport_ucx = {
    .name = "ucx",
    .server_create = server_create,
    .server_destroy = server_destroy,
    .server_address = server_address,
    .region_create = region_create,
    .region_destroy = region_destroy,
    .region_export = region_export,
    .server_descriptor = server_descriptor,
    .server_progress = server_progress,
    .server_arm = server_arm,
    .client_create = kv_ucx_client_create,
    .client_destroy = kv_ucx_client_destroy,
    .region_attach = kv_ucx_region_attach,
    .region_detach = kv_ucx_region_detach,
    .direct_read = kv_ucx_direct_read,
    .direct_write = kv_ucx_direct_write,
    .get = kv_ucx_get,
    .put = kv_ucx_put,
    .wait = kv_ucx_wait,
    .lanes = kv_ucx_lanes,
};
