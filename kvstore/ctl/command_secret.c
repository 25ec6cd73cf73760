/* kvctl secret, and how kvctl finds a store on another host. */
#include <stdio.h>
#include <string.h>

#include "common/transport/secret.h"
#include "kvstore/ctl/ctl.h"

enum kv_status ctl_secret(const struct ctl_settings *settings)
{
	char text[KV_SECRET_TEXT];

	KV_TRY(kv_secret_make(text));
	if (settings->json)
		printf("{\"secret\":\"%s\"}\n", text);
	else
		printf("%s\n", text);
	return KV_OK;
}

enum kv_status ctl_store(const struct ctl_settings *settings, char address[CTL_ADDRESS_BYTES],
    uint8_t secret[KV_SECRET_BYTES], bool *remote)
{
	const bool given = settings->store && *settings->store;
	const bool with_secret = settings->store_secret && *settings->store_secret;

	*remote = given && strncmp(settings->store, "tcp:", 4) == 0;
	if (given && !*remote && strncmp(settings->store, "unix:", 5) != 0)
		return kv_fail(
		    KV_USAGE, "--store %s: write tcp:HOST:PORT, or use --socket", settings->store);
	if (*remote != with_secret)
		return kv_fail(KV_USAGE, "--store tcp:HOST:PORT and --store-secret go together");
	if (given)
		snprintf(address, CTL_ADDRESS_BYTES, "%s", settings->store);
	else
		snprintf(address, CTL_ADDRESS_BYTES, "unix:%s", settings->socket);
	return *remote ? kv_secret_read(settings->store_secret, secret) : KV_OK;
}
