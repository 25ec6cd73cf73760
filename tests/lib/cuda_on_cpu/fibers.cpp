/* Fibers: stacks, and switching between them with nothing but pushes and pops. */
#include <sys/mman.h>
#include <cstring>
#include <vector>

#include "tests/lib/cuda_on_cpu/sanitizers.h"

extern "C" {
__thread emu_cuda_thread *emu_thread;
__thread uint3 threadIdx, blockIdx, blockDim, gridDim;
/* Save the stack pointer of this context to *save and go on in the one of `load`. */
void emu_switch(void **save, void *load);
}

#if defined(__x86_64__)
asm(R"(.text
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
	push %rbp
	push %rbx
	push %r12
	push %r13
	push %r14
	push %r15
	mov %rsp, (%rdi)
	mov %rsi, %rsp
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbx
	pop %rbp
	ret
.size emu_switch, .-emu_switch
)");

/* A function is entered with the stack pointer at 8 modulo 16. */
static void *make_context(char *stack, size_t size, void (*entry)(void))
{
	void **top = reinterpret_cast<void **>(stack + size) - 3;
	*top = nullptr;
	*--top = reinterpret_cast<void *>(entry);
	top -= 6;
	memset(top, 0, 6 * sizeof *top);
	return top;
}
#else
/* Portable and slower, two system calls a switch; the context lives at the bottom of the stack. */
#include <ucontext.h>

static void *make_context(char *stack, size_t size, void (*entry)(void))
{
	ucontext_t *context = reinterpret_cast<ucontext_t *>(stack);
	getcontext(context);
	context->uc_stack.ss_sp = stack + sizeof *context;
	context->uc_stack.ss_size = size - sizeof *context;
	context->uc_link = nullptr;
	makecontext(context, entry, 0);
	return context;
}

void emu_switch(void **save, void *load)
{
	static __thread ucontext_t scheduler;
	ucontext_t *mine = *save ? static_cast<ucontext_t *>(*save) : &scheduler;
	*save = mine;
	swapcontext(mine, static_cast<ucontext_t *>(load));
}
#endif

namespace emu
{
struct stack {
	char *memory;
	void *tsan; /* ThreadSanitizer's fiber */
};

/* Never destroyed: threads may still run while the process ends. */
static quiet_lock stacks_lock;
static std::vector<struct stack> *const free_stacks = new std::vector<struct stack>[2];

static struct stack stack_create(void)
{
	void *memory = mmap(nullptr, settings.stack + GUARD_BYTES, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0)
		die_plainly("no memory for the stack of a CUDA thread");
	return {
	    static_cast<char *>(memory) + GUARD_BYTES, under_tsan ? __tsan_create_fiber(0) : nullptr};
}

void stacks_take(struct fiber *fibers, unsigned count, unsigned set)
{
	auto &pool = free_stacks[set];
	stacks_lock.lock();
	for (unsigned i = 0; i < count; i++) {
		struct stack s = pool.empty() ? stack_create() : pool.back();
		if (!pool.empty()) pool.pop_back();
		fibers[i].stack = s.memory;
		fibers[i].tsan = s.tsan;
	}
	stacks_lock.unlock();
}

void stacks_return(struct fiber *fibers, unsigned count, unsigned set)
{
	stacks_lock.lock();
	for (unsigned i = count; i-- > 0;)
		free_stacks[set].push_back({fibers[i].stack, fibers[i].tsan});
	stacks_lock.unlock();
}

void fiber_prepare(struct fiber *f, void (*entry)(void))
{
	f->asan_fake_stack = nullptr;
	f->stack_pointer = make_context(f->stack, settings.stack, entry);
}

void fiber_entered(struct fiber *f)
{
	struct block *b = f->block;
	if (under_asan)
		__sanitizer_finish_switch_fiber(nullptr, &b->scheduler_bottom, &b->scheduler_size);
}

void fiber_switch_to(struct block *b, struct fiber *f)
{
	emu_thread = f;
	threadIdx = f->index;
	if (under_tsan) __tsan_switch_to_fiber(f->tsan, 1);
	if (under_asan)
		__sanitizer_start_switch_fiber(&b->scheduler_fake_stack, f->stack, settings.stack);
	emu_switch(&b->scheduler_stack_pointer, f->stack_pointer);
	if (under_asan) __sanitizer_finish_switch_fiber(b->scheduler_fake_stack, nullptr, nullptr);
}

void fiber_to_scheduler(struct fiber *f, bool for_good)
{
	struct block *b = f->block;
	if (under_tsan) __tsan_switch_to_fiber(b->scheduler_tsan, 1);
	if (under_asan)
		__sanitizer_start_switch_fiber(
		    for_good ? nullptr : &f->asan_fake_stack, b->scheduler_bottom, b->scheduler_size);
	emu_switch(&f->stack_pointer, b->scheduler_stack_pointer);
	if (under_asan)
		__sanitizer_finish_switch_fiber(
		    f->asan_fake_stack, &b->scheduler_bottom, &b->scheduler_size);
}
} // namespace emu
