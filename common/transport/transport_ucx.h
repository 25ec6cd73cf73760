/* What the two halves of the UCX transport share. For transport_ucx*.c only.
 *
 * UCX is opened when it is first used and never closed. Linked in the ordinary way it would, before
 * main runs and whatever transport is used, take over SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGHUP
 * and patch mmap and brk of the C library; both can be switched off only by its environment
 * variables, which it reads when it is loaded.
 */
#ifndef KV_COMMON_TRANSPORT_TRANSPORT_UCX_H
#define KV_COMMON_TRANSPORT_TRANSPORT_UCX_H

#include <stdbool.h>

#include <ucp/api/ucp.h>

#include "common/transport/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(result type, name, arguments): the functions of libucp that are used. */
#define KV_UCX_FUNCTIONS(X)                                                                        \
	X(ucs_status_t, ucp_config_read, (const char *, const char *, ucp_config_t **))                \
	X(ucs_status_t, ucp_config_modify, (ucp_config_t *, const char *, const char *))               \
	X(void, ucp_config_release, (ucp_config_t *))                                                  \
	X(ucs_status_t, ucp_init_version,                                                              \
	    (unsigned, unsigned, const ucp_params_t *, const ucp_config_t *, ucp_context_h *))         \
	X(void, ucp_cleanup, (ucp_context_h))                                                          \
	X(ucs_status_t, ucp_worker_create,                                                             \
	    (ucp_context_h, const ucp_worker_params_t *, ucp_worker_h *))                              \
	X(void, ucp_worker_destroy, (ucp_worker_h))                                                    \
	X(ucs_status_t, ucp_worker_get_address, (ucp_worker_h, ucp_address_t **, size_t *))            \
	X(void, ucp_worker_release_address, (ucp_worker_h, ucp_address_t *))                           \
	X(ucs_status_t, ucp_worker_get_efd, (ucp_worker_h, int *))                                     \
	X(ucs_status_t, ucp_worker_arm, (ucp_worker_h))                                                \
	X(unsigned, ucp_worker_progress, (ucp_worker_h))                                               \
	X(ucs_status_t, ucp_mem_map, (ucp_context_h, const ucp_mem_map_params_t *, ucp_mem_h *))       \
	X(ucs_status_t, ucp_mem_unmap, (ucp_context_h, ucp_mem_h))                                     \
	X(ucs_status_t, ucp_mem_query, (const ucp_mem_h, ucp_mem_attr_t *))                            \
	X(ucs_status_t, ucp_rkey_pack, (ucp_context_h, ucp_mem_h, void **, size_t *))                  \
	X(void, ucp_rkey_buffer_release, (void *))                                                     \
	X(ucs_status_t, ucp_ep_create, (ucp_worker_h, const ucp_ep_params_t *, ucp_ep_h *))            \
	X(ucs_status_ptr_t, ucp_ep_close_nbx, (ucp_ep_h, const ucp_request_param_t *))                 \
	X(ucs_status_ptr_t, ucp_ep_flush_nbx, (ucp_ep_h, const ucp_request_param_t *))                 \
	X(void, ucp_ep_print_info, (ucp_ep_h, FILE *))                                                 \
	X(ucs_status_t, ucp_ep_rkey_unpack, (ucp_ep_h, const void *, ucp_rkey_h *))                    \
	X(void, ucp_rkey_destroy, (ucp_rkey_h))                                                        \
	X(ucs_status_t, ucp_rkey_ptr, (ucp_rkey_h, uint64_t, void **))                                 \
	X(ucs_status_ptr_t, ucp_get_nbx,                                                               \
	    (ucp_ep_h, void *, size_t, uint64_t, ucp_rkey_h, const ucp_request_param_t *))             \
	X(ucs_status_ptr_t, ucp_put_nbx,                                                               \
	    (ucp_ep_h, const void *, size_t, uint64_t, ucp_rkey_h, const ucp_request_param_t *))       \
	X(ucs_status_ptr_t, ucp_am_send_nbx,                                                           \
	    (ucp_ep_h, unsigned, const void *, size_t, const void *, size_t,                           \
	        const ucp_request_param_t *))                                                          \
	X(ucs_status_t, ucp_worker_set_am_recv_handler,                                                \
	    (ucp_worker_h, const ucp_am_handler_param_t *))                                            \
	X(ucs_status_t, ucp_request_check_status, (void *))                                            \
	X(void, ucp_request_free, (void *))                                                            \
	X(const char *, ucs_status_string, (ucs_status_t))

struct kv_ucx_functions {
#define KV_UCX_MEMBER(type, name, arguments) type(*name) arguments;
	KV_UCX_FUNCTIONS(KV_UCX_MEMBER)
#undef KV_UCX_MEMBER
};

/* Filled by kv_ucx_load. */
extern struct kv_ucx_functions kv_ucx;

/* Open the library once. KV_UNSUPPORTED when it is not installed or lacks a function. Any thread.
 */
enum kv_status kv_ucx_load(void);

struct kv_ucx_endpoint_set {
	ucp_context_h context;
	ucp_worker_h worker;
	int event; /* becomes readable when the worker has work */
};

/* A context and a worker for one thread, set up as both halves need it. */
enum kv_status kv_ucx_open(struct kv_ucx_endpoint_set *set);
/* The same for messages over one network device, as UCX names it, and over nothing else, whatever
 * the environment says. */
enum kv_status kv_ucx_open_device(struct kv_ucx_endpoint_set *set, const char *device, bool rdma);
void kv_ucx_close(struct kv_ucx_endpoint_set *set);

/* What region_export puts in a blob, followed by the packed remote key. */
struct kv_ucx_region_blob {
	uint64_t base, bytes;
	uint32_t key_bytes, reserved;
};

/* Make sure that what the key names can be opened while it is unpacked: the key is changed in
 * place, *descriptor is to be closed afterwards (-1: there is nothing to hold). KV_DISCONNECTED
 * when the memory is not there any more, KV_REFUSED when it is another user's. */
enum kv_status kv_ucx_key_hold(
    const struct kv_ucx_region_blob *head, uint8_t *key, int *descriptor);

/* The client's half, in transport_ucx_client.c. */
enum kv_status kv_ucx_client_create(struct kv_allocator *allocator,
    const struct kv_transport_blob *address, struct kv_transport_client **client);
void kv_ucx_client_destroy(struct kv_transport_client *client);
enum kv_status kv_ucx_region_attach(struct kv_transport_client *client,
    const struct kv_transport_blob *blob, int descriptor, uint64_t bytes,
    struct kv_remote **remote);
void kv_ucx_region_detach(struct kv_transport_client *client, struct kv_remote *remote);
const uint8_t *kv_ucx_direct_read(struct kv_remote *remote, uint64_t offset, uint64_t bytes);
uint8_t *kv_ucx_direct_write(struct kv_remote *remote, uint64_t offset, uint64_t bytes);
enum kv_status kv_ucx_get(
    struct kv_transport_client *client, const struct kv_transfer *transfers, uint32_t count);
enum kv_status kv_ucx_put(
    struct kv_transport_client *client, const struct kv_transfer *transfers, uint32_t count);
enum kv_status kv_ucx_wait(struct kv_transport_client *client, uint32_t deadline_ms);
const char *kv_ucx_lanes(struct kv_transport_client *client);

#ifdef __cplusplus
}
#endif
#endif
