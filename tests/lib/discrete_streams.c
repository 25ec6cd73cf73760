/* The streams of the discrete test backend. Each has a queue of its own, which runs when the host
 * waits for that stream, or for one that was ordered after it: as late as may be, so that an order
 * that was not asked for shows. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/discrete_internal.h"

static void die(const char *why)
{
	fprintf(stderr, "discrete backend: %s\n", why);
	abort();
}

static struct discrete_stream *stream_of(struct kn_stream *stream)
{
	return (struct discrete_stream *)(void *)stream;
}

enum kv_status discrete_stream_create(
    struct kn_backend *backend, enum kn_stream_priority priority, struct kn_stream **stream)
{
	struct discrete *d = discrete_of(backend);
	struct discrete_stream *made;
	struct kn_stream *cpu = NULL;

	/* So that memory runs out here, too. */
	KV_TRY(kn_cpu_ops.stream_create(d->cpu, priority, &cpu));
	made = discrete_clone(NULL, 1, sizeof *made);
	made->cpu = cpu;
	while (made->number < DISCRETE_STREAMS && d->streams[made->number] != NULL)
		made->number++;
	if (made->number == DISCRETE_STREAMS) die("too many streams");
	made->queued = made->done = d->done[made->number];
	d->streams[made->number] = made;
	*stream = (struct kn_stream *)(void *)made;
	return KV_OK;
}

struct discrete_entry *discrete_queue(struct discrete *d, struct kn_stream *stream,
    enum kv_status (*run)(struct kn_backend *, const struct discrete_entry *))
{
	struct discrete_entry *entry = discrete_clone(NULL, 1, sizeof *entry);
	struct discrete_stream *s = stream_of(stream);

	if (s == NULL) die("an operation without a stream");
	entry->run = run;
	if (s->last != NULL)
		s->last->next = entry;
	else
		s->first = entry;
	s->last = entry;
	s->queued++;
	for (struct discrete_block *block = d->blocks; block != NULL; block = block->next) {
		if (block->named) block->used[s->number] = s->queued;
		block->named = 0;
	}
	return entry;
}

static void drop_first(struct discrete_stream *s)
{
	struct discrete_entry *entry = s->first;

	s->first = entry->next;
	if (s->first == NULL) s->last = NULL;
	s->done++;
	for (int i = 0; i < DISCRETE_COPIES; i++)
		free(entry->copies[i]);
	free(entry);
}

/* Up to entry `end`; what follows a failure is dropped. An order's own earlier ones come first. */
static void run_until(struct discrete *d, struct discrete_stream *s, uint64_t end)
{
	for (; s->done < end; drop_first(s)) {
		const struct discrete_entry *entry = s->first;

		if (entry->run != NULL) {
			if (s->failed == KV_OK) s->failed = entry->run(d->cpu, entry);
			continue;
		}
		run_until(d, entry->earlier, entry->earlier_end);
		if (s->failed == KV_OK) s->failed = entry->earlier->failed;
	}
}

/* All of the queue, in order. A failure is told once. */
enum kv_status discrete_stream_wait(struct kn_backend *backend, struct kn_stream *stream)
{
	struct discrete *d = discrete_of(backend);
	struct discrete_stream *s = stream_of(stream);
	enum kv_status status;

	if (s->first != NULL) {
		discrete_open_memory(d);
		run_until(d, s, s->queued);
		discrete_close_memory(d);
	}
	status = s->failed;
	s->failed = KV_OK;
	return status;
}

static int orders_are_forgotten;

void kvt_discrete_forget_orders(int forget)
{
	orders_are_forgotten = forget;
}

enum kv_status discrete_stream_order(
    struct kn_backend *backend, struct kn_stream *earlier, struct kn_stream *later)
{
	struct discrete *d = discrete_of(backend);
	struct discrete_stream *s = stream_of(earlier);
	struct discrete_entry *entry;

	if (earlier == later || orders_are_forgotten) return KV_OK;
	if (d->stepping) return kv_fail(KV_INVALID, "streams are ordered outside of steps");
	entry = discrete_queue(d, later, NULL);
	entry->earlier = s;
	entry->earlier_end = s->queued;
	return KV_OK;
}

void discrete_stream_destroy(struct kn_backend *backend, struct kn_stream *stream)
{
	struct discrete *d = discrete_of(backend);
	struct discrete_stream *s = stream_of(stream);

	if (s == NULL) return;
	(void)discrete_stream_wait(backend, stream);
	for (uint32_t i = 0; i < DISCRETE_STREAMS; i++)
		for (struct discrete_entry *e = d->streams[i] != NULL ? d->streams[i]->first : NULL;
		     e != NULL; e = e->next)
			if (e->run == NULL && e->earlier == s) die("a stream goes that others wait for");
	d->streams[s->number] = NULL;
	d->done[s->number] = s->done;
	kn_cpu_ops.stream_destroy(d->cpu, s->cpu);
	free(s);
}

/* Work may go on while memory that it does not use comes and goes. */
int discrete_uses(const struct discrete *d, const struct discrete_block *block)
{
	for (uint32_t i = 0; i < DISCRETE_STREAMS; i++) {
		const struct discrete_stream *s = d->streams[i];

		if (s == NULL || s->first == NULL) continue;
		if (block == NULL || block->used[i] > s->done) return 1;
	}
	return 0;
}
