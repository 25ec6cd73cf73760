#include "kernels/backend.h"

#include <string.h>

#include "common/base/log.h"

/* A table with a hole would fail in the middle of a request: refuse it at the start. */
static enum kv_status check_table(const struct kn_backend_ops *ops)
{
	if (ops->abi != KN_BACKEND_ABI)
		return kv_fail(KV_UNSUPPORTED,
		    "backend %s has interface %u, this program needs %d: rebuild it",
		    ops->name ? ops->name : "?", ops->abi, KN_BACKEND_ABI);
	int whole = ops->name && ops->open && ops->close && ops->describe && ops->buffer_create &&
	            ops->buffer_destroy && ops->memory_register && ops->memory_unregister &&
	            ops->upload && ops->download && ops->fill && ops->stream_create &&
	            ops->stream_destroy && ops->stream_wait && ops->weight_pack &&
	            ops->weight_destroy && ops->weight_bytes;
#define CHECK_OP(op, arguments) whole = whole && ops->op;
	KN_BACKEND_OPS(CHECK_OP)
#undef CHECK_OP
	if (!whole)
		return kv_fail(
		    KV_INTERNAL, "backend %s lacks an operation: rebuild it", ops->name ? ops->name : "?");
	return KV_OK;
}

enum kv_status kn_backend_open(const char *name, const struct kn_backend_options *options,
    const struct kn_backend_ops **ops, struct kn_backend **backend)
{
	if (!name || !options || !options->allocator)
		return kv_fail(KV_INVALID, "a backend needs a name and an allocator");
	if (strcmp(name, "cuda") == 0)
		return kv_fail(KV_UNSUPPORTED,
		    "backend cuda: this build has no CUDA backend; use --backend=cpu or a build with it");
	if (strcmp(name, "auto") == 0)
		kv_info("kernels", "no CUDA backend in this build, using cpu");
	else if (strcmp(name, "cpu") != 0)
		return kv_fail(KV_INVALID, "backend \"%s\" is unknown: use auto, cpu or cuda", name);
	KV_TRY(check_table(&kn_cpu_ops));
	KV_TRY(kn_cpu_ops.open(options, backend));
	*ops = &kn_cpu_ops;
	return KV_OK;
}
