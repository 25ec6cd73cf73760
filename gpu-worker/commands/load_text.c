#include "gpu-worker/commands/load_text.h"

#include <string.h>

enum { NAME_BYTES = 64, MAX_ENTRIES = 1 << 23 };

/* A short string of the metadata, terminated. */
static enum kv_status read_name(const struct gw_gguf *file, const char *key, char *name)
{
	struct gw_gguf_string value;
	KV_TRY(gw_gguf_string(file, key, &value));
	if (value.length >= NAME_BYTES || memchr(value.bytes, 0, (size_t)value.length))
		return kv_fail(
		    KV_CORRUPT, "%s: %s is no name of under %d bytes", gw_gguf_path(file), key, NAME_BYTES);
	memcpy(name, value.bytes, (size_t)value.length);
	name[value.length] = 0;
	return KV_OK;
}

/* A list of strings, as slices of the file's mapping; allocated, owned by the caller. */
static enum kv_status read_texts(const struct gw_gguf *file, struct kv_allocator *allocator,
    const char *key, struct gw_text_slice **texts, uint32_t *count)
{
	uint64_t entries;
	KV_TRY(gw_gguf_array_count(file, key, &entries));
	if (entries > MAX_ENTRIES)
		return kv_fail(
		    KV_CORRUPT, "%s: %s has over %d entries", gw_gguf_path(file), key, MAX_ENTRIES);
	struct gw_gguf_string *strings = kv_alloc_array(allocator, (size_t)entries, sizeof *strings);
	struct gw_text_slice *slices = kv_alloc_array(allocator, (size_t)entries, sizeof *slices);
	enum kv_status status = strings && slices ? KV_OK : KV_NO_MEMORY;
	if (status == KV_OK) status = gw_gguf_array_strings(file, key, strings, entries);
	if (status == KV_OK) {
		for (uint64_t i = 0; i < entries; i++) {
			slices[i].bytes = strings[i].bytes;
			slices[i].length = (size_t)strings[i].length;
		}
		*texts = slices;
		*count = (uint32_t)entries;
	} else {
		kv_free(allocator, slices);
	}
	kv_free(allocator, strings);
	return status;
}

/* The types, NULL when the file has none: then all tokens are normal. */
static enum kv_status read_types(
    const struct gw_gguf *file, struct kv_allocator *allocator, uint32_t count, int32_t **types)
{
	const char *key = "tokenizer.ggml.token_type";
	uint64_t entries;
	enum kv_status status = gw_gguf_array_count(file, key, &entries);
	if (status == KV_NOT_FOUND) {
		*types = NULL;
		return KV_OK;
	}
	if (status != KV_OK) return status;
	if (entries != count)
		return kv_fail(KV_CORRUPT, "%s: %s has %llu entries for %u tokens", gw_gguf_path(file), key,
		    (unsigned long long)entries, count);
	int32_t *list = kv_alloc_array(allocator, count, sizeof *list);
	if (!list) return KV_NO_MEMORY;
	status = gw_gguf_array_i32(file, key, list, count);
	if (status != KV_OK) {
		kv_free(allocator, list);
		return status;
	}
	*types = list;
	return KV_OK;
}

/* A token id, -1 when the file names none. */
static enum kv_status read_id(
    const struct gw_gguf *file, const char *key, uint32_t count, int32_t *id)
{
	uint32_t value;
	enum kv_status status = gw_gguf_u32(file, key, &value);
	if (status == KV_NOT_FOUND) {
		*id = -1;
		return KV_OK;
	}
	if (status != KV_OK) return status;
	if (value >= count)
		return kv_fail(KV_CORRUPT, "%s: %s is %u in a vocabulary of %u tokens", gw_gguf_path(file),
		    key, value, count);
	*id = (int32_t)value;
	return KV_OK;
}

static enum kv_status read_numbers(const struct gw_gguf *file, struct gw_vocabulary *vocabulary)
{
	KV_TRY(read_id(file, "tokenizer.ggml.bos_token_id", vocabulary->count, &vocabulary->bos));
	KV_TRY(read_id(file, "tokenizer.ggml.eos_token_id", vocabulary->count, &vocabulary->eos));
	enum kv_status status =
	    gw_gguf_bool(file, "tokenizer.ggml.add_bos_token", &vocabulary->add_bos);
	/* Files that say nothing mean no BOS, except those of Llama 3. */
	if (status != KV_NOT_FOUND) return status;
	vocabulary->add_bos = strcmp(vocabulary->pre, "llama-bpe") == 0;
	return KV_OK;
}

enum kv_status gw_load_tokenizer(
    const struct gw_gguf *file, struct kv_allocator *allocator, struct gw_tokenizer **tokenizer)
{
	char model[NAME_BYTES], pre[NAME_BYTES];
	struct gw_text_slice *tokens = NULL, *merges = NULL;
	int32_t *types = NULL;
	struct gw_vocabulary vocabulary = {.model = model, .pre = pre, .bos = -1, .eos = -1};
	KV_TRY(read_name(file, "tokenizer.ggml.model", model));
	if (strcmp(model, "gpt2") != 0)
		return kv_fail(KV_UNSUPPORTED,
		    "%s: the tokenizer model '%s' is not supported; use a model with byte-level BPE "
		    "('gpt2')",
		    gw_gguf_path(file), model);
	KV_TRY(read_name(file, "tokenizer.ggml.pre", pre));
	enum kv_status status;
	KV_TRY_GOTO(status,
	    read_texts(file, allocator, "tokenizer.ggml.tokens", &tokens, &vocabulary.count), release);
	KV_TRY_GOTO(status,
	    read_texts(file, allocator, "tokenizer.ggml.merges", &merges, &vocabulary.merge_count),
	    release);
	KV_TRY_GOTO(status, read_types(file, allocator, vocabulary.count, &types), release);
	KV_TRY_GOTO(status, read_numbers(file, &vocabulary), release);
	vocabulary.tokens = tokens;
	vocabulary.types = types;
	vocabulary.merges = merges;
	status = gw_tokenizer_create(allocator, &vocabulary, tokenizer);
	if (status != KV_OK) (void)kv_fail_prefix(status, "%s", gw_gguf_path(file));

release:
	kv_free(allocator, types);
	kv_free(allocator, merges);
	kv_free(allocator, tokens);
	return status;
}

enum kv_status gw_load_chat_format(const struct gw_gguf *file, enum gw_chat_format *format)
{
	struct gw_gguf_string text;
	enum kv_status status = gw_gguf_string(file, "tokenizer.chat_template", &text);
	if (status == KV_NOT_FOUND) {
		*format = GW_CHAT_UNKNOWN;
		return KV_OK;
	}
	if (status != KV_OK) return status;
	*format = gw_chat_detect(text.bytes, (size_t)text.length);
	return KV_OK;
}
