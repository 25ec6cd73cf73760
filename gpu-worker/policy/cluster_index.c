#include "gpu-worker/policy/cluster_index.h"

#include <math.h>
#include <string.h>

/* 64-byte steps inside a buffer. */
static size_t step(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

size_t gw_cluster_index_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t capacity)
{
	size_t slots = (size_t)kv_heads * capacity;

	return 2 * (step(slots * sizeof(uint16_t) * head_dim) + step(slots * sizeof(uint32_t)));
}

static enum kv_status take_device_memory(struct gw_cluster_index *index)
{
	size_t slots = (size_t)index->kv_heads * index->capacity;
	size_t matrix = step(slots * sizeof(uint16_t) * index->head_dim);
	size_t column = step(slots * sizeof(uint32_t));
	void *memory = NULL;
	uint8_t *at;

	KV_TRY(kn_device_alloc(&index->device, KN_DEVICE,
		gw_cluster_index_bytes(index->kv_heads, index->head_dim, index->capacity), &memory));
	at = memory;
	index->centroids = (uint16_t *)memory;
	index->value_means = (uint16_t *)(void *)(at + matrix);
	index->device_sizes = (uint32_t *)(void *)(at + 2 * matrix);
	index->device_log_sizes = (float *)(void *)(at + 2 * matrix + column);
	return KV_OK;
}

enum kv_status gw_cluster_index_create(struct kv_allocator *allocator,
	const struct kn_device *device, uint32_t kv_heads, uint32_t head_dim, uint32_t capacity,
	uint32_t segment_capacity, struct gw_cluster_index **index)
{
	size_t slots = (size_t)kv_heads * capacity;
	struct gw_cluster_index *made = kv_alloc_zero(allocator, sizeof *made);
	enum kv_status status;

	if (made == NULL) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->device = *device;
	made->kv_heads = kv_heads;
	made->head_dim = head_dim;
	made->capacity = capacity;
	made->segment_capacity = segment_capacity;
	made->sizes = kv_alloc_array(allocator, slots, sizeof(uint32_t));
	made->log_sizes = kv_alloc_array(allocator, slots, sizeof(float));
	made->first_row = kv_alloc_array(allocator, slots, sizeof(uint32_t));
	made->segment_of = kv_alloc_array(allocator, capacity, sizeof(uint32_t));
	made->segment_first = kv_alloc_array(allocator, segment_capacity, sizeof(uint32_t));
	status = !made->sizes || !made->log_sizes || !made->first_row || !made->segment_of ||
			!made->segment_first
		? KV_NO_MEMORY
		: take_device_memory(made);
	if (status != KV_OK) {
		gw_cluster_index_destroy(made);
		return status;
	}
	*index = made;
	return KV_OK;
}

void gw_cluster_index_destroy(struct gw_cluster_index *index)
{
	if (index == NULL) return;
	kn_device_free(&index->device, index->centroids);
	kv_free(index->allocator, index->sizes);
	kv_free(index->allocator, index->log_sizes);
	kv_free(index->allocator, index->first_row);
	kv_free(index->allocator, index->segment_of);
	kv_free(index->allocator, index->segment_first);
	kv_free(index->allocator, index);
}

static enum kv_status check_sizes(const struct gw_cluster_index *index,
	const struct gw_unit_metadata *heads, uint32_t clusters, uint32_t plain, uint32_t tokens)
{
	for (uint32_t head = 0; head < index->kv_heads; head++) {
		uint64_t sum = plain;

		for (uint32_t c = 0; c < clusters; c++)
			sum += heads[head].sizes[c];
		if (sum != tokens)
			return kv_fail(KV_CORRUPT,
				"stored unit: clusters of KV head %u hold %llu tokens of %u",
				head, (unsigned long long)sum, tokens);
	}
	return KV_OK;
}

static enum kv_status copy_head(struct gw_cluster_index *index, const struct kn_device *device,
	uint32_t head, uint32_t at, const struct gw_unit_metadata *from, uint32_t clusters,
	uint32_t plain)
{
	size_t slot = (size_t)head * index->capacity + at;
	size_t matrix = clusters * sizeof(uint16_t) * index->head_dim;
	size_t column = clusters * sizeof(uint32_t);
	uint32_t row = plain;

	if (clusters == 0) return KV_OK;
	for (uint32_t c = 0; c < clusters; c++) {
		uint32_t size = from->sizes[c];

		index->sizes[slot + c] = size;
		index->log_sizes[slot + c] = size > 0 ? logf((float)size) : -INFINITY;
		index->first_row[slot + c] = row;
		row += size;
	}
	KV_TRY(kn_device_upload(device, index->centroids + slot * index->head_dim, from->centroids,
		matrix));
	KV_TRY(kn_device_upload(device, index->value_means + slot * index->head_dim,
		from->value_means, matrix));
	KV_TRY(kn_device_upload(device, index->device_sizes + slot, index->sizes + slot, column));
	return kn_device_upload(device, index->device_log_sizes + slot, index->log_sizes + slot,
		column);
}

enum kv_status gw_cluster_index_attach(struct gw_cluster_index *index,
	const struct kn_device *device, uint32_t segment, const struct gw_unit_metadata *heads,
	uint32_t clusters, uint32_t plain, uint32_t tokens)
{
	uint32_t at;

	if (segment > index->segments)
		return kv_fail(KV_INVALID, "segment %u attached before segment %u", segment,
			index->segments);
	if (segment < index->segments) {
		uint32_t next = segment + 1 < index->segments ? index->segment_first[segment + 1]
		                                              : index->clusters;

		at = index->segment_first[segment];
		if (next - at != clusters)
			return kv_fail(KV_INVALID, "segment %u replaced by one of %u clusters, it has %u",
				segment, clusters, next - at);
	} else {
		at = index->clusters;
		if (segment == index->segment_capacity || clusters > index->capacity - at)
			return kv_fail(KV_LIMIT, "index full: %u clusters of %u, segment %u of %u",
				at + clusters, index->capacity, segment + 1, index->segment_capacity);
	}
	KV_TRY(check_sizes(index, heads, clusters, plain, tokens));
	index->changes++;
	for (uint32_t head = 0; head < index->kv_heads; head++)
		KV_TRY(copy_head(index, device, head, at, &heads[head], clusters, plain));
	for (uint32_t c = 0; c < clusters; c++)
		index->segment_of[at + c] = segment;
	if (segment == index->segments) {
		index->segment_first[segment] = at;
		index->segments++;
		index->clusters += clusters;
	}
	return KV_OK;
}

void gw_cluster_index_truncate(struct gw_cluster_index *index, uint32_t segment)
{
	if (segment >= index->segments) return;
	index->changes++;
	index->clusters = index->segment_first[segment];
	index->segments = segment;
}
