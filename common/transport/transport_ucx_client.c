#include "common/transport/transport_ucx.h"

#include "common/base/clock.h"
#include "common/transport/pages.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	LANES_SIZE = 96,
	SPIN_NS =
	    20 * 1000,   /* before sleeping: an answer over shared memory takes a few microseconds */
	SLEEP_MS = 10,   /* one sleep, so that a lost wakeup costs no more */
	CANCEL_MS = 1000 /* for what is in flight to be cancelled by a forced close: it takes 1 ms */
};

struct kv_transport_client {
	struct kv_allocator *allocator;
	struct kv_ucx_endpoint_set ucx;
	ucp_ep_h endpoint; /* NULL once closed */
	struct kv_remote *remotes;
	uint64_t in_flight;   /* operations whose callback has not come */
	bool must_flush;      /* puts were started since the last wait */
	bool no_direct;       /* CLUSTERKV_UCX_NO_DIRECT: as if the store were on another host */
	ucs_status_t failure; /* the first since the last wait */
	ucs_status_t broken;  /* the endpoint's; final */
	char lanes[LANES_SIZE];
};

struct kv_remote {
	struct kv_remote *next;
	ucp_rkey_h key;
	uint64_t base, bytes; /* in the store's address space */
	uint8_t *pointer;     /* where it is mapped here, or NULL */
};

static void note_failure(struct kv_transport_client *client, ucs_status_t status)
{
	if (client->failure == UCS_OK) client->failure = status;
}

static void on_endpoint_error(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
	struct kv_transport_client *client = argument;

	(void)endpoint;
	if (client->broken == UCS_OK) client->broken = status;
}

static void on_complete(void *request, ucs_status_t status, void *argument)
{
	struct kv_transport_client *client = argument;

	kv_ucx.ucp_request_free(request);
	client->in_flight--;
	if (status != UCS_OK) note_failure(client, status);
}

/* Count an operation that was just started. */
static ucs_status_t account(struct kv_transport_client *client, ucs_status_ptr_t request)
{
	if (UCS_PTR_IS_ERR(request)) {
		note_failure(client, UCS_PTR_STATUS(request));
		return UCS_PTR_STATUS(request);
	}
	if (request) client->in_flight++;
	return UCS_OK;
}

static ucp_request_param_t request_parameters(struct kv_transport_client *client)
{
	ucp_request_param_t parameters;

	memset(&parameters, 0, sizeof parameters);
	parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
	parameters.cb.send = on_complete;
	parameters.user_data = client;
	return parameters;
}

/* Sleep until the worker has something, but not past `until_ms`. */
static void sleep_for_work(struct kv_transport_client *client, uint64_t until_ms)
{
	struct pollfd event = {.fd = client->ucx.event, .events = POLLIN};
	uint64_t now = kv_now_ms();
	int pause = SLEEP_MS;

	if (now >= until_ms) return;
	if (until_ms - now < (uint64_t)pause) pause = (int)(until_ms - now);
	if (kv_ucx.ucp_worker_arm(client->ucx.worker) != UCS_OK) return; /* busy: progress again */
	(void)poll(&event, 1, pause);
}

/* Progress until nothing is in flight; false when the time is up first. */
static bool drain(struct kv_transport_client *client, uint64_t until_ms)
{
	uint64_t idle_since = kv_now_ns();

	while (client->in_flight > 0) {
		if (kv_ucx.ucp_worker_progress(client->ucx.worker) > 0) {
			idle_since = kv_now_ns();
			continue;
		}
		if (kv_now_ms() >= until_ms) return false;
		if (kv_now_ns() - idle_since < SPIN_NS) continue;
		sleep_for_work(client, until_ms);
	}
	return true;
}

/* Close without a handshake. Everything in flight completes as cancelled, so that nothing is
 * written to anybody's buffers afterwards. */
static void force_close(struct kv_transport_client *client)
{
	uint64_t until = kv_now_ms() + CANCEL_MS;
	ucp_request_param_t parameters;
	ucs_status_ptr_t request;

	if (!client->endpoint) return;
	memset(&parameters, 0, sizeof parameters);
	parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
	parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
	request = kv_ucx.ucp_ep_close_nbx(client->endpoint, &parameters);
	client->endpoint = NULL;
	if (client->broken == UCS_OK) client->broken = UCS_ERR_CANCELED;
	(void)drain(client, until);
	if (!UCS_PTR_IS_PTR(request)) return;
	while (kv_ucx.ucp_request_check_status(request) == UCS_INPROGRESS && kv_now_ms() < until)
		(void)kv_ucx.ucp_worker_progress(client->ucx.worker);
	kv_ucx.ucp_request_free(request);
}

static enum kv_status connect_endpoint(
    struct kv_transport_client *client, const struct kv_transport_blob *address)
{
	ucp_ep_params_t parameters;
	ucs_status_t result;

	memset(&parameters, 0, sizeof parameters);
	parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
	                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
	parameters.address = (const ucp_address_t *)(const void *)address->bytes;
	parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
	parameters.err_handler.cb = on_endpoint_error;
	parameters.err_handler.arg = client;
	result = kv_ucx.ucp_ep_create(client->ucx.worker, &parameters, &client->endpoint);
	if (result == UCS_OK) return KV_OK;
	client->endpoint = NULL;
	return kv_fail(KV_REFUSED,
	    "UCX cannot reach the store (%s): both must run on one host as one user; else use "
	    "--transport=map",
	    kv_ucx.ucs_status_string(result));
}

/* Which of UCX's transports carry data, out of the text that it prints about an endpoint: lines
 * "lane[0]: 2:posix/memory.0 md[1] -> …". */
static void find_lanes(struct kv_transport_client *client)
{
	char *text = NULL, *at;
	size_t length = 0;
	FILE *stream = open_memstream(&text, &length);

	client->lanes[0] = '\0';
	if (!stream) return;
	kv_ucx.ucp_ep_print_info(client->endpoint, stream);
	fclose(stream);
	for (at = text; at && (at = strstr(at, "lane[")) != NULL;) {
		char name[32];
		size_t used = strlen(client->lanes);

		at += strlen("lane[");
		if (sscanf(at, "%*d]: %*d:%31[^/ \n]", name) != 1 || strstr(client->lanes, name)) continue;
		snprintf(client->lanes + used, sizeof client->lanes - used, "%s%s", used ? "," : "", name);
	}
	free(text); /* open_memstream's own */
}

enum kv_status kv_ucx_client_create(struct kv_allocator *allocator,
    const struct kv_transport_blob *address, struct kv_transport_client **client)
{
	struct kv_transport_client *created;
	const char *no_direct;
	enum kv_status status;

	if (address->length == 0 || address->length > sizeof address->bytes)
		return kv_fail(KV_PROTOCOL, "the store told an address of %u bytes", address->length);
	created = kv_alloc_zero(allocator, sizeof *created);
	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	KV_TRY_GOTO(status, kv_ucx_open(&created->ucx), free_client);
	no_direct = getenv("CLUSTERKV_UCX_NO_DIRECT");
	created->no_direct = no_direct && strcmp(no_direct, "1") == 0;
	KV_TRY_GOTO(status, connect_endpoint(created, address), close_ucx);
	find_lanes(created);
	*client = created;
	return KV_OK;

close_ucx:
	kv_ucx_close(&created->ucx);
free_client:
	kv_free(allocator, created);
	return status;
}

void kv_ucx_client_destroy(struct kv_transport_client *client)
{
	if (!client) return;
	force_close(client);
	while (client->remotes)
		kv_ucx_region_detach(client, client->remotes);
	kv_ucx_close(&client->ucx);
	kv_free(client->allocator, client);
}

void kv_ucx_region_detach(struct kv_transport_client *client, struct kv_remote *remote)
{
	struct kv_remote **at = &client->remotes;

	if (!remote) return;
	while (*at && *at != remote)
		at = &(*at)->next;
	if (*at) *at = remote->next;
	kv_ucx.ucp_rkey_destroy(remote->key);
	kv_free(client->allocator, remote);
}

static enum kv_status check_connected(struct kv_transport_client *client)
{
	if (client->endpoint && client->broken == UCS_OK) return KV_OK;
	return kv_fail(KV_DISCONNECTED, "the connection to the store's memory is gone: %s",
	    kv_ucx.ucs_status_string(client->broken));
}

/* Read the blob's head and find its key; the store is trusted by whoever uses UCX, its bytes'
 * lengths are checked all the same. */
static enum kv_status read_blob(const struct kv_transport_blob *blob, uint64_t bytes,
    struct kv_ucx_region_blob *head, const uint8_t **key)
{
	if (blob->length < sizeof *head || blob->length > sizeof blob->bytes)
		return kv_fail(KV_PROTOCOL, "a region's blob has %u bytes", blob->length);
	memcpy(head, blob->bytes, sizeof *head);
	if (head->key_bytes == 0 || head->key_bytes != blob->length - sizeof *head || head->base == 0 ||
	    head->bytes < bytes || head->bytes - 1 > UINT64_MAX - head->base)
		return kv_fail(KV_PROTOCOL, "a region's blob contradicts itself");
	*key = blob->bytes + sizeof *head;
	return KV_OK;
}

/* Map the region where shared memory allows it and fault it in now. */
static void find_pointer(struct kv_transport_client *client, struct kv_remote *remote)
{
	void *pointer = NULL;

	if (client->no_direct) return;
	if (kv_ucx.ucp_rkey_ptr(remote->key, remote->base, &pointer) != UCS_OK) return;
	remote->pointer = pointer;
	(void)kv_pages_populate(pointer, (size_t)remote->bytes, 0);
}

static void note_access(struct kv_transport_client *client, const char *how)
{
	size_t used = strlen(client->lanes);

	if (strstr(client->lanes, how)) return;
	snprintf(client->lanes + used, sizeof client->lanes - used, " %s", how);
}

static enum kv_status unpack_key(struct kv_transport_client *client,
    const struct kv_ucx_region_blob *head, const uint8_t *key, ucp_rkey_h *unpacked)
{
	uint8_t copy[KV_TRANSPORT_MAX_BLOB];
	ucs_status_t result;
	int held = -1;

	memcpy(copy, key, head->key_bytes);
	/* Over other lanes the key's part for shared memory is not looked at. */
	if (strstr(client->lanes, "posix")) KV_TRY(kv_ucx_key_hold(head, copy, &held));
	result = kv_ucx.ucp_ep_rkey_unpack(client->endpoint, copy, unpacked);
	if (held >= 0) close(held);
	if (result == UCS_OK) return KV_OK;
	return kv_fail(KV_REFUSED,
	    "UCX cannot attach the store's memory (%s): both must run as one user; else use "
	    "--transport=map",
	    kv_ucx.ucs_status_string(result));
}

enum kv_status kv_ucx_region_attach(struct kv_transport_client *client,
    const struct kv_transport_blob *blob, int descriptor, uint64_t bytes, struct kv_remote **remote)
{
	struct kv_ucx_region_blob head = {0};
	const uint8_t *key = NULL;
	struct kv_remote *created;
	enum kv_status status;

	if (descriptor >= 0) close(descriptor); /* none is expected */
	KV_TRY(check_connected(client));
	KV_TRY(read_blob(blob, bytes, &head, &key));
	created = kv_alloc_zero(client->allocator, sizeof *created);
	if (!created) return KV_NO_MEMORY;
	status = unpack_key(client, &head, key, &created->key);
	if (status != KV_OK) {
		kv_free(client->allocator, created);
		return status;
	}
	created->base = head.base;
	created->bytes = bytes;
	find_pointer(client, created);
	note_access(client, created->pointer ? "rkey_ptr" : "get");
	created->next = client->remotes;
	client->remotes = created;
	*remote = created;
	return KV_OK;
}

static bool in_bounds(const struct kv_remote *remote, uint64_t offset, uint64_t bytes)
{
	return offset <= remote->bytes && bytes <= remote->bytes - offset;
}

const uint8_t *kv_ucx_direct_read(struct kv_remote *remote, uint64_t offset, uint64_t bytes)
{
	return kv_ucx_direct_write(remote, offset, bytes);
}

uint8_t *kv_ucx_direct_write(struct kv_remote *remote, uint64_t offset, uint64_t bytes)
{
	if (!remote->pointer || !in_bounds(remote, offset, bytes)) return NULL;
	return remote->pointer + offset;
}

static enum kv_status check_transfers(const struct kv_transfer *transfers, uint32_t count)
{
	uint32_t i;

	for (i = 0; i < count; i++) {
		const struct kv_transfer *transfer = &transfers[i];

		if (in_bounds(transfer->remote, transfer->offset, transfer->bytes)) continue;
		return kv_fail(KV_INVALID, "a transfer of %llu bytes at %llu leaves a region of %llu",
		    (unsigned long long)transfer->bytes, (unsigned long long)transfer->offset,
		    (unsigned long long)transfer->remote->bytes);
	}
	return KV_OK;
}

enum kv_status kv_ucx_get(
    struct kv_transport_client *client, const struct kv_transfer *transfers, uint32_t count)
{
	ucp_request_param_t parameters = request_parameters(client);
	uint32_t i;

	KV_TRY(check_connected(client));
	KV_TRY(check_transfers(transfers, count));
	for (i = 0; i < count; i++) {
		const struct kv_transfer *transfer = &transfers[i];
		struct kv_remote *remote = transfer->remote;

		if (transfer->bytes == 0) continue;
		if (remote->pointer) {
			memcpy(transfer->local, remote->pointer + transfer->offset, (size_t)transfer->bytes);
		} else if (account(client, kv_ucx.ucp_get_nbx(client->endpoint, transfer->local,
		                               (size_t)transfer->bytes, remote->base + transfer->offset,
		                               remote->key, &parameters)) != UCS_OK) {
			break; /* wait reports it, and waits for what was started before */
		}
	}
	return KV_OK;
}

enum kv_status kv_ucx_put(
    struct kv_transport_client *client, const struct kv_transfer *transfers, uint32_t count)
{
	ucp_request_param_t parameters = request_parameters(client);
	uint32_t i;

	KV_TRY(check_connected(client));
	KV_TRY(check_transfers(transfers, count));
	for (i = 0; i < count; i++) {
		const struct kv_transfer *transfer = &transfers[i];
		struct kv_remote *remote = transfer->remote;

		if (transfer->bytes == 0) continue;
		if (remote->pointer) {
			memcpy(remote->pointer + transfer->offset, transfer->local, (size_t)transfer->bytes);
			continue;
		}
		client->must_flush = true;
		if (account(client,
		        kv_ucx.ucp_put_nbx(client->endpoint, transfer->local, (size_t)transfer->bytes,
		            remote->base + transfer->offset, remote->key, &parameters)) != UCS_OK)
			break;
	}
	return KV_OK;
}

enum kv_status kv_ucx_wait(struct kv_transport_client *client, uint32_t deadline_ms)
{
	uint64_t until = kv_now_ms() + deadline_ms;
	ucp_request_param_t parameters = request_parameters(client);
	ucs_status_t failure;
	bool drained;

	KV_TRY(check_connected(client));
	if (client->must_flush) {
		client->must_flush = false;
		(void)account(client, kv_ucx.ucp_ep_flush_nbx(client->endpoint, &parameters));
	}
	drained = drain(client, until);
	failure = client->failure;
	client->failure = UCS_OK;
	/* Puts are at the store before it is told of them; gets before lease words are loaded. */
	atomic_thread_fence(memory_order_seq_cst);
	if (drained && failure == UCS_OK && client->broken == UCS_OK) return KV_OK;
	if (client->broken != UCS_OK) failure = client->broken;
	force_close(client);
	client->failure = UCS_OK;
	if (!drained && failure == UCS_OK) {
		return kv_fail(KV_TIMEOUT,
		    "the store's memory did not answer within %u ms: is kvstored running?", deadline_ms);
	}
	return kv_fail(KV_DISCONNECTED, "a transfer with the store's memory failed: %s",
	    kv_ucx.ucs_status_string(failure));
}

const char *kv_ucx_lanes(struct kv_transport_client *client)
{
	return client->lanes;
}
