#include "tests/lib/gguf_builder.h"

#include <string.h>

/* Tests stay far below the room there is; what would not fit is left out rather than written past
 * it. */
void kvt_put(struct kvt_bytes *bytes, const void *data, size_t size)
{
	if (size > sizeof bytes->data - bytes->size) return;
	memcpy(bytes->data + bytes->size, data, size);
	bytes->size += size;
}

void kvt_put_u8(struct kvt_bytes *bytes, uint8_t value)
{
	kvt_put(bytes, &value, sizeof value);
}

void kvt_put_u32(struct kvt_bytes *bytes, uint32_t value)
{
	kvt_put(bytes, &value, sizeof value);
}

void kvt_put_u64(struct kvt_bytes *bytes, uint64_t value)
{
	kvt_put(bytes, &value, sizeof value);
}

void kvt_put_f32(struct kvt_bytes *bytes, float value)
{
	kvt_put(bytes, &value, sizeof value);
}

void kvt_put_f64(struct kvt_bytes *bytes, double value)
{
	kvt_put(bytes, &value, sizeof value);
}

void kvt_put_string(struct kvt_bytes *bytes, const char *text)
{
	kvt_put_u64(bytes, strlen(text));
	kvt_put(bytes, text, strlen(text));
}

void kvt_put_head(struct kvt_bytes *bytes, uint64_t tensors, uint64_t keys)
{
	kvt_put(bytes, "GGUF", 4);
	kvt_put_u32(bytes, 3);
	kvt_put_u64(bytes, tensors);
	kvt_put_u64(bytes, keys);
}

void kvt_put_key(struct kvt_bytes *bytes, const char *key, uint32_t type)
{
	kvt_put_string(bytes, key);
	kvt_put_u32(bytes, type);
}

void kvt_put_key_u32(struct kvt_bytes *bytes, const char *key, uint32_t value)
{
	kvt_put_key(bytes, key, 4);
	kvt_put_u32(bytes, value);
}

void kvt_put_key_f32(struct kvt_bytes *bytes, const char *key, float value)
{
	kvt_put_key(bytes, key, 6);
	kvt_put_f32(bytes, value);
}

void kvt_put_key_string(struct kvt_bytes *bytes, const char *key, const char *value)
{
	kvt_put_key(bytes, key, 8);
	kvt_put_string(bytes, value);
}

void kvt_put_key_array(
    struct kvt_bytes *bytes, const char *key, uint32_t element_type, uint64_t count)
{
	kvt_put_key(bytes, key, 9);
	kvt_put_u32(bytes, element_type);
	kvt_put_u64(bytes, count);
}

void kvt_put_tensor(struct kvt_bytes *bytes, const char *name, uint32_t dimensions,
    const uint64_t *shape, uint32_t type, uint64_t offset)
{
	kvt_put_string(bytes, name);
	kvt_put_u32(bytes, dimensions);
	for (uint32_t i = 0; i < dimensions && i < 4; i++)
		kvt_put_u64(bytes, shape[i]);
	kvt_put_u32(bytes, type);
	kvt_put_u64(bytes, offset);
}

void kvt_put_padding(struct kvt_bytes *bytes, size_t alignment, size_t count)
{
	while (bytes->size % alignment != 0)
		kvt_put_u8(bytes, 0);
	while (count-- > 0)
		kvt_put_u8(bytes, 0);
}
