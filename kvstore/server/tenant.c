/* Who may connect, and what one user may take: connections, memory for messages, a control page.
 *
 * A tenant is a user id, as the kernel says it, or all workers on other hosts. Its record lives as
 * long as a connection of it. */
#include <errno.h>
#include <pwd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/transport/transport_map.h"
#include "kvstore/server/server_internal.h"

/* ---- the list of users ---- */

static enum kv_status find_user(const char *word, uint32_t *uid)
{
	const struct passwd *entry;
	uint64_t number = 0;

	if (kv_parse_u64(word, &number) == KV_OK) {
		if (number >= UINT32_MAX)
			return kv_fail(KV_INVALID, "\"%s\" is no user id: it is below %u", word, UINT32_MAX);
		*uid = (uint32_t)number;
		return KV_OK;
	}
	entry = getpwnam(word);
	if (!entry)
		return kv_fail(KV_INVALID,
		    "\"%s\" is no user of this machine: give a name or a number, "
		    "separated by commas, or * for everybody",
		    word);
	*uid = entry->pw_uid;
	return KV_OK;
}

enum kv_status kvs_allow_parse(const char *text, struct kvs_allow *allow)
{
	struct kvs_allow made = {0};
	char word[64];

	made.uids[made.count++] = (uint32_t)geteuid();
	while (text && *text) {
		size_t length = strcspn(text, ",");

		if (length >= sizeof word)
			return kv_fail(KV_INVALID, "\"%.20s…\" is no user: names are shorter", text);
		snprintf(word, sizeof word, "%.*s", (int)length, text);
		text += length + (text[length] == ',');
		if (strcmp(word, "*") == 0) {
			made.everybody = true;
			continue;
		}
		if (made.count == KVS_MAX_ALLOWED)
			return kv_fail(KV_INVALID, "more than %d users are listed", (int)KVS_MAX_ALLOWED - 1);
		KV_TRY(find_user(word, &made.uids[made.count]));
		made.count++;
	}
	*allow = made;
	return KV_OK;
}

enum kv_status kvs_allow_check(const char *text)
{
	struct kvs_allow allow;

	return kvs_allow_parse(text, &allow);
}

static bool allows(const struct kvs_allow *allow, uint32_t uid)
{
	if (allow->everybody) return true;
	for (uint32_t i = 0; i < allow->count; i++)
		if (allow->uids[i] == uid) return true;
	return false;
}

/* ---- shares ---- */

/* Among how many tenants what there is is divided, so that one cannot take another's. */
static uint32_t share_count(const struct kvs_server *server)
{
	/* All workers of other hosts are one tenant more. */
	const char *listen = server->settings->listen;
	uint32_t listed = server->allow.count + (listen && *listen ? 1 : 0);

	if (!server->settings->isolation) return 1;
	return server->allow.everybody && listed < KVS_SHARES_OF_EVERYBODY ? KVS_SHARES_OF_EVERYBODY
	                                                                   : listed;
}

uint32_t kvs_tenant_share(const struct kvs_server *server, uint64_t whole, uint64_t least)
{
	uint64_t share = whole / share_count(server);

	if (share < least) share = least;
	return share > UINT32_MAX ? UINT32_MAX : (uint32_t)share;
}

static uint32_t connection_limit(const struct kvs_server *server)
{
	uint32_t quarter = server->settings->max_workers / 4;

	if (server->settings->user_connections) return server->settings->user_connections;
	if (!server->settings->isolation) return UINT32_MAX;
	return quarter < KVS_LEAST_CONNECTIONS ? KVS_LEAST_CONNECTIONS : quarter;
}

/* ---- records ---- */

static struct kvs_tenant *tenant_of(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_tenant, node);
}

static struct kvs_tenant *find_tenant(struct kvs_server *server, uint32_t uid)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &server->tenants)
	if (tenant_of(node)->uid == uid) return tenant_of(node);
	return NULL;
}

static void destroy_tenant(struct kvs_tenant *tenant)
{
	kv_list_remove(&tenant->node);
	if (tenant->page) kv_control_page_destroy(tenant->page, tenant->page_descriptor);
	kv_allocator_destroy(tenant->frames);
	kv_free(tenant->server->allocator, tenant);
}

static enum kv_status create_tenant(
    struct kvs_server *server, uint32_t uid, struct kvs_tenant **tenant)
{
	struct kvs_tenant *made = kv_alloc_zero(server->allocator, sizeof *made);

	if (!made) return KV_NO_MEMORY;
	made->server = server;
	made->uid = uid;
	if (uid == KVS_REMOTE_UID)
		snprintf(made->name, sizeof made->name, "%s", server->settings->remote_tenant);
	else
		kvs_quotas_tenant(&server->quotas, uid, made->name);
	made->page_descriptor = -1;
	made->frames = kv_allocator_create_within(server->frames, made->name,
	    kvs_tenant_share(server, server->settings->frame_memory, KVS_LEAST_FRAMES));
	if (!made->frames) {
		kv_free(server->allocator, made);
		return KV_NO_MEMORY;
	}
	kv_list_push_back(&server->tenants, &made->node);
	*tenant = made;
	return KV_OK;
}

enum kv_status kvs_tenant_connect(
    struct kvs_server *server, const struct kv_unix_peer *credentials, struct kvs_tenant **tenant)
{
	struct kvs_tenant *found = find_tenant(server, credentials->uid);
	uint32_t limit = connection_limit(server);

	/* Who has the secret is allowed. */
	if (server->settings->isolation && credentials->uid != KVS_REMOTE_UID &&
	    !allows(&server->allow, credentials->uid))
		return kv_fail(KV_REFUSED,
		    "user %u may not use this store: its operator lists users in allow-uid",
		    credentials->uid);
	if (found && found->connections >= limit)
		return kv_fail(KV_LIMIT, "tenant %s has %u connections open, that is its limit",
		    found->name, found->connections);
	if (!found) KV_TRY(create_tenant(server, credentials->uid, &found));
	found->holds++;
	found->connections++;
	*tenant = found;
	return KV_OK;
}

void kvs_tenant_drop(struct kvs_tenant *tenant)
{
	if (tenant && --tenant->holds == 0) destroy_tenant(tenant);
}

/* ---- control pages ---- */

enum kv_status kvs_tenant_page(struct kvs_tenant *tenant)
{
	if (!tenant->server->settings->isolation || tenant->page) return KV_OK;
	KV_TRY(kv_control_page_create(&tenant->page, &tenant->page_descriptor));
	kvs_control_page_write(tenant->server, tenant->page);
	return KV_OK;
}

int kvs_tenant_page_descriptor(const struct kvs_tenant *tenant)
{
	return tenant->page ? tenant->page_descriptor : tenant->server->page_descriptor;
}

/* ---- what one tenant holds of the store ---- */

enum kv_status kvs_tenant_check_guests(const struct kvs_tenant *tenant)
{
	struct kv_list *node;
	uint32_t guests = 0, own = 0;

	KV_LIST_EACH(node, &tenant->server->peers)
	{
		const struct kvs_peer *peer = KV_CONTAINER_OF(node, struct kvs_peer, node);

		if (peer->state.state != KVS_GUEST) continue;
		guests++;
		own += peer->tenant == tenant;
	}
	if (guests < KVS_MAX_GUESTS &&
	    (!tenant->server->settings->isolation || own < KVS_MAX_GUESTS_OF_ONE))
		return KV_OK;
	return kv_fail(
	    KV_LIMIT, "%u connections without a model are open, that is the limit: close one", guests);
}

void kvs_tenants_stop(struct kvs_server *server)
{
	struct kv_list *node;

	while ((node = kv_list_first(&server->tenants)))
		destroy_tenant(tenant_of(node));
	kv_allocator_destroy(server->frames);
	server->frames = NULL;
}
