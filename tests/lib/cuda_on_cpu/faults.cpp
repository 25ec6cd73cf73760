/* Ends of the process, with their reason. */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
static const char *const state_names[] = {"ready", "__syncthreads", "warp collective", "exited"};
static struct sigaction before_segv, before_bus;

[[noreturn]] void die(const struct block *b, const char *why)
{
	fprintf(stderr, "cuda_on_cpu: %s in %s, block (%u,%u,%u)\n", why, b->launch->name, b->index.x,
	    b->index.y, b->index.z);
	for (unsigned i = 0, shown = 0; i < b->count && shown < 12; i++) {
		const struct fiber *f = &b->fibers[i], *last = i ? f - 1 : nullptr;
		if (last && last->state == f->state && last->line == f->line &&
		    last->warp_mask == f->warp_mask)
			continue;
		shown++;
		fprintf(stderr, "  threads from %u: %s", i, state_names[f->state]);
		if (f->state == FIBER_BARRIER) fprintf(stderr, " at %s:%d", f->file, f->line);
		if (f->state == FIBER_WARP) fprintf(stderr, " with mask %08x", f->warp_mask);
		fputc('\n', stderr);
	}
	abort();
}

[[noreturn]] void die_plainly(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs("cuda_on_cpu: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	abort();
}

const char *fiber_explain(const struct fiber *f, const char *at)
{
	const struct block *b = f->block;
	if (at >= f->stack - GUARD_BYTES && at < f->stack)
		return "the end of the thread's stack (EMU_STACK makes it larger)";
	if (b->shared_end && at >= b->shared_end - 16 && at < b->shared_end + 2 * GUARD_BYTES)
		return "memory beyond the dynamic shared memory";
	return nullptr;
}

/* Not all of this is allowed in a signal handler; it is the last thing that the process does. */
static bool explain(const char *at)
{
	const struct fiber *f = static_cast<struct fiber *>(emu_thread);
	char words[128];
	bool of_device = memory_explain(at, words, sizeof words);
	if (!of_device && !f) return false;
	const char *of_thread = f ? fiber_explain(f, at) : nullptr;
	const char *what = of_device ? words : of_thread ? of_thread : "an address that is no memory";
	if (!f) {
		fprintf(stderr, "cuda_on_cpu: host code touches %s\n", what);
		return true;
	}
	fprintf(stderr, "cuda_on_cpu: thread (%u,%u,%u) of block (%u,%u,%u) of %s touches %s, at %p\n",
	    f->index.x, f->index.y, f->index.z, f->block->index.x, f->block->index.y, f->block->index.z,
	    f->block->launch->name, what, static_cast<const void *>(at));
	return true;
}

/* A fault of our own making ends the process, by the sanitizer's handler if there is one: it prints
 * where. Any other is left to the handler that was there. */
static void on_fault(int signal, siginfo_t *info, void *)
{
	bool explained = explain(static_cast<const char *>(info->si_addr));
	struct sigaction ending = {};
	ending.sa_handler = SIG_DFL;
	const struct sigaction *before = signal == SIGSEGV ? &before_segv : &before_bus;
	sigaction(signal, explained && !under_asan ? &ending : before, nullptr);
}

static void watch(int signal, struct sigaction *before)
{
	struct sigaction now, ours = {};
	if (sigaction(signal, nullptr, &now) != 0 || now.sa_sigaction == on_fault) return;
	*before = now;
	ours.sa_sigaction = on_fault;
	ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
	sigaction(signal, &ours, nullptr);
}

void faults_watch(void)
{
	watch(SIGSEGV, &before_segv);
	watch(SIGBUS, &before_bus);
}

/* Signals of the process are for the program's threads. */
static void block_signals(void)
{
	sigset_t set;
	sigfillset(&set);
	for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP})
		sigdelset(&set, fault);
	pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void faults_prepare_thread(void)
{
	block_signals();
	stack_t stack = {};
	if (sigaltstack(nullptr, &stack) == 0 && !(stack.ss_flags & SS_DISABLE)) return;
	/* Under ThreadSanitizer each block has a thread, but one at a time: one stack is enough. */
	static void *shared;
	const size_t bytes = 64 << 10;
	void *memory = under_tsan ? shared : nullptr;
	if (!memory)
		memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) return;
	shared = memory;
	stack.ss_sp = memory;
	stack.ss_size = bytes;
	stack.ss_flags = 0;
	sigaltstack(&stack, nullptr);
}
} // namespace emu
