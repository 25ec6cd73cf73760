#include "common/transport/transport.h"

#include "common/runtime/fault_point.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* The functions that are not replaced are copied from the table inside, so its own server, client,
 * region and remote types are used throughout. One at a time: tests only. */
static const struct kv_transport_ops *inside;
static struct kv_transport_ops faulty;

static enum kv_status region_create(
    struct kv_transport_server *server, uint64_t bytes, struct kv_region **region, uint8_t **base)
{
	if (kv_fault_fires("transport.region.fail"))
		return kv_fail(KV_LIMIT, "no memory for a region (fault transport.region.fail)");
	return inside->region_create(server, bytes, region, base);
}

static enum kv_status region_attach(struct kv_transport_client *client,
    const struct kv_transport_blob *blob, int descriptor, uint64_t bytes, struct kv_remote **remote)
{
	if (kv_fault_fires("transport.attach.fail")) {
		if (descriptor >= 0) close(descriptor);
		return kv_fail(KV_REFUSED, "cannot attach a region (fault transport.attach.fail)");
	}
	return inside->region_attach(client, blob, descriptor, bytes, remote);
}

static void pause_briefly(void)
{
	const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};

	nanosleep(&pause, NULL);
}

static enum kv_status get(
    struct kv_transport_client *client, const struct kv_transfer *transfers, uint32_t count)
{
	uint32_t i;

	if (kv_fault_fires("transport.get.fail"))
		return kv_fail(KV_DISCONNECTED, "a get failed (fault transport.get.fail)");
	if (kv_fault_fires("transport.get.delay")) pause_briefly();
	KV_TRY(inside->get(client, transfers, count));
	if (!kv_fault_fires("transport.get.corrupt")) return KV_OK;
	/* What is still in flight would overwrite the damage. */
	KV_TRY(inside->wait(client, 1000));
	for (i = 0; i < count; i++) {
		if (transfers[i].bytes > 0) *(uint8_t *)transfers[i].local ^= 0x40;
	}
	return KV_OK;
}

static enum kv_status wait_all(struct kv_transport_client *client, uint32_t deadline_ms)
{
	if (kv_fault_fires("transport.wait.timeout")) {
		(void)inside->wait(client, deadline_ms);
		return kv_fail(KV_TIMEOUT, "a transfer took too long (fault transport.wait.timeout)");
	}
	return inside->wait(client, deadline_ms);
}

/* A pointer would go past every fault of get: there is none. */
static const uint8_t *direct_read(struct kv_remote *remote, uint64_t offset, uint64_t bytes)
{
	(void)remote;
	(void)offset;
	(void)bytes;
	return NULL;
}

const struct kv_transport_ops *kv_transport_faulty(const struct kv_transport_ops *inner)
{
	inside = inner;
	faulty = *inner;
	faulty.name = "faulty";
	faulty.region_create = region_create;
	faulty.region_attach = region_attach;
	faulty.get = get;
	faulty.wait = wait_all;
	faulty.direct_read = direct_read;
	return &faulty;
}
