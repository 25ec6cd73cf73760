/* In the tsan flavour the compiler puts a call before each access. The linker sends the calls here
 * (--wrap), and they go on to ThreadSanitizer. In no other flavour does anything refer to these. */
#include "tests/lib/cuda_on_cpu/runtime.h"

#define EMU_WRAP(name, bytes, written)                                                             \
	void __real___tsan_##name(void *at);                                                           \
	void __wrap___tsan_##name(void *at)                                                            \
	{                                                                                              \
		emu::access_check(at, bytes, written);                                                     \
		__real___tsan_##name(at);                                                                  \
	}
#define EMU_WRAP_RANGE(name, written)                                                              \
	void __real___tsan_##name(void *at, unsigned long bytes);                                      \
	void __wrap___tsan_##name(void *at, unsigned long bytes)                                       \
	{                                                                                              \
		emu::access_check(at, bytes, written);                                                     \
		__real___tsan_##name(at, bytes);                                                           \
	}

extern "C" {
EMU_WRAP(read1, 1, false)
EMU_WRAP(read2, 2, false)
EMU_WRAP(read4, 4, false)
EMU_WRAP(read8, 8, false)
EMU_WRAP(read16, 16, false)
EMU_WRAP(write1, 1, true)
EMU_WRAP(write2, 2, true)
EMU_WRAP(write4, 4, true)
EMU_WRAP(write8, 8, true)
EMU_WRAP(write16, 16, true)
EMU_WRAP(unaligned_read2, 2, false)
EMU_WRAP(unaligned_read4, 4, false)
EMU_WRAP(unaligned_read8, 8, false)
EMU_WRAP(unaligned_read16, 16, false)
EMU_WRAP(unaligned_write2, 2, true)
EMU_WRAP(unaligned_write4, 4, true)
EMU_WRAP(unaligned_write8, 8, true)
EMU_WRAP(unaligned_write16, 16, true)
EMU_WRAP_RANGE(read_range, false)
EMU_WRAP_RANGE(write_range, true)
}
