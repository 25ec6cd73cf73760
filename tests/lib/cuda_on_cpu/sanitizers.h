/* The sanitizers' entry points, null where the flavour has none. */
#ifndef KVT_CUDA_ON_CPU_SANITIZERS_H
#define KVT_CUDA_ON_CPU_SANITIZERS_H

#include "tests/lib/cuda_on_cpu/runtime.h"

#define EMU_WEAK __attribute__((weak))

extern "C" {
void *__tsan_get_current_fiber(void) EMU_WEAK;
void *__tsan_create_fiber(unsigned flags) EMU_WEAK;
void __tsan_destroy_fiber(void *fiber) EMU_WEAK;
void __tsan_set_fiber_name(void *fiber, const char *name) EMU_WEAK;
void __tsan_switch_to_fiber(void *fiber, unsigned flags) EMU_WEAK;
void __tsan_acquire(void *token) EMU_WEAK;
void __tsan_release(void *token) EMU_WEAK;
void __tsan_read_range(void *at, unsigned long bytes) EMU_WEAK;
void __tsan_write_range(void *at, unsigned long bytes) EMU_WEAK;
void AnnotateIgnoreWritesBegin(const char *file, int line) EMU_WEAK;
void AnnotateIgnoreWritesEnd(const char *file, int line) EMU_WEAK;
void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size) EMU_WEAK;
void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size) EMU_WEAK;
void __asan_poison_memory_region(const volatile void *at, size_t bytes) EMU_WEAK;
void __asan_unpoison_memory_region(const volatile void *at, size_t bytes) EMU_WEAK;
}

namespace emu
{
/* What the runtime does with its own memory on this thread, through malloc and memcpy, is no
 * access of the program. */
inline void tsan_ignore(void)
{
	if (under_tsan) AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

inline void tsan_heed(void)
{
	if (under_tsan) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}
} // namespace emu

#endif
