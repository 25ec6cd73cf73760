/* Settings, and the sanitizers' entry points where the flavour has them. */
#include <cstdlib>

#include "tests/lib/cuda_on_cpu/sanitizers.h"

namespace emu
{
const bool under_tsan = __tsan_create_fiber != nullptr;
const bool under_asan = __sanitizer_start_switch_fiber != nullptr && !under_tsan;

size_t environment_number(const char *name, size_t otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

const struct settings settings = {
	environment_number("EMU_SEED", 0),
	environment_number("EMU_WORKERS", 2),
	environment_number("EMU_STACK", under_asan ? 256 << 10 : 64 << 10),
};

void order_release(void *token)
{
	if (under_tsan)
		__tsan_release(token);
}

void order_acquire(void *token)
{
	if (under_tsan)
		__tsan_acquire(token);
}
} // namespace emu
