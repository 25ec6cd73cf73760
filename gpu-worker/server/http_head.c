#include "gpu-worker/server/http_head.h"

#include <stdbool.h>
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

static const struct row {
	unsigned code;
	const char *name, *message;
} rows[] = {
    {431, "headers_too_large", "the request's head has more than 16 KiB or 100 fields"},
    {400, "malformed_header", "a header field is malformed"},
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

int gw_http_head_check(struct MHD_Connection *connection, const char *version,
    struct gw_http_error *error, const char **message)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
	struct facts facts = {0};
	const struct row *row;

	MHD_get_connection_values_n(connection, MHD_HEADER_KIND, count, &facts);
	row = judge(&facts, info != NULL ? info->header_size : 0, strcmp(version, "HTTP/1.0") == 0);
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
