#include "common/transport/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static enum kv_status check_file(int descriptor, const char *path)
{
	struct stat facts;

	if (fstat(descriptor, &facts) != 0)
		return kv_fail(KV_IO, "cannot look at secret file %s: %s", path, strerror(errno));
	if (!S_ISREG(facts.st_mode))
		return kv_fail(KV_REFUSED, "secret file %s is no regular file", path);
	if (facts.st_mode & (S_IRWXO | S_IWGRP))
		return kv_fail(KV_REFUSED,
		    "secret file %s has mode %04o: others may read or change it; chmod it to 0600 or 0640",
		    path, (unsigned)(facts.st_mode & 07777));
	if (facts.st_uid != 0 && facts.st_uid != geteuid())
		return kv_fail(KV_REFUSED, "secret file %s belongs to user %u, neither root nor this one",
		    path, (unsigned)facts.st_uid);
	return KV_OK;
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
	enum kv_status status;
	ssize_t got = 0;
	/* Does not wait where somebody put a pipe. */
	int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (descriptor < 0)
		return kv_fail(errno == ENOENT ? KV_NOT_FOUND : KV_IO, "cannot open secret file %s: %s",
		    path, strerror(errno));
	status = check_file(descriptor, path);
	if (status == KV_OK) {
		got = read(descriptor, text, sizeof text);
		if (got < 0)
			status = kv_fail(KV_IO, "cannot read secret file %s: %s", path, strerror(errno));
	}
	close(descriptor);
	if (status == KV_OK) status = decode(path, text, (size_t)got, read_secret);
	if (status == KV_OK) memcpy(secret, read_secret, KV_SECRET_BYTES);
	sodium_memzero(text, sizeof text);
	sodium_memzero(read_secret, sizeof read_secret);
	return status;
}
