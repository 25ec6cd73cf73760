#include "gpu-worker/server/api_keys.h"

#include <sodium.h>
#include <string.h>
#include <strings.h>

#include "common/base/private_file.h"

enum { DIGEST_BYTES = 32, FILE_BYTES = 64 * 1024 };

struct gw_api_keys {
	struct kv_allocator *allocator;
	unsigned count;
	unsigned char digests[GW_API_KEYS_MOST][DIGEST_BYTES];
};

static void digest(const char *key, size_t length, unsigned char out[DIGEST_BYTES])
{
	crypto_generichash(out, DIGEST_BYTES, (const unsigned char *)key, length, NULL, 0);
}

/* Never says what is in it. */
static enum kv_status add(
    struct gw_api_keys *keys, const char *path, unsigned line, const char *key, size_t length)
{
	if (length < GW_API_KEY_LEAST || length > GW_API_KEY_MOST)
		return kv_fail(KV_INVALID, "key file %s line %u: a key has %d to %d characters, not %zu",
		    path, line, (int)GW_API_KEY_LEAST, (int)GW_API_KEY_MOST, length);
	for (size_t i = 0; i < length; i++)
		if (key[i] <= ' ' || key[i] > '~')
			return kv_fail(KV_INVALID,
			    "key file %s line %u: a key is made of visible ASCII characters", path, line);
	if (keys->count == GW_API_KEYS_MOST)
		return kv_fail(KV_LIMIT, "key file %s has more than %d keys", path, (int)GW_API_KEYS_MOST);
	digest(key, length, keys->digests[keys->count++]);
	return KV_OK;
}

static enum kv_status add_lines(
    struct gw_api_keys *keys, const char *path, const char *text, size_t length)
{
	unsigned line = 1;

	for (size_t at = 0, end; at < length; at = end + 1, line++) {
		size_t last;

		for (end = at; end < length && text[end] != '\n'; end++)
			;
		last = end > at && text[end - 1] == '\r' ? end - 1 : end;
		if (last > at && text[at] != '#') KV_TRY(add(keys, path, line, text + at, last - at));
	}
	return keys->count > 0 ? KV_OK : kv_fail(KV_INVALID, "key file %s holds no key", path);
}

static enum kv_status fill(struct gw_api_keys *keys, const char *path, char *text)
{
	size_t length = 0;

	KV_TRY(kv_private_file_read("key file", path, text, FILE_BYTES + 1, &length));
	if (length > FILE_BYTES)
		return kv_fail(KV_LIMIT, "key file %s is larger than %d bytes", path, (int)FILE_BYTES);
	return add_lines(keys, path, text, length);
}

enum kv_status gw_api_keys_load(
    struct kv_allocator *allocator, const char *path, struct gw_api_keys **keys)
{
	struct gw_api_keys *made;
	enum kv_status status = KV_NO_MEMORY;
	char *text;

	if (sodium_init() < 0) return kv_fail(KV_INTERNAL, "libsodium cannot be used");
	made = kv_alloc_zero(allocator, sizeof *made);
	text = kv_alloc(allocator, FILE_BYTES + 1);
	if (made != NULL && text != NULL) {
		made->allocator = allocator;
		status = fill(made, path, text);
	}
	if (text != NULL) sodium_memzero(text, FILE_BYTES + 1);
	kv_free(allocator, text);
	if (status == KV_OK)
		*keys = made;
	else
		kv_free(allocator, made);
	return status;
}

void gw_api_keys_destroy(struct gw_api_keys *keys)
{
	if (keys == NULL) return;
	kv_free(keys->allocator, keys);
}

int gw_api_keys_match(const struct gw_api_keys *keys, const char *authorization)
{
	static const char scheme[] = "Bearer ";
	unsigned char presented[DIGEST_BYTES];
	int found = 0;

	if (authorization == NULL || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
		return 0;
	authorization += sizeof scheme - 1;
	while (*authorization == ' ')
		authorization++;
	digest(authorization, strlen(authorization), presented);
	for (unsigned i = 0; i < keys->count; i++)
		found |= sodium_memcmp(presented, keys->digests[i], DIGEST_BYTES) == 0;
	return found;
}
