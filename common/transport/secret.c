#include "common/transport/secret.h"

#include <sodium.h>
#include <string.h>

#include "common/base/private_file.h"

enum kv_status kv_secret_make(char text[KV_SECRET_TEXT])
{
	uint8_t secret[KV_SECRET_BYTES];

	if (sodium_init() < 0) return kv_fail(KV_INTERNAL, "the system has no random numbers");
	randombytes_buf(secret, sizeof secret);
	sodium_bin2hex(text, KV_SECRET_TEXT, secret, sizeof secret);
	sodium_memzero(secret, sizeof secret);
	return KV_OK;
}

void kv_secret_wipe(uint8_t secret[KV_SECRET_BYTES])
{
	sodium_memzero(secret, KV_SECRET_BYTES);
}

/* Never says what is in it. */
static enum kv_status decode(
    const char *path, const char *text, size_t length, uint8_t secret[KV_SECRET_BYTES])
{
	size_t decoded = 0;
	const char *end = NULL;
	uint8_t differs = 0;

	while (length && (text[length - 1] == '\n' || text[length - 1] == '\r'))
		length--;
	if (length != KV_SECRET_TEXT - 1 ||
	    sodium_hex2bin(secret, KV_SECRET_BYTES, text, length, NULL, &decoded, &end) != 0 ||
	    decoded != KV_SECRET_BYTES || end != text + length)
		return kv_fail(KV_INVALID,
		    "secret file %s does not hold %d hexadecimal digits: make one with kvctl secret", path,
		    (int)KV_SECRET_TEXT - 1);
	for (unsigned i = 1; i < KV_SECRET_BYTES; i++)
		differs |= secret[i] ^ secret[0];
	if (!differs)
		return kv_fail(KV_INVALID,
		    "secret file %s holds one digit pair again and again: make one with kvctl secret",
		    path);
	return KV_OK;
}

enum kv_status kv_secret_read(const char *path, uint8_t secret[KV_SECRET_BYTES])
{
	char text[KV_SECRET_TEXT + 8];
	uint8_t read_secret[KV_SECRET_BYTES];
	size_t length = 0;
	enum kv_status status = kv_private_file_read("secret file", path, text, sizeof text, &length);

	if (status == KV_OK) status = decode(path, text, length, read_secret);
	if (status == KV_OK) memcpy(secret, read_secret, KV_SECRET_BYTES);
	sodium_memzero(text, sizeof text);
	sodium_memzero(read_secret, sizeof read_secret);
	return status;
}
