#include "gpu-worker/server/http_tokenize.h"

#include <inttypes.h>
#include <string.h>

enum kv_status gw_http_tokenize(const struct gw_http_model *model, struct kv_allocator *allocator,
    const char *body, size_t length, struct kv_text_buffer *out)
{
	struct gw_http_request request;
	uint32_t count;

	KV_TRY(gw_http_tokens_parse(&request, allocator, model, GW_FIELDS_TOKENIZE, body, length));
	count = request.session.token_count;
	kv_text_printf(out, "{\"count\":%" PRIu32 ",\"max_model_len\":%" PRIu32 ",\"tokens\":[", count,
	    model->context);
	for (uint32_t i = 0; i < count; i++)
		kv_text_printf(out, "%s%" PRId32, i > 0 ? "," : "", request.tokens[i]);
	kv_text_put(out, "]}\n");
	gw_http_request_deinit(&request);
	return kv_text_status(out);
}

/* The inside of a JSON string, a part at a time: a text may hold NUL, where the buffer's own writer
 * ends. */
static void put_string(struct kv_text_buffer *out, const char *text, size_t length)
{
	struct kv_text_buffer quoted;

	kv_text_put(out, "\"");
	kv_text_init(&quoted, out->allocator, 8 * length + 64);
	for (size_t at = 0; at < length; at += strlen(text + at) + 1) {
		if (at > 0) kv_text_put(out, "\\u0000");
		kv_text_reset(&quoted);
		kv_text_put_json(&quoted, text + at);
		if (kv_text_status(&quoted) != KV_OK && out->status == KV_OK) out->status = quoted.status;
		if (quoted.length > 2) kv_text_append(out, kv_text(&quoted) + 1, quoted.length - 2);
	}
	if (length > 0 && text[length - 1] == '\0') kv_text_put(out, "\\u0000");
	kv_text_deinit(&quoted);
	kv_text_put(out, "\"");
}

enum kv_status gw_http_detokenize(const struct gw_http_model *model, struct kv_allocator *allocator,
    const char *body, size_t length, struct kv_text_buffer *out)
{
	struct gw_http_request request;
	size_t text_length = 0;
	char *text = NULL;
	enum kv_status status;

	KV_TRY(gw_http_tokens_parse(&request, allocator, model, GW_FIELDS_DETOKENIZE, body, length));
	status = gw_tokenizer_decode(model->tokenizer, allocator, request.tokens,
	    request.session.token_count, 1, &text, &text_length);
	if (status == KV_OK) {
		kv_text_put(out, "{\"prompt\":");
		put_string(out, text, text_length);
		kv_text_put(out, "}\n");
		status = kv_text_status(out);
	}
	kv_free(allocator, text);
	gw_http_request_deinit(&request);
	return status;
}
