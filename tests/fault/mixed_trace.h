/* What the mixed load asked of the store, written down for bench_eviction: one line for each
 * prompt, "NUMBER:TOKENS …" for its segments in order; the same number is the same segment. */
#ifndef TESTS_FAULT_MIXED_TRACE_H
#define TESTS_FAULT_MIXED_TRACE_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A file without a name that records (struct mixed_record) are appended to, by several processes.
 */
bool mixed_trace_open(int *descriptor);

/* Number the keys in order, write the text to `path`, and close. False after printing why. */
bool mixed_trace_write(int descriptor, const char *path);

#ifdef __cplusplus
}
#endif
#endif
