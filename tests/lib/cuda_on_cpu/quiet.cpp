/* A lock of futex calls alone: a pthread mutex would tell ThreadSanitizer of an order that exists
 * in the emulator but on no device. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>

#include "tests/lib/cuda_on_cpu/runtime.h"

namespace emu
{
void quiet_wait(int *word, int while_value)
{
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == while_value)
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_value, nullptr, nullptr, 0);
}

void quiet_wake(int *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void quiet_lock::lock()
{
	int seen = 0;
	if (__atomic_compare_exchange_n(&word, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	while (__atomic_exchange_n(&word, 2, __ATOMIC_ACQUIRE) != 0)
		syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 2, nullptr, nullptr, 0);
}

void quiet_lock::unlock()
{
	if (__atomic_exchange_n(&word, 0, __ATOMIC_RELEASE) == 2)
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}
} // namespace emu
