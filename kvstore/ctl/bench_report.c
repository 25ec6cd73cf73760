/* Figures of kvctl bench: how they come from samples, and how they are printed. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/parse.h"
#include "kvstore/ctl/bench.h"

static int by_value(const void *left, const void *right)
{
	double a = *(const double *)left;
	double b = *(const double *)right;

	return a < b ? -1 : a > b;
}

double bench_median(double *values, uint32_t count)
{
	if (!count) return 0;
	qsort(values, count, sizeof *values, by_value);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

enum kv_status bench_percentiles(
    struct bench_client *const *clients, uint32_t count, struct bench_result *result)
{
	uint32_t total = 0;
	double *all;

	all = kv_alloc_array(kv_heap(), (size_t)count * BENCH_MAX_SAMPLES, sizeof *all);
	if (!all) return KV_NO_MEMORY;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t samples;
		const uint32_t *taken = bench_client_samples(clients[i], &samples);

		for (uint32_t j = 0; j < samples; j++)
			all[total++] = (double)taken[j] / 1e9;
	}
	qsort(all, total, sizeof *all, by_value);
	if (total) {
		result->p50 = all[(total - 1) / 2];
		result->p90 = all[(uint64_t)(total - 1) * 90 / 100];
		result->p99 = all[(uint64_t)(total - 1) * 99 / 100];
		result->most = all[total - 1];
	}
	kv_free(kv_heap(), all);
	return KV_OK;
}

static void print_share(const char *what, double share)
{
	if (share < 0)
		printf(" %s unknown", what);
	else
		printf(" %s %.0f %%", what, 100.0 * share);
}

static void put_share(const char *what, double share)
{
	if (share < 0)
		printf(",\"%s\":null", what);
	else
		printf(",\"%s\":%.3f", what, share);
}

void bench_print_head(const struct ctl_settings *settings, const struct bench_client *client,
    const struct bench_run *run)
{
	double arena = bench_pages_huge(bench_client_arena(client));
	double source = bench_pages_huge(run->source);

	if (settings->json) {
		printf("{\"transport\":\"%s\",\"lanes\":\"%s\",\"working_set_bytes\":%llu",
		    bench_client_transport(client), bench_client_lanes(client),
		    (unsigned long long)run->units * BENCH_UNIT_BYTES);
		put_share("arena_huge_pages", arena);
		put_share("memcpy_huge_pages", source);
		printf("}\n");
		return;
	}
	printf("transport %s (%s), working set %u MiB; in huge pages:", bench_client_transport(client),
	    bench_client_lanes(client), run->units * 16u);
	print_share("arena", arena);
	print_share("memcpy's source", source);
	printf("\n%-6s %18s %7s %8s %8s %6s %10s %10s %10s %10s\n", "what", "size", "clients", "GB/s",
	    "memcpy", "ratio", "p50 us", "p90 us", "p99 us", "max us");
}

static void size_text(const struct bench_case *measured, char text[96])
{
	char bytes[KV_PARSE_TEXT_SIZE];
	char most[KV_PARSE_TEXT_SIZE];

	kv_format_size(measured->bytes, bytes);
	if (measured->mixed) {
		kv_format_size(measured->bytes / 2, bytes);
		kv_format_size(measured->bytes * 2u, most);
		snprintf(text, 96, "%u x %s-%s", measured->reads, bytes, most);
	} else if (measured->reads > 1) {
		snprintf(text, 96, "%u x %s", measured->reads, bytes);
	} else {
		snprintf(text, 96, "%s", bytes);
	}
}

void bench_print(const struct ctl_settings *settings, const struct bench_result *result)
{
	const struct bench_case *measured = result->measured;
	const char *what = measured->commit ? "commit" : "fetch";
	char size[96];

	if (settings->json) {
		printf("{\"what\":\"%s\",\"bytes\":%u,\"reads\":%u,\"mixed\":%s,\"clients\":%u,", what,
		    measured->bytes, measured->reads, measured->mixed ? "true" : "false", result->clients);
		printf("\"bytes_per_second\":%.0f,\"memcpy_bytes_per_second\":%.0f,\"ratio\":%.4f,"
		       "\"calls\":%llu,\"p50_seconds\":%.9f,\"p90_seconds\":%.9f,\"p99_seconds\":%.9f,"
		       "\"max_seconds\":%.9f}\n",
		    result->rate, result->plain_rate, result->ratio, (unsigned long long)result->calls,
		    result->p50, result->p90, result->p99, result->most);
	} else {
		size_text(measured, size);
		printf("%-6s %18s %7u %8.2f %8.2f %6.2f %10.1f %10.1f %10.1f %10.1f\n", what, size,
		    result->clients, result->rate / 1e9, result->plain_rate / 1e9, result->ratio,
		    result->p50 * 1e6, result->p90 * 1e6, result->p99 * 1e6, result->most * 1e6);
	}
	fflush(stdout);
}
