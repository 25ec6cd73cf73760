/* Names of tenants, and what each may store: from two options. */
#ifndef KVS_SERVER_QUOTA_H
#define KVS_SERVER_QUOTA_H

#include <stdbool.h>

#include "kvstore/engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVS_MAX_NAMED = 64 };

struct kvs_named_user {
	bool everybody; /* whoever is not listed */
	uint32_t uid;
	char name[KVS_MAX_TENANT];
};

struct kvs_quotas {
	bool named; /* something is configured: tenants are told apart */
	uint32_t user_count, quota_count;
	struct kvs_named_user users[KVS_MAX_NAMED];
	uint64_t others; /* bytes of each tenant that has none of its own; 0: no limit */
	struct kvs_tenant_quota quotas[KVS_MAX_NAMED];
	char names[KVS_MAX_NAMED][KVS_MAX_TENANT];
};

/* `tenants`: "UID=NAME,…", UID a number or * for everybody else. `limits`: "LIMIT" for each tenant,
 * "NAME=LIMIT" for one, separated by commas; a limit is a size or a percentage of `memory`. Either
 * may be NULL or "". KV_INVALID. Quotas point into `quotas`, which must not move afterwards. */
enum kv_status kvs_quotas_parse(
    const char *tenants, const char *limits, uint64_t memory, struct kvs_quotas *quotas);
/* KV_INVALID when a quota is for a name that nobody has; remote_tenant NULL: no other hosts. */
enum kv_status kvs_quotas_check_known(const struct kvs_quotas *quotas, const char *remote_tenant);
enum kv_status kvs_quotas_check_tenants(const char *text);
enum kv_status kvs_quotas_check_limits(const char *text);
enum kv_status kvs_quotas_check_name(const char *name);
/* The same for a name that somebody chooses: not what a user is called that has none. */
enum kv_status kvs_quotas_check_chosen(const char *name);

/* The tenant of a user: its name, or uid-N. */
void kvs_quotas_tenant(const struct kvs_quotas *quotas, uint32_t uid, char name[KVS_MAX_TENANT]);

#ifdef __cplusplus
}
#endif
#endif
