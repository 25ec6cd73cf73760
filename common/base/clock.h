/* Time. Nothing else in the project calls clock_gettime. */
#ifndef KV_COMMON_BASE_CLOCK_H
#define KV_COMMON_BASE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

uint64_t kv_now_ns(void);  /* monotonic, nanoseconds */
uint64_t kv_now_ms(void);  /* monotonic, milliseconds */
uint64_t kv_wall_ms(void); /* milliseconds since 1970, for people only */
double kv_seconds_since(uint64_t start_ns);

#ifdef __cplusplus
}
#endif
#endif
