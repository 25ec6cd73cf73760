#include "gpu-worker/server/http_head.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct facts {
	unsigned fields, hosts, lengths, encodings;
	bool malformed, chunked, continues, expects;
};

static bool is_token(const char *name, size_t length)
{
	static const char others[] = "!#$%&'*+-.^_`|~";

	for (size_t i = 0; i < length; i++) {
		char c = name[i];

		if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) continue;
		if (c == '\0' || strchr(others, c) == NULL) return false;
	}
	return length > 0;
}

static bool is_value(const char *value, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)value[i];

		if ((c < ' ' && c != '\t') || c == 0x7f) return false;
	}
	return true;
}

static enum MHD_Result count(void *context, enum MHD_ValueKind kind, const char *name,
    size_t name_length, const char *value, size_t length)
{
	struct facts *facts = context;

	(void)kind;
	facts->fields++;
	if (value == NULL) value = "";
	if (!is_token(name, name_length) || !is_value(value, length)) facts->malformed = true;
	if (strcasecmp(name, "Host") == 0) facts->hosts++;
	if (strcasecmp(name, "Content-Length") == 0) facts->lengths++;
	if (strcasecmp(name, "Transfer-Encoding") == 0) {
		facts->encodings++;
		facts->chunked = strcasecmp(value, "chunked") == 0;
	}
	if (strcasecmp(name, "Expect") == 0) {
		facts->expects = true;
		facts->continues = strcasecmp(value, "100-continue") == 0;
	}
	return MHD_YES;
}

/* The lines of a head as the daemon has left them, from the method on: in place, with a NUL for
 * each CR and LF that ends a line and for the colon behind a field's name. So a line that ended in
 * a bare LF lacks a NUL, a NUL that the client sent is one too many, and a line that goes on with
 * the field before it (which the daemon joins to that field's name!) begins with a space. */
static bool has_whole_lines(const struct gw_http_line *line, size_t size, const struct facts *facts)
{
	const char *at = line->version, *end = line->method + size;
	unsigned fields = 0;

	/* Not from the same memory: the daemon has put the head elsewhere. */
	if ((uintptr_t)at <= (uintptr_t)line->method || (uintptr_t)at >= (uintptr_t)end) return false;
	/* Parts of the first line are one NUL apart, which was a space. */
	if (line->url != line->method + strlen(line->method) + 1 || line->version != line->url_end + 1)
		return false;
	at += strnlen(at, (size_t)(end - at));
	for (;;) {
		size_t name;

		if (end - at < 4 || at[0] != '\0' || at[1] != '\0') return false;
		at += 2;
		if (*at == '\0') break;
		name = strnlen(at, (size_t)(end - at));
		if (!is_token(at, name) || at + name == end) return false;
		at += name + 1;
		at += strnlen(at, (size_t)(end - at));
		fields++;
	}
	return end - at == 2 && at[1] == '\0' && fields == facts->fields;
}

bool gw_http_daemon_is_strict(void)
{
	unsigned major = 0, minor = 0, patch = 0;

	/* Versions after 0.9.76 do both. */
	if (sscanf(MHD_get_version(), "%u.%u.%u", &major, &minor, &patch) != 3) return false;
	return major > 0 || minor > 9 || (minor == 9 && patch > 76);
}

static const struct row {
	unsigned code;
	const char *name, *message;
} rows[] = {
    {431, "headers_too_large", "the request's head has more than 16 KiB or 100 fields"},
    {400, "malformed_header", "a header field or a line's end is malformed"},
    {400, "malformed_header", "the request must have one Host field"},
    {400, "ambiguous_length",
        "the body's length is told twice: a request has one Content-Length, or Transfer-Encoding: "
        "chunked"},
    {501, "unsupported_encoding", "no other transfer encoding than chunked is supported"},
    {417, "unsupported_expectation", "no other expectation than 100-continue is supported"},
};

static const struct row *judge(const struct facts *facts, size_t size, bool old)
{
	if (size > GW_MAX_HEAD || facts->fields > GW_MAX_HEAD_FIELDS) return &rows[0];
	if (facts->malformed) return &rows[1];
	if (facts->hosts > 1 || (facts->hosts == 0 && !old)) return &rows[2];
	if (facts->lengths + facts->encodings > 1) return &rows[3];
	/* HTTP/1.0 has no chunks. */
	if (facts->encodings > 0 && old) return &rows[3];
	if (facts->encodings > 0 && !facts->chunked) return &rows[4];
	if (facts->expects && !facts->continues) return &rows[5];
	return NULL;
}

int gw_http_head_check(struct MHD_Connection *connection, const struct gw_http_line *line,
    struct gw_http_error *error, const char **message)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
	struct facts facts = {0};
	const struct row *row;
	size_t size = 0;

	MHD_get_connection_values_n(connection, MHD_HEADER_KIND, count, &facts);
	if (info != NULL) size = info->header_size;
	if (!gw_http_daemon_is_strict() && !has_whole_lines(line, size, &facts)) facts.malformed = true;
	row = judge(&facts, size, strcmp(line->version, "HTTP/1.0") == 0);
	if (row == NULL) return 1;
	*error = (struct gw_http_error){
	    row->code, row->code == 501 ? "server_error" : "invalid_request_error", row->name};
	*message = row->message;
	return 0;
}

const char *gw_http_path(const char *url)
{
	static const char scheme[] = "http://";
	const char *path;

	if (strncasecmp(url, scheme, strlen(scheme)) != 0) return url;
	path = strchr(url + strlen(scheme), '/');
	return path != NULL ? path : "/";
}
