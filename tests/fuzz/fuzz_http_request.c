/* Heads of HTTP requests for the stats socket that no sane client sends, as they come in pieces. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore/server/http_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
	if (holds) return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

static void check(int status, const struct kvs_http_request *request)
{
	size_t length;

	require(strlen(kvs_http_reason(status)) > 0, "a status has a reason");
	if (status != 200) return;
	length = strnlen(request->path, sizeof request->path);
	require(length > 0 && length < sizeof request->path, "a path has a bounded length");
	require(request->path[0] == '/', "a path begins at the root");
	for (size_t i = 0; i < length; i++)
		require(request->path[i] > 0x20 && request->path[i] < 0x7f, "a path is printable");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t most = size < KVS_HTTP_MAX_HEAD ? size : KVS_HTTP_MAX_HEAD;
	size_t step = most / 16 + 1;
	int before = 0;

	for (size_t length = 1; length <= most;
	     length = length + step > most && length < most ? most : length + step) {
		struct kvs_http_request request;
		/* In a block of its own, so that a read past the end is noticed. */
		char *bytes = malloc(length);
		int status;

		if (!bytes) return 0;
		memcpy(bytes, data, length);
		kvs_http_begins(bytes, length);
		kvs_http_other_method(bytes, length);
		status = kvs_http_parse(bytes, length, &request);
		check(status, &request);
		require(!before || before == status, "more bytes do not change a judgement");
		before = status;
		free(bytes);
	}
	return 0;
}
