#define _GNU_SOURCE /* memfd_create, seals */
#include "common/transport/transport_map.h"

#include "common/transport/machine_memory.h"
#include "common/transport/pages.h"
#include "common/transport/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

enum { TMPFS_TYPE = 0x01021994 };

static const int fixed_size_seals = F_SEAL_SHRINK | F_SEAL_GROW;
static const int store_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

struct kv_transport_server {
	struct kv_allocator *allocator;
};

struct kv_region {
	uint8_t *base;
	size_t bytes;
	int descriptor;
};

struct kv_transport_client {
	struct kv_allocator *allocator;
	struct kv_remote *remotes;
};

struct kv_remote {
	struct kv_remote *next;
	const uint8_t *base;
	size_t bytes;    /* mapped */
	uint64_t usable; /* as the store said */
};

/* ---- sealed memory ---- */

static enum kv_status create_memfd(const char *name, size_t bytes, int *descriptor)
{
	int created = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	/* Kernels before 6.3 do not know the flag. */
	if (created < 0 && errno == EINVAL)
		created = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (created < 0) {
		return kv_fail(errno == EMFILE || errno == ENFILE ? KV_LIMIT : KV_IO,
		    "cannot make shared memory: %s", strerror(errno));
	}
	if (ftruncate(created, (off_t)bytes) < 0) {
		int error = errno;

		close(created);
		return kv_fail(error == ENOMEM || error == ENOSPC ? KV_LIMIT : KV_IO,
		    "cannot make shared memory of %zu bytes: %s", bytes, strerror(error));
	}
	*descriptor = created;
	return KV_OK;
}

/* Memory of whole pages, mapped writable, all there, and then sealed. */
static enum kv_status create_sealed(
    const char *name, size_t bytes, int seals, uint8_t **memory, int *descriptor)
{
	enum kv_status status;
	uint8_t *mapped;
	int created = -1;

	KV_TRY(create_memfd(name, bytes, &created));
	mapped = kv_pages_map(created, bytes, 1);
	if (!mapped) {
		status = kv_fail(
		    KV_NO_MEMORY, "cannot map %zu bytes of shared memory: %s", bytes, strerror(errno));
		goto close_descriptor;
	}
	if (kv_pages_allocate(mapped, bytes) < 0) {
		status = kv_fail(
		    KV_LIMIT, "the machine has no %zu bytes of shared memory: %s", bytes, strerror(errno));
		goto unmap;
	}
	if (fcntl(created, F_ADD_SEALS, seals) < 0) {
		status = kv_fail(KV_IO, "cannot seal shared memory: %s", strerror(errno));
		goto unmap;
	}
	*memory = mapped;
	*descriptor = created;
	return KV_OK;

unmap:
	munmap(mapped, bytes);
close_descriptor:
	close(created);
	return status;
}

/* Is what a peer passed memory of tmpfs (huge page files may fault for want of pages) with at least
 * these seals and exactly this size? */
static enum kv_status check_sealed(int descriptor, size_t bytes, int seals)
{
	struct statfs system;
	struct stat file;
	int found;

	if (descriptor < 0) return kv_fail(KV_REFUSED, "the peer passed no shared memory");
	found = fcntl(descriptor, F_GET_SEALS);
	if (found < 0 || fstatfs(descriptor, &system) < 0 || system.f_type != TMPFS_TYPE ||
	    fstat(descriptor, &file) < 0) {
		return kv_fail(KV_REFUSED, "what the peer passed is no memory that can be sealed");
	}
	if ((found & seals) != seals) {
		return kv_fail(KV_REFUSED, "the peer's memory has the seals 0x%x, 0x%x are required",
		    (unsigned)found, (unsigned)seals);
	}
	if (file.st_size < 0 || (uint64_t)file.st_size != bytes) {
		return kv_fail(KV_REFUSED, "the peer's memory has %lld bytes and was said to have %zu",
		    (long long)file.st_size, bytes);
	}
	return KV_OK;
}

/* Map it read-only. Takes the descriptor. */
static enum kv_status map_sealed(int descriptor, size_t bytes, int seals, const uint8_t **memory)
{
	enum kv_status status = check_sealed(descriptor, bytes, seals);
	void *mapped = NULL;

	if (status == KV_OK && (mapped = kv_pages_map(descriptor, bytes, 0)) == NULL)
		status = kv_fail(
		    KV_NO_MEMORY, "cannot map %zu bytes of the peer's memory: %s", bytes, strerror(errno));
	if (status == KV_OK) *memory = mapped;
	if (descriptor >= 0) close(descriptor);
	return status;
}

static void unmap(const void *memory, size_t bytes)
{
	if (memory) munmap((void *)(uintptr_t)memory, bytes);
}

/* ---- staging memory and the control page ---- */

static enum kv_status check_staging_bytes(uint64_t bytes, size_t *size)
{
	KV_TRY(kv_pages_round(bytes, size));
	if (*size == bytes) return KV_OK;
	return kv_fail(KV_INVALID, "staging memory of %llu bytes: whole pages of %d are needed",
	    (unsigned long long)bytes, KV_PAGE_BYTES);
}

enum kv_status kv_staging_create(uint64_t bytes, uint8_t **memory, int *descriptor)
{
	size_t size;

	KV_TRY(check_staging_bytes(bytes, &size));
	return create_sealed(
	    "clusterkv-staging", size, fixed_size_seals | F_SEAL_SEAL, memory, descriptor);
}

void kv_staging_destroy(uint8_t *memory, uint64_t bytes, int descriptor)
{
	unmap(memory, (size_t)bytes);
	if (descriptor >= 0) close(descriptor);
}

enum kv_status kv_staging_accept(int descriptor, uint64_t bytes, int *accepted)
{
	enum kv_status status;
	size_t size = 0;

	status = check_staging_bytes(bytes, &size);
	if (status == KV_OK) status = check_sealed(descriptor, size, fixed_size_seals);
	if (status == KV_OK)
		*accepted = descriptor;
	else if (descriptor >= 0)
		close(descriptor);
	return status;
}

enum kv_status kv_staging_read(int accepted, uint64_t offset, uint64_t bytes, uint8_t *target)
{
	while (bytes > 0) {
		ssize_t got = pread(accepted, target, (size_t)bytes, (off_t)offset);

		if (got < 0 && errno == EINTR) continue;
		if (got <= 0)
			return kv_fail(KV_IO, "cannot read the peer's staging memory at %llu: %s",
			    (unsigned long long)offset, got < 0 ? strerror(errno) : "it ends there");
		target += got;
		offset += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	return KV_OK;
}

enum kv_status kv_control_page_create(void **page, int *descriptor)
{
	uint8_t *memory = NULL;

	KV_TRY(create_sealed("clusterkv-control", KV_PAGE_BYTES, store_seals, &memory, descriptor));
	*page = memory;
	return KV_OK;
}

void kv_control_page_destroy(void *page, int descriptor)
{
	unmap(page, KV_PAGE_BYTES);
	if (descriptor >= 0) close(descriptor);
}

enum kv_status kv_control_page_map(int descriptor, const void **page)
{
	const uint8_t *memory = NULL;

	KV_TRY(map_sealed(descriptor, KV_PAGE_BYTES, store_seals, &memory));
	*page = memory;
	return KV_OK;
}

void kv_control_page_unmap(const void *page)
{
	unmap(page, KV_PAGE_BYTES);
}

/* ---- memory that outlives the process ---- */

static const int kept_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

enum kv_status kv_kept_create(const void *bytes, size_t length, int *descriptor)
{
	enum kv_status status;
	size_t size = 0, written = 0;
	int created = -1;

	KV_TRY(kv_pages_round(length, &size));
	KV_TRY(create_memfd("clusterkv-kept", size, &created));
	while (written < length) {
		ssize_t n =
		    pwrite(created, (const uint8_t *)bytes + written, length - written, (off_t)written);

		if (n < 0 && errno == EINTR) continue;
		if (n <= 0) {
			status = kv_fail(KV_LIMIT, "cannot fill %zu bytes of shared memory: %s", length,
			    n < 0 ? strerror(errno) : "no more is taken");
			close(created);
			return status;
		}
		written += (size_t)n;
	}
	if (fcntl(created, F_ADD_SEALS, kept_seals) < 0) {
		status = kv_fail(KV_IO, "cannot seal shared memory: %s", strerror(errno));
		close(created);
		return status;
	}
	*descriptor = created;
	return KV_OK;
}

enum kv_status kv_kept_map(int descriptor, uint64_t limit, const uint8_t **bytes, size_t *length)
{
	struct stat file = {0};
	size_t size = 0;

	if (descriptor < 0 || fstat(descriptor, &file) < 0 || file.st_size <= 0 ||
	    (uint64_t)file.st_size > limit || file.st_size % KV_PAGE_BYTES != 0) {
		if (descriptor >= 0) close(descriptor);
		return kv_fail(KV_REFUSED, "it has %lld bytes: whole pages, at most %llu bytes, are taken",
		    (long long)file.st_size, (unsigned long long)limit);
	}
	size = (size_t)file.st_size;
	KV_TRY(map_sealed(descriptor, size, kept_seals, bytes));
	*length = size;
	return KV_OK;
}

void kv_kept_unmap(const uint8_t *bytes, size_t length)
{
	unmap(bytes, length);
}

/* ---- the store's half ---- */

static enum kv_status server_create(
    struct kv_allocator *allocator, struct kv_transport_server **server)
{
	struct kv_transport_server *created = kv_alloc_zero(allocator, sizeof *created);

	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	*server = created;
	return KV_OK;
}

static void server_destroy(struct kv_transport_server *server)
{
	if (server) kv_free(server->allocator, server);
}

/* Nothing to connect to: regions come as descriptors. */
static enum kv_status server_address(
    struct kv_transport_server *server, struct kv_transport_blob *blob)
{
	(void)server;
	blob->length = 0;
	return KV_OK;
}

static enum kv_status region_create(
    struct kv_transport_server *server, uint64_t bytes, struct kv_region **region, uint8_t **base)
{
	struct kv_machine_memory machine;
	struct kv_region *created;
	enum kv_status status;
	size_t size;

	KV_TRY(kv_pages_round(bytes, &size));
	KV_TRY(kv_machine_memory_read("", &machine));
	KV_TRY(kv_machine_memory_check(&machine, size, 0));
	created = kv_alloc_zero(server->allocator, sizeof *created);
	if (!created) return KV_NO_MEMORY;
	created->bytes = size;
	status =
	    create_sealed("clusterkv-region", size, store_seals, &created->base, &created->descriptor);
	if (status != KV_OK) {
		kv_free(server->allocator, created);
		return status;
	}
	*base = created->base;
	*region = created;
	return KV_OK;
}

enum kv_status kv_map_region_adopt(struct kv_transport_server *server, int descriptor,
    uint64_t bytes, struct kv_region **region, uint8_t **base)
{
	struct kv_region *adopted = kv_alloc_zero(server->allocator, sizeof *adopted);
	enum kv_status status;
	uint8_t *mapped = NULL;

	status = adopted ? kv_pages_round(bytes, &adopted->bytes) : KV_NO_MEMORY;
	if (status == KV_OK) status = check_sealed(descriptor, adopted->bytes, store_seals);
	if (status == KV_OK && !(mapped = kv_pages_map(descriptor, adopted->bytes, 0)))
		status = kv_fail(KV_NO_MEMORY, "cannot map %zu bytes: %s", adopted->bytes, strerror(errno));
	if (status != KV_OK) {
		kv_free(server->allocator, adopted);
		if (descriptor >= 0) close(descriptor);
		return status;
	}
	adopted->base = mapped;
	adopted->descriptor = descriptor;
	*base = mapped;
	*region = adopted;
	return KV_OK;
}

static void region_destroy(struct kv_transport_server *server, struct kv_region *region)
{
	if (!region) return;
	unmap(region->base, region->bytes);
	close(region->descriptor);
	kv_free(server->allocator, region);
}

static enum kv_status region_export(struct kv_transport_server *server, struct kv_region *region,
    struct kv_transport_blob *blob, int *descriptor)
{
	(void)server;
	blob->length = 0;
	*descriptor = region->descriptor;
	return KV_OK;
}

static int server_descriptor(struct kv_transport_server *server)
{
	(void)server;
	return -1;
}

static unsigned server_progress(struct kv_transport_server *server)
{
	(void)server;
	return 0;
}

static int server_arm(struct kv_transport_server *server)
{
	(void)server;
	return 0;
}

/* ---- the client's half ---- */

static enum kv_status client_create(struct kv_allocator *allocator,
    const struct kv_transport_blob *address, struct kv_transport_client **client)
{
	struct kv_transport_client *created;

	if (address->length != 0) {
		return kv_fail(KV_PROTOCOL,
		    "the store's address for the map transport has %u bytes, 0 are "
		    "expected",
		    address->length);
	}
	created = kv_alloc_zero(allocator, sizeof *created);
	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	*client = created;
	return KV_OK;
}

static void region_detach(struct kv_transport_client *client, struct kv_remote *remote)
{
	struct kv_remote **at = &client->remotes;

	if (!remote) return;
	while (*at && *at != remote)
		at = &(*at)->next;
	if (*at) *at = remote->next;
	unmap(remote->base, remote->bytes);
	kv_free(client->allocator, remote);
}

static void client_destroy(struct kv_transport_client *client)
{
	if (!client) return;
	while (client->remotes)
		region_detach(client, client->remotes);
	kv_free(client->allocator, client);
}

static enum kv_status region_attach(struct kv_transport_client *client,
    const struct kv_transport_blob *blob, int descriptor, uint64_t bytes, struct kv_remote **remote)
{
	struct kv_remote *created = NULL;
	enum kv_status status;
	size_t size;

	(void)blob;
	status = kv_pages_round(bytes, &size);
	if (status == KV_OK) {
		created = kv_alloc_zero(client->allocator, sizeof *created);
		if (!created) status = KV_NO_MEMORY;
	}
	if (status != KV_OK) {
		if (descriptor >= 0) close(descriptor);
		return status;
	}
	status = map_sealed(descriptor, size, store_seals, &created->base);
	if (status != KV_OK) {
		kv_free(client->allocator, created);
		return status;
	}
	created->bytes = size;
	created->usable = bytes;
	created->next = client->remotes;
	client->remotes = created;
	/* Two page faults for each page now rather than in the first fetches; without is only slower.
	 */
	(void)kv_pages_populate((void *)(uintptr_t)created->base, size, 0);
	*remote = created;
	return KV_OK;
}

static int in_bounds(const struct kv_remote *remote, uint64_t offset, uint64_t bytes)
{
	return offset <= remote->usable && bytes <= remote->usable - offset;
}

static const uint8_t *direct_read(struct kv_remote *remote, uint64_t offset, uint64_t bytes)
{
	return in_bounds(remote, offset, bytes) ? remote->base + offset : NULL;
}

static uint8_t *direct_write(struct kv_remote *remote, uint64_t offset, uint64_t bytes)
{
	(void)remote;
	(void)offset;
	(void)bytes;
	return NULL;
}

static enum kv_status get(
    struct kv_transport_client *client, const struct kv_transfer *transfers, uint32_t count)
{
	uint32_t i;

	(void)client;
	for (i = 0; i < count; i++) {
		const struct kv_transfer *transfer = &transfers[i];

		if (!in_bounds(transfer->remote, transfer->offset, transfer->bytes)) {
			return kv_fail(KV_INVALID, "a read of %llu bytes at %llu leaves a region of %llu",
			    (unsigned long long)transfer->bytes, (unsigned long long)transfer->offset,
			    (unsigned long long)transfer->remote->usable);
		}
	}
	for (i = 0; i < count; i++) {
		if (transfers[i].bytes == 0) continue;
		memcpy(transfers[i].local, transfers[i].remote->base + transfers[i].offset,
		    (size_t)transfers[i].bytes);
	}
	return KV_OK;
}

static enum kv_status put(
    struct kv_transport_client *client, const struct kv_transfer *transfers, uint32_t count)
{
	(void)client;
	(void)transfers;
	(void)count;
	return kv_fail(KV_UNSUPPORTED,
	    "the map transport's regions are read-only for clients: write by "
	    "staging memory");
}

static enum kv_status wait_all(struct kv_transport_client *client, uint32_t deadline_ms)
{
	(void)client;
	(void)deadline_ms;
	/* Lease and generation words are loaded after the copies. */
	atomic_thread_fence(memory_order_acquire);
	return KV_OK;
}

static const char *lanes(struct kv_transport_client *client)
{
	(void)client;
	return "memfd";
}

const struct kv_transport_ops kv_transport_map = {
    .name = "map",
    .server_create = server_create,
    .server_destroy = server_destroy,
    .server_address = server_address,
    .region_create = region_create,
    .region_destroy = region_destroy,
    .region_export = region_export,
    .server_descriptor = server_descriptor,
    .server_progress = server_progress,
    .server_arm = server_arm,
    .client_create = client_create,
    .client_destroy = client_destroy,
    .region_attach = region_attach,
    .region_detach = region_detach,
    .direct_read = direct_read,
    .direct_write = direct_write,
    .get = get,
    .put = put,
    .wait = wait_all,
    .lanes = lanes,
};
