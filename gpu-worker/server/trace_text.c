/* What the stats socket tells of traces: lines of `STAT name value`, or JSON.
 *
 * All times are whole microseconds. Outer spans are differences of moments that were rounded first,
 * so they add up to the request's time exactly; the inner ones of a stage add up to it. */
#include <inttypes.h>
#include <string.h>

#include "gpu-worker/server/trace_internal.h"

enum { MAX_SPANS = 24 };

struct span {
	const char *name;
	int depth; /* 0: outer */
	uint64_t us;
};

struct spans {
	struct span all[MAX_SPANS];
	unsigned count;
};

static void add(struct spans *spans, int depth, const char *name, uint64_t us)
{
	if (spans->count < MAX_SPANS) spans->all[spans->count++] = (struct span){name, depth, us};
}

static uint64_t less(uint64_t all, uint64_t part)
{
	return all > part ? all - part : 0;
}

/* What is in a stage of `us` in all. The rest of its work is computing, the rest of it waiting. */
static void add_inner(
    struct spans *spans, const struct gw_stage_work *work, uint64_t us, bool selects)
{
	uint64_t work_us = work->all_ns / 1000 < us ? work->all_ns / 1000 : us, left = work_us;
	const struct {
		const char *name;
		uint64_t ns;
	} parts[] = {{"select", work->select_ns}, {"fetch", work->fetch_ns}, {"index", work->index_ns},
	    {"offload", work->offload_ns}};

	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		uint64_t part = parts[i].ns / 1000 < left ? parts[i].ns / 1000 : left;

		left -= part;
		if (i > 0 || selects || part > 0) add(spans, 1, parts[i].name, part);
	}
	add(spans, 1, "compute", left);
	add(spans, 1, "wait", us - work_us);
}

/* When a request that is still running is looked at, its stage goes up to now. */
static uint64_t end_of(const struct gw_trace *trace, uint64_t now_ns)
{
	return trace->ended_ns > 0 ? trace->ended_ns : now_ns;
}

static uint64_t us_since(const struct gw_trace *trace, uint64_t moment_ns)
{
	return less(moment_ns, trace->started_ns) / 1000;
}

static uint64_t wall_us(const struct gw_trace *trace, uint64_t now_ns)
{
	return us_since(trace, end_of(trace, now_ns));
}

/* The moments of a choice in their order; a stage goes from one to the next that came. */
static void spans_of(const struct gw_trace *trace, const struct gw_trace_choice *choice,
    uint64_t now_ns, struct spans *spans)
{
	static const struct gw_request_times nothing;
	const struct gw_request_times *times = choice != NULL ? &choice->times : &nothing;
	const uint64_t begins[] = {trace->started_ns, trace->submitted_ns, times->begun_ns,
	    times->opened_ns, times->ready_ns, times->ended_ns};
	static const char *const names[] = {"receive", "queue", "open", "prefill", "decode", "send"};
	enum { STAGES = sizeof names / sizeof names[0], PREFILL = 3, DECODE = 4 };
	uint64_t end = wall_us(trace, now_ns);

	spans->count = 0;
	for (int i = 0; i < STAGES; i++) {
		uint64_t from = us_since(trace, begins[i]), to = end;

		if (begins[i] == 0) continue;
		for (int next = STAGES - 1; next > i; next--)
			if (begins[next] > 0) to = us_since(trace, begins[next]);
		/* Where the engine gave it back after its client had left, there is nothing to send. */
		if (to > end) to = end;
		if (from > to) from = to;
		add(spans, 0, names[i], to - from);
		if (i == PREFILL) add_inner(spans, &times->prompt, to - from, false);
		if (i == DECODE) add_inner(spans, &times->answer, to - from, true);
	}
}

static const char *state_of(const struct gw_trace *trace)
{
	if (trace->ended_ns == 0) return "running";
	if (trace->code == 0) return "gone";
	return trace->code < 400 ? "done" : "failed";
}

/* Of all choices; the prompt counts once. */
static struct gw_request_times totals_of(const struct gw_trace *trace)
{
	struct gw_request_times sum = {0};

	for (uint32_t i = 0; i < trace->choice_count; i++) {
		const struct gw_request_times *times = &trace->choices[i].times;

		if (i == 0) {
			sum.prompt_tokens = times->prompt_tokens;
			sum.found_tokens = times->found_tokens;
		}
		sum.tokens += times->tokens;
	}
	for (uint32_t i = 0; i < trace->left_out; i++)
		sum.tokens += trace->other_tokens[i];
	return sum;
}

static const char *ending_of(const struct gw_trace_choice *choice)
{
	if (!choice->ended) return "running";
	return choice->status == KV_OK ? gw_finish_text(choice->finish)
	                               : kv_status_text(choice->status);
}

/* ---- lines ---- */

static void put_choice_lines(const struct gw_trace *trace, uint32_t index, uint64_t now_ns,
    struct kv_text_buffer *out)
{
	const struct gw_trace_choice *choice =
	    index < trace->choice_count ? &trace->choices[index] : NULL;
	const char *outer = "";
	struct spans spans;

	if (choice != NULL) {
		kv_text_printf(out, "STAT choice:%u:end %s\r\n", index, ending_of(choice));
		kv_text_printf(out, "STAT choice:%u:tokens %u\r\n", index, choice->times.tokens);
		kv_text_printf(
		    out, "STAT choice:%u:steps %" PRIu64 "\r\n", index, choice->times.answer.steps);
		kv_text_printf(out, "STAT choice:%u:found_tokens %u\r\n", index,
		    choice->times.found_tokens);
	}
	spans_of(trace, choice, now_ns, &spans);
	for (unsigned i = 0; i < spans.count; i++) {
		const struct span *span = &spans.all[i];

		if (span->depth == 0) outer = span->name;
		kv_text_printf(out, "STAT choice:%u:span:%s%s%s_us %" PRIu64 "\r\n", index, outer,
		    span->depth > 0 ? "." : "", span->depth > 0 ? span->name : "", span->us);
	}
}

static void put_lines(const struct gw_traces *traces, const struct gw_trace *trace, uint64_t now_ns,
    struct kv_text_buffer *out)
{
	const struct gw_request_times sum = totals_of(trace);
	const uint32_t *layer_us =
	    traces->layer_us + (size_t)(trace - traces->all) * traces->layers;

	kv_text_printf(out, "STAT request %s\r\n", trace->id);
	if (trace->answer[0] != '\0') kv_text_printf(out, "STAT answer %s\r\n", trace->answer);
	kv_text_printf(out, "STAT kind %s\r\nSTAT state %s\r\nSTAT code %u\r\n", trace->kind,
	    state_of(trace), trace->code);
	kv_text_printf(out, "STAT age_us %" PRIu64 "\r\n", us_since(trace, now_ns));
	kv_text_printf(out, "STAT wall_us %" PRIu64 "\r\n", wall_us(trace, now_ns));
	kv_text_printf(out,
	    "STAT prompt_tokens %u\r\nSTAT found_tokens %u\r\nSTAT tokens %u\r\nSTAT choices %u\r\n"
	    "STAT choices_left_out %u\r\n",
	    sum.prompt_tokens, sum.found_tokens, sum.tokens, trace->choice_count, trace->left_out);
	for (uint32_t i = 0; i == 0 || i < trace->choice_count; i++)
		put_choice_lines(trace, i, now_ns, out);
	for (uint32_t i = 0; i < traces->layers; i++)
		if (layer_us[i] > 0)
			kv_text_printf(out, "STAT layer:%u_us %" PRIu32 "\r\n", i, layer_us[i]);
	kv_text_put(out, "END\r\n");
}

/* ---- JSON ---- */

static void put_head(const struct gw_trace *trace, uint64_t now_ns, struct kv_text_buffer *out)
{
	const struct gw_request_times sum = totals_of(trace);

	kv_text_put(out, "{\"request\":");
	kv_text_put_json(out, trace->id);
	kv_text_put(out, ",\"answer\":");
	if (trace->answer[0] != '\0')
		kv_text_put_json(out, trace->answer);
	else
		kv_text_put(out, "null");
	kv_text_printf(out,
	    ",\"kind\":\"%s\",\"state\":\"%s\",\"code\":%u,\"age_us\":%" PRIu64 ",\"wall_us\":%" PRIu64
	    ",\"prompt_tokens\":%u,\"found_tokens\":%u,\"tokens\":%u",
	    trace->kind, state_of(trace), trace->code, us_since(trace, now_ns), wall_us(trace, now_ns),
	    sum.prompt_tokens, sum.found_tokens, sum.tokens);
}

static void put_spans(const struct spans *spans, struct kv_text_buffer *out)
{
	int depth = 0;

	kv_text_put(out, "\"spans\":[");
	for (unsigned i = 0; i < spans->count; i++) {
		const struct span *span = &spans->all[i];

		if (span->depth > depth)
			kv_text_put(out, ",\"spans\":[");
		else if (i > 0)
			kv_text_put(out, span->depth < depth ? "}]}," : "},");
		depth = span->depth;
		kv_text_printf(out, "{\"name\":\"%s\",\"us\":%" PRIu64, span->name, span->us);
	}
	if (spans->count > 0) kv_text_put(out, depth > 0 ? "}]}" : "}");
	kv_text_put(out, "]");
}

static void put_choice(const struct gw_trace *trace, uint32_t index, uint64_t now_ns,
    struct kv_text_buffer *out)
{
	const struct gw_trace_choice *choice =
	    index < trace->choice_count ? &trace->choices[index] : NULL;
	struct spans spans;

	kv_text_printf(out, "%s{\"index\":%u,", index > 0 ? "," : "", index);
	if (choice != NULL) {
		kv_text_put(out, "\"end\":");
		kv_text_put_json(out, ending_of(choice));
		kv_text_printf(out, ",\"tokens\":%u,\"steps\":%" PRIu64 ",\"found_tokens\":%u,",
		    choice->times.tokens, choice->times.answer.steps, choice->times.found_tokens);
	}
	spans_of(trace, choice, now_ns, &spans);
	put_spans(&spans, out);
	kv_text_put(out, "}");
}

static void put_object(const struct gw_traces *traces, const struct gw_trace *trace,
    uint64_t now_ns, struct kv_text_buffer *out)
{
	const uint32_t *layer_us =
	    traces->layer_us + (size_t)(trace - traces->all) * traces->layers;
	uint32_t known = traces->layers;

	put_head(trace, now_ns, out);
	kv_text_put(out, ",\"choices\":[");
	for (uint32_t i = 0; i == 0 || i < trace->choice_count; i++)
		put_choice(trace, i, now_ns, out);
	kv_text_printf(out, "],\"choices_left_out\":%u,\"layers_us\":[", trace->left_out);
	while (known > 0 && layer_us[known - 1] == 0)
		known--;
	for (uint32_t i = 0; i < known; i++)
		kv_text_printf(out, "%s%" PRIu32, i > 0 ? "," : "", layer_us[i]);
	kv_text_put(out, "]}\n");
}

/* ---- questions ---- */

static const struct gw_trace *newest_before(const struct gw_traces *traces, uint64_t serial)
{
	const struct gw_trace *found = NULL;

	for (uint32_t i = 0; i < GW_TRACES; i++) {
		const struct gw_trace *one = &traces->all[i];

		if (one->serial == 0 || one->serial >= serial) continue;
		if (found == NULL || one->serial > found->serial) found = one;
	}
	return found;
}

bool gw_traces_put(const struct gw_traces *traces, const char *id, bool json, uint64_t now_ns,
    struct kv_text_buffer *out)
{
	const struct gw_trace *trace = NULL;

	for (uint64_t serial = UINT64_MAX; traces != NULL; serial = trace->serial) {
		trace = newest_before(traces, serial);
		if (trace == NULL) return false;
		if (strcmp(trace->id, id) == 0 || strcmp(trace->answer, id) == 0) break;
	}
	if (trace == NULL) return false;
	if (json)
		put_object(traces, trace, now_ns, out);
	else
		put_lines(traces, trace, now_ns, out);
	return true;
}

static void put_line(const struct gw_trace *trace, uint64_t now_ns, struct kv_text_buffer *out)
{
	const struct gw_request_times sum = totals_of(trace);

	kv_text_printf(out,
	    "STAT %s state=%s code=%u kind=%s wall_us=%" PRIu64 " prompt_tokens=%u found_tokens=%u "
	    "tokens=%u age_us=%" PRIu64 "\r\n",
	    trace->id, state_of(trace), trace->code, trace->kind, wall_us(trace, now_ns),
	    sum.prompt_tokens, sum.found_tokens, sum.tokens, us_since(trace, now_ns));
}

void gw_traces_put_list(
    const struct gw_traces *traces, bool json, uint64_t now_ns, struct kv_text_buffer *out)
{
	const struct gw_trace *trace = traces != NULL ? newest_before(traces, UINT64_MAX) : NULL;
	bool more = false;

	if (json) kv_text_put(out, "{\"requests\":[");
	for (; trace != NULL; trace = newest_before(traces, trace->serial)) {
		if (json) {
			kv_text_put(out, more ? "," : "");
			put_head(trace, now_ns, out);
			kv_text_put(out, "}");
		} else {
			put_line(trace, now_ns, out);
		}
		more = true;
	}
	kv_text_put(out, json ? "]}\n" : "END\r\n");
}
