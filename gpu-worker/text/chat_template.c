#include "gpu-worker/text/chat_template.h"

#include <string.h>

/* A stretch of the rendered text. Only the template's own markers are special. */
struct segment {
	const char *text;
	size_t length;
	int special;
};

enum { SEGMENTS_PER_MESSAGE = 6, MAX_MESSAGES = 65536 };

static const char TURN_START[] = "<|im_start|>";
static const char TURN_END[] = "<|im_end|>";

/* What each format says when the conversation brings no system message; NULL: nothing. */
static const char *default_system(enum gw_chat_format format)
{
	switch (format) {
	case GW_CHAT_CHATML_SMOLLM:
		return "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
	case GW_CHAT_CHATML_QWEN:
		return "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
	case GW_CHAT_CHATML:
	case GW_CHAT_UNKNOWN:
		break;
	}
	return NULL;
}

static int contains(const char *text, size_t length, const char *word)
{
	size_t size = strlen(word);
	for (size_t i = 0; i + size <= length; i++)
		if (text[i] == word[0] && memcmp(text + i, word, size) == 0) return 1;
	return 0;
}

enum gw_chat_format gw_chat_detect(const char *template_text, size_t length)
{
	if (!template_text) return GW_CHAT_UNKNOWN;
	if (!contains(template_text, length, TURN_START) || !contains(template_text, length, TURN_END))
		return GW_CHAT_UNKNOWN;
	/* Formats that add markers of their own (reasoning, separators) are not rendered here. */
	if (contains(template_text, length, "think") || contains(template_text, length, "<|im_sep|>"))
		return GW_CHAT_UNKNOWN;
	if (contains(template_text, length, default_system(GW_CHAT_CHATML_SMOLLM)))
		return GW_CHAT_CHATML_SMOLLM;
	if (contains(template_text, length, default_system(GW_CHAT_CHATML_QWEN)))
		return GW_CHAT_CHATML_QWEN;
	/* Some other default system message would be lost. */
	if (contains(template_text, length, "<|im_start|>system")) return GW_CHAT_UNKNOWN;
	return GW_CHAT_CHATML;
}

static int known_role(const char *role)
{
	return role && (strcmp(role, "system") == 0 || strcmp(role, "user") == 0 ||
	                   strcmp(role, "assistant") == 0);
}

static enum kv_status check_messages(
    enum gw_chat_format format, const struct gw_chat_message *messages, unsigned count)
{
	if (format == GW_CHAT_UNKNOWN)
		return kv_fail(KV_UNSUPPORTED,
		    "this model's chat template is not known; send a plain prompt for completion instead");
	if (count == 0 || count > MAX_MESSAGES)
		return kv_fail(KV_INVALID, "a conversation of %u messages is not possible; send 1 to %d",
		    count, MAX_MESSAGES);
	for (unsigned i = 0; i < count; i++) {
		/* A role is written between markers, so only the known ones may get there. */
		if (!known_role(messages[i].role))
			return kv_fail(KV_INVALID,
			    "the role '%.32s' of message %u is not known; use system, user or assistant",
			    messages[i].role ? messages[i].role : "", i + 1);
		if (!messages[i].content)
			return kv_fail(KV_INVALID, "message %u has no content; send a text", i + 1);
	}
	return KV_OK;
}

static void put(struct segment *segments, size_t *count, const char *text, int special)
{
	struct segment segment = {text, strlen(text), special};
	segments[(*count)++] = segment;
}

static void put_message(
    struct segment *segments, size_t *count, const char *role, const char *content)
{
	put(segments, count, TURN_START, 1);
	put(segments, count, role, 0);
	put(segments, count, "\n", 0);
	put(segments, count, content, 0);
	put(segments, count, TURN_END, 1);
	put(segments, count, "\n", 0);
}

/* The conversation as segments; *segments is allocated, owned by the caller, its texts borrowed. */
static enum kv_status lay_out(enum gw_chat_format format, struct kv_allocator *allocator,
    const struct gw_chat_message *messages, unsigned count, int generation_prompt,
    struct segment **segments, size_t *segment_count)
{
	KV_TRY(check_messages(format, messages, count));
	/* Two more: a default system message and the start of the answer. */
	struct segment *list =
	    kv_alloc_array(allocator, ((size_t)count + 2) * SEGMENTS_PER_MESSAGE, sizeof *list);
	if (!list) return KV_NO_MEMORY;
	size_t used = 0;
	const char *system = default_system(format);
	if (system && strcmp(messages[0].role, "system") != 0)
		put_message(list, &used, "system", system);
	for (unsigned i = 0; i < count; i++)
		put_message(list, &used, messages[i].role, messages[i].content);
	if (generation_prompt) {
		put(list, &used, TURN_START, 1);
		put(list, &used, "assistant\n", 0);
	}
	*segments = list;
	*segment_count = used;
	return KV_OK;
}

/* The texts of segments[count], joined and terminated; allocated, owned by the caller. */
static enum kv_status join(struct kv_allocator *allocator, const struct segment *segments,
    size_t count, char **text, size_t *length)
{
	size_t total = 0, at = 0;
	for (size_t i = 0; i < count; i++)
		total += segments[i].length;
	char *out = kv_alloc(allocator, total + 1);
	if (!out) return KV_NO_MEMORY;
	for (size_t i = 0; i < count; i++) {
		memcpy(out + at, segments[i].text, segments[i].length);
		at += segments[i].length;
	}
	out[at] = 0;
	*text = out;
	*length = total;
	return KV_OK;
}

enum kv_status gw_chat_render(enum gw_chat_format format, struct kv_allocator *allocator,
    const struct gw_chat_message *messages, unsigned count, int generation_prompt, char **text,
    size_t *length)
{
	struct segment *segments;
	size_t segment_count;
	KV_TRY(
	    lay_out(format, allocator, messages, count, generation_prompt, &segments, &segment_count));
	enum kv_status status = join(allocator, segments, segment_count, text, length);
	kv_free(allocator, segments);
	return status;
}

/* A growing list of ids. */
struct id_list {
	struct kv_allocator *allocator;
	int32_t *ids;
	uint32_t count, capacity;
};

static enum kv_status append_encoded(struct id_list *list, const struct gw_tokenizer *tokenizer,
    const char *text, size_t length, int parse_special, int add_bos)
{
	int32_t *ids;
	uint32_t count;
	KV_TRY(gw_tokenizer_encode(
	    tokenizer, list->allocator, text, length, parse_special, add_bos, &ids, &count));
	enum kv_status status = KV_OK;
	if (count > list->capacity - list->count) {
		uint32_t capacity = list->count + count + list->capacity / 2 + 64;
		int32_t *grown = kv_realloc(list->allocator, list->ids, capacity * sizeof *grown);
		if (!grown) {
			status = KV_NO_MEMORY;
			goto release;
		}
		list->ids = grown;
		list->capacity = capacity;
	}
	if (count > 0) memcpy(list->ids + list->count, ids, count * sizeof *ids);
	list->count += count;

release:
	kv_free(list->allocator, ids);
	return status;
}

/* A marker must be one token; a vocabulary without it would take it for plain text. */
static enum kv_status append_marker(
    struct id_list *list, const struct gw_tokenizer *tokenizer, const struct segment *segment)
{
	uint32_t before = list->count;
	KV_TRY(append_encoded(list, tokenizer, segment->text, segment->length, GW_PARSE_SPECIAL, 0));
	if (list->count != before + 1)
		return kv_fail(KV_UNSUPPORTED,
		    "the vocabulary has no token %s; its chat template needs one", segment->text);
	return KV_OK;
}

/* Text between two markers is encoded as one piece, as it is when the whole text is encoded: words
 * may reach from the template into a message. Nothing in it is parsed. */
static enum kv_status append_segments(struct id_list *list, const struct gw_tokenizer *tokenizer,
    const struct segment *segments, size_t count)
{
	for (size_t i = 0; i < count;) {
		if (segments[i].special) {
			KV_TRY(append_marker(list, tokenizer, &segments[i++]));
			continue;
		}
		size_t end = i;
		while (end < count && !segments[end].special)
			end++;
		char *text;
		size_t length;
		KV_TRY(join(list->allocator, segments + i, end - i, &text, &length));
		enum kv_status status = append_encoded(list, tokenizer, text, length, GW_PARSE_NOTHING, 0);
		kv_free(list->allocator, text);
		if (status != KV_OK) return status;
		i = end;
	}
	return KV_OK;
}

enum kv_status gw_chat_encode(enum gw_chat_format format, const struct gw_tokenizer *tokenizer,
    struct kv_allocator *allocator, const struct gw_chat_message *messages, unsigned count,
    int generation_prompt, int32_t **ids, uint32_t *id_count)
{
	struct segment *segments;
	size_t segment_count;
	struct id_list list = {allocator, NULL, 0, 0};
	KV_TRY(
	    lay_out(format, allocator, messages, count, generation_prompt, &segments, &segment_count));
	/* An empty text brings the BOS token where the vocabulary asks for one. */
	enum kv_status status = append_encoded(&list, tokenizer, "", 0, GW_PARSE_NOTHING, 1);
	if (status == KV_OK) status = append_segments(&list, tokenizer, segments, segment_count);
	kv_free(allocator, segments);
	if (status != KV_OK) {
		kv_free(allocator, list.ids);
		return status;
	}
	*ids = list.ids;
	*id_count = list.count;
	return KV_OK;
}
