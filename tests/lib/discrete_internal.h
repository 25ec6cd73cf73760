/* What the files of the discrete test backend share. */
#ifndef TESTS_LIB_DISCRETE_INTERNAL_H
#define TESTS_LIB_DISCRETE_INTERNAL_H

#include "tests/lib/discrete_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct discrete_block {
	uint8_t *start;
	size_t bytes;
	uint64_t counted; /* of it as device memory */
	enum kn_memory kind;
	int registered;
	void *token; /* a block of the backend's allocator, so that leaks and failures are seen there */
	struct discrete_block *next;
};

/* One queued call. `run` frees nothing; the copies of descriptors lie in `copies`. */
enum { DISCRETE_COPIES = 3 };
struct discrete_entry {
	enum kv_status (*run)(struct kn_backend *cpu, const struct discrete_entry *entry);
	union {
		struct {
			void *to;
			const void *from;
			size_t bytes;
			uint8_t value;
		} move;
#define DISCRETE_MEMBER(op, arguments) struct arguments op;
		KN_BACKEND_OPS(DISCRETE_MEMBER)
#undef DISCRETE_MEMBER
	} a;
	void *copies[DISCRETE_COPIES];
	struct discrete_entry *next;
};

struct discrete {
	struct kv_allocator *allocator;
	struct kn_backend *cpu;
	uint8_t *arena; /* address space of device memory */
	size_t used;    /* of it, from the start */
	uint64_t waits;
	struct kn_memory_use use; /* weights count as the file's bytes */
	struct discrete_weight *weights;
	int open; /* the host could touch it just now */
	int stepping;
	struct discrete_block *blocks;
	struct discrete_entry *first, *last;
	char description[128];
};

static inline struct discrete *discrete_of(struct kn_backend *backend)
{
	return (struct discrete *)(void *)backend;
}

/* discrete_ops.c: queue a copy of each operation's arguments. */
#define DISCRETE_DECLARE(op, arguments)                                                            \
	enum kv_status discrete_op_##op(                                                               \
	    struct kn_backend *backend, struct kn_stream *stream, const struct arguments *a);
KN_BACKEND_OPS(DISCRETE_DECLARE)
#undef DISCRETE_DECLARE

/* An entry at the end of the queue, all zeros. */
struct discrete_entry *discrete_queue(
    struct discrete *d, enum kv_status (*run)(struct kn_backend *, const struct discrete_entry *));
/* KV_INTERNAL, naming op and what, unless `pointer` is memory of the backend (or NULL). */
enum kv_status discrete_check(
    const struct discrete *d, const char *op, const char *what, const void *pointer);
/* A copy that lives as long as the process needs it. */
void *discrete_clone(const void *from, size_t count, size_t size);

#ifdef __cplusplus
}
#endif
#endif
