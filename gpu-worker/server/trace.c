#include "gpu-worker/server/trace.h"

#include <stdio.h>
#include <string.h>

#include "gpu-worker/server/trace_internal.h"

enum kv_status gw_traces_create(
    struct kv_allocator *allocator, uint32_t layers, struct gw_traces **traces)
{
	struct gw_traces *made = kv_alloc_zero(allocator, sizeof *made);

	if (made == NULL) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->layers = layers;
	made->all = kv_alloc_array_zero(allocator, GW_TRACES, sizeof *made->all);
	made->layer_us =
	    kv_alloc_array_zero(allocator, (size_t)GW_TRACES * layers, sizeof *made->layer_us);
	if (made->all == NULL || made->layer_us == NULL) {
		gw_traces_destroy(made);
		return KV_NO_MEMORY;
	}
	*traces = made;
	return KV_OK;
}

void gw_traces_destroy(struct gw_traces *traces)
{
	if (traces == NULL) return;
	kv_free(traces->allocator, traces->layer_us);
	kv_free(traces->allocator, traces->all);
	kv_free(traces->allocator, traces);
}

/* A place that was never used, that of what ended longest ago, or that of the oldest. */
static uint32_t place_for_next(const struct gw_traces *traces)
{
	uint32_t best = 0;

	for (uint32_t i = 0; i < GW_TRACES; i++) {
		const struct gw_trace *one = &traces->all[i], *chosen = &traces->all[best];
		bool runs = one->serial > 0 && one->ended_ns == 0;
		bool chosen_runs = chosen->serial > 0 && chosen->ended_ns == 0;

		if (one->serial == 0) return i;
		if (runs != chosen_runs ? chosen_runs
		    : runs              ? one->serial < chosen->serial
		                        : one->ended_ns < chosen->ended_ns)
			best = i;
	}
	return best;
}

struct gw_trace_ref gw_traces_begin(
    struct gw_traces *traces, const char *id, const char *kind, uint64_t now_ns)
{
	struct gw_trace_ref ref = {0};
	struct gw_trace *trace;

	if (traces == NULL) return ref;
	ref.slot = place_for_next(traces);
	ref.serial = ++traces->last_serial;
	trace = &traces->all[ref.slot];
	memset(trace, 0, sizeof *trace);
	memset(traces->layer_us + (size_t)ref.slot * traces->layers, 0,
	    traces->layers * sizeof *traces->layer_us);
	trace->serial = ref.serial;
	trace->kind = kind;
	trace->started_ns = now_ns;
	snprintf(trace->id, sizeof trace->id, "%s", id);
	return ref;
}

static struct gw_trace *find(struct gw_traces *traces, const struct gw_trace_ref *ref)
{
	if (traces == NULL || ref->serial == 0) return NULL;
	return traces->all[ref->slot].serial == ref->serial ? &traces->all[ref->slot] : NULL;
}

void gw_traces_submitted(struct gw_traces *traces, const struct gw_trace_ref *ref,
    const char *answer, uint32_t choices, uint64_t now_ns)
{
	struct gw_trace *trace = find(traces, ref);

	if (trace == NULL) return;
	snprintf(trace->answer, sizeof trace->answer, "%s", answer);
	if (choices > GW_MAX_ANSWERS) choices = GW_MAX_ANSWERS;
	trace->choice_count = choices < GW_TRACE_CHOICES ? choices : (uint32_t)GW_TRACE_CHOICES;
	trace->left_out = choices - trace->choice_count;
	trace->submitted_ns = now_ns;
}

void gw_traces_event(struct gw_traces *traces, const struct gw_trace_ref *ref, uint32_t choice,
    const struct gw_engine_event *event)
{
	struct gw_trace *trace = find(traces, ref);
	struct gw_trace_choice *one;

	if (trace == NULL || choice >= trace->choice_count + trace->left_out) return;
	if (event->kind == GW_EVENT_LAYER && event->done < traces->layers) {
		uint32_t *us = traces->layer_us + (size_t)ref->slot * traces->layers + event->done;
		uint64_t sum = *us + event->total / 1000;

		*us = sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
	}
	if (choice >= trace->choice_count) {
		trace->other_tokens[choice - trace->choice_count] = event->times.tokens;
		return;
	}
	one = &trace->choices[choice];
	one->times = event->times;
	if (event->kind == GW_EVENT_FINISHED) {
		one->ended = true;
		one->status = event->result->status;
		one->finish = event->result->finish;
	}
}

void gw_traces_end(
    struct gw_traces *traces, const struct gw_trace_ref *ref, unsigned code, uint64_t now_ns)
{
	struct gw_trace *trace = find(traces, ref);

	if (trace == NULL) return;
	trace->code = code;
	trace->ended_ns = now_ns;
}
