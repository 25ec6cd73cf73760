#define _GNU_SOURCE /* sched_setaffinity */
#include <sched.h>

#include "kvstore/ctl/bench.h"

void bench_pin(uint32_t index)
{
	cpu_set_t allowed;
	cpu_set_t one;
	size_t wanted;
	size_t seen = 0;

	if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
	wanted = index % (size_t)CPU_COUNT(&allowed);
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed) || seen++ != wanted) continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		(void)sched_setaffinity(0, sizeof one, &one);
		return;
	}
}
