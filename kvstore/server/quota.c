#include "kvstore/server/quota.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/parse.h"

enum { ITEM_SIZE = KVS_MAX_TENANT + 32 };

/* The next of a list with commas; false at its end. */
static bool next_item(const char **text, char item[ITEM_SIZE], bool *too_long)
{
	size_t length;

	if (!*text || !**text) return false;
	length = strcspn(*text, ",");
	*too_long = length >= ITEM_SIZE;
	if (!*too_long) snprintf(item, ITEM_SIZE, "%.*s", (int)length, *text);
	*text += length + ((*text)[length] == ',');
	return true;
}

enum kv_status kvs_quotas_check_name(const char *name)
{
	const size_t length = strlen(name);

	for (size_t i = 0; i < length; i++) {
		const char c = name[i];

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		    c == '.' || c == '_' || c == '-')
			continue;
		return kv_fail(
		    KV_INVALID, "\"%s\" is no tenant: allowed are letters, digits and . _ -", name);
	}
	if (length == 0 || length >= KVS_MAX_TENANT)
		return kv_fail(KV_INVALID, "a tenant's name has %zu characters, allowed are 1 to %d",
		    length, (int)KVS_MAX_TENANT - 1);
	return KV_OK;
}

/* Is it what a user is called that has no name? */
static bool is_somebody(const char *name)
{
	static const char prefix[] = "uid-";

	if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
	name += sizeof prefix - 1;
	return *name && name[strspn(name, "0123456789")] == '\0';
}

enum kv_status kvs_quotas_check_chosen(const char *name)
{
	KV_TRY(kvs_quotas_check_name(name));
	if (!is_somebody(name)) return KV_OK;
	return kv_fail(
	    KV_INVALID, "\"%s\" is the tenant of the user with that number: choose another name", name);
}

static enum kv_status add_user(char *item, struct kvs_quotas *quotas)
{
	struct kvs_named_user *user = &quotas->users[quotas->user_count];
	char *name = strchr(item, '=');

	if (!name) return kv_fail(KV_INVALID, "\"%s\" is not UID=NAME", item);
	*name++ = '\0';
	if (quotas->user_count == KVS_MAX_NAMED)
		return kv_fail(KV_INVALID, "more than %d users are named", (int)KVS_MAX_NAMED);
	user->everybody = strcmp(item, "*") == 0;
	if (!user->everybody) KV_TRY(kv_parse_u32(item, &user->uid));
	KV_TRY(kvs_quotas_check_chosen(name));
	for (uint32_t i = 0; i < quotas->user_count; i++)
		if (quotas->users[i].everybody == user->everybody &&
		    (user->everybody || quotas->users[i].uid == user->uid))
			return kv_fail(KV_INVALID, "user %s is named twice", item);
	memcpy(user->name, name, strlen(name) + 1);
	quotas->user_count++;
	return KV_OK;
}

static enum kv_status parse_limit(const char *text, uint64_t memory, uint64_t *bytes)
{
	const size_t length = strlen(text);
	char number[ITEM_SIZE];
	uint32_t percent = 0;

	if (length > 0 && text[length - 1] == '%') {
		snprintf(number, sizeof number, "%.*s", (int)length - 1, text);
		KV_TRY(kv_parse_u32(number, &percent));
		if (percent < 1 || percent > 100)
			return kv_fail(KV_INVALID, "%u %% is not between 1 and 100", percent);
		*bytes = memory / 100 * percent;
	} else {
		KV_TRY(kv_parse_size(text, bytes));
	}
	if (*bytes == 0) return kv_fail(KV_INVALID, "a quota of 0 bytes holds nothing");
	return KV_OK;
}

static enum kv_status add_limit(char *item, uint64_t memory, struct kvs_quotas *quotas)
{
	char *limit = strchr(item, '=');
	uint64_t bytes = 0;

	if (!limit) {
		if (quotas->others > 0)
			return kv_fail(KV_INVALID, "the quota of each tenant is given twice: \"%s\"", item);
		return parse_limit(item, memory, &quotas->others);
	}
	*limit++ = '\0';
	if (quotas->quota_count == KVS_MAX_NAMED)
		return kv_fail(KV_INVALID, "more than %d tenants have quotas", (int)KVS_MAX_NAMED);
	KV_TRY(kvs_quotas_check_name(item));
	for (uint32_t i = 0; i < quotas->quota_count; i++)
		if (strcmp(quotas->names[i], item) == 0)
			return kv_fail(KV_INVALID, "the quota of tenant %s is given twice", item);
	KV_TRY(parse_limit(limit, memory, &bytes));
	memcpy(quotas->names[quotas->quota_count], item, strlen(item) + 1); /* it fits */
	quotas->quotas[quotas->quota_count].tenant = quotas->names[quotas->quota_count];
	quotas->quotas[quotas->quota_count].bytes = bytes;
	quotas->quota_count++;
	return KV_OK;
}

enum kv_status kvs_quotas_parse(
    const char *tenants, const char *limits, uint64_t memory, struct kvs_quotas *quotas)
{
	char item[ITEM_SIZE];
	bool too_long = false;

	memset(quotas, 0, sizeof *quotas);
	while (next_item(&tenants, item, &too_long)) {
		if (too_long) return kv_fail(KV_INVALID, "a user's name is too long");
		KV_TRY(add_user(item, quotas));
	}
	while (next_item(&limits, item, &too_long)) {
		if (too_long) return kv_fail(KV_INVALID, "a tenant's name is too long");
		KV_TRY(add_limit(item, memory, quotas));
	}
	quotas->named = quotas->user_count + quotas->quota_count > 0 || quotas->others > 0;
	return KV_OK;
}

/* Who is called so? */
static bool is_tenant(const struct kvs_quotas *quotas, const char *name, const char *remote_tenant)
{
	char own[KVS_MAX_TENANT];
	uint32_t uid = 0;

	if (remote_tenant && strcmp(name, remote_tenant) == 0) return true;
	for (uint32_t i = 0; i < quotas->user_count; i++)
		if (strcmp(name, quotas->users[i].name) == 0) return true;
	if (!is_somebody(name) || kv_parse_u32(strchr(name, '-') + 1, &uid) != KV_OK) return false;
	/* A user who has another name is not called by the number. */
	kvs_quotas_tenant(quotas, uid, own);
	return strcmp(name, own) == 0;
}

enum kv_status kvs_quotas_check_known(const struct kvs_quotas *quotas, const char *remote_tenant)
{
	for (uint32_t i = 0; i < quotas->quota_count; i++)
		if (!is_tenant(quotas, quotas->names[i], remote_tenant))
			return kv_fail(KV_INVALID,
			    "tenant-quota names the tenant \"%s\", and nobody is called so: name a user in "
			    "tenants, or give uid-N of one who has no name",
			    quotas->names[i]);
	return KV_OK;
}

enum kv_status kvs_quotas_check_tenants(const char *text)
{
	struct kvs_quotas quotas;

	return kvs_quotas_parse(text, NULL, 0, &quotas);
}

enum kv_status kvs_quotas_check_limits(const char *text)
{
	struct kvs_quotas quotas;

	return kvs_quotas_parse(NULL, text, UINT64_C(1) << 40, &quotas);
}

void kvs_quotas_tenant(const struct kvs_quotas *quotas, uint32_t uid, char name[KVS_MAX_TENANT])
{
	const struct kvs_named_user *others = NULL;

	snprintf(name, KVS_MAX_TENANT, "uid-%" PRIu32, uid);
	for (uint32_t i = 0; i < quotas->user_count; i++) {
		const struct kvs_named_user *user = &quotas->users[i];

		if (user->everybody) {
			others = user;
		} else if (user->uid == uid) {
			memcpy(name, user->name, sizeof user->name);
			return;
		}
	}
	if (others) memcpy(name, others->name, sizeof others->name);
}
