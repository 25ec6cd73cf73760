#include "kvstore/engine/engine_internal.h"

static struct kvs_model *model_of(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_model, link);
}

static struct kvs_root *root_of(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_root, link);
}

static enum kv_status same_number(
    const char *model_name, const char *field, uint32_t known, uint32_t asked)
{
	if (known == asked) return KV_OK;
	return kv_fail(KV_REFUSED,
	    "model %s is stored with %s %u, this worker has %u: give the worker the same options as "
	    "the "
	    "others, or use another store",
	    model_name, field, known, asked);
}

static enum kv_status same_layout(
    const struct kvs_model *model, const struct kvw_model_layout *layout)
{
	const struct kvw_model_layout *known = &model->layout;

	KV_TRY(same_number(model->name, "layers", known->layers, layout->layers));
	KV_TRY(same_number(model->name, "kv_heads", known->kv_heads, layout->kv_heads));
	KV_TRY(same_number(model->name, "head_dim", known->head_dim, layout->head_dim));
	KV_TRY(same_number(model->name, "kv_type", known->kv_type, layout->kv_type));
	KV_TRY(same_number(model->name, "dense_layers", known->dense_layers, layout->dense_layers));
	KV_TRY(same_number(model->name, "sinks", known->sinks, layout->sinks));
	KV_TRY(
	    same_number(model->name, "cluster_tokens", known->cluster_tokens, layout->cluster_tokens));
	if (memcmp(known->index_digest, layout->index_digest, sizeof known->index_digest) == 0)
		return KV_OK;
	return kv_fail(KV_REFUSED,
	    "model %s is stored with other index parameters: give the worker the same options as the "
	    "others, or use another store",
	    model->name);
}

const char *kvs_region_owner(const struct kvs_engine *engine, const struct kvs_root *root)
{
	return engine->options.separate_tenants ? root->tenant : "";
}

/* `tenant`: whose models count; "" where all share them. */
static enum kv_status find_model(struct kvs_engine *engine, const struct kvs_peer_request *request,
    const char *tenant, struct kvs_model **model)
{
	struct kv_list *node;
	uint32_t own = 0;

	*model = NULL;
	KV_LIST_EACH(node, &engine->models)
	{
		if (strcmp(model_of(node)->tenant, tenant) != 0) continue;
		own++;
		if (memcmp(model_of(node)->id, request->model_id, KVW_MODEL_ID_BYTES) != 0) continue;
		KV_TRY(same_layout(model_of(node), &request->layout));
		*model = model_of(node);
		return KV_OK;
	}
	if (tenant[0] && own >= KVS_MAX_MODELS / 4)
		return kv_fail(KV_LIMIT, "%u models of %s are in the store, the limit of one tenant is %u",
		    own, tenant, (unsigned)KVS_MAX_MODELS / 4);
	if (engine->model_count >= KVS_MAX_MODELS)
		return kv_fail(KV_LIMIT, "%u models are in the store, the limit is %u: evict unused ones",
		    engine->model_count, (unsigned)KVS_MAX_MODELS);
	return KV_OK;
}

static void fill_model(
    struct kvs_model *model, const struct kvs_peer_request *request, const char *tenant)
{
	const char *name = request->model_name ? request->model_name : "";

	model->layout = request->layout;
	memcpy(model->id, request->model_id, sizeof model->id);
	kvs_layout_digest(model->id, &model->layout, model->digest);
	strncpy(model->name, name, sizeof model->name - 1);
	strncpy(model->tenant, tenant, sizeof model->tenant - 1);
}

static uint64_t quota_of(const struct kvs_engine *engine, const char *tenant)
{
	const struct kvs_options *options = &engine->options;

	for (uint32_t i = 0; i < options->quota_count; i++) {
		if (strcmp(options->quotas[i].tenant, tenant) == 0) return options->quotas[i].bytes;
	}
	return options->tenant_quota > 0 ? options->tenant_quota : UINT64_MAX;
}

/* The tenant's account, a new one where there is none; NULL when there is no memory. */
static struct kvs_tenant *account_of(struct kvs_engine *engine, const char *name)
{
	struct kvs_tenant *made;
	struct kv_list *node;

	KV_LIST_EACH(node, &engine->tenants)
	{
		made = KV_CONTAINER_OF(node, struct kvs_tenant, link);
		if (strcmp(made->name, name) == 0) return made;
	}
	made = kv_alloc_zero(engine->allocator, sizeof *made);
	if (!made) return NULL;
	memcpy(made->name, name, strlen(name));
	made->quota = quota_of(engine, name);
	kv_list_push_back(&engine->tenants, &made->link);
	return made;
}

static void account_drop(struct kvs_engine *engine, struct kvs_tenant *account)
{
	if (account->roots > 0) return;
	kv_list_remove(&account->link);
	kv_free(engine->allocator, account);
}

enum kv_status kvs_root_hold(struct kvs_engine *engine, const struct kvs_peer_request *request,
    const char *tenant, struct kvs_root **root)
{
	const char *whose = engine->options.separate_tenants ? tenant : "";
	struct kvs_model *model, *fresh = NULL;
	struct kvs_tenant *account;
	struct kvs_root *found;
	struct kv_list *node;

	KV_TRY(kvw_model_layout_check(&request->layout));
	KV_TRY(find_model(engine, request, whose, &model));
	KV_LIST_EACH(node, &engine->roots)
	{
		found = root_of(node);
		if (found->model != model || strcmp(found->tenant, tenant) != 0) continue;
		found->references++;
		*root = found;
		return KV_OK;
	}
	account = account_of(engine, tenant);
	if (!account) return KV_NO_MEMORY;
	found = kv_alloc_zero(engine->allocator, sizeof *found);
	if (!found) {
		account_drop(engine, account);
		return KV_NO_MEMORY;
	}
	if (!model) {
		model = fresh = kv_alloc_zero(engine->allocator, sizeof *fresh);
		if (!fresh) {
			kv_free(engine->allocator, found);
			account_drop(engine, account);
			return KV_NO_MEMORY;
		}
		fill_model(fresh, request, whose);
		kv_list_push_back(&engine->models, &fresh->link);
		engine->model_count++;
	}
	model->roots++;
	account->roots++;
	found->account = account;
	found->model = model;
	found->references = 1;
	memcpy(found->tenant, tenant, strlen(tenant));
	kv_list_init(&found->children);
	kv_list_push_back(&engine->roots, &found->link);
	*root = found;
	return KV_OK;
}

void kvs_root_drop(struct kvs_engine *engine, struct kvs_root *root)
{
	struct kvs_model *model;

	if (--root->references > 0) return;
	model = root->model;
	kv_list_remove(&root->link);
	root->account->roots--;
	account_drop(engine, root->account);
	kv_free(engine->allocator, root);
	if (--model->roots > 0) return;
	kv_list_remove(&model->link);
	kv_free(engine->allocator, model);
	engine->model_count--;
}
