/* The discrete test backend as a plug-in, named cuda: the same file name and the same way in as the
 * real one, for whole workers. */
#include "kernels/plugin_services.h"
#include "tests/lib/discrete_backend.h"

static enum kv_status probe(const struct kn_host_services *services)
{
	kn_plugin_services_set(services);
	return KV_OK;
}

__attribute__((visibility("default"))) extern const struct kn_backend_entry kn_backend_entry;
const struct kn_backend_entry kn_backend_entry = {
    .abi = KN_BACKEND_ABI,
    .entry_bytes = sizeof(struct kn_backend_entry),
    .name = "cuda",
    .probe = probe,
    .ops = &kvt_discrete_ops,
};
