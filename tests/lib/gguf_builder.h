/* Building GGUF files in memory, valid or broken on purpose. Every number is written as given. */
#ifndef TESTS_LIB_GGUF_BUILDER_H
#define TESTS_LIB_GGUF_BUILDER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvt_bytes {
	uint8_t data[16384];
	size_t size;
};

void kvt_put(struct kvt_bytes *bytes, const void *data, size_t size);
void kvt_put_u8(struct kvt_bytes *bytes, uint8_t value);
void kvt_put_u32(struct kvt_bytes *bytes, uint32_t value);
void kvt_put_u64(struct kvt_bytes *bytes, uint64_t value);
void kvt_put_f32(struct kvt_bytes *bytes, float value);
void kvt_put_f64(struct kvt_bytes *bytes, double value);
void kvt_put_string(struct kvt_bytes *bytes, const char *text);

/* "GGUF", version 3, counts. */
void kvt_put_head(struct kvt_bytes *bytes, uint64_t tensors, uint64_t keys);
/* Key and type; the value follows. */
void kvt_put_key(struct kvt_bytes *bytes, const char *key, uint32_t type);
void kvt_put_key_u32(struct kvt_bytes *bytes, const char *key, uint32_t value);
void kvt_put_key_f32(struct kvt_bytes *bytes, const char *key, float value);
void kvt_put_key_string(struct kvt_bytes *bytes, const char *key, const char *value);
/* Key, array type, element type and count; the elements follow. */
void kvt_put_key_array(
    struct kvt_bytes *bytes, const char *key, uint32_t element_type, uint64_t count);
void kvt_put_tensor(struct kvt_bytes *bytes, const char *name, uint32_t dimensions,
    const uint64_t *shape, uint32_t type, uint64_t offset);
/* Zeros up to a multiple of `alignment`, then `count` of them more. */
void kvt_put_padding(struct kvt_bytes *bytes, size_t alignment, size_t count);

#ifdef __cplusplus
}
#endif
#endif
