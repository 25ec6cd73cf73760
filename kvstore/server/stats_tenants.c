/* What each tenant stores, where tenants are told apart. */
#include "kvstore/server/server_internal.h"

struct figure {
	const char *name, *labels, *help, *type;
	uint64_t (*get)(const struct kvs_tenant_info *info);
};

static uint64_t leased(const struct kvs_tenant_info *info)
{
	return info->leased_bytes;
}

static uint64_t cached(const struct kvs_tenant_info *info)
{
	return info->cached_bytes;
}

/* Reserved and quarantined. */
static uint64_t pending(const struct kvs_tenant_info *info)
{
	return info->bytes - info->leased_bytes - info->cached_bytes;
}

static uint64_t quota(const struct kvs_tenant_info *info)
{
	return info->quota;
}

static uint64_t evictions(const struct kvs_tenant_info *info)
{
	return info->evictions;
}

static uint64_t refusals(const struct kvs_tenant_info *info)
{
	return info->refusals;
}

/* Rows of one name stand together, and the first says what it is. */
static const struct figure figures[] = {
    {"tenant_bytes", ",state=\"leased\"", "Memory of a tenant's segments by state.", "gauge",
        leased},
    {"tenant_bytes", ",state=\"cached\"", NULL, NULL, cached},
    {"tenant_bytes", ",state=\"pending\"", NULL, NULL, pending},
    {"tenant_quota_bytes", "", "The most that a tenant's segments may take; 0: no limit.", "gauge",
        quota},
    {"tenant_evictions_total", "", "Segments that a tenant lost to its own quota.", "counter",
        evictions},
    {"tenant_refusals_total", "", "Reservations that a tenant's quota refused.", "counter",
        refusals},
};

static void put_figure(const struct kvs_server *server, const struct figure *figure,
    const char *before, const char *after, struct kv_text_buffer *text)
{
	struct kvs_tenant_info info;

	for (uint32_t i = 0; kvs_tenant_info(server->engine, i, &info) == KV_OK; i++) {
		if (!info.name[0]) continue;
		kv_text_printf(text, "%s%s{", before, figure->name);
		kv_metrics_put_label(text, "tenant", info.name);
		kv_text_printf(
		    text, "%s} %llu%s", figure->labels, (unsigned long long)figure->get(&info), after);
	}
}

static bool any_named(const struct kvs_server *server)
{
	return server->quotas.named || server->settings->isolation;
}

void kvs_stats_tenants_text(const struct kvs_server *server, struct kv_text_buffer *text)
{
	for (size_t i = 0; any_named(server) && i < sizeof figures / sizeof *figures; i++)
		put_figure(server, &figures[i], "STAT ", "\r\n", text);
}

void kvs_stats_tenants_prometheus(const struct kvs_server *server, struct kv_text_buffer *text)
{
	for (size_t i = 0; any_named(server) && i < sizeof figures / sizeof *figures; i++) {
		if (figures[i].help)
			kv_text_printf(text, "# HELP clusterkv_store_%s %s\n# TYPE clusterkv_store_%s %s\n",
			    figures[i].name, figures[i].help, figures[i].name, figures[i].type);
		put_figure(server, &figures[i], "clusterkv_store_", "\n", text);
	}
}
