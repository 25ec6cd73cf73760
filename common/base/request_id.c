#include "common/base/request_id.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/random.h"

enum kv_status kv_request_id_check(const char *id)
{
	size_t length = strnlen(id, KV_REQUEST_ID_BYTES);

	if (length == 0 || length == KV_REQUEST_ID_BYTES)
		return kv_fail(KV_INVALID, "a request's id has 1 to %d characters%s",
		    (int)KV_REQUEST_ID_BYTES - 1, length == 0 ? ", not none" : ", not more");
	for (size_t i = 0; i < length; i++)
		if (id[i] <= ' ' || id[i] > '~')
			return kv_fail(KV_INVALID,
			    "a request's id is made of visible ASCII characters, and byte %zu is 0x%02x", i + 1,
			    (unsigned)(unsigned char)id[i]);
	return KV_OK;
}

void kv_request_id_make(const char *kind, char id[KV_REQUEST_ID_BYTES])
{
	snprintf(id, KV_REQUEST_ID_BYTES, "%.16s-%016" PRIx64, kind, kv_random_entropy());
}
