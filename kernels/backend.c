#include "kernels/backend.h"

#include <string.h>

#include "kernels/plugin.h"

/* A table with a hole would fail in the middle of a request: refuse it at the start. */
enum kv_status kn_backend_check_table(const struct kn_backend_ops *ops)
{
	if (ops->abi != KN_BACKEND_ABI)
		return kv_fail(KV_UNSUPPORTED,
		    "backend %s has interface %u, this program needs %d: rebuild it",
		    ops->name ? ops->name : "?", ops->abi, KN_BACKEND_ABI);
	int whole = ops->kv_types && ops->name && ops->open && ops->close && ops->describe &&
	            ops->buffer_create && ops->buffer_destroy && ops->memory_register &&
	            ops->memory_unregister && ops->upload && ops->download && ops->fill &&
	            ops->stream_create && ops->stream_destroy && ops->stream_order &&
	            ops->stream_wait && ops->step_begin && ops->step_end && ops->weight_pack &&
	            ops->weight_destroy && ops->weight_bytes && ops->memory_use &&
	            ops->scratch_bytes && ops->stream_reserve;
#define CHECK_OP(op, arguments) whole = whole && ops->op;
	KN_BACKEND_OPS(CHECK_OP)
#undef CHECK_OP
	if (!whole)
		return kv_fail(
		    KV_INTERNAL, "backend %s lacks an operation: rebuild it", ops->name ? ops->name : "?");
	return KV_OK;
}

static enum kv_status open_with(const struct kn_backend_ops *table,
    const struct kn_backend_options *options, const struct kn_backend_ops **ops,
    struct kn_backend **backend)
{
	KV_TRY(table->open(options, backend));
	*ops = table;
	return KV_OK;
}

static enum kv_status open_cuda(const struct kn_backend_options *options,
    const struct kn_backend_ops **ops, struct kn_backend **backend)
{
	const struct kn_backend_entry *entry;

	KV_TRY(kn_plugin_open("cuda", options->plugin_folder, &entry));
	return open_with(entry->ops, options, ops, backend);
}

enum kv_status kn_backend_open(const char *name, const struct kn_backend_options *options,
    const struct kn_backend_ops **ops, struct kn_backend **backend)
{
	if (!name || !options || !options->allocator)
		return kv_fail(KV_INVALID, "a backend needs a name and an allocator");
	int any = strcmp(name, "auto") == 0;

	if (!any && strcmp(name, "cuda") != 0 && strcmp(name, "cpu") != 0)
		return kv_fail(KV_INVALID, "backend \"%s\" is unknown: use auto, cpu or cuda", name);
	KV_TRY(kn_backend_check_table(&kn_cpu_ops));
	if (strcmp(name, "cpu") == 0) return open_with(&kn_cpu_ops, options, ops, backend);
	enum kv_status status = open_cuda(options, ops, backend);

	if (status == KV_OK || status == KV_INVALID) return status;
	if (!any) return kv_fail_prefix(KV_UNSUPPORTED, "backend cuda");
	/* A machine without a plug-in is as it should be; one with it has something to tell. */
	kv_log(status == KV_NOT_FOUND ? KV_LOG_INFO : KV_LOG_WARNING, "kernels",
	    "no CUDA device, using the CPU: %s", kv_error_message());
	return open_with(&kn_cpu_ops, options, ops, backend);
}
