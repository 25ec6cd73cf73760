#include "gpu-worker/server/http_json.h"

#include <stdbool.h>
#include <string.h>

/* What is known of a body up to a byte, without understanding it. */
struct scan {
	size_t marks; /* brackets, commas and colons: a value or a name each, but for one */
	size_t depth, deepest;
	bool quoted, escaped;
	size_t text, text_length; /* the last string of the outermost object */
	size_t name, name_length; /* the last of them that a colon followed */
};

static void scan_quoted(struct scan *scan, char c, size_t at)
{
	if (scan->escaped) {
		scan->escaped = false;
	} else if (c == '\\') {
		scan->escaped = true;
	} else if (c == '"') {
		scan->quoted = false;
		if (scan->depth == 1) scan->text_length = at - scan->text;
	}
}

static void scan_byte(struct scan *scan, char c, size_t at)
{
	if (scan->quoted) {
		scan_quoted(scan, c, at);
		return;
	}
	switch (c) {
	case '"':
		scan->quoted = true;
		if (scan->depth == 1) scan->text = at + 1;
		break;
	case '{':
	case '[':
		scan->marks++;
		scan->depth++;
		if (scan->depth > scan->deepest) scan->deepest = scan->depth;
		break;
	case '}':
	case ']':
		if (scan->depth > 0) scan->depth--;
		break;
	case ':':
		if (scan->depth == 1) {
			scan->name = scan->text;
			scan->name_length = scan->text_length;
		}
		scan->marks++;
		break;
	case ',':
		scan->marks++;
		break;
	default:
		break;
	}
}

static enum kv_status describe(const char *body, size_t length, const json_error_t *error)
{
	struct scan scan = {0};

	if (json_error_code(error) != json_error_numeric_overflow)
		return kv_fail(KV_INVALID, "the body is not JSON: line %d column %d: %s", error->line,
		    error->column, error->text);
	for (size_t i = 0; i < length && (int)i < error->position; i++)
		scan_byte(&scan, body[i], i);
	if (scan.name_length == 0 || scan.name_length > 48)
		return kv_fail(KV_INVALID, "line %d column %d: the number is out of range", error->line,
		    error->column);
	return kv_fail(KV_INVALID,
	    "%.*s: the number is out of range, integers must be -2^63 to 2^63-1 and others have at "
	    "most 308 digits before the point",
	    (int)scan.name_length, body + scan.name);
}

enum kv_status gw_json_load(const char *body, size_t length, size_t most, json_t **value)
{
	struct scan scan = {0};
	json_error_t error;

	for (size_t i = 0; i < length; i++)
		scan_byte(&scan, body[i], i);
	if (scan.deepest > GW_JSON_MAX_DEPTH)
		return kv_fail(KV_INVALID, "the body's JSON is %zu deep, at most %d", scan.deepest,
		    (int)GW_JSON_MAX_DEPTH);
	if (scan.marks > most)
		return kv_fail(KV_INVALID, "the body's JSON has more than %zu values and names", most);
	*value = json_loadb(body, length, JSON_REJECT_DUPLICATES, &error);
	return *value != NULL ? KV_OK : describe(body, length, &error);
}
