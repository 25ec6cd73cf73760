/* Memory for copies that are compared with fetches, and what pages memory lies in. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/transport/pages.h"
#include "kvstore/ctl/bench.h"

enum kv_status bench_pages_make(uint64_t bytes, uint8_t **memory)
{
	char name[64];
	uint8_t *mapped = NULL;
	int descriptor;

	snprintf(name, sizeof name, "/clusterkv-bench-%ld", (long)getpid());
	descriptor = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (descriptor < 0)
		return kv_fail(KV_IO, "cannot make shared memory %s: %s", name, strerror(errno));
	/* Nothing of it stays, whatever happens. */
	shm_unlink(name);
	if (ftruncate(descriptor, (off_t)bytes) == 0) mapped = kv_pages_map(descriptor, bytes, 1);
	close(descriptor);
	if (!mapped)
		return kv_fail(KV_NO_MEMORY, "cannot map %" PRIu64 " bytes: %s", bytes, strerror(errno));
	if (kv_pages_allocate(mapped, bytes) != 0) {
		bench_pages_free(mapped, bytes);
		return kv_fail(KV_NO_MEMORY,
		    "there is no room for %" PRIu64 " bytes in /dev/shm: lower --working-set", bytes);
	}
	*memory = mapped;
	return KV_OK;
}

void bench_pages_free(uint8_t *memory, uint64_t bytes)
{
	if (memory) munmap(memory, bytes);
}

double bench_pages_huge(const uint8_t *address)
{
	static const char *const kinds[] = {"AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"};
	FILE *file = address ? fopen("/proc/self/smaps", "re") : NULL;
	char line[512];
	bool inside = false;
	double huge = 0;
	double resident = 0;

	if (!file) return -1;
	while (fgets(line, sizeof line, file)) {
		uintptr_t from = 0;
		uintptr_t to = 0;
		double kib = 0;

		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) {
			if (inside) break;
			inside = (uintptr_t)address >= from && (uintptr_t)address < to;
			continue;
		}
		if (!inside || sscanf(line, "%*s %lf", &kib) != 1) continue;
		if (strncmp(line, "Rss:", 4) == 0) resident = kib;
		for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
			if (strncmp(line, kinds[i], strlen(kinds[i])) == 0) huge += kib;
	}
	fclose(file);
	return resident > 0 ? huge / resident : -1;
}
