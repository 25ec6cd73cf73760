/* One block: its fibers run in turns until all have ended; barriers and warp collectives. */
#include <link.h>
#include <sys/mman.h>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "tests/lib/cuda_on_cpu/sanitizers.h"
#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
static struct fiber *self(void)
{
	return static_cast<struct fiber *>(emu_thread);
}

static void thread_main(void)
{
	struct fiber *f = self();
	fiber_entered(f);
	order_acquire(&f->block->start_token);
	f->block->launch->call(f->block->launch->argument);
	f = self();
	f->state = FIBER_DONE;
	f->block->alive--;
	order_release(&f->block->launch->operation->done_token);
	fiber_to_scheduler(f, true);
	abort();
}

/* Find the module that holds the block's kernel and fill its shared variables with NaN: they are
 * its thread-local data without a value. The thread is one that the emulator made for blocks, so
 * that nothing else is lost but the runtime's own variables, which are set before each use. */
static int prepare_module(struct dl_phdr_info *module, size_t, void *argument)
{
	struct block *b = static_cast<struct block *>(argument);
	uintptr_t address = reinterpret_cast<uintptr_t>(b->launch->kernel);
	const ElfW(Phdr) *tls = nullptr;
	bool holds = false;
	for (int i = 0; i < module->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &module->dlpi_phdr[i];
		if (h->p_type == PT_TLS) tls = h;
		holds |= h->p_type == PT_LOAD && address - (module->dlpi_addr + h->p_vaddr) < h->p_memsz;
	}
	if (holds && tls && module->dlpi_tls_data)
		memset(static_cast<char *>(module->dlpi_tls_data) + tls->p_filesz, 0xff,
		    tls->p_memsz - tls->p_filesz);
	if (holds && under_tsan) block_add_module(b, module);
	return holds;
}

/* Dynamic shared memory, filled with NaN; a page that cannot be touched follows it. */
struct shared_memory {
	char *mapping, *start;
	size_t mapped;
};

static struct shared_memory shared_create(size_t bytes)
{
	struct shared_memory s = {nullptr, nullptr, 0};
	if (bytes == 0) return s;
	size_t rounded = (bytes + 127) & ~size_t{127}, pages = (bytes + 4095) & ~size_t{4095};
	if (under_asan) {
		s.mapping = s.start = static_cast<char *>(aligned_alloc(128, rounded));
		__asan_poison_memory_region(s.start + bytes, rounded - bytes);
	} else {
		s.mapped = pages + GUARD_BYTES;
		s.mapping = static_cast<char *>(
		    mmap(nullptr, s.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		mprotect(s.mapping + pages, GUARD_BYTES, PROT_NONE);
		s.start = s.mapping + ((pages - bytes) & ~size_t{15});
	}
	memset(s.start, 0xff, bytes);
	return s;
}

static void shared_destroy(struct shared_memory *s)
{
	if (s->mapped)
		munmap(s->mapping, s->mapped);
	else
		free(s->mapping);
}

/* The block, its fibers and its warps' state in one mapping. It is mapped anew for each block:
 * ThreadSanitizer forgets tokens with it that else would order this block after older ones. */
static struct block *block_create(const struct launch *launch, uint3 index, size_t *bytes)
{
	const dim3 *size = &launch->shape.block;
	unsigned threads = size->x * size->y * size->z;
	size_t head = (sizeof(struct block) + 63) & ~size_t{63};
	size_t fibers = threads * sizeof(struct fiber);
	*bytes = head + fibers + (threads + 31) / 32 * sizeof(struct warp_group[MAX_WARP_MASKS]);
	void *memory = mmap(nullptr, *bytes, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) die_plainly("no memory for a block of %u threads", threads);
	char *at = static_cast<char *>(memory);
	struct block *b = new (at) struct block();
	b->launch = launch;
	b->index = index;
	b->fibers = reinterpret_cast<struct fiber *>(at + head);
	b->warps = reinterpret_cast<struct warp_group(*)[MAX_WARP_MASKS]>(at + head + fibers);
	b->count = b->alive = threads;
	b->set = (launch->first_set + index.x + index.y + index.z) & 1;
	b->random = settings.seed * 0x9e3779b97f4a7c15u + index.x * 7919u + index.y * 104729u + index.z;
	b->random |= 1;
	if (under_tsan) b->scheduler_tsan = __tsan_get_current_fiber();
	return b;
}

static void start_threads(struct block *b, char *dynamic_shared)
{
	const dim3 *size = &b->launch->shape.block;
	stacks_take(b->fibers, b->count, b->set);
	for (unsigned i = 0; i < b->count; i++) {
		struct fiber *f = &b->fibers[i];
		f->rank = i;
		f->index = {i % size->x, i / size->x % size->y, i / (size->x * size->y)};
		f->dynamic_shared = dynamic_shared;
		f->block = b;
		f->state = FIBER_READY;
		fiber_prepare(f, thread_main);
	}
	blockIdx = b->index;
	blockDim = {size->x, size->y, size->z};
	gridDim = {b->launch->shape.grid.x, b->launch->shape.grid.y, b->launch->shape.grid.z};
	operation_begin(b->launch->operation);
	order_release(&b->start_token);
}

static void release_waiting(struct block *b, enum fiber_state state)
{
	for (unsigned i = 0; i < b->count; i++)
		if (b->fibers[i].state == state) b->fibers[i].state = FIBER_READY;
}

/* All threads that are alive wait at a barrier: is it the same one? Then let them go on. */
static void pass_barrier(struct block *b)
{
	const struct fiber *first = nullptr;
	for (unsigned i = 0; i < b->count; i++) {
		const struct fiber *f = &b->fibers[i];
		if (f->state != FIBER_BARRIER) continue;
		if (first && (f->line != first->line || strcmp(f->file, first->file) != 0))
			die(b, "threads meet at different __syncthreads");
		first = f;
	}
	release_waiting(b, FIBER_BARRIER);
	b->at_barrier = 0;
	b->barrier_generation++;
}

static void run_threads(struct block *b)
{
	std::vector<unsigned> order(b->count);
	for (unsigned i = 0; i < b->count; i++)
		order[i] = settings.seed == 1 ? b->count - 1 - i : i;
	while (b->alive) {
		if (settings.seed > 1)
			for (unsigned i = b->count; i > 1; i--)
				std::swap(order[i - 1], order[next_random(&b->random) % i]);
		bool ran = false;
		for (unsigned i : order) {
			if (b->fibers[i].state != FIBER_READY) continue;
			fiber_switch_to(b, &b->fibers[i]);
			ran = true;
		}
		if (b->alive && b->at_barrier == b->alive)
			pass_barrier(b);
		else if (!ran)
			die(b, "deadlock (divergent barrier or missing lane)");
	}
}

void block_run(const struct launch *launch, uint3 index)
{
	size_t bytes;
	struct block *b = block_create(launch, index, &bytes);
	struct shared_memory shared = shared_create(launch->shape.shared_bytes);
	if (!under_asan) dl_iterate_phdr(prepare_module, b);
	block_add_place(b, b, bytes, true);
	block_add_place(b, shared.start, launch->shape.shared_bytes, true);
	block_add_place(b, launch->argument, launch->argument_bytes, false);
	b->shared_end = shared.start + launch->shape.shared_bytes;
	start_threads(b, shared.start);
	run_threads(b);
	stacks_return(b->fibers, b->count, b->set);
	emu_thread = nullptr;
	munmap(b, bytes);
	shared_destroy(&shared);
}

static struct warp_group *find_group(struct fiber *f, unsigned mask)
{
	for (struct warp_group &g : f->block->warps[f->rank / 32])
		if (g.mask == mask || g.mask == 0) return &g;
	die(f->block, "over 32 different masks in a warp");
}

static void join_collective(struct fiber *f, struct warp_group *g, unsigned mask, unsigned orders)
{
	if (g->arrived == 0)
		g->orders_memory = orders;
	else if (g->orders_memory != orders)
		die(f->block, "lanes meet at different warp collectives");
	g->mask = mask;
	g->arrived |= 1u << (f->rank & 31);
	if (g->arrived != mask) {
		f->state = FIBER_WARP;
		f->warp_mask = mask;
		fiber_to_scheduler(f, false);
		return;
	}
	g->arrived = 0;
	g->generation++;
	struct fiber *first = &f->block->fibers[f->rank & ~31u];
	for (unsigned i = 0; i < 32; i++)
		if (mask >> i & 1) first[i].state = FIBER_READY;
}
} // namespace emu

using namespace emu;

extern "C" {
void emu_barrier(const char *file, int line)
{
	struct fiber *f = self();
	struct block *b = f->block;
	void *token = &b->barrier_tokens[b->barrier_generation & 1];
	f->state = FIBER_BARRIER;
	f->file = file;
	f->line = line;
	b->at_barrier++;
	order_release(token);
	fiber_to_scheduler(f, false);
	order_acquire(token);
}

const uint64_t *emu_warp(unsigned mask, uint64_t value, int orders_memory)
{
	struct fiber *f = self();
	unsigned lane = f->rank & 31, lanes = f->block->count - (f->rank & ~31u);
	if (!(mask >> lane & 1)) die(f->block, "a lane is not in its own mask");
	if (mask == ~0u && lanes < 32) mask = (1u << lanes) - 1;
	struct warp_group *g = find_group(f, mask);
	uint64_t *values = g->values[g->generation & 1];
	values[lane] = value;
	if (orders_memory) order_release(values);
	join_collective(f, g, mask, static_cast<unsigned>(orders_memory));
	if (orders_memory) order_acquire(values);
	return values;
}

void emu_atomic_hook(const volatile void *at, size_t bytes)
{
	struct fiber *f = self();
	if (under_tsan && bytes) access_check(at, bytes, true);
	f->atomics++;
	bool yield =
	    settings.seed > 1 ? next_random(&f->block->random) % 16 == 0 : f->atomics % 64 == 0;
	if (!yield) return;
	f->state = FIBER_READY;
	fiber_to_scheduler(f, false);
}

void emu_fence(void)
{
	static char token;
	order_acquire(&token);
	emu_atomic_hook(nullptr, 0);
	order_release(&token);
}
}
