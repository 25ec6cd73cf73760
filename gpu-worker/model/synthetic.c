/* The head of a GGUF file is written to memory and read as any file's; behind it lies address space
 * for the tensors, empty until they are fetched. */
#define _GNU_SOURCE
#include "gpu-worker/model/synthetic.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu-worker/model/synthetic_internal.h"
#include "kernels/backend.h"

/* Tensors begin at pages, so that each can be given back alone. */
enum { PAGE = 4096, LAYER_TENSORS = 9, BYTE_TOKENS = 256 };

static const char prefix[] = "synthetic:";

static const struct gw_synthetic_shape shapes[] = {
    {.name = "llama-3.1-8b", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8,
        .head_dim = 128, .feed_forward = 14336, .vocabulary = 128256, .context = 131072,
        .rope_base = 500000.0},
    {.name = "llama-3.2-1b", .layers = 16, .hidden = 2048, .heads = 32, .kv_heads = 8,
        .head_dim = 64, .feed_forward = 8192, .vocabulary = 128256, .context = 131072,
        .rope_base = 500000.0, .tied = 1},
    {.name = "tiny", .layers = 4, .hidden = 256, .heads = 4, .kv_heads = 2, .head_dim = 64,
        .feed_forward = 512, .vocabulary = 512, .context = 32768, .rope_base = 500000.0},
};

static const struct {
	const char *name;
	enum kn_weight_type type;
} types[] = {
    {"q8_0", KN_Q8_0}, {"f16", KN_F16}, {"bf16", KN_BF16}, {"f32", KN_F32}, {"q4_0", KN_Q4_0},
};

struct synthetic {
	const char *name; /* as it was asked for */
	const struct gw_synthetic_shape *shape;
	enum kn_weight_type type;
	uint64_t seed;
};

/* Where the head goes: NULL counts only. */
struct writer {
	uint8_t *at;
	uint64_t used;
};

static void put(struct writer *writer, const void *bytes, uint64_t count)
{
	if (writer->at) memcpy(writer->at + writer->used, bytes, (size_t)count);
	writer->used += count;
}

static void put_u32(struct writer *writer, uint32_t value)
{
	put(writer, &value, sizeof value);
}

static void put_u64(struct writer *writer, uint64_t value)
{
	put(writer, &value, sizeof value);
}

static void put_string(struct writer *writer, const char *text)
{
	put_u64(writer, strlen(text));
	put(writer, text, strlen(text));
}

static void put_key(struct writer *writer, const char *key, enum gw_gguf_type type)
{
	put_string(writer, key);
	put_u32(writer, (uint32_t)type);
}

static void put_number(struct writer *writer, const char *key, uint32_t value)
{
	put_key(writer, key, GW_GGUF_U32);
	put_u32(writer, value);
}

static void put_real(struct writer *writer, const char *key, double value)
{
	put_key(writer, key, GW_GGUF_F64);
	put(writer, &value, sizeof value);
}

static void put_text(struct writer *writer, const char *key, const char *value)
{
	put_key(writer, key, GW_GGUF_STRING);
	put_string(writer, value);
}

static void put_array(
    struct writer *writer, const char *key, enum gw_gguf_type type, uint64_t count)
{
	put_key(writer, key, GW_GGUF_ARRAY);
	put_u32(writer, (uint32_t)type);
	put_u64(writer, count);
}

/* Of byte-level BPE: printable bytes stand for themselves, the others for characters from 256. */
static uint32_t byte_character(uint32_t byte)
{
	uint32_t others = 0;

	for (uint32_t i = 0; i <= byte; i++) {
		int plain = (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i <= 0xac) || i >= 0xae;

		if (i == byte) return plain ? byte : 256 + others;
		others += !plain;
	}
	return byte;
}

static void put_token(struct writer *writer, uint32_t id)
{
	static const char *const specials[GW_SYNTHETIC_SPECIALS] = {
	    "<|endoftext|>", "<|im_start|>", "<|im_end|>"};
	char text[16];

	if (id < GW_SYNTHETIC_SPECIALS) {
		put_string(writer, specials[id]);
		return;
	}
	if (id < GW_SYNTHETIC_SPECIALS + BYTE_TOKENS) {
		uint32_t character = byte_character(id - GW_SYNTHETIC_SPECIALS);

		if (character < 0x80)
			snprintf(text, sizeof text, "%c", (int)character);
		else
			snprintf(text, sizeof text, "%c%c", (int)(0xc0 | character >> 6),
			    (int)(0x80 | (character & 0x3f)));
	} else {
		snprintf(text, sizeof text, "\xc4\xa0w%" PRIu32, id); /* Ġ stands for a space */
	}
	put_string(writer, text);
}

static uint32_t put_shape(struct writer *writer, const struct gw_synthetic_shape *shape)
{
	put_number(writer, "llama.block_count", shape->layers);
	put_number(writer, "llama.context_length", shape->context);
	put_number(writer, "llama.embedding_length", shape->hidden);
	put_number(writer, "llama.feed_forward_length", shape->feed_forward);
	put_number(writer, "llama.attention.head_count", shape->heads);
	put_number(writer, "llama.attention.head_count_kv", shape->kv_heads);
	put_number(writer, "llama.attention.key_length", shape->head_dim);
	put_number(writer, "llama.attention.value_length", shape->head_dim);
	put_real(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5);
	put_real(writer, "llama.rope.freq_base", shape->rope_base);
	return 10;
}

static uint32_t put_vocabulary(struct writer *writer, const struct gw_synthetic_shape *shape)
{
	put_text(writer, "tokenizer.ggml.model", "gpt2");
	put_text(writer, "tokenizer.ggml.pre", "llama-bpe");
	put_array(writer, "tokenizer.ggml.tokens", GW_GGUF_STRING, shape->vocabulary);
	for (uint32_t id = 0; id < shape->vocabulary; id++)
		put_token(writer, id);
	put_array(writer, "tokenizer.ggml.token_type", GW_GGUF_I32, shape->vocabulary);
	for (uint32_t id = 0; id < shape->vocabulary; id++)
		put_u32(writer, id < GW_SYNTHETIC_SPECIALS ? 3 : 1);
	put_array(writer, "tokenizer.ggml.merges", GW_GGUF_STRING, 0);
	put_number(writer, "tokenizer.ggml.bos_token_id", 1);
	put_number(writer, "tokenizer.ggml.eos_token_id", 2);
	put_key(writer, "tokenizer.ggml.add_bos_token", GW_GGUF_BOOL);
	put(writer, "\0", 1);
	put_text(writer, "tokenizer.chat_template",
	    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
	    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
	return 9;
}

/* Write a tensor's description; *offset is moved past its data. rows 0: a vector. */
static void put_tensor(struct writer *writer, const char *name, enum kn_weight_type type,
    uint32_t columns, uint32_t rows, uint64_t *offset)
{
	enum kn_weight_type stored = rows > 0 ? type : KN_F32;
	uint64_t bytes = kn_weight_row_bytes(stored, columns) * (rows > 0 ? rows : 1);

	put_string(writer, name);
	put_u32(writer, rows > 0 ? 2 : 1);
	put_u64(writer, columns);
	if (rows > 0) put_u64(writer, rows);
	put_u32(writer, (uint32_t)stored);
	put_u64(writer, *offset);
	*offset += (bytes + PAGE - 1) / PAGE * PAGE;
}

static void put_layer(
    struct writer *writer, const struct synthetic *model, uint32_t layer, uint64_t *offset)
{
	const struct gw_synthetic_shape *s = model->shape;
	uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
	const struct {
		const char *name;
		uint32_t columns, rows;
	} tensors[LAYER_TENSORS] = {
	    {"attn_norm", s->hidden, 0},
	    {"attn_q", s->hidden, q},
	    {"attn_k", s->hidden, kv},
	    {"attn_v", s->hidden, kv},
	    {"attn_output", q, s->hidden},
	    {"ffn_norm", s->hidden, 0},
	    {"ffn_gate", s->hidden, s->feed_forward},
	    {"ffn_up", s->hidden, s->feed_forward},
	    {"ffn_down", s->feed_forward, s->hidden},
	};
	char name[64];

	for (uint32_t i = 0; i < LAYER_TENSORS; i++) {
		snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", layer, tensors[i].name);
		put_tensor(
		    writer, name, model->type, tensors[i].columns, tensors[i].rows, offset);
	}
}

/* The head; returns the bytes of all tensors. */
static uint64_t put_head(struct writer *writer, const struct synthetic *model)
{
	const struct gw_synthetic_shape *shape = model->shape;
	struct writer counting = {NULL, 0};
	uint64_t offset = 0;

	put(writer, "GGUF", 4);
	put_u32(writer, 3);
	put_u64(writer, shape->layers * LAYER_TENSORS + 2u + !shape->tied);
	put_u64(writer, 3u + put_shape(&counting, shape) + put_vocabulary(&counting, shape));
	put_text(writer, "general.architecture", "llama");
	put_text(writer, "general.name", model->name);
	put_number(writer, "general.alignment", PAGE);
	put_shape(writer, shape);
	put_vocabulary(writer, shape);
	put_tensor(
	    writer, "token_embd.weight", model->type, shape->hidden, shape->vocabulary, &offset);
	for (uint32_t layer = 0; layer < shape->layers; layer++)
		put_layer(writer, model, layer, &offset);
	put_tensor(writer, "output_norm.weight", model->type, shape->hidden, 0, &offset);
	if (!shape->tied)
		put_tensor(
		    writer, "output.weight", model->type, shape->hidden, shape->vocabulary, &offset);
	return offset;
}

static enum kv_status list_known(const char *name)
{
	char models[128] = "", kinds[64] = "";

	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		snprintf(models + strlen(models), sizeof models - strlen(models), "%s%s", i ? ", " : "",
		    shapes[i].name);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		snprintf(kinds + strlen(kinds), sizeof kinds - strlen(kinds), "%s%s", i ? "|" : "",
		    types[i].name);
	return kv_fail(KV_USAGE,
	    "%s: there is no such synthetic model; write synthetic:NAME[,type=%s][,seed=NUMBER], where "
	    "NAME is one of %s",
	    name, kinds, models);
}

static int word_is(const char *text, size_t length, const char *word)
{
	return strlen(word) == length && memcmp(text, word, length) == 0;
}

/* One `type=…` or `seed=…`. */
static int parse_word(const char *text, size_t length, struct synthetic *model)
{
	char *end;

	if (length > 5 && memcmp(text, "type=", 5) == 0) {
		for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
			if (!word_is(text + 5, length - 5, types[i].name)) continue;
			model->type = types[i].type;
			return 1;
		}
		return 0;
	}
	if (length < 6 || length > 24 || memcmp(text, "seed=", 5) != 0) return 0;
	if (text[5] < '0' || text[5] > '9') return 0;
	errno = 0;
	model->seed = strtoull(text + 5, &end, 10);
	return errno == 0 && end == text + length;
}

static enum kv_status parse_name(const char *name, struct synthetic *model)
{
	const char *at = name + strlen(prefix);
	size_t length = strcspn(at, ",");

	*model = (struct synthetic){.name = name, .type = KN_Q8_0, .seed = 1};
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		if (word_is(at, length, shapes[i].name)) model->shape = &shapes[i];
	if (!model->shape) return list_known(name);
	for (at += length; *at == ','; at += length) {
		length = strcspn(++at, ",");
		if (!parse_word(at, length, model)) return list_known(name);
	}
	return KV_OK;
}

static enum kv_status open_synthetic(
    struct kv_allocator *allocator, const char *name, struct gw_gguf **file)
{
	struct synthetic model;
	struct writer counting = {NULL, 0}, writing = {NULL, 0};
	uint64_t tensors, start, size;
	enum kv_status status;
	void *space;

	KV_TRY(parse_name(name, &model));
	tensors = put_head(&counting, &model);
	start = (counting.used + PAGE - 1) / PAGE * PAGE;
	size = start + tensors;
	space = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (space == MAP_FAILED) {
		return kv_fail(KV_NO_MEMORY, "%s: no address space of %" PRIu64 " bytes: %s", name, size,
		    strerror(errno));
	}
	madvise(space, (size_t)size, MADV_HUGEPAGE); /* fewer faults; as good without */
	writing.at = space;
	put_head(&writing, &model);
	status = gw_gguf_open_memory(allocator, space, (size_t)size, name, file);
	if (status != KV_OK) {
		munmap(space, (size_t)size);
		return status;
	}
	(*file)->mapped = 1;
	(*file)->made = space;
	(*file)->head_bytes = start;
	(*file)->shape = model.shape;
	(*file)->seed = model.seed;
	return KV_OK;
}

int gw_is_synthetic(const char *name)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

enum kv_status gw_model_file_open(
    struct kv_allocator *allocator, const char *name, struct gw_gguf **file)
{
	return gw_is_synthetic(name) ? open_synthetic(allocator, name, file)
	                             : gw_gguf_open(allocator, name, file);
}

/* Of a synthetic model's memory. */
static uint8_t *tensor_data(const struct gw_gguf *file, const struct gw_gguf_tensor *tensor)
{
	return file->made + ((const uint8_t *)tensor->data - file->data);
}

void gw_gguf_fetch(const struct gw_gguf *file, const struct gw_gguf_tensor *tensor)
{
	if (file->made)
		gw_synthetic_fill(file->shape, file->seed, tensor, tensor_data(file, tensor));
}

void gw_gguf_drop(const struct gw_gguf *file, const struct gw_gguf_tensor *tensor)
{
	if (file->made) madvise(tensor_data(file, tensor), (size_t)tensor->bytes, MADV_DONTNEED);
}
