/* The numbers of a decoder-only model, from metadata keys PREFIX.…, each checked and bounded so
 * that every product that sizes memory fits. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gpu-worker/model/arch.h"

enum {
	MAX_LAYERS = 1024,
	MAX_HEADS = 1024,
	MAX_HIDDEN = 1 << 16,
	MAX_FEED_FORWARD = 1 << 19,
	MAX_VOCABULARY = 1 << 20,
	MAX_CONTEXT = 1 << 20,
	KEY_BYTES = 96
};

struct reader {
	const struct gw_gguf *file;
	const char *prefix;
};

static void make_key(const struct reader *reader, const char *name, char key[KEY_BYTES])
{
	snprintf(key, KEY_BYTES, "%s.%s", reader->prefix, name);
}

/* A required count from 1 to `limit`. */
static enum kv_status read_count(
    const struct reader *reader, const char *name, uint32_t limit, uint32_t *count)
{
	char key[KEY_BYTES];
	uint32_t value;
	enum kv_status status;

	make_key(reader, name, key);
	status = gw_gguf_u32(reader->file, key, &value);
	if (status == KV_NOT_FOUND) {
		return kv_fail(
		    KV_CORRUPT, "%s: metadata key %s is missing", gw_gguf_path(reader->file), key);
	}
	KV_TRY(status);
	if (value < 1 || value > limit) {
		return kv_fail(value ? KV_UNSUPPORTED : KV_CORRUPT,
		    "%s: %s is %" PRIu32 ", 1 to %" PRIu32 " are supported", gw_gguf_path(reader->file),
		    key, value, limit);
	}
	*count = value;
	return KV_OK;
}

static enum kv_status read_optional_count(const struct reader *reader, const char *name,
    uint32_t limit, uint32_t fallback, uint32_t *count)
{
	char key[KEY_BYTES];
	uint32_t ignored;

	make_key(reader, name, key);
	if (gw_gguf_u32(reader->file, key, &ignored) == KV_NOT_FOUND) {
		*count = fallback;
		return KV_OK;
	}
	return read_count(reader, name, limit, count);
}

static enum kv_status read_heads(const struct reader *reader, struct gw_model_shape *shape)
{
	const char *path = gw_gguf_path(reader->file);
	uint32_t value_length;

	KV_TRY(read_count(reader, "attention.head_count", MAX_HEADS, &shape->heads));
	KV_TRY(read_optional_count(
	    reader, "attention.head_count_kv", MAX_HEADS, shape->heads, &shape->kv_heads));
	if (shape->heads % shape->kv_heads != 0 || gw_shape_group(shape) > KN_MAX_GROUP) {
		return kv_fail(KV_UNSUPPORTED,
		    "%s: %" PRIu32 " query heads over %" PRIu32
		    " KV heads; it must be a whole number of them for each, at most %d",
		    path, shape->heads, shape->kv_heads, KN_MAX_GROUP);
	}
	KV_TRY(read_optional_count(reader, "attention.key_length", KN_MAX_HEAD_DIM,
	    shape->hidden / shape->heads, &shape->head_dim));
	KV_TRY(read_optional_count(
	    reader, "attention.value_length", KN_MAX_HEAD_DIM, shape->head_dim, &value_length));
	if (shape->head_dim == 0 || shape->head_dim % KN_HEAD_DIM_STEP != 0 ||
	    shape->head_dim > KN_MAX_HEAD_DIM || value_length != shape->head_dim) {
		return kv_fail(KV_UNSUPPORTED,
		    "%s: heads of %" PRIu32 " (keys) and %" PRIu32
		    " (values) channels; they must be equal, a multiple of %d and at most %d",
		    path, shape->head_dim, value_length, KN_HEAD_DIM_STEP, KN_MAX_HEAD_DIM);
	}
	KV_TRY(read_optional_count(
	    reader, "rope.dimension_count", KN_MAX_HEAD_DIM, shape->head_dim, &shape->rotary_dim));
	if (shape->rotary_dim % 2 != 0 || shape->rotary_dim > shape->head_dim) {
		return kv_fail(KV_UNSUPPORTED,
		    "%s: rope.dimension_count is %" PRIu32
		    "; it must be even and at most the head's %" PRIu32,
		    path, shape->rotary_dim, shape->head_dim);
	}
	return KV_OK;
}

static enum kv_status read_reals(const struct reader *reader, struct gw_model_shape *shape)
{
	const char *path = gw_gguf_path(reader->file);
	char key[KEY_BYTES];
	double epsilon, base = 10000.0;
	enum kv_status status;

	make_key(reader, "attention.layer_norm_rms_epsilon", key);
	status = gw_gguf_f64(reader->file, key, &epsilon);
	if (status == KV_NOT_FOUND)
		return kv_fail(KV_CORRUPT, "%s: metadata key %s is missing", path, key);
	KV_TRY(status);
	if (!(epsilon > 0.0 && epsilon < 1.0))
		return kv_fail(KV_CORRUPT, "%s: %s is %g, it must lie between 0 and 1", path, key, epsilon);
	make_key(reader, "rope.freq_base", key);
	status = gw_gguf_f64(reader->file, key, &base);
	if (status != KV_NOT_FOUND) KV_TRY(status);
	if (!(base >= 1.0 && base <= 1e12))
		return kv_fail(KV_CORRUPT, "%s: %s is %g, it must lie between 1 and 1e12", path, key, base);
	shape->norm_epsilon = (float)epsilon;
	shape->rope_base = base;
	shape->attention_scale = (float)(1.0 / sqrt((double)shape->head_dim));
	return KV_OK;
}

/* Refuse what would change the arithmetic and is not implemented, rather than compute something
 * else. */
static enum kv_status refuse_variants(const struct reader *reader)
{
	const char *path = gw_gguf_path(reader->file);
	struct gw_gguf_string scaling;
	char key[KEY_BYTES], text[GW_GGUF_PRINTABLE];
	uint32_t experts;
	double factor;
	enum kv_status status;

	make_key(reader, "rope.scaling.type", key);
	status = gw_gguf_string(reader->file, key, &scaling);
	if (status == KV_OK && !(scaling.length == 4 && memcmp(scaling.bytes, "none", 4) == 0)) {
		return kv_fail(KV_UNSUPPORTED, "%s: %s is %s; only none is supported", path, key,
		    gw_gguf_printable(scaling, text));
	}
	if (status != KV_OK && status != KV_NOT_FOUND) return status;
	make_key(reader, "rope.scale_linear", key);
	status = gw_gguf_f64(reader->file, key, &factor);
	if (status == KV_OK && factor != 1.0)
		return kv_fail(KV_UNSUPPORTED, "%s: %s is %g; only 1 is supported", path, key, factor);
	if (status != KV_OK && status != KV_NOT_FOUND) return status;
	make_key(reader, "expert_count", key);
	status = gw_gguf_u32(reader->file, key, &experts);
	if (status == KV_OK && experts != 0) {
		return kv_fail(KV_UNSUPPORTED,
		    "%s: %s is %" PRIu32 "; mixtures of experts are not supported", path, key, experts);
	}
	if (status != KV_OK && status != KV_NOT_FOUND) return status;
	return KV_OK;
}

/* The embedding table says how many tokens there are; other mentions must agree. */
static enum kv_status read_vocabulary(const struct reader *reader, struct gw_model_shape *shape)
{
	const char *path = gw_gguf_path(reader->file);
	struct gw_gguf_tensor table;
	uint64_t tokens;
	uint32_t stated;

	if (gw_gguf_tensor(reader->file, "token_embd.weight", &table) != KV_OK)
		return kv_fail(KV_CORRUPT, "%s: tensor token_embd.weight is missing", path);
	if (table.shape[1] > MAX_VOCABULARY) {
		return kv_fail(KV_UNSUPPORTED, "%s: a vocabulary of %" PRIu64 "; at most %d are supported",
		    path, table.shape[1], MAX_VOCABULARY);
	}
	KV_TRY(read_optional_count(
	    reader, "vocab_size", MAX_VOCABULARY, (uint32_t)table.shape[1], &stated));
	if (gw_gguf_array_count(reader->file, "tokenizer.ggml.tokens", &tokens) != KV_OK) tokens = 0;
	if (stated != table.shape[1] || tokens > table.shape[1]) {
		return kv_fail(KV_CORRUPT,
		    "%s: the embedding table has %" PRIu64 " rows, vocab_size says %" PRIu32
		    " and the tokenizer has %" PRIu64 " tokens",
		    path, table.shape[1], stated, tokens);
	}
	shape->vocabulary = stated;
	return KV_OK;
}

enum kv_status gw_read_decoder_shape(
    const struct gw_gguf *file, const char *prefix, struct gw_model_shape *shape)
{
	const struct reader reader = {file, prefix};
	struct gw_model_shape read;

	memset(&read, 0, sizeof read);
	KV_TRY(read_count(&reader, "block_count", MAX_LAYERS, &read.layers));
	KV_TRY(read_count(&reader, "embedding_length", MAX_HIDDEN, &read.hidden));
	KV_TRY(read_count(&reader, "feed_forward_length", MAX_FEED_FORWARD, &read.feed_forward));
	KV_TRY(read_count(&reader, "context_length", MAX_CONTEXT, &read.context));
	KV_TRY(read_heads(&reader, &read));
	KV_TRY(read_reals(&reader, &read));
	KV_TRY(refuse_variants(&reader));
	KV_TRY(read_vocabulary(&reader, &read));
	*shape = read;
	return KV_OK;
}
