/* A GGUF file (versions 2 and 3, little endian), mapped read-only and checked.
 *
 * Nothing in the file is trusted: counts, lengths, offsets, types and alignment are bounded before
 * use; a file that is missing, truncated, foreign or hostile gives a status and a sentence naming
 * the file and the flaw, never a crash. Specification: ggml's docs/gguf.md.
 */
#ifndef GW_MODEL_GGUF_H
#define GW_MODEL_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_gguf;

struct gw_gguf_string {
	const char *bytes; /* not terminated; borrowed from the mapping */
	uint64_t length;
};

struct gw_gguf_tensor {
	struct gw_gguf_string name;
	uint32_t dimensions;      /* 1 to 4 */
	uint64_t shape[4];        /* shape[0] is the fastest (columns) */
	uint32_t type;            /* GGUF number; may be one that kernels/ does not know */
	const void *data;         /* borrowed from the mapping; NULL if the type is unknown */
	uint64_t bytes;
};

enum kv_status gw_gguf_open(
    struct kv_allocator *allocator, const char *path, struct gw_gguf **file);
/* The same over memory that the caller keeps alive and unchanged (tests, fuzzing). */
enum kv_status gw_gguf_open_memory(struct kv_allocator *allocator, const void *data, size_t size,
	const char *name, struct gw_gguf **file);
void gw_gguf_close(struct gw_gguf *file);
const char *gw_gguf_path(const struct gw_gguf *file);

/* Metadata. KV_NOT_FOUND when the key is absent, KV_CORRUPT when it has another type or is out of
 * range; integer getters accept any integer type that holds the value. */
enum kv_status gw_gguf_u32(const struct gw_gguf *file, const char *key, uint32_t *value);
enum kv_status gw_gguf_f64(const struct gw_gguf *file, const char *key, double *value);
enum kv_status gw_gguf_bool(const struct gw_gguf *file, const char *key, int *value);
enum kv_status gw_gguf_string(
    const struct gw_gguf *file, const char *key, struct gw_gguf_string *value);
/* Arrays: element count, then elements by index (strings; any integer; any float). */
enum kv_status gw_gguf_array_count(const struct gw_gguf *file, const char *key, uint64_t *count);
enum kv_status gw_gguf_array_strings(const struct gw_gguf *file, const char *key,
	struct gw_gguf_string *out, uint64_t count);
enum kv_status gw_gguf_array_i32(const struct gw_gguf *file, const char *key, int32_t *out,
	uint64_t count);
enum kv_status gw_gguf_array_f32(const struct gw_gguf *file, const char *key, float *out,
	uint64_t count);

/* KV_NOT_FOUND when there is no such tensor. */
enum kv_status gw_gguf_tensor(const struct gw_gguf *file, const char *name,
	struct gw_gguf_tensor *tensor);
uint64_t gw_gguf_tensor_count(const struct gw_gguf *file);
/* The tensors in the order of their names; index < gw_gguf_tensor_count. */
void gw_gguf_tensor_at(const struct gw_gguf *file, uint64_t index, struct gw_gguf_tensor *tensor);

/* The data of a synthetic model's tensor (synthetic.h) is made by fetch, to be called before it is
 * read, and is gone after drop. Both do nothing with a file. */
void gw_gguf_fetch(const struct gw_gguf *file, const struct gw_gguf_tensor *tensor);
void gw_gguf_drop(const struct gw_gguf *file, const struct gw_gguf_tensor *tensor);

/* A name from the file, cut and with control bytes replaced, for an error text. Returns `text`. */
enum { GW_GGUF_PRINTABLE = 72 };
const char *gw_gguf_printable(struct gw_gguf_string name, char text[GW_GGUF_PRINTABLE]);

/* BLAKE2b-256 of the whole file; of a synthetic model, of what its tensors are made from. */
enum kv_status gw_gguf_digest(const struct gw_gguf *file, uint8_t digest[32]);

#ifdef __cplusplus
}
#endif
#endif
