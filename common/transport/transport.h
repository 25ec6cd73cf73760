/* How arena memory is made by the store and reached by a worker.
 *
 * Two halves behind one table: the store makes regions and exports them; a client attaches an
 * exported region and reads (and, where the transport lets it, writes) it. `direct` gives a pointer
 * where memory is shared; `get`/`put` are asynchronous batches whose completion is reported exactly
 * once, by wait, which has a deadline. Nothing here checks leases or generations: that is the store
 * client's.
 */
#ifndef KV_TRANSPORT_H
#define KV_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KV_TRANSPORT_MAX_BLOB = 4096 };

struct kv_transport_server;
struct kv_transport_client;
struct kv_region; /* the store's */
struct kv_remote; /* a client's view of a region */

struct kv_transport_blob {
	uint8_t bytes[KV_TRANSPORT_MAX_BLOB];
	uint32_t length;
};

struct kv_transfer {
	struct kv_remote *remote;
	uint64_t offset, bytes;
	void *local; /* destination of a get, source of a put */
};

struct kv_transport_ops {
	const char *name; /* "ucx", "map", "faulty" */

	/* ---- the store's half ---- */
	enum kv_status (*server_create)(
	    struct kv_allocator *allocator, struct kv_transport_server **server);
	void (*server_destroy)(struct kv_transport_server *server);
	/* What a client needs to connect. */
	enum kv_status (*server_address)(
	    struct kv_transport_server *server, struct kv_transport_blob *blob);
	/* Memory of a new region, zeroed; KV_LIMIT with what was asked and what is there when the
	 * machine has no room (/dev/shm, MemAvailable, cgroup), checked before anything is touched. */
	enum kv_status (*region_create)(struct kv_transport_server *server, uint64_t bytes,
	    struct kv_region **region, uint8_t **base);
	void (*region_destroy)(struct kv_transport_server *server, struct kv_region *region);
	/* What a client needs to attach: a blob, and a descriptor to pass or -1 (stays the region's).
	 */
	enum kv_status (*region_export)(struct kv_transport_server *server, struct kv_region *region,
	    struct kv_transport_blob *blob, int *descriptor);
	/* Event loop: a descriptor that becomes readable when there is work (-1: none); progress until
	 * it returns 0; arm returns 1 when the loop must not sleep yet. */
	int (*server_descriptor)(struct kv_transport_server *server);
	unsigned (*server_progress)(struct kv_transport_server *server);
	int (*server_arm)(struct kv_transport_server *server);

	/* ---- the client's half: one thread ---- */
	enum kv_status (*client_create)(struct kv_allocator *allocator,
	    const struct kv_transport_blob *server_address, struct kv_transport_client **client);
	/* Everything in flight completes as cancelled; attached regions go with it. */
	void (*client_destroy)(struct kv_transport_client *client);
	/* Takes the descriptor (closes it when done), also on failure. */
	enum kv_status (*region_attach)(struct kv_transport_client *client,
	    const struct kv_transport_blob *blob, int descriptor, uint64_t bytes,
	    struct kv_remote **remote);
	/* Let go of a region, after its transfers have been waited for. Pointers into it end here. */
	void (*region_detach)(struct kv_transport_client *client, struct kv_remote *remote);
	const uint8_t *(*direct_read)(struct kv_remote *remote, uint64_t offset, uint64_t bytes);
	uint8_t *(*direct_write)(
	    struct kv_remote *remote, uint64_t offset, uint64_t bytes); /* or NULL */
	enum kv_status (*get)(
	    struct kv_transport_client *client, const struct kv_transfer *transfers, uint32_t count);
	enum kv_status (*put)(struct kv_transport_client *client, const struct kv_transfer *transfers,
	    uint32_t count); /* KV_UNSUPPORTED where clients cannot write (map) */
	/* All started transfers are complete (and puts are visible at the store), or KV_TIMEOUT,
	 * KV_DISCONNECTED; after a failure nothing that was in flight may be used. */
	enum kv_status (*wait)(struct kv_transport_client *client, uint32_t deadline_ms);
	/* The lanes in use, e.g. "posix rkey_ptr"; borrowed. */
	const char *(*lanes)(struct kv_transport_client *client);
};

extern const struct kv_transport_ops kv_transport_ucx;
extern const struct kv_transport_ops kv_transport_map;

/* Put what UCX must find in the environment there (variables that are set stay). The first use of
 * the ucx transport does it too; a program with threads calls this in main before it starts them,
 * because changing the environment beside threads that read it is not safe. Loads nothing. */
void kv_transport_prepare(void);

/* The transport of that name, NULL when there is none. */
const struct kv_transport_ops *kv_transport_find(const char *name);

/* Wrap another transport with faults by fault_point.h names: transport.get.fail,
 * transport.get.corrupt, transport.get.delay, transport.wait.timeout, transport.attach.fail,
 * transport.region.fail. Tests only. */
const struct kv_transport_ops *kv_transport_faulty(const struct kv_transport_ops *inner);

#ifdef __cplusplus
}
#endif
#endif
