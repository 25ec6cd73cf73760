/* Reading the head of a GGUF file: counts, metadata, tensor descriptions. Every byte is suspect. */
#include <inttypes.h>
#include <string.h>

#include "gpu-worker/model/gguf_internal.h"
#include "kernels/backend.h"

enum {
	MAX_KEYS = 65536,
	MAX_TENSORS = 65536,
	MAX_KEY_BYTES = 65535, /* the format's own limit */
	MAX_TENSOR_NAME_BYTES = 255,
	MAX_STRING_BYTES = 16 << 20,
	MAX_ARRAY_ELEMENTS = 16 << 20,
	MIN_KEY_ENTRY = 8 + 4 + 1,            /* length, type, smallest value */
	MIN_TENSOR_ENTRY = 8 + 4 + 8 + 4 + 8, /* length, dimensions, one of them, type, offset */
	DEFAULT_ALIGNMENT = 32,
	MIN_ALIGNMENT = 8,
	MAX_ALIGNMENT = 1 << 20
};

/* Far more elements than a file of the largest accepted size can hold in any type. */
static const uint64_t max_elements = (uint64_t)1 << 48;

struct cursor {
	const struct gw_gguf *file;
	uint64_t offset; /* ≤ file->size, always */
};

static enum kv_status take(
    struct cursor *cursor, uint64_t bytes, const char *what, const uint8_t **data)
{
	const struct gw_gguf *file = cursor->file;

	if (bytes > file->size - cursor->offset) {
		return kv_fail(KV_CORRUPT,
		    "%s: truncated: %s needs %" PRIu64 " bytes at offset %" PRIu64
		    ", the file ends at %" PRIu64,
		    file->path, what, bytes, cursor->offset, file->size);
	}
	*data = file->data + cursor->offset;
	cursor->offset += bytes;
	return KV_OK;
}

static enum kv_status take_u32(struct cursor *cursor, const char *what, uint32_t *value)
{
	const uint8_t *data = NULL;

	KV_TRY(take(cursor, 4, what, &data));
	*value = (uint32_t)gw_gguf_load(data, 4);
	return KV_OK;
}

static enum kv_status take_u64(struct cursor *cursor, const char *what, uint64_t *value)
{
	const uint8_t *data = NULL;

	KV_TRY(take(cursor, 8, what, &data));
	*value = gw_gguf_load(data, 8);
	return KV_OK;
}

static enum kv_status take_string(
    struct cursor *cursor, const char *what, uint64_t limit, struct gw_gguf_string *string)
{
	uint64_t length = 0, start = cursor->offset;
	const uint8_t *data = NULL;

	KV_TRY(take_u64(cursor, what, &length));
	if (length > limit) {
		return kv_fail(KV_CORRUPT,
		    "%s: %s at offset %" PRIu64 " claims %" PRIu64 " bytes, more than the %" PRIu64
		    " allowed",
		    cursor->file->path, what, start, length, limit);
	}
	KV_TRY(take(cursor, length, what, &data));
	string->bytes = (const char *)data;
	string->length = length;
	return KV_OK;
}

static enum kv_status parse_array(
    struct cursor *cursor, const char *what, struct gw_gguf_value *value)
{
	const char *path = cursor->file->path;
	struct gw_gguf_string ignored;
	uint32_t element_bytes;
	const uint8_t *data = NULL;

	KV_TRY(take_u32(cursor, what, &value->element_type));
	KV_TRY(take_u64(cursor, what, &value->count));
	if (value->element_type == GW_GGUF_ARRAY)
		return kv_fail(KV_UNSUPPORTED, "%s: %s is an array of arrays", path, what);
	if (value->count > MAX_ARRAY_ELEMENTS) {
		return kv_fail(KV_CORRUPT, "%s: %s claims %" PRIu64 " elements, more than the %d allowed",
		    path, what, value->count, MAX_ARRAY_ELEMENTS);
	}
	if (value->element_type == GW_GGUF_STRING) {
		value->data = cursor->file->data + cursor->offset;
		for (uint64_t i = 0; i < value->count; i++)
			KV_TRY(take_string(cursor, what, MAX_STRING_BYTES, &ignored));
		return KV_OK;
	}
	element_bytes = gw_gguf_scalar_bytes(value->element_type);
	if (element_bytes == 0) {
		return kv_fail(KV_CORRUPT, "%s: %s has elements of unknown type %" PRIu32, path, what,
		    value->element_type);
	}
	KV_TRY(take(cursor, value->count * element_bytes, what, &data));
	value->data = data;
	return KV_OK;
}

static enum kv_status parse_value(struct cursor *cursor, struct gw_gguf_value *value)
{
	char what[GW_GGUF_PRINTABLE + 16] = "value of ", *name = what + strlen(what);
	struct gw_gguf_string ignored;
	uint32_t bytes;

	KV_TRY(take_string(cursor, "a metadata key", MAX_KEY_BYTES, &value->key));
	if (value->key.length == 0) {
		return kv_fail(KV_CORRUPT, "%s: empty metadata key before offset %" PRIu64,
		    cursor->file->path, cursor->offset);
	}
	gw_gguf_printable(value->key, name);
	KV_TRY(take_u32(cursor, what, &value->type));
	if (value->type == GW_GGUF_ARRAY) return parse_array(cursor, what, value);
	value->data = cursor->file->data + cursor->offset;
	if (value->type == GW_GGUF_STRING) return take_string(cursor, what, MAX_STRING_BYTES, &ignored);
	bytes = gw_gguf_scalar_bytes(value->type);
	if (bytes == 0) {
		return kv_fail(
		    KV_CORRUPT, "%s: %s has unknown type %" PRIu32, cursor->file->path, what, value->type);
	}
	return take(cursor, bytes, what, &value->data);
}

static int known_type(uint32_t type)
{
	switch (type) {
	case KN_F32:
	case KN_F16:
	case KN_Q4_0:
	case KN_Q4_1:
	case KN_Q5_0:
	case KN_Q5_1:
	case KN_Q8_0:
	case KN_Q4_K:
	case KN_Q5_K:
	case KN_Q6_K:
	case KN_BF16:
		return 1;
	default:
		return 0;
	}
}

static enum kv_status tensor_bytes(
    const struct gw_gguf *file, struct gw_gguf_tensor *tensor, const char *name)
{
	uint64_t rows = 1, elements = tensor->shape[0], row_bytes;

	for (uint32_t i = 0; i < tensor->dimensions; i++) {
		if (tensor->shape[i] == 0 || tensor->shape[i] > UINT32_MAX) {
			return kv_fail(KV_CORRUPT, "%s: tensor %s: dimension %" PRIu32 " is %" PRIu64,
			    file->path, name, i, tensor->shape[i]);
		}
		if (i == 0) continue;
		if (tensor->shape[i] > max_elements / elements)
			return kv_fail(KV_CORRUPT, "%s: tensor %s has too many elements", file->path, name);
		elements *= tensor->shape[i];
		rows *= tensor->shape[i];
	}
	if (!known_type(tensor->type)) return KV_OK;
	row_bytes = kn_weight_row_bytes((enum kn_weight_type)tensor->type, (uint32_t)tensor->shape[0]);
	if (row_bytes == 0) {
		return kv_fail(KV_CORRUPT,
		    "%s: tensor %s: rows of %" PRIu64 " cannot be cut into blocks of type %" PRIu32,
		    file->path, name, tensor->shape[0], tensor->type);
	}
	/* rows * row_bytes ≤ 2^48 elements of at most 4 bytes each, rounded up to blocks: no overflow.
	 */
	tensor->bytes = rows * row_bytes;
	return KV_OK;
}

/* One description. `bytes` is set for known types; the offset, relative to the data section, goes
 * to shape-independent `offset` until that section's start is known. */
static enum kv_status parse_tensor(
    struct cursor *cursor, struct gw_gguf_tensor *tensor, uint64_t *offset)
{
	char name[GW_GGUF_PRINTABLE];

	KV_TRY(take_string(cursor, "a tensor name", MAX_TENSOR_NAME_BYTES, &tensor->name));
	gw_gguf_printable(tensor->name, name);
	if (tensor->name.length == 0) {
		return kv_fail(KV_CORRUPT, "%s: empty tensor name before offset %" PRIu64,
		    cursor->file->path, cursor->offset);
	}
	KV_TRY(take_u32(cursor, "a tensor's dimension count", &tensor->dimensions));
	if (tensor->dimensions < 1 || tensor->dimensions > 4) {
		return kv_fail(KV_CORRUPT, "%s: tensor %s has %" PRIu32 " dimensions, 1 to 4 are possible",
		    cursor->file->path, name, tensor->dimensions);
	}
	for (uint32_t i = 0; i < 4; i++)
		tensor->shape[i] = 1;
	for (uint32_t i = 0; i < tensor->dimensions; i++)
		KV_TRY(take_u64(cursor, "a tensor's shape", &tensor->shape[i]));
	KV_TRY(take_u32(cursor, "a tensor's type", &tensor->type));
	KV_TRY(take_u64(cursor, "a tensor's offset", offset));
	return tensor_bytes(cursor->file, tensor, name);
}

static enum kv_status place_tensor(const struct gw_gguf *file, struct gw_gguf_tensor *tensor,
    uint64_t offset, uint64_t start, uint64_t alignment)
{
	char name[GW_GGUF_PRINTABLE];
	uint64_t room = file->size > start ? file->size - start : 0;

	gw_gguf_printable(tensor->name, name);
	if (offset % alignment != 0) {
		return kv_fail(KV_CORRUPT,
		    "%s: tensor %s: offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
		    file->path, name, offset, alignment);
	}
	if (offset > room || tensor->bytes > room - offset) {
		return kv_fail(KV_CORRUPT,
		    "%s: truncated: tensor %s needs %" PRIu64 " bytes at offset %" PRIu64
		    " of the tensor data, the file has %" PRIu64 " there",
		    file->path, name, tensor->bytes, offset, offset > room ? 0 : room - offset);
	}
	tensor->data = tensor->bytes ? file->data + start + offset : NULL;
	return KV_OK;
}

/* Heap sort of `count` items of `size` bytes by the name that each begins with: no recursion, no
 * memory, no bad case. */
static void swap_items(uint8_t *a, uint8_t *b, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		uint8_t byte = a[i];

		a[i] = b[i];
		b[i] = byte;
	}
}

static int item_order(const uint8_t *a, const uint8_t *b)
{
	struct gw_gguf_string left, right;

	memcpy(&left, a, sizeof left);
	memcpy(&right, b, sizeof right);
	return gw_gguf_compare(left, right);
}

static void sift_down(uint8_t *items, size_t size, uint64_t root, uint64_t count)
{
	for (;;) {
		uint64_t child = 2 * root + 1;

		if (child >= count) return;
		if (child + 1 < count && item_order(items + child * size, items + (child + 1) * size) < 0)
			child++;
		if (item_order(items + root * size, items + child * size) >= 0) return;
		swap_items(items + root * size, items + child * size, size);
		root = child;
	}
}

_Static_assert(offsetof(struct gw_gguf_value, key) == 0, "sorted by the name it begins with");
_Static_assert(offsetof(struct gw_gguf_tensor, name) == 0, "sorted by the name it begins with");

static enum kv_status sort_names(
    const struct gw_gguf *file, void *table, size_t size, uint64_t count, const char *kind)
{
	uint8_t *items = table;
	char name[GW_GGUF_PRINTABLE];
	struct gw_gguf_string string;

	for (uint64_t root = count / 2; root-- > 0;)
		sift_down(items, size, root, count);
	for (uint64_t last = count; last-- > 1;) {
		swap_items(items, items + last * size, size);
		sift_down(items, size, 0, last);
	}
	for (uint64_t i = 1; i < count; i++) {
		if (item_order(items + (i - 1) * size, items + i * size) == 0) {
			memcpy(&string, items + i * size, sizeof string);
			return kv_fail(KV_CORRUPT, "%s: %s %s is there twice", file->path, kind,
			    gw_gguf_printable(string, name));
		}
	}
	return KV_OK;
}

static enum kv_status parse_head(
    struct cursor *cursor, uint64_t *tensor_count, uint64_t *value_count)
{
	const struct gw_gguf *file = cursor->file;
	const uint8_t *magic = NULL;
	uint32_t version;
	uint64_t left;

	KV_TRY(take(cursor, 4, "the magic number", &magic));
	if (memcmp(magic, "GGUF", 4) != 0) {
		return kv_fail(KV_CORRUPT,
		    "%s: not a GGUF file: it begins with bytes %02x %02x %02x %02x, not with \"GGUF\"",
		    file->path, magic[0], magic[1], magic[2], magic[3]);
	}
	KV_TRY(take_u32(cursor, "the version", &version));
	if (version == 0x02000000u || version == 0x03000000u) {
		return kv_fail(
		    KV_UNSUPPORTED, "%s: a big-endian GGUF file; convert it to little endian", file->path);
	}
	if (version != 2 && version != 3) {
		return kv_fail(KV_UNSUPPORTED,
		    "%s: GGUF version %" PRIu32 "; versions 2 and 3 are supported", file->path, version);
	}
	KV_TRY(take_u64(cursor, "the tensor count", tensor_count));
	KV_TRY(take_u64(cursor, "the metadata count", value_count));
	if (*value_count > MAX_KEYS || *tensor_count > MAX_TENSORS) {
		return kv_fail(KV_CORRUPT,
		    "%s: claims %" PRIu64 " metadata keys and %" PRIu64
		    " tensors; at most %d and %d are allowed",
		    file->path, *value_count, *tensor_count, MAX_KEYS, MAX_TENSORS);
	}
	/* A short file cannot make us allocate for what it only claims to hold. */
	left = file->size - cursor->offset;
	if (*value_count * MIN_KEY_ENTRY + *tensor_count * MIN_TENSOR_ENTRY > left) {
		return kv_fail(KV_CORRUPT,
		    "%s: truncated: %" PRIu64 " metadata keys and %" PRIu64
		    " tensors cannot fit in the %" PRIu64 " bytes after offset %" PRIu64,
		    file->path, *value_count, *tensor_count, left, cursor->offset);
	}
	return KV_OK;
}

static enum kv_status read_alignment(const struct gw_gguf *file, uint64_t *alignment)
{
	uint32_t value;

	if (!gw_gguf_find(file, "general.alignment")) {
		*alignment = DEFAULT_ALIGNMENT;
		return KV_OK;
	}
	KV_TRY(gw_gguf_u32(file, "general.alignment", &value));
	if (value < MIN_ALIGNMENT || value > MAX_ALIGNMENT || (value & (value - 1)) != 0) {
		return kv_fail(KV_CORRUPT,
		    "%s: general.alignment is %" PRIu32 ", it must be a power of two from %d to %d",
		    file->path, value, MIN_ALIGNMENT, MAX_ALIGNMENT);
	}
	*alignment = value;
	return KV_OK;
}

/* The tensors, once the metadata is known; `offsets` is scratch for the unplaced offsets. */
static enum kv_status parse_tensors(struct gw_gguf *file, struct cursor *cursor, uint64_t *offsets)
{
	uint64_t alignment = 0, start;

	KV_TRY(read_alignment(file, &alignment));
	for (uint64_t i = 0; i < file->tensor_count; i++)
		KV_TRY(parse_tensor(cursor, &file->tensors[i], &offsets[i]));
	start = (cursor->offset + alignment - 1) / alignment * alignment;
	for (uint64_t i = 0; i < file->tensor_count; i++)
		KV_TRY(place_tensor(file, &file->tensors[i], offsets[i], start, alignment));
	return sort_names(file, file->tensors, sizeof *file->tensors, file->tensor_count, "tensor");
}

enum kv_status gw_gguf_parse(struct gw_gguf *file)
{
	struct cursor cursor = {file, 0};
	uint64_t tensor_count = 0, value_count = 0, *offsets;
	enum kv_status status;

	KV_TRY(parse_head(&cursor, &tensor_count, &value_count));
	file->values = kv_alloc_array_zero(file->allocator, (size_t)value_count, sizeof *file->values);
	if (!file->values) return KV_NO_MEMORY;
	file->value_count = value_count;
	for (uint64_t i = 0; i < value_count; i++)
		KV_TRY(parse_value(&cursor, &file->values[i]));
	KV_TRY(sort_names(file, file->values, sizeof *file->values, value_count, "metadata key"));

	file->tensors =
	    kv_alloc_array_zero(file->allocator, (size_t)tensor_count, sizeof *file->tensors);
	if (!file->tensors) return KV_NO_MEMORY;
	file->tensor_count = tensor_count;
	offsets = kv_alloc_array(file->allocator, (size_t)tensor_count, sizeof *offsets);
	if (!offsets) return KV_NO_MEMORY;
	status = parse_tensors(file, &cursor, offsets);
	kv_free(file->allocator, offsets);
	return status;
}
