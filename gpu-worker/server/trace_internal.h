/* The ring of traces, for those who keep it and who tell of it. Private to this folder. */
#ifndef GW_SERVER_TRACE_INTERNAL_H
#define GW_SERVER_TRACE_INTERNAL_H

#include "gpu-worker/server/http_request.h"
#include "gpu-worker/server/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_trace_choice {
	struct gw_request_times times;
	bool ended;
	enum kv_status status;
	enum gw_finish finish;
};

struct gw_trace {
	uint64_t serial; /* 0: never used */
	char id[KV_REQUEST_ID_BYTES], answer[KV_REQUEST_ID_BYTES];
	const char *kind;
	uint64_t started_ns, submitted_ns, ended_ns; /* 0: not yet */
	unsigned code;
	uint32_t choice_count;
	struct gw_trace_choice choices[GW_TRACE_CHOICES];
	/* Choices beyond these: of them only their tokens are kept. */
	uint32_t left_out;
	uint32_t other_tokens[GW_MAX_ANSWERS - GW_TRACE_CHOICES];
};

struct gw_traces {
	struct kv_allocator *allocator;
	uint32_t layers;
	uint64_t last_serial;
	struct gw_trace *all; /* [GW_TRACES] */
	uint32_t *layer_us;   /* [GW_TRACES][layers]: of the prompt, all choices */
};

#ifdef __cplusplus
}
#endif
#endif
