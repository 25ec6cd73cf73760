#include "gpu-worker/server/http_fields.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_NAME = 48, SHOWN_VALUE = 64 };

/* At which values a field changes nothing. */
enum neutral {
	TAKEN = 1, /* the parser judges the value */
	ANY = 2,   /* for the operator of a service, never for the answer */
	FALSE = 4,
	ONE = 16,
	EMPTY = 32,     /* "", [] or {} */
	TEXT_ONLY = 64, /* ["text"], or {"type": "text"} */
	NULL_ONLY = 128,
	RESUMED = 256 /* also when a sequence is resumed, or refused there in its own words */
};

enum {
	BOTH = GW_FIELDS_COMPLETION | GW_FIELDS_CHAT,
	COMPLETION = GW_FIELDS_COMPLETION,
	CHAT = GW_FIELDS_CHAT,
	OPTIONS = GW_FIELDS_STREAM_OPTIONS,
	MESSAGE = GW_FIELDS_MESSAGE,
	PART = GW_FIELDS_PART,
	TOKENIZE = GW_FIELDS_TOKENIZE,
	DETOKENIZE = GW_FIELDS_DETOKENIZE
};

static const struct row {
	const char *name;
	unsigned places, neutral;
	const char *words[2]; /* texts that change nothing */
} rows[] = {
    {"model", BOTH | TOKENIZE | DETOKENIZE, TAKEN | RESUMED, {NULL}},
    {"prompt", COMPLETION | TOKENIZE, TAKEN, {NULL}},
    {"messages", CHAT | TOKENIZE, TAKEN, {NULL}},
    {"tokens", DETOKENIZE, TAKEN, {NULL}},
    {"add_special_tokens", TOKENIZE, TAKEN, {NULL}},
    {"max_tokens", BOTH, TAKEN, {NULL}},
    {"max_completion_tokens", CHAT, TAKEN, {NULL}},
    {"temperature", BOTH, TAKEN, {NULL}},
    {"top_p", BOTH, TAKEN, {NULL}},
    {"top_k", BOTH, TAKEN, {NULL}},
    {"min_p", BOTH, TAKEN, {NULL}},
    {"frequency_penalty", BOTH, TAKEN, {NULL}},
    {"presence_penalty", BOTH, TAKEN, {NULL}},
    {"seed", BOTH, TAKEN, {NULL}},
    {"n", BOTH, TAKEN | RESUMED, {NULL}},
    {"logprobs", BOTH, TAKEN | RESUMED, {NULL}},
    {"top_logprobs", CHAT, TAKEN | RESUMED, {NULL}},
    {"stop", BOTH, TAKEN, {NULL}},
    {"stream", BOTH, TAKEN | RESUMED, {NULL}},
    {"stream_options", BOTH, TAKEN | RESUMED, {NULL}},
    {"sequence", BOTH, TAKEN | RESUMED, {NULL}},
    {"resume", BOTH, TAKEN | RESUMED, {NULL}},
    {"have_tokens", BOTH, TAKEN | RESUMED, {NULL}},
    {"ignore_end", BOTH, TAKEN, {NULL}},
    {"logits_digest", BOTH, TAKEN | RESUMED, {NULL}},
    {"parse_special", COMPLETION | TOKENIZE, TAKEN, {NULL}},

    {"user", BOTH, ANY, {NULL}},
    {"metadata", BOTH, ANY, {NULL}},
    {"safety_identifier", BOTH, ANY, {NULL}},
    {"prompt_cache_key", BOTH, ANY, {NULL}},
    {"prompt_cache_retention", BOTH, ANY, {NULL}},
    {"parallel_tool_calls", CHAT, ANY, {NULL}}, /* goes with tools, of which there are none */

    {"best_of", COMPLETION, ONE, {NULL}},
    {"echo", COMPLETION, FALSE, {NULL}},
    {"suffix", COMPLETION, EMPTY, {NULL}},
    {"logit_bias", BOTH, EMPTY, {NULL}},
    {"store", BOTH, FALSE, {NULL}},
    {"service_tier", BOTH, 0, {"auto", "default"}},
    {"tools", CHAT, EMPTY, {NULL}},
    {"tool_choice", CHAT, 0, {"none", "auto"}},
    {"functions", CHAT, EMPTY, {NULL}},
    {"function_call", CHAT, 0, {"none", "auto"}},
    {"response_format", BOTH, TEXT_ONLY, {NULL}},
    {"modalities", CHAT, TEXT_ONLY, {NULL}},
    {"audio", CHAT, NULL_ONLY, {NULL}},
    {"prediction", CHAT, NULL_ONLY, {NULL}},
    {"web_search_options", CHAT, NULL_ONLY, {NULL}},
    {"reasoning_effort", CHAT, 0, {"none", NULL}},
    {"verbosity", CHAT, 0, {"medium", NULL}},

    {"include_usage", OPTIONS, TAKEN, {NULL}},
    {"include_obfuscation", OPTIONS, FALSE, {NULL}},

    {"role", MESSAGE, TAKEN, {NULL}},
    {"content", MESSAGE, TAKEN, {NULL}},
    /* Clients send earlier answers back with all the fields that answers have. */
    {"name", MESSAGE, EMPTY, {NULL}},
    {"refusal", MESSAGE, EMPTY, {NULL}},
    {"annotations", MESSAGE, EMPTY, {NULL}},
    {"audio", MESSAGE, NULL_ONLY, {NULL}},
    {"tool_calls", MESSAGE, EMPTY, {NULL}},
    {"tool_call_id", MESSAGE, EMPTY, {NULL}},
    {"function_call", MESSAGE, NULL_ONLY, {NULL}},

    {"type", PART, TAKEN, {NULL}},
    {"text", PART, TAKEN, {NULL}},
};

static const struct row *find(const char *name, enum gw_field_place place)
{
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
		if ((rows[i].places & (unsigned)place) != 0 && strcmp(rows[i].name, name) == 0)
			return &rows[i];
	return NULL;
}

static bool is_text(const json_t *value, const char *text)
{
	return json_is_string(value) && text != NULL && strcmp(json_string_value(value), text) == 0;
}

static bool is_empty(const json_t *value)
{
	return (json_is_string(value) && json_string_length(value) == 0) ||
	       (json_is_array(value) && json_array_size(value) == 0) ||
	       (json_is_object(value) && json_object_size(value) == 0);
}

static bool is_number(const json_t *value, double number)
{
	double found = json_number_value(value);

	return json_is_number(value) && !(found < number) && !(found > number);
}

static bool is_text_only(const json_t *value)
{
	if (json_is_array(value))
		return json_array_size(value) == 1 && is_text(json_array_get(value, 0), "text");
	return json_object_size(value) == 1 && is_text(json_object_get(value, "type"), "text");
}

static bool changes_nothing(const struct row *row, const json_t *value)
{
	if (json_is_null(value) || (row->neutral & (TAKEN | ANY)) != 0) return true;
	if ((row->neutral & FALSE) != 0 && json_is_false(value)) return true;
	if ((row->neutral & ONE) != 0 && is_number(value, 1.0)) return true;
	if ((row->neutral & EMPTY) != 0 && is_empty(value)) return true;
	if ((row->neutral & TEXT_ONLY) != 0 && is_text_only(value)) return true;
	return is_text(value, row->words[0]) || is_text(value, row->words[1]);
}

/* What would have been taken, for the message. */
static const char *taken(const struct row *row)
{
	if ((row->neutral & FALSE) != 0) return ", only false";
	if ((row->neutral & ONE) != 0) return ", only 1";
	if ((row->neutral & TEXT_ONLY) != 0) return ", only text";
	return "";
}

/* Texts of clients go into messages as ASCII that is not too long. */
static void show_name(const char *name, char shown[SHOWN_NAME])
{
	size_t i = 0;

	for (; i + 1 < SHOWN_NAME && name[i] != '\0'; i++)
		shown[i] = name[i] > ' ' && name[i] <= '~' ? name[i] : '?';
	shown[i] = '\0';
	if (name[i] != '\0') memset(shown + i - 3, '.', 3);
}

struct shown_value {
	char text[SHOWN_VALUE];
	size_t length;
};

static int show_part(const char *text, size_t size, void *context)
{
	struct shown_value *shown = context;
	size_t room = SHOWN_VALUE - 1 - shown->length, taken = size < room ? size : room;

	memcpy(shown->text + shown->length, text, taken);
	shown->length += taken;
	if (size > room) memset(shown->text + SHOWN_VALUE - 4, '.', 3);
	return size > room ? -1 : 0;
}

static void show_value(const json_t *value, struct shown_value *shown)
{
	memset(shown, 0, sizeof *shown);
	/* It fails where the text is cut. */
	(void)json_dump_callback(value, show_part, shown,
	    JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
}

static enum kv_status check(
    const char *name, const json_t *value, enum gw_field_place place, const char *where)
{
	const struct row *row = find(name, place);
	struct shown_value shown_value;
	char shown_name[SHOWN_NAME];

	if (row != NULL && changes_nothing(row, value)) return KV_OK;
	show_name(name, shown_name);
	if (row == NULL)
		return kv_fail(KV_INVALID, "%s: is not a field of %s; leave it out", shown_name, where);
	show_value(value, &shown_value);
	return kv_fail(KV_INVALID, "%s: %s is not supported in %s%s; leave it out", shown_name,
	    shown_value.text, where, taken(row));
}

static bool goes_with_resume(const char *name, const json_t *value)
{
	const struct row *row = find(name, (enum gw_field_place)BOTH);

	return row == NULL || (row->neutral & TAKEN) == 0 || (row->neutral & RESUMED) != 0 ||
	       json_is_null(value) || is_empty(value);
}

enum kv_status gw_fields_check_resume(const json_t *object)
{
	json_t *fields = (json_t *)(uintptr_t)object;

	for (void *at = json_object_iter(fields); at != NULL; at = json_object_iter_next(fields, at))
		if (!goes_with_resume(json_object_iter_key(at), json_object_iter_value(at)))
			return kv_fail(KV_INVALID,
			    "%s: a resumed sequence goes on as it was begun; leave it out",
			    json_object_iter_key(at));
	return KV_OK;
}

enum kv_status gw_fields_check(const json_t *object, enum gw_field_place place, const char *where)
{
	/* The iterators do not write, but jansson's interface takes no const object. */
	json_t *fields = (json_t *)(uintptr_t)object;

	for (void *at = json_object_iter(fields); at != NULL; at = json_object_iter_next(fields, at))
		KV_TRY(check(json_object_iter_key(at), json_object_iter_value(at), place, where));
	return KV_OK;
}
