#include "common/transport/transport_ucx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv_ucx_functions kv_ucx;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char load_error[256]; /* "" once the library is there */

void kv_transport_prepare(void)
{
	/* Ours unless the environment says otherwise. Log lines must not mix with what is printed on
	 * standard output, which is UCX's own choice. */
	static const struct {
		const char *name, *value;
	} settings[] = {
	    {"UCX_HANDLE_ERRORS", "none"}, /* no signal handlers */
	    {"UCX_DEBUG_SIGNO", "0"},      /* SIGHUP is ours */
	    {"UCX_MEM_EVENTS", "no"},      /* no patching of the C library */
	    {"UCX_VFS_ENABLE", "n"},
	    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
	    {"UCX_LOG_LEVEL", "fatal"}, /* every failure comes back as a status */
	    {"UCX_LOG_FILE", "stderr"},
	};
	size_t i;

	for (i = 0; i < sizeof settings / sizeof settings[0]; i++)
		setenv(settings[i].name, settings[i].value, 0);
}

static void load(void)
{
	void *library, *symbol;

	kv_transport_prepare();
	library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(load_error, sizeof load_error, "%s", dlerror());
		return;
	}
#define KV_UCX_FIND(type, name, arguments)                                                         \
	symbol = dlsym(library, #name);                                                                \
	if (!symbol) {                                                                                 \
		snprintf(load_error, sizeof load_error, "libucp.so.0 has no %s", #name);                   \
		return;                                                                                    \
	}                                                                                              \
	memcpy(&kv_ucx.name, &symbol, sizeof symbol);
	KV_UCX_FUNCTIONS(KV_UCX_FIND)
#undef KV_UCX_FIND
}

enum kv_status kv_ucx_load(void)
{
	pthread_once(&once, load);
	if (load_error[0] == '\0') return KV_OK;
	return kv_fail(KV_UNSUPPORTED,
	    "UCX cannot be used (%s): install libucx0, or use --transport=map", load_error);
}

struct setting {
	const char *name, *value;
	const char *environment; /* a variable that has precedence, or NULL */
};

static enum kv_status set_options(
    ucp_config_t *config, const struct setting *settings, size_t count)
{
	ucs_status_t result;
	size_t i;

	for (i = 0; i < count; i++) {
		if (settings[i].environment && getenv(settings[i].environment)) continue;
		result = kv_ucx.ucp_config_modify(config, settings[i].name, settings[i].value);
		if (result != UCS_OK) {
			return kv_fail(KV_UNSUPPORTED, "UCX refuses %s=%s: %s", settings[i].name,
			    settings[i].value, kv_ucx.ucs_status_string(result));
		}
	}
	return KV_OK;
}

static enum kv_status open_context(
    const struct setting *settings, size_t count, uint64_t features, ucp_context_h *context)
{
	ucp_params_t parameters;
	enum kv_status status;
	ucp_config_t *config;
	ucs_status_t result;

	result = kv_ucx.ucp_config_read(NULL, NULL, &config);
	if (result != UCS_OK) {
		return kv_fail(KV_UNSUPPORTED, "UCX cannot read its configuration: %s",
		    kv_ucx.ucs_status_string(result));
	}
	status = set_options(config, settings, count);
	if (status == KV_OK) {
		memset(&parameters, 0, sizeof parameters);
		parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
		parameters.features = features | UCP_FEATURE_WAKEUP;
		result =
		    kv_ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, context);
		if (result != UCS_OK) {
			status = kv_fail(
			    KV_UNSUPPORTED, "UCX cannot be initialised: %s", kv_ucx.ucs_status_string(result));
		}
	}
	kv_ucx.ucp_config_release(config);
	return status;
}

static enum kv_status open_worker(struct kv_ucx_endpoint_set *set)
{
	ucp_worker_params_t parameters;
	ucs_status_t result;

	memset(&parameters, 0, sizeof parameters);
	parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
	parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
	result = kv_ucx.ucp_worker_create(set->context, &parameters, &set->worker);
	if (result != UCS_OK) {
		kv_ucx.ucp_cleanup(set->context);
		return kv_fail(
		    KV_UNSUPPORTED, "UCX cannot make a worker: %s", kv_ucx.ucs_status_string(result));
	}
	result = kv_ucx.ucp_worker_get_efd(set->worker, &set->event);
	if (result == UCS_OK) return KV_OK;
	kv_ucx_close(set);
	return kv_fail(
	    KV_UNSUPPORTED, "UCX gives no descriptor to wait on: %s", kv_ucx.ucs_status_string(result));
}

enum kv_status kv_ucx_open(struct kv_ucx_endpoint_set *set)
{
	/* Only shared memory between processes of one host, unless the environment says otherwise: with
	 * TCP, UCX listens on every interface, and whoever connects can write to this process's memory.
	 * MM_ERROR_HANDLING: without it, endpoints that report errors leave the shared-memory lanes.
	 * ALLOC_PRIO: memory that others reach without this process's help, or an honest error. */
	static const struct setting settings[] = {
	    {"TLS", "posix,self", "UCX_TLS"},
	    {"MM_ERROR_HANDLING", "y", "UCX_MM_ERROR_HANDLING"},
	    {"ALLOC_PRIO", "md:posix", "UCX_ALLOC_PRIO"},
	    {"KEEPALIVE_INTERVAL", "1s", "UCX_KEEPALIVE_INTERVAL"},
	};
	struct kv_ucx_endpoint_set opened;

	KV_TRY(kv_ucx_load());
	KV_TRY(open_context(
	    settings, sizeof settings / sizeof settings[0], UCP_FEATURE_RMA, &opened.context));
	KV_TRY(open_worker(&opened));
	*set = opened;
	return KV_OK;
}

enum kv_status kv_ucx_open_device(struct kv_ucx_endpoint_set *set, const char *device, bool rdma)
{
	/* Messages without a rendezvous: the receiver then has nothing to send. */
	const struct setting settings[] = {
	    {"TLS", rdma ? "rc" : "tcp", NULL},
	    {"NET_DEVICES", device, NULL},
	    {"RNDV_THRESH", "inf", NULL},
	    {"KEEPALIVE_INTERVAL", "1s", NULL},
	};
	struct kv_ucx_endpoint_set opened;

	KV_TRY(kv_ucx_load());
	KV_TRY(open_context(
	    settings, sizeof settings / sizeof settings[0], UCP_FEATURE_AM, &opened.context));
	KV_TRY(open_worker(&opened));
	*set = opened;
	return KV_OK;
}

void kv_ucx_close(struct kv_ucx_endpoint_set *set)
{
	kv_ucx.ucp_worker_destroy(set->worker);
	kv_ucx.ucp_cleanup(set->context);
}
