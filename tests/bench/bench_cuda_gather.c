/* What a step without a cache would be bound by: clusters' rows read over the bus by
 * gather_extents, beside one copy of as many bytes from the same pinned memory by the copy engine.
 * Prints one JSON object. Needs a GPU; without one it says so and exits with 77. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launch_attention.h"

enum {
	HOST_BYTES = 1 << 30,
	DEVICE_BYTES = 256 << 20,
	ROUNDS = 5
};

static void need(cudaError_t error, const char *what)
{
	if (error == cudaSuccess) return;
	fprintf(stderr, "bench_cuda_gather: %s: %s\n", what, cudaGetErrorString(error));
	exit(1);
}

struct bench {
	uint8_t *host, *host_on_device, *device;
	struct kn_cuda_extent_copy *extents; /* device memory */
	uint32_t *count, *changed;           /* device memory */
	cudaEvent_t before, after;
};

static void create(struct bench *bench)
{
	void *mapped;

	need(cudaHostAlloc((void **)&bench->host, HOST_BYTES, cudaHostAllocMapped), "pinned memory");
	for (size_t i = 0; i < HOST_BYTES; i += 4) {
		uint32_t value = (uint32_t)i * 2654435761u;

		memcpy(bench->host + i, &value, sizeof value);
	}
	need(cudaHostGetDevicePointer(&mapped, bench->host, 0), "its device address");
	bench->host_on_device = mapped;
	need(cudaMalloc((void **)&bench->device, DEVICE_BYTES), "device memory");
	need(cudaMalloc((void **)&bench->count, 2 * sizeof(uint32_t)), "device memory");
	bench->changed = bench->count + 1;
	need(cudaEventCreate(&bench->before), "an event");
	need(cudaEventCreate(&bench->after), "an event");
}

static double seconds(const struct bench *bench)
{
	float ms;

	need(cudaEventSynchronize(bench->after), "waiting");
	need(cudaEventElapsedTime(&ms, bench->before, bench->after), "the time");
	return (double)ms / 1e3;
}

/* Best of some rounds, the first of which warms up. */
static double copy_rate(const struct bench *bench)
{
	double best = 0.0;

	for (int round = 0; round <= ROUNDS; round++) {
		const uint8_t *from = bench->host + (size_t)round % 4 * DEVICE_BYTES;
		double rate;

		need(cudaEventRecord(bench->before, NULL), "an event");
		need(cudaMemcpyAsync(bench->device, from, DEVICE_BYTES, cudaMemcpyHostToDevice, NULL),
		    "a copy");
		need(cudaEventRecord(bench->after, NULL), "an event");
		rate = DEVICE_BYTES / seconds(bench);
		if (round > 0 && rate > best) best = rate;
	}
	return best / 1e9;
}

/* Extents at places all over the host memory, one after the other on the device. */
static void scatter(const struct bench *bench, struct kn_cuda_extent_copy *extents, uint32_t count,
    uint64_t bytes)
{
	uint64_t places = HOST_BYTES / bytes, state = bytes;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t place;

		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		place = (state >> 33) % places;
		extents[i].source = bench->host_on_device + place * bytes;
		extents[i].destination = bench->device + i * bytes;
		extents[i].bytes = bytes;
	}
}

/* A figure of bytes that did not arrive would be none. */
static void check(const struct bench *bench, const struct kn_cuda_extent_copy *extents,
    uint32_t count, uint64_t bytes)
{
	uint8_t *found = malloc(bytes);
	uint32_t changed;

	if (!found) exit(1);
	need(cudaMemcpy(&changed, bench->changed, sizeof changed, cudaMemcpyDeviceToHost), "reading");
	for (uint32_t i = 0; i < count; i += count / 64 + 1) {
		const uint8_t *expected = bench->host + (extents[i].source - bench->host_on_device);

		need(cudaMemcpy(found, extents[i].destination, bytes, cudaMemcpyDeviceToHost), "reading");
		if (memcmp(found, expected, bytes) == 0 && changed == 0) continue;
		fprintf(stderr, "bench_cuda_gather: extent %u of %llu bytes is not what it was\n", i,
		    (unsigned long long)bytes);
		exit(1);
	}
	free(found);
}

static double gather_rate(const struct bench *bench, uint64_t bytes, uint32_t blocks)
{
	uint32_t count = (uint32_t)(DEVICE_BYTES / bytes), numbers[2] = {count, 0};
	struct kn_cuda_extent_copy *extents = malloc(count * sizeof *extents), *list;
	struct kn_cuda_gather_extents_arguments arguments = {
	    .count = bench->count, .max_extents = count, .changed = bench->changed};
	double best = 0.0;

	if (!extents) exit(1);
	scatter(bench, extents, count, bytes);
	need(cudaMalloc((void **)&list, count * sizeof *list), "device memory");
	need(cudaMemcpy(list, extents, count * sizeof *list, cudaMemcpyHostToDevice), "the list");
	need(cudaMemcpy(bench->count, numbers, sizeof numbers, cudaMemcpyHostToDevice), "the count");
	need(cudaMemset(bench->device, 0, DEVICE_BYTES), "device memory");
	arguments.extents = list;
	for (int round = 0; round <= ROUNDS; round++) {
		double rate;

		need(cudaEventRecord(bench->before, NULL), "an event");
		need(kn_cuda_gather_extents(&arguments, blocks, NULL), "gather_extents");
		need(cudaEventRecord(bench->after, NULL), "an event");
		rate = (double)count * (double)bytes / seconds(bench);
		if (round > 0 && rate > best) best = rate;
	}
	check(bench, extents, count, bytes);
	need(cudaFree(list), "freeing");
	free(extents);
	return best / 1e9;
}

int main(void)
{
	static const uint64_t sizes[] = {4096, 8192, 16384, 65536};
	static const uint32_t blocks[] = {16, 32, 64, 128};
	struct bench bench;
	const char *comma = "";
	int devices = 0;

	if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1) {
		printf("skipped: no GPU\n");
		return 77;
	}
	create(&bench);
	printf("{\"bytes\": %d, \"copy_gb_s\": %.2f, \"gather\": [", DEVICE_BYTES, copy_rate(&bench));
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		for (size_t j = 0; j < sizeof blocks / sizeof blocks[0]; j++, comma = ", ")
			printf("%s{\"extent_bytes\": %llu, \"blocks\": %u, \"gb_s\": %.2f}", comma,
			    (unsigned long long)sizes[i], blocks[j], gather_rate(&bench, sizes[i], blocks[j]));
	}
	printf("]}\n");
	return 0;
}
