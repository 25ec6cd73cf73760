/* What a kernel may touch: its thread's stack, its block's shared memory, its arguments, constants,
 * device memory and pinned memory; no other memory of the process, which no device could reach.
 *
 * In the tsan flavour every access of a kernel comes by (wrapped_accesses.cpp).
 */
#include <link.h>
#include <cstdio>
#include <cstdlib>

#include "tests/lib/cuda_on_cpu/sanitizers.h"

extern "C" void __sanitizer_print_stack_trace(void) EMU_WEAK;

namespace emu
{
static bool holds(const struct place *p, const char *at, size_t bytes, bool written)
{
	return at >= p->start && at + bytes <= p->end && (p->writable || !written);
}

[[noreturn]] static void refuse(const struct fiber *f, const char *at, size_t bytes, bool written)
{
	const struct block *b = f->block;
	char words[128];
	const char *what = fiber_explain(f, at);
	struct place found = {nullptr, nullptr, false};
	if (memory_explain(at, words, sizeof words))
		what = words;
	else if (memory_place(at, &found))
		what = "memory that was registered as read-only";
	else if (!what)
		what = "neither device nor pinned memory";
	fprintf(stderr,
	    "cuda_on_cpu: thread (%u,%u,%u) of block (%u,%u,%u) of %s %s %zu bytes at %p: %s\n",
	    f->index.x, f->index.y, f->index.z, b->index.x, b->index.y, b->index.z, b->launch->name,
	    written ? "writes" : "reads", bytes, static_cast<const void *>(at), what);
	if (__sanitizer_print_stack_trace) __sanitizer_print_stack_trace();
	abort();
}

/* Found slowly, but remembered until memory is allocated or freed. */
static bool is_of_device(struct block *b, const char *at, size_t bytes, bool written)
{
	uint64_t now = memory_generation();
	if (b->memory_generation != now) b->known_count = 0;
	b->memory_generation = now;
	for (unsigned i = 0; i < b->known_count && i < MAX_KNOWN; i++)
		if (holds(&b->known[i], at, bytes, written)) return true;
	struct place found;
	if (!memory_place(at, &found) || !holds(&found, at, bytes, written)) return false;
	b->known[b->known_count++ % MAX_KNOWN] = found;
	return true;
}

void access_check(const volatile void *address, size_t bytes, bool written)
{
	const struct fiber *f = static_cast<struct fiber *>(emu_thread);
	const char *at = static_cast<const char *>(const_cast<const void *>(address));
	if (!f || (at >= f->stack && at + bytes <= f->stack + settings.stack)) return;
	struct block *b = f->block;
	for (unsigned i = 0; i < b->place_count; i++)
		if (holds(&b->places[i], at, bytes, written)) return;
	if (!is_of_device(b, at, bytes, written)) refuse(f, at, bytes, written);
}

void block_add_place(struct block *b, const void *start, size_t bytes, bool writable)
{
	const char *at = static_cast<const char *>(start);
	if (b->place_count == MAX_PLACES) die_plainly("a kernel's program has too many segments");
	b->places[b->place_count++] = {at, at + bytes, writable};
}

void block_add_module(struct block *b, const struct dl_phdr_info *module)
{
	for (int i = 0; i < module->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &module->dlpi_phdr[i];
		const char *start = reinterpret_cast<const char *>(module->dlpi_addr + h->p_vaddr);
		bool constants =
		    (h->p_type == PT_LOAD && !(h->p_flags & PF_W)) || h->p_type == PT_GNU_RELRO;
		if (constants) block_add_place(b, start, h->p_memsz, false);
		if (h->p_type == PT_TLS && module->dlpi_tls_data)
			block_add_place(b, module->dlpi_tls_data, h->p_memsz, true);
	}
}
} // namespace emu
