/* Encoding: special tokens are cut out, the text between them is split to words, and each word's
 * bytes are merged by rank with a heap, in O(n log n) for a word of n bytes. */
#include <string.h>

#include "gpu-worker/text/tokenizer_internal.h"
#include "gpu-worker/text/utf8.h"

#define MAX_TEXT_BYTES ((size_t)256 << 20)

/* A part of the word while it is merged. A part starts where its first byte does. */
struct part {
	uint32_t symbol; /* GW_NO_SYMBOL: a byte that is not in the vocabulary, or merged away */
	uint32_t previous, next; /* NONE at the ends */
};

/* A merge that was possible when it was found; stale once either part has changed. */
struct candidate {
	uint32_t rank;
	uint32_t left, right; /* parts */
	const struct gw_bpe_merge *merge;
};

enum { FIRST_WORD_CAPACITY = 256 };
#define NONE UINT32_MAX

struct encoder {
	const struct gw_tokenizer *tokenizer;
	struct kv_allocator *allocator;
	struct gw_word_matcher *matcher;
	int32_t *ids; /* room for an id for each byte */
	uint32_t count;
	const char *words; /* the text that word ranges refer to */
	/* Scratch for a word of `capacity` bytes: its parts, and at most three candidates for each. */
	struct part *parts;
	struct candidate *heap;
	uint32_t heap_count;
	size_t capacity;
	/* Where text that is not valid UTF-8 is put right; NULL for text that is. */
	char *clean, *shape;
};

static int before(const struct candidate *a, const struct candidate *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void heap_push(struct encoder *self, struct candidate entry)
{
	struct candidate *heap = self->heap;
	uint32_t at = self->heap_count++;
	while (at > 0) {
		uint32_t parent = (at - 1) / 2;
		if (!before(&entry, &heap[parent])) break;
		heap[at] = heap[parent];
		at = parent;
	}
	heap[at] = entry;
}

static struct candidate heap_pop(struct encoder *self)
{
	struct candidate *heap = self->heap, top = heap[0];
	struct candidate last = heap[--self->heap_count];
	uint32_t at = 0;
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= self->heap_count) break;
		if (child + 1 < self->heap_count && before(&heap[child + 1], &heap[child])) child++;
		if (!before(&heap[child], &last)) break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return top;
}

static void consider(struct encoder *self, uint32_t left, uint32_t right)
{
	const struct part *parts = self->parts;
	if (left == NONE || right == NONE) return;
	if (parts[left].symbol == GW_NO_SYMBOL || parts[right].symbol == GW_NO_SYMBOL) return;
	const struct gw_bpe_merge *merge =
	    gw_tokenizer_find_merge(self->tokenizer, parts[left].symbol, parts[right].symbol);
	if (merge) heap_push(self, (struct candidate){merge->rank, left, right, merge});
}

static enum kv_status reserve_word(struct encoder *self, size_t length)
{
	if (length <= self->capacity) return KV_OK;
	size_t capacity = length < FIRST_WORD_CAPACITY ? FIRST_WORD_CAPACITY : length;
	kv_free(self->allocator, self->parts);
	kv_free(self->allocator, self->heap);
	self->capacity = 0;
	self->parts = kv_alloc_array(self->allocator, capacity, sizeof *self->parts);
	self->heap = kv_alloc_array(self->allocator, 3 * capacity, sizeof *self->heap);
	if (!self->parts || !self->heap) return KV_NO_MEMORY;
	self->capacity = capacity;
	return KV_OK;
}

/* A symbol that is no token is written as its bytes; a byte that is none is left out. */
static void emit(struct encoder *self, uint32_t symbol)
{
	const struct gw_tokenizer *tokenizer = self->tokenizer;
	if (symbol == GW_NO_SYMBOL) return;
	if (symbol < tokenizer->count) {
		self->ids[self->count++] = (int32_t)symbol;
		return;
	}
	const struct gw_bpe_symbol *entry = &tokenizer->symbols[symbol];
	const char *text = tokenizer->pool + entry->offset;
	for (uint32_t i = 0; i < entry->length; i++) {
		uint32_t byte = tokenizer->byte_symbols[(unsigned char)text[i]];
		if (byte < tokenizer->count) self->ids[self->count++] = (int32_t)byte;
	}
}

static enum kv_status encode_word(void *context, size_t start, size_t length)
{
	struct encoder *self = context;
	const struct gw_tokenizer *tokenizer = self->tokenizer;
	const char *word = self->words + start;
	if (tokenizer->ignores_merges) {
		uint32_t symbol = gw_tokenizer_find_symbol(tokenizer, word, length);
		if (symbol < tokenizer->count) {
			emit(self, symbol);
			return KV_OK;
		}
	}
	KV_TRY(reserve_word(self, length));
	struct part *parts = self->parts;
	uint32_t size = (uint32_t)length;
	self->heap_count = 0;
	for (uint32_t i = 0; i < size; i++) {
		parts[i].symbol = tokenizer->byte_symbols[(unsigned char)word[i]];
		parts[i].previous = i > 0 ? i - 1 : NONE;
		parts[i].next = i + 1 < size ? i + 1 : NONE;
		if (i > 0) consider(self, i - 1, i);
	}
	while (self->heap_count > 0) {
		struct candidate best = heap_pop(self);
		struct part *left = &parts[best.left], *right = &parts[best.right];
		/* A part that has merged since has another symbol, or none. */
		if (left->symbol != best.merge->left || right->symbol != best.merge->right) continue;
		left->symbol = best.merge->result;
		left->next = right->next;
		right->symbol = GW_NO_SYMBOL;
		if (left->next != NONE) parts[left->next].previous = best.left;
		consider(self, left->previous, best.left);
		consider(self, best.left, left->next);
	}
	for (uint32_t i = 0; i != NONE; i = parts[i].next)
		emit(self, parts[i].symbol);
	return KV_OK;
}

/* Put a fragment right as llama.cpp reads it. `clean` gets the bytes that are encoded; `shape` the
 * same with U+FFFD for surrogates, which the word expressions cannot look at: both are no letter,
 * no number and no space, and take three bytes. Returns the length of each. */
static size_t clean_fragment(struct encoder *self, const char *text, size_t length)
{
	static const char REPLACEMENT[] = "\xef\xbf\xbd";
	size_t at = 0, out = 0;
	while (at < length) {
		uint32_t codepoint;
		size_t used = gw_utf8_decode_loose(text + at, length - at, &codepoint);
		if (used == 0) {
			used = 1;
			codepoint = 0xfffd;
		}
		size_t size = gw_utf8_encode(codepoint, self->clean + out);
		int surrogate = codepoint >= 0xd800 && codepoint <= 0xdfff;
		memcpy(self->shape + out, surrogate ? REPLACEMENT : self->clean + out, size);
		out += size;
		at += used;
	}
	return out;
}

static enum kv_status encode_fragment(struct encoder *self, const char *text, size_t length)
{
	const char *shape = text;
	if (length == 0) return KV_OK;
	self->words = text;
	if (self->clean) {
		length = clean_fragment(self, text, length);
		self->words = self->clean;
		shape = self->shape;
	}
	return gw_pretokenizer_split(
	    self->tokenizer->pretokenizer, self->matcher, shape, length, encode_word, self);
}

/* The longest special token that the text starts with, NULL when there is none. */
static const struct gw_special *special_at(
    const struct gw_tokenizer *tokenizer, const char *text, size_t length, int parse_special)
{
	unsigned char first = (unsigned char)text[0];
	for (uint32_t i = tokenizer->special_first[first]; i < tokenizer->special_first[first + 1];
	     i++) {
		const struct gw_special *special = &tokenizer->specials[i];
		if (parse_special < GW_PARSE_SPECIAL && !special->user_defined) continue;
		if (special->length <= length && memcmp(special->text, text, special->length) == 0)
			return special;
	}
	return NULL;
}

static enum kv_status encode_text(
    struct encoder *self, const char *text, size_t length, int parse_special)
{
	size_t start = 0, at = 0;
	if (parse_special < GW_PARSE_USER_DEFINED) return encode_fragment(self, text, length);
	while (at < length) {
		const struct gw_special *special =
		    special_at(self->tokenizer, text + at, length - at, parse_special);
		if (!special) {
			at++;
			continue;
		}
		KV_TRY(encode_fragment(self, text + start, at - start));
		self->ids[self->count++] = special->id;
		at += special->length;
		start = at;
	}
	return encode_fragment(self, text + start, length - start);
}

static enum kv_status encoder_init(struct encoder *self, const char *text, size_t length)
{
	/* An id takes at least one byte of clean text, and a bad byte becomes three of them. */
	size_t most = length;
	if (self->tokenizer->cuts_characters || !gw_utf8_valid(text, length)) {
		most = 3 * length;
		self->clean = kv_alloc(self->allocator, most);
		self->shape = kv_alloc(self->allocator, most);
		if (!self->clean || !self->shape) return KV_NO_MEMORY;
	}
	self->ids = kv_alloc_array(self->allocator, most + 1, sizeof *self->ids);
	if (!self->ids) return KV_NO_MEMORY;
	return gw_word_matcher_create(self->allocator, &self->matcher);
}

static void encoder_deinit(struct encoder *self)
{
	gw_word_matcher_destroy(self->matcher);
	kv_free(self->allocator, self->heap);
	kv_free(self->allocator, self->parts);
	kv_free(self->allocator, self->shape);
	kv_free(self->allocator, self->clean);
}

enum kv_status gw_tokenizer_encode(const struct gw_tokenizer *tokenizer,
    struct kv_allocator *allocator, const char *text, size_t length, int parse_special, int add_bos,
    int32_t **ids, uint32_t *count)
{
	if (length > MAX_TEXT_BYTES)
		return kv_fail(KV_LIMIT, "a text of %zu bytes is too long to encode; at most %zu are taken",
		    length, MAX_TEXT_BYTES);
	struct encoder encoder = {.tokenizer = tokenizer, .allocator = allocator};
	enum kv_status status = encoder_init(&encoder, text, length);
	if (status == KV_OK) {
		if (add_bos && tokenizer->add_bos) encoder.ids[encoder.count++] = tokenizer->bos;
		status = encode_text(&encoder, text, length, parse_special);
	}
	encoder_deinit(&encoder);
	if (status != KV_OK) {
		kv_free(allocator, encoder.ids);
		return status;
	}
	/* Giving back what the text did not need must not fail the call. */
	int32_t *fitted = kv_realloc(allocator, encoder.ids, (encoder.count + 1u) * sizeof *fitted);
	*ids = fitted ? fitted : encoder.ids;
	*count = encoder.count;
	return KV_OK;
}
