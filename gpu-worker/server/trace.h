/* Where the time of single requests went: the running ones and the last that ended.
 *
 * A ring of fixed size, which the loop's thread owns: it is told of requests by their exchanges and
 * by the engine's events. A choice's outer spans follow each other from the request's first byte to
 * the end of its answer, so that they add up to its time. Times are kv_now_ns and come from the
 * caller.
 */
#ifndef GW_SERVER_TRACE_H
#define GW_SERVER_TRACE_H

#include <stdbool.h>

#include "common/base/request_id.h"
#include "common/runtime/text_buffer.h"
#include "gpu-worker/server/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GW_TRACES = 256, GW_TRACE_CHOICES = 16 };

struct gw_traces;

/* A request's place; zeros: it is not traced. When the ring has gone round, nothing is noted. */
struct gw_trace_ref {
	uint32_t slot;
	uint64_t serial;
};

/* All memory is taken here. `layers` of the model. */
enum kv_status gw_traces_create(
    struct kv_allocator *allocator, uint32_t layers, struct gw_traces **traces);
void gw_traces_destroy(struct gw_traces *traces); /* NULL is allowed, as below */

/* A request's head has come. What ended longest ago makes room; what runs does so only where
 * nothing has ended. `kind`: what was asked for, a literal. */
struct gw_trace_ref gw_traces_begin(
    struct gw_traces *traces, const char *id, const char *kind, uint64_t now_ns);
/* The engine has it: as `choices` answers, under the name that the answer goes by. */
void gw_traces_submitted(struct gw_traces *traces, const struct gw_trace_ref *ref,
    const char *answer, uint32_t choices, uint64_t now_ns);
void gw_traces_event(struct gw_traces *traces, const struct gw_trace_ref *ref, uint32_t choice,
    const struct gw_engine_event *event);
/* Nothing more is done for it. `code` of the answer, 0 when there was none that was whole: the
 * client left. */
void gw_traces_end(
    struct gw_traces *traces, const struct gw_trace_ref *ref, unsigned code, uint64_t now_ns);

/* Is this a request's id, or its answer's? The newest of that name is told, as `STAT name value`
 * lines up to END or as one JSON object. False, and nothing is put, when there is none. */
bool gw_traces_put(const struct gw_traces *traces, const char *id, bool json, uint64_t now_ns,
    struct kv_text_buffer *out);
/* All of them, the newest first: a line each up to END, or {"requests": […]}. */
void gw_traces_put_list(
    const struct gw_traces *traces, bool json, uint64_t now_ns, struct kv_text_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
