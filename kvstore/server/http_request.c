#include "kvstore/server/http_request.h"

#include <stdbool.h>
#include <string.h>

static const char *const methods[] = {"GET ", "HEAD "};
enum { METHODS = sizeof methods / sizeof methods[0], VERSION_BYTES = 8, MAX_METHOD = 16 };

int kvs_http_begins(const char *bytes, size_t length)
{
	for (size_t i = 0; i < METHODS; i++) {
		const size_t whole = strlen(methods[i]);

		if (memcmp(bytes, methods[i], length < whole ? length : whole) == 0) return 1;
	}
	return 0;
}

int kvs_http_other_method(const char *bytes, size_t length)
{
	size_t i = 0;

	while (i < length && i < MAX_METHOD && bytes[i] >= 'A' && bytes[i] <= 'Z')
		i++;
	if (i == length) return i < MAX_METHOD;
	return i > 0 && bytes[i] == ' ' ? 2 : 0;
}

int kvs_http_is_head(const char *bytes)
{
	return bytes[0] == methods[1][0];
}

/* One line without its end, which is CR LF, or LF alone as some send it. */
struct line {
	const char *start;
	size_t length;
};

/* False when no whole line is left. */
static bool next_line(const char **cursor, const char *end, struct line *line)
{
	const char *found = memchr(*cursor, '\n', (size_t)(end - *cursor));

	if (!found) return false;
	line->start = *cursor;
	line->length = (size_t)(found - *cursor);
	if (line->length && found[-1] == '\r') line->length--;
	*cursor = found + 1;
	return true;
}

static bool is_token(unsigned char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
	       (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* NAME ":" VALUE, without folding and without control characters. */
static bool is_field(const struct line *line)
{
	size_t name = 0;

	while (name < line->length && is_token((unsigned char)line->start[name]))
		name++;
	if (!name || name == line->length || line->start[name] != ':') return false;
	for (size_t i = name; i < line->length; i++) {
		unsigned char c = (unsigned char)line->start[i];

		if ((c < 0x20 && c != '\t') || c == 0x7f) return false;
	}
	return true;
}

static int take_path(const char *start, size_t length, struct kvs_http_request *request)
{
	size_t path = 0;

	if (!length || start[0] != '/') return 400;
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)start[i] <= 0x20 || (unsigned char)start[i] >= 0x7f) return 400;
	while (path < length && start[path] != '?')
		path++;
	if (path >= KVS_HTTP_MAX_PATH) return 414;
	memcpy(request->path, start, path);
	request->path[path] = '\0';
	return 200;
}

static int take_request_line(const struct line *line, struct kvs_http_request *request)
{
	const char *version = line->start + line->length - VERSION_BYTES;
	const size_t method = kvs_http_is_head(line->start) ? strlen(methods[1]) : strlen(methods[0]);

	if (line->length < method + 1 + 1 + VERSION_BYTES) return 400;
	if (!kvs_http_begins(line->start, method)) return 400;
	if (version[-1] != ' ' || memcmp(version, "HTTP/", 5) != 0) return 400;
	if (memcmp(version, "HTTP/1.1", VERSION_BYTES) != 0 &&
	    memcmp(version, "HTTP/1.0", VERSION_BYTES) != 0)
		return 505;
	return take_path(line->start + method, (size_t)(version - 1 - (line->start + method)), request);
}

int kvs_http_parse(const char *bytes, size_t length, struct kvs_http_request *request)
{
	const char *cursor = bytes;
	const char *end = bytes + length;
	struct kvs_http_request taken;
	struct line line;
	int status;

	if (next_line(&cursor, end, &line)) {
		/* What is wrong already need not be waited for. */
		status = take_request_line(&line, &taken);
		if (status != 200) return status;
		while (next_line(&cursor, end, &line)) {
			if (!line.length) {
				*request = taken;
				return 200;
			}
			if (!is_field(&line)) return 400;
		}
	}
	return length >= KVS_HTTP_MAX_HEAD ? 431 : 0;
}

const char *kvs_http_reason(int status)
{
	switch (status) {
	case 200:
		return "OK";
	case 400:
		return "Bad Request";
	case 404:
		return "Not Found";
	case 405:
		return "Method Not Allowed";
	case 408:
		return "Request Timeout";
	case 414:
		return "URI Too Long";
	case 431:
		return "Request Header Fields Too Large";
	case 503:
		return "Service Unavailable";
	default:
		return "HTTP Version Not Supported";
	}
}
