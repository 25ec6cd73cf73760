/* Plug-ins that a program must not take, one for each BAD_… that this file is compiled with. */
#include "kernels/plugin_services.h"

#if defined(BAD_ENTRY)

int kn_nothing_of_the_kind;

#elif defined(BAD_LIBRARY)

/* A library that is not there, as cuBLAS may not be. */
extern int kvt_a_function_that_nobody_has(void);
extern int (*const kn_backend_entry)(void);
int (*const kn_backend_entry)(void) = kvt_a_function_that_nobody_has;

#else

static enum kv_status probe(const struct kn_host_services *services)
{
	kn_plugin_services_set(services);
#if defined(BAD_DEVICE)
	return kv_fail(KV_UNSUPPORTED, "no device: driver %d", 35);
#else
	return KV_OK;
#endif
}

#if defined(BAD_TABLE)
static const struct kn_backend_ops table = {.abi = KN_BACKEND_ABI, .name = "cuda"};
#else
#define table kn_cpu_ops
#endif

__attribute__((visibility("default"))) extern const struct kn_backend_entry kn_backend_entry;
const struct kn_backend_entry kn_backend_entry = {
#if defined(BAD_ABI)
    .abi = KN_BACKEND_ABI + 1,
#else
    .abi = KN_BACKEND_ABI,
#endif
    .entry_bytes = sizeof(struct kn_backend_entry),
#if defined(BAD_NAME)
    .name = "rocm",
#else
    .name = "cuda",
#endif
    .probe = probe,
    .ops = &table,
};

#endif
