/* Checks for programming errors, and size arithmetic that notices overflow.
 *
 * KV_CHECK is for what can only be wrong when the code is wrong; input, files and peers are judged
 * with enum kv_status. A failed check aborts with file and line in debug and sanitizer builds; a
 * release build logs it as an error and goes on.
 */
#ifndef KV_COMMON_BASE_CHECK_H
#define KV_COMMON_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Always evaluates `condition`. */
#define KV_CHECK(condition)                                                                        \
	((condition) ? (void)0 : kv_check_failed(#condition, __FILE__, __LINE__))

void kv_check_failed(const char *what, const char *file, int line);

#if defined(__GNUC__)
#define KV_MUST_USE __attribute__((warn_unused_result))
#else
#define KV_MUST_USE
#endif

/* a + b and a * b: true and the result, or false with the result unchanged when it does not fit. */
KV_MUST_USE static inline bool kv_add_size(size_t a, size_t b, size_t *result)
{
	if (b > SIZE_MAX - a) return false;
	*result = a + b;
	return true;
}

KV_MUST_USE static inline bool kv_mul_size(size_t a, size_t b, size_t *result)
{
	if (a != 0 && b > SIZE_MAX / a) return false;
	*result = a * b;
	return true;
}

KV_MUST_USE static inline bool kv_add_u64(uint64_t a, uint64_t b, uint64_t *result)
{
	if (b > UINT64_MAX - a) return false;
	*result = a + b;
	return true;
}

KV_MUST_USE static inline bool kv_mul_u64(uint64_t a, uint64_t b, uint64_t *result)
{
	if (a != 0 && b > UINT64_MAX / a) return false;
	*result = a * b;
	return true;
}

/* `value` rounded up to a multiple of `alignment`, a power of two. */
KV_MUST_USE static inline bool kv_align_size(size_t value, size_t alignment, size_t *result)
{
	size_t raised;

	if (!kv_add_size(value, alignment - 1, &raised)) return false;
	*result = raised & ~(alignment - 1);
	return true;
}

#ifdef __cplusplus
}
#endif
#endif
