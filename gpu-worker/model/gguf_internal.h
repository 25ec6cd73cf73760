/* What the files of the GGUF reader share. Private to gguf*.c.
 *
 * Parsing keeps, for each key and tensor, where it lies in the mapping; values are decoded when
 * asked for. Both tables are sorted by name, so that duplicates are found and look-ups need no hash
 * that a hostile file could aim at.
 */
#ifndef GW_MODEL_GGUF_INTERNAL_H
#define GW_MODEL_GGUF_INTERNAL_H

#include "gpu-worker/model/gguf.h"

/* The numbers of the file format. */
enum gw_gguf_type {
	GW_GGUF_U8 = 0,
	GW_GGUF_I8 = 1,
	GW_GGUF_U16 = 2,
	GW_GGUF_I16 = 3,
	GW_GGUF_U32 = 4,
	GW_GGUF_I32 = 5,
	GW_GGUF_F32 = 6,
	GW_GGUF_BOOL = 7,
	GW_GGUF_STRING = 8,
	GW_GGUF_ARRAY = 9,
	GW_GGUF_U64 = 10,
	GW_GGUF_I64 = 11,
	GW_GGUF_F64 = 12
};

struct gw_gguf_value {
	struct gw_gguf_string key;
	uint32_t type;         /* enum gw_gguf_type */
	uint32_t element_type; /* of an array */
	uint64_t count;        /* elements of an array */
	const uint8_t *data;   /* the scalar, the string with its length, or the first element */
};

struct gw_synthetic_shape;

struct gw_gguf {
	struct kv_allocator *allocator;
	char *path;
	const uint8_t *data;
	uint64_t size;
	int mapped; /* 1: data is ours to unmap */
	/* Of a synthetic model, else NULL and 0: its memory, what of it is the head, and what the
	 * tensors are made from. */
	uint8_t *made;
	uint64_t head_bytes, seed;
	const struct gw_synthetic_shape *shape;
	struct gw_gguf_value *values;
	uint64_t value_count;
	struct gw_gguf_tensor *tensors;
	uint64_t tensor_count;
};

/* Bytes of one scalar of this type, 0 for strings, arrays and numbers outside the format. */
uint32_t gw_gguf_scalar_bytes(uint32_t type);

uint64_t gw_gguf_load(const uint8_t *data, uint32_t bytes);

/* Order of names: bytewise, a prefix first. */
int gw_gguf_compare(struct gw_gguf_string a, struct gw_gguf_string b);

/* Fill the tables of `file` from its data. On failure the tables may be partly filled; the caller
 * closes the file. */
enum kv_status gw_gguf_parse(struct gw_gguf *file);

/* Values come sorted after parsing; NULL when the key is absent. */
const struct gw_gguf_value *gw_gguf_find(const struct gw_gguf *file, const char *key);

#endif
