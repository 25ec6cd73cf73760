/* Why UCX between hosts is in a process of its own (common/transport/line.h): what UCX 1.13 does to
 * a process whose memory others get over TCP, when they go away. Run by the script of this name.
 *
 *   ucx_get_over_tcp serve DEVICE FILE    tells its address and key in FILE, and makes progress
 *   ucx_get_over_tcp get DEVICE FILE      gets 64 x 8 KiB again and again, and gives up after a
 *                                         second without an answer, as a worker would
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/transport/transport_ucx.h"

enum { GETS = 64, GET_BYTES = 8192, MEMORY = 16 << 20, GIVE_UP_MS = 1000, MOST = 4096 };

struct told {
	uint64_t base, key_bytes, address_bytes;
	uint8_t key[MOST], address[MOST];
};

static ucp_context_h context;
static ucp_worker_h worker;
static int event;
static unsigned in_flight;
static int broken;

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void must(ucs_status_t status, const char *what)
{
	if (status == UCS_OK) return;
	fprintf(stderr, "%s: %s\n", what, kv_ucx.ucs_status_string(status));
	exit(2);
}

static void open_ucx(const char *device)
{
	ucp_params_t parameters;
	ucp_worker_params_t threads;
	ucp_config_t *config;

	if (kv_ucx_load() != KV_OK) exit(77);
	memset(&parameters, 0, sizeof parameters);
	memset(&threads, 0, sizeof threads);
	must(kv_ucx.ucp_config_read(NULL, NULL, &config), "configuration");
	must(kv_ucx.ucp_config_modify(config, "TLS", "tcp"), "TLS");
	must(kv_ucx.ucp_config_modify(config, "NET_DEVICES", device), "device");
	parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
	parameters.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
	must(kv_ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context),
	    "context");
	threads.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
	threads.thread_mode = UCS_THREAD_MODE_SINGLE;
	must(kv_ucx.ucp_worker_create(context, &threads, &worker), "worker");
	must(kv_ucx.ucp_worker_get_efd(worker, &event), "event");
}

static void wait_for_work(void)
{
	struct pollfd one = {.fd = event, .events = POLLIN};

	while (kv_ucx.ucp_worker_progress(worker)) {
	}
	if (kv_ucx.ucp_worker_arm(worker) == UCS_OK) (void)poll(&one, 1, 10);
}

static void serve(const char *path)
{
	static struct told told;
	ucp_mem_map_params_t parameters;
	ucp_address_t *address;
	ucp_mem_h memory;
	size_t length;
	FILE *file;
	void *key;

	memset(&parameters, 0, sizeof parameters);
	parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
	parameters.address = calloc(1, MEMORY);
	parameters.length = MEMORY;
	told.base = (uint64_t)(uintptr_t)parameters.address;
	must(kv_ucx.ucp_mem_map(context, &parameters, &memory), "memory");
	must(kv_ucx.ucp_rkey_pack(context, memory, &key, &length), "key");
	if (length > MOST) exit(2);
	told.key_bytes = length;
	memcpy(told.key, key, length);
	must(kv_ucx.ucp_worker_get_address(worker, &address, &length), "address");
	if (length > MOST) exit(2);
	told.address_bytes = length;
	memcpy(told.address, address, length);
	file = fopen(path, "wb");
	if (!file || fwrite(&told, sizeof told, 1, file) != 1 || fclose(file) != 0) exit(2);
	for (;;)
		wait_for_work();
}

static void on_error(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
	(void)argument;
	(void)endpoint;
	(void)status;
	broken = 1;
}

static void on_complete(void *request, ucs_status_t status, void *argument)
{
	(void)argument;
	kv_ucx.ucp_request_free(request);
	in_flight--;
	if (status != UCS_OK) broken = 1;
}

static void get_once(ucp_ep_h endpoint, ucp_rkey_h key, uint64_t base, uint8_t *target)
{
	const uint64_t until = now_ms() + GIVE_UP_MS;
	ucp_request_param_t parameters;

	memset(&parameters, 0, sizeof parameters);
	parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
	parameters.cb.send = on_complete;
	for (unsigned i = 0; i < GETS && !broken; i++) {
		ucs_status_ptr_t request = kv_ucx.ucp_get_nbx(
		    endpoint, target + i * GET_BYTES, GET_BYTES, base + i * GET_BYTES, key, &parameters);

		if (UCS_PTR_IS_ERR(request))
			broken = 1;
		else if (request)
			in_flight++;
	}
	while (in_flight && !broken) {
		if (now_ms() >= until) broken = 1;
		wait_for_work();
	}
}

static void get(const char *path)
{
	static uint8_t target[GETS * GET_BYTES];
	static struct told told;
	ucp_ep_params_t parameters;
	ucp_request_param_t force;
	ucs_status_ptr_t closing;
	ucp_ep_h endpoint;
	ucp_rkey_h key;
	FILE *file = fopen(path, "rb");

	if (!file || fread(&told, sizeof told, 1, file) != 1) exit(2);
	fclose(file);
	memset(&parameters, 0, sizeof parameters);
	parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
	                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
	parameters.address = (const ucp_address_t *)(const void *)told.address;
	parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
	parameters.err_handler.cb = on_error;
	must(kv_ucx.ucp_ep_create(worker, &parameters, &endpoint), "endpoint");
	must(kv_ucx.ucp_ep_rkey_unpack(endpoint, told.key, &key), "key");
	while (!broken)
		get_once(endpoint, key, told.base, target);
	memset(&force, 0, sizeof force);
	force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
	force.flags = UCP_EP_CLOSE_FLAG_FORCE;
	closing = kv_ucx.ucp_ep_close_nbx(endpoint, &force);
	for (int i = 0; i < 10 && UCS_PTR_IS_PTR(closing); i++)
		wait_for_work();
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: ucx_get_over_tcp serve|get DEVICE FILE\n");
		return 2;
	}
	open_ucx(argv[2]);
	if (strcmp(argv[1], "serve") == 0)
		serve(argv[3]);
	else
		get(argv[3]);
	return 0;
}
