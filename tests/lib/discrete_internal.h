/* What the files of the discrete test backend share. */
#ifndef TESTS_LIB_DISCRETE_INTERNAL_H
#define TESTS_LIB_DISCRETE_INTERNAL_H

#include "tests/lib/discrete_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DISCRETE_STREAMS = 8 };

struct discrete_block {
	uint8_t *start;
	size_t bytes;
	uint64_t counted; /* of it as device memory */
	enum kn_memory kind;
	int registered;
	void *token; /* a block of the backend's allocator, so that leaks and failures are seen there */
	struct discrete_block *next;
	int named;                       /* by the call that is being checked */
	uint64_t used[DISCRETE_STREAMS]; /* the last entry of each stream that names it, from 1 on */
};

/* One queued call. `run` frees nothing; the copies of descriptors lie in `copies`. */
enum { DISCRETE_COPIES = 3 };
struct discrete_entry {
	/* NULL: an order */
	enum kv_status (*run)(struct kn_backend *cpu, const struct discrete_entry *entry);
	struct discrete_stream *earlier; /* of an order: that far it has to be */
	uint64_t earlier_end;
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

struct discrete_stream {
	struct kn_stream *cpu;
	uint32_t number;
	struct discrete_entry *first, *last;
	uint64_t queued, done; /* entries, ever */
	enum kv_status failed; /* not told yet */
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
	struct discrete_stream *streams[DISCRETE_STREAMS]; /* NULL: none */
	uint64_t done[DISCRETE_STREAMS];                   /* entries of those that had the place */
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

/* discrete_streams.c: an entry at the end of the stream's queue, all zeros. It uses the blocks that
 * were checked since the last one. */
struct discrete_entry *discrete_queue(struct discrete *d, struct kn_stream *stream,
    enum kv_status (*run)(struct kn_backend *, const struct discrete_entry *));
/* Is anything queued that uses the block? NULL: anything at all. */
int discrete_uses(const struct discrete *d, const struct discrete_block *block);
enum kv_status discrete_stream_create(
    struct kn_backend *backend, enum kn_stream_priority priority, struct kn_stream **stream);
void discrete_stream_destroy(struct kn_backend *backend, struct kn_stream *stream);
enum kv_status discrete_stream_order(
    struct kn_backend *backend, struct kn_stream *earlier, struct kn_stream *later);
enum kv_status discrete_stream_wait(struct kn_backend *backend, struct kn_stream *stream);

/* discrete_backend.c: KV_INTERNAL, naming op and what, unless `pointer` is memory of the backend
 * (or NULL). */
enum kv_status discrete_check(
    const struct discrete *d, const char *op, const char *what, const void *pointer);
/* While the queue runs, device memory can be touched. */
void discrete_open_memory(struct discrete *d);
void discrete_close_memory(struct discrete *d);
/* A copy that lives as long as the process needs it. */
void *discrete_clone(const void *from, size_t count, size_t size);

#ifdef __cplusplus
}
#endif
#endif
