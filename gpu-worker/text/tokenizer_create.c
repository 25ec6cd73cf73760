#include <stdlib.h>
#include <string.h>

#include "gpu-worker/text/byte_alphabet.h"
#include "gpu-worker/text/tokenizer_internal.h"
#include "gpu-worker/text/utf8.h"

/* Far above any real vocabulary (262144 tokens, 514906 merges), far below what 32 bits hold. */
enum { MAX_TOKENS = 1 << 23, MAX_MERGES = 1 << 23, MAX_TOKEN_BYTES = 1 << 16 };
#define MAX_POOL_BYTES ((size_t)1 << 30)

/* Tokens that end an answer whatever the file says their type is. Files do get it wrong, and text
 * shown to people must not hold them; llama.cpp overrides the type of the same ones. */
static const char *const END_NAMES[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "</s>",
};

static int is_end_name(const struct gw_text_slice *text)
{
	for (size_t i = 0; i < sizeof END_NAMES / sizeof END_NAMES[0]; i++)
		if (strlen(END_NAMES[i]) == text->length &&
		    memcmp(END_NAMES[i], text->bytes, text->length) == 0)
			return 1;
	return 0;
}

/* FNV-1a, its high half folded in because the table takes the low bits. */
static uint32_t hash_text(const char *text, size_t length)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
	return (uint32_t)(hash ^ hash >> 32);
}

static int symbol_is(
    const struct gw_tokenizer *self, uint32_t symbol, const char *text, size_t length)
{
	const struct gw_bpe_symbol *entry = &self->symbols[symbol];
	return entry->length == length && memcmp(self->pool + entry->offset, text, length) == 0;
}

/* The slot that holds the text, or the empty one where it belongs. */
static uint32_t name_slot(const struct gw_tokenizer *self, const char *text, size_t length)
{
	uint32_t slot = hash_text(text, length) & self->name_mask;
	while (self->names[slot] && !symbol_is(self, self->names[slot] - 1, text, length))
		slot = (slot + 1) & self->name_mask;
	return slot;
}

uint32_t gw_tokenizer_find_symbol(
    const struct gw_tokenizer *tokenizer, const char *text, size_t length)
{
	return tokenizer->names[name_slot(tokenizer, text, length)] - 1;
}

const struct gw_bpe_merge *gw_tokenizer_find_merge(
    const struct gw_tokenizer *tokenizer, uint32_t left, uint32_t right)
{
	uint32_t slot = gw_merge_slot(left, right, tokenizer->merge_mask);
	for (;;) {
		const struct gw_bpe_merge *merge = &tokenizer->merges[slot];
		if (merge->left == GW_NO_SYMBOL) return NULL;
		if (merge->left == left && merge->right == right) return merge;
		slot = (slot + 1) & tokenizer->merge_mask;
	}
}

/* A table size that stays under half full with `entries` entries. */
static uint32_t table_size(uint32_t entries)
{
	uint32_t size = 64;
	while (size / 2 < entries)
		size *= 2;
	return size;
}

static enum kv_status resize_names(struct gw_tokenizer *self, uint32_t entries)
{
	uint32_t size = table_size(entries);
	uint32_t *old = self->names, old_size = old ? self->name_mask + 1 : 0;
	uint32_t *names = kv_alloc_array_zero(self->allocator, size, sizeof *names);
	if (!names) return KV_NO_MEMORY;
	self->names = names;
	self->name_mask = size - 1;
	for (uint32_t i = 0; i < old_size; i++) {
		if (!old[i]) continue;
		const struct gw_bpe_symbol *entry = &self->symbols[old[i] - 1];
		names[name_slot(self, self->pool + entry->offset, entry->length)] = old[i];
	}
	kv_free(self->allocator, old);
	return KV_OK;
}

static enum kv_status reserve_pool(struct gw_tokenizer *self, size_t more)
{
	size_t need = self->pool_length + more;
	if (need <= self->pool_capacity) return KV_OK;
	if (need > MAX_POOL_BYTES)
		return kv_fail(KV_LIMIT, "the vocabulary's texts take over %zu bytes; is the file intact?",
		    MAX_POOL_BYTES);
	size_t capacity = need + need / 2;
	char *pool = kv_realloc(self->allocator, self->pool, capacity);
	if (!pool) return KV_NO_MEMORY;
	self->pool = pool;
	self->pool_capacity = capacity;
	return KV_OK;
}

/* Write the text of token `id` to the pool. *mergeable: merges can make it. */
static enum kv_status load_token(
    struct gw_tokenizer *self, const struct gw_vocabulary *vocabulary, uint32_t id, int *mergeable)
{
	const struct gw_text_slice *text = &vocabulary->tokens[id];
	int32_t type = vocabulary->types ? vocabulary->types[id] : GW_TOKEN_NORMAL;
	if (type < GW_TOKEN_NORMAL || type > GW_TOKEN_BYTE)
		return kv_fail(
		    KV_CORRUPT, "token %u of the vocabulary has type %d; types are 1 to 6", id, (int)type);
	if (text->length > MAX_TOKEN_BYTES)
		return kv_fail(KV_LIMIT, "token %u of the vocabulary has %zu bytes; at most %d are read",
		    id, text->length, MAX_TOKEN_BYTES);
	KV_TRY(reserve_pool(self, text->length));
	int ends = is_end_name(text);
	if (ends) type = GW_TOKEN_CONTROL;
	self->ends[id] = (uint8_t)(ends || (int32_t)id == self->eos);
	self->types[id] = (uint8_t)type;

	char *out = self->pool + self->pool_length;
	size_t length = text->length;
	int plain = type == GW_TOKEN_NORMAL || type == GW_TOKEN_UNUSED || type == GW_TOKEN_BYTE;
	*mergeable = plain && length > 0 && gw_byte_alphabet_decode(text->bytes, length, out, &length);
	if (!*mergeable) {
		length = text->length;
		if (length > 0) memcpy(out, text->bytes, length);
	}
	self->symbols[id].offset = (uint32_t)self->pool_length;
	self->symbols[id].length = (uint32_t)length;
	self->pool_length += length;
	return KV_OK;
}

static enum kv_status load_tokens(struct gw_tokenizer *self, const struct gw_vocabulary *vocabulary)
{
	uint32_t count = vocabulary->count;
	self->count = self->symbol_count = self->symbol_capacity = count;
	self->symbols = kv_alloc_array(self->allocator, count, sizeof *self->symbols);
	self->types = kv_alloc_array(self->allocator, count, sizeof *self->types);
	self->ends = kv_alloc_array(self->allocator, count, sizeof *self->ends);
	if (!self->symbols || !self->types || !self->ends) return KV_NO_MEMORY;
	KV_TRY(resize_names(self, count));
	KV_TRY(reserve_pool(self, count)); /* never NULL, even when all texts are empty */
	for (uint32_t id = 0; id < count; id++) {
		int mergeable = 0;
		KV_TRY(load_token(self, vocabulary, id, &mergeable));
		if (!mergeable) continue;
		/* Of two tokens with one text the later counts, as in llama.cpp. */
		uint32_t slot =
		    name_slot(self, self->pool + self->symbols[id].offset, self->symbols[id].length);
		if (!self->names[slot]) self->name_count++;
		self->names[slot] = id + 1;
	}
	return KV_OK;
}

/* The symbol of a text that a merge mentions, made when no token has it. */
static enum kv_status intern(
    struct gw_tokenizer *self, const char *text, size_t length, uint32_t *symbol)
{
	uint32_t slot = name_slot(self, text, length);
	if (self->names[slot]) {
		*symbol = self->names[slot] - 1;
		return KV_OK;
	}
	if (self->symbol_count == self->symbol_capacity) {
		uint32_t capacity = self->symbol_capacity + self->symbol_capacity / 2 + 16;
		struct gw_bpe_symbol *symbols =
		    kv_realloc(self->allocator, self->symbols, capacity * sizeof *symbols);
		if (!symbols) return KV_NO_MEMORY;
		self->symbols = symbols;
		self->symbol_capacity = capacity;
	}
	if (self->name_count >= self->name_mask / 4 * 3) {
		KV_TRY(resize_names(self, self->name_mask + 1));
		slot = name_slot(self, text, length);
	}
	KV_TRY(reserve_pool(self, length));
	memcpy(self->pool + self->pool_length, text, length);
	self->symbols[self->symbol_count].offset = (uint32_t)self->pool_length;
	self->symbols[self->symbol_count].length = (uint32_t)length;
	self->pool_length += length;
	self->names[slot] = self->symbol_count + 1;
	self->name_count++;
	*symbol = self->symbol_count++;
	return KV_OK;
}

static enum kv_status load_merge(
    struct gw_tokenizer *self, const struct gw_text_slice *text, uint32_t rank, char *bytes)
{
	const char *space = text->length > 2 ? memchr(text->bytes + 1, ' ', text->length - 2) : NULL;
	if (!space || text->length > 2 * MAX_TOKEN_BYTES)
		return kv_fail(
		    KV_CORRUPT, "merge %u of the vocabulary is not two texts with a space", rank);
	size_t left_length = (size_t)(space - text->bytes), right_length;
	const char *right_text = space + 1;
	size_t right_bytes = text->length - left_length - 1;
	/* Words are spelled in the alphabet alone, so a merge of anything else can never apply. */
	if (!gw_byte_alphabet_decode(text->bytes, left_length, bytes, &left_length) ||
	    !gw_byte_alphabet_decode(right_text, right_bytes, bytes + left_length, &right_length))
		return KV_OK;
	struct gw_bpe_merge merge = {0, 0, rank, 0};
	KV_TRY(intern(self, bytes, left_length, &merge.left));
	KV_TRY(intern(self, bytes + left_length, right_length, &merge.right));
	KV_TRY(intern(self, bytes, left_length + right_length, &merge.result));
	uint32_t slot = gw_merge_slot(merge.left, merge.right, self->merge_mask);
	while (self->merges[slot].left != GW_NO_SYMBOL) {
		if (self->merges[slot].left == merge.left && self->merges[slot].right == merge.right)
			return KV_OK;
		slot = (slot + 1) & self->merge_mask;
	}
	self->merges[slot] = merge;
	return KV_OK;
}

static enum kv_status load_merges(struct gw_tokenizer *self, const struct gw_vocabulary *vocabulary)
{
	uint32_t size = table_size(vocabulary->merge_count);
	self->merges = kv_alloc_array(self->allocator, size, sizeof *self->merges);
	if (!self->merges) return KV_NO_MEMORY;
	memset(self->merges, 0xff, size * sizeof *self->merges);
	self->merge_mask = size - 1;
	char *bytes = kv_alloc(self->allocator, 2 * MAX_TOKEN_BYTES);
	if (!bytes) return KV_NO_MEMORY;
	enum kv_status status = KV_OK;
	for (uint32_t rank = 0; rank < vocabulary->merge_count && status == KV_OK; rank++)
		status = load_merge(self, &vocabulary->merges[rank], rank, bytes);
	kv_free(self->allocator, bytes);
	for (unsigned byte = 0; byte < 256; byte++) {
		char text = (char)byte;
		self->byte_symbols[byte] = gw_tokenizer_find_symbol(self, &text, 1);
	}
	return status;
}

static int is_special(uint8_t type)
{
	return type == GW_TOKEN_CONTROL || type == GW_TOKEN_USER_DEFINED || type == GW_TOKEN_UNKNOWN;
}

static int compare_specials(const void *a, const void *b)
{
	const struct gw_special *left = a, *right = b;
	unsigned char left_byte = (unsigned char)left->text[0];
	unsigned char right_byte = (unsigned char)right->text[0];
	if (left_byte != right_byte) return left_byte < right_byte ? -1 : 1;
	if (left->length != right->length) return left->length > right->length ? -1 : 1;
	return left->id < right->id ? -1 : left->id > right->id;
}

static enum kv_status load_specials(struct gw_tokenizer *self)
{
	uint32_t count = 0;
	for (uint32_t id = 0; id < self->count; id++)
		count += is_special(self->types[id]) && self->symbols[id].length > 0;
	self->specials = kv_alloc_array(self->allocator, count, sizeof *self->specials);
	if (!self->specials) return KV_NO_MEMORY;
	for (uint32_t id = 0; id < self->count; id++) {
		if (!is_special(self->types[id]) || self->symbols[id].length == 0) continue;
		struct gw_special *special = &self->specials[self->special_count++];
		special->text = self->pool + self->symbols[id].offset;
		special->length = self->symbols[id].length;
		special->id = (int32_t)id;
		special->user_defined = self->types[id] == GW_TOKEN_USER_DEFINED;
		if (!gw_utf8_valid(special->text, special->length)) self->cuts_characters = 1;
	}
	qsort(self->specials, count, sizeof *self->specials, compare_specials);
	uint32_t at = 0;
	for (unsigned byte = 0; byte < 256; byte++) {
		self->special_first[byte] = at;
		while (at < count && (unsigned char)self->specials[at].text[0] == byte)
			at++;
	}
	self->special_first[256] = at;
	return KV_OK;
}

static enum kv_status check_vocabulary(const struct gw_vocabulary *vocabulary)
{
	if (!vocabulary->model || strcmp(vocabulary->model, "gpt2") != 0)
		return kv_fail(KV_UNSUPPORTED,
		    "the tokenizer model '%s' is not supported; use a model with byte-level BPE ('gpt2')",
		    vocabulary->model ? vocabulary->model : "");
	if (!vocabulary->pre)
		return kv_fail(
		    KV_UNSUPPORTED, "the vocabulary names no pre-tokenizer; convert the model anew");
	if (vocabulary->count == 0 || vocabulary->count > MAX_TOKENS)
		return kv_fail(KV_CORRUPT, "the vocabulary has %u tokens; 1 to %d are possible",
		    vocabulary->count, MAX_TOKENS);
	if (vocabulary->merge_count > MAX_MERGES)
		return kv_fail(KV_CORRUPT, "the vocabulary has %u merges; at most %d are possible",
		    vocabulary->merge_count, MAX_MERGES);
	if (vocabulary->bos < -1 || vocabulary->bos >= (int32_t)vocabulary->count)
		return kv_fail(KV_CORRUPT, "the BOS token %d is outside the vocabulary of %u tokens",
		    (int)vocabulary->bos, vocabulary->count);
	if (vocabulary->eos < -1 || vocabulary->eos >= (int32_t)vocabulary->count)
		return kv_fail(KV_CORRUPT, "the EOS token %d is outside the vocabulary of %u tokens",
		    (int)vocabulary->eos, vocabulary->count);
	return KV_OK;
}

enum kv_status gw_tokenizer_create(struct kv_allocator *allocator,
    const struct gw_vocabulary *vocabulary, struct gw_tokenizer **tokenizer)
{
	KV_TRY(check_vocabulary(vocabulary));
	struct gw_tokenizer *self = kv_alloc_zero(allocator, sizeof *self);
	if (!self) return KV_NO_MEMORY;
	self->allocator = allocator;
	self->bos = vocabulary->bos;
	self->eos = vocabulary->eos;
	self->add_bos = vocabulary->add_bos && vocabulary->bos >= 0;
	enum kv_status status;
	KV_TRY_GOTO(
	    status, gw_pretokenizer_create(allocator, vocabulary->pre, &self->pretokenizer), destroy);
	self->ignores_merges = gw_pretokenizer_ignores_merges(self->pretokenizer);
	KV_TRY_GOTO(status, load_tokens(self, vocabulary), destroy);
	KV_TRY_GOTO(status, load_merges(self, vocabulary), destroy);
	KV_TRY_GOTO(status, load_specials(self), destroy);
	*tokenizer = self;
	return KV_OK;

destroy:
	gw_tokenizer_destroy(self);
	return status;
}

void gw_tokenizer_destroy(struct gw_tokenizer *tokenizer)
{
	if (!tokenizer) return;
	gw_pretokenizer_destroy(tokenizer->pretokenizer);
	kv_free(tokenizer->allocator, tokenizer->specials);
	kv_free(tokenizer->allocator, tokenizer->merges);
	kv_free(tokenizer->allocator, tokenizer->names);
	kv_free(tokenizer->allocator, tokenizer->ends);
	kv_free(tokenizer->allocator, tokenizer->types);
	kv_free(tokenizer->allocator, tokenizer->symbols);
	kv_free(tokenizer->allocator, tokenizer->pool);
	kv_free(tokenizer->allocator, tokenizer);
}
