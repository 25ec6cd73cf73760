/* Settings, and the order that ThreadSanitizer is told. */
#include <cstdlib>

#include "tests/lib/cuda_on_cpu/sanitizers.h"

namespace emu
{
const bool under_tsan = __tsan_create_fiber != nullptr;
const bool under_asan = __sanitizer_start_switch_fiber != nullptr && !under_tsan;

static size_t number(const char *name, size_t otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

const struct settings settings = {
    number("EMU_SEED", 0),
    number("EMU_WORKERS", 2),
    number("EMU_STACK", under_asan ? 256 << 10 : 64 << 10),
    number("EMU_MEMORY", size_t{2} << 30),
    number("EMU_DEVICES", 1),
    number("EMU_DEVICE_ERROR", 0),
    number("EMU_CAPABILITY", 80),
};

uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

void order_release(void *token)
{
	if (under_tsan) __tsan_release(token);
}

void order_acquire(void *token)
{
	if (under_tsan) __tsan_acquire(token);
}
} // namespace emu
