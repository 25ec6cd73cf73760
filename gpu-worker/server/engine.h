/* The engine thread: it alone owns the pipeline and the sequences.
 *
 * Between it and the event loop are two rings, messages in and events out, and nothing else is
 * shared. A request belongs to the engine from gw_engine_submit until its last event. Prompts
 * are computed in units of a layer's chunk, in turns that prefill_order.h describes; between units
 * every running sequence gets a token each time that `latency_ms` is nearly over. A failure ends
 * the request that it concerns and no other.
 */
#ifndef GW_SERVER_ENGINE_H
#define GW_SERVER_ENGINE_H

#include "common/runtime/event_loop.h"
#include "gpu-worker/server/session.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_engine;

enum gw_engine_state {
	GW_ENGINE_STARTING, /* before the first attempt to reach the store */
	GW_ENGINE_WAITING,  /* the store cannot be reached; tried again */
	GW_ENGINE_READY,
	GW_ENGINE_DRAINED, /* the store takes in nothing new; what is begun goes on, also as a resume */
	GW_ENGINE_FAILED, /* the store cannot be used, and trying again will not help */
	GW_ENGINE_ENDED   /* after gw_engine_stop: the last event of all */
};

enum gw_engine_event_kind {
	GW_EVENT_STATE,   /* state, text: why */
	GW_EVENT_OPENED,  /* text: the sequence's id; prompt_tokens, prefix_hit */
	GW_EVENT_PREFILL, /* done of total, in tokens */
	GW_EVENT_LAYER,   /* the prompt is through layer `done`, which took `total` nanoseconds */
	GW_EVENT_TEXT,    /* text: whole characters of the answer; tokens: of the answer so far */
	GW_EVENT_FINISHED /* result; the last event of a request */
};

struct gw_engine_result {
	enum kv_status status;
	enum gw_finish finish;
	char message[512]; /* why it failed */
	json_t *report;    /* gw_session_report; NULL when no sequence was opened. Borrowed. */
};

/* Nanoseconds of work, and what parts of it were. Selecting and fetching count a sequence's share
 * of its batch's time. */
struct gw_stage_work {
	uint64_t all_ns, index_ns, offload_ns, fetch_ns, select_ns;
	uint64_t steps; /* of decoding */
};

/* When a request came where, by kv_now_ns (0: not yet), and what was done for it. */
struct gw_request_times {
	uint64_t begun_ns;  /* its turn came */
	uint64_t opened_ns; /* what the store knows of it is attached */
	uint64_t ready_ns;  /* its first token is there */
	uint64_t ended_ns;
	struct gw_stage_work prompt; /* until the first token */
	struct gw_stage_work answer; /* since then */
	uint32_t prompt_tokens, found_tokens, tokens;
};

enum { GW_EVENT_TEXT_BYTES = 208 };

struct gw_engine_event {
	enum gw_engine_event_kind kind;
	enum gw_engine_state state;
	void *request; /* the `request` of gw_engine_submit */
	const struct gw_engine_result *result;
	struct gw_request_times times; /* until now; not of GW_EVENT_STATE */
	uint64_t done, total;
	uint32_t tokens, prompt_tokens, prefix_hit;
	uint32_t text_length;
	char text[GW_EVENT_TEXT_BYTES];
};

/* What the engine needs from the worker around it. All are called on the engine thread. */
struct gw_engine_hooks {
	void *context;
	/* Open store and pipeline. KV_DISCONNECTED and KV_TIMEOUT are tried again. */
	enum kv_status (*connect)(void *context, struct gw_pipeline **pipeline);
	void (*disconnect)(void *context);
	int (*connected)(void *context);
	int (*drained)(void *context); /* of one that is connected */
	/* A sequence ends; then, every 250 ms and at the end: `count` that run, `open` behind them
	 * whose prompts are open, and what the longest unit of a prompt took so far. */
	void (*finished)(void *context, const struct gw_sequence *sequence, int failed);
	/* A running one goes back to the queue, because the store is full: it will be resumed. */
	void (*put_back)(void *context, const struct gw_sequence *sequence);
	/* A prompt that found no memory: it will be begun again. */
	void (*postponed)(void *context, const struct gw_sequence *sequence);
	void (*report)(void *context, struct gw_sequence *const *running, uint32_t count,
	    uint32_t open, uint64_t longest_ns);
};

typedef void gw_engine_callback(void *context, const struct gw_engine_event *event);

struct gw_engine_options {
	struct kv_allocator *allocator;
	struct kv_loop *loop;
	const struct gw_tokenizer *tokenizer;
	uint32_t max_sequences; /* that run at once, ≤ KN_MAX_DECODE_ROWS */
	uint32_t max_requests;  /* that wait beside them */
	uint64_t sequence_bytes; /* that all sequences may hold together; 0: no limit */
	uint64_t latency_ms;    /* that running answers may wait for a token, but for one unit */
	struct gw_engine_hooks hooks;
	gw_engine_callback *on_event; /* on the loop's thread */
	void *event_context;
};

/* Start the thread. All functions below belong to the loop's thread. */
enum kv_status gw_engine_create(const struct gw_engine_options *options, struct gw_engine **engine);

/* End it as gw_engine_stop does, wait for the thread, and free; outstanding requests still get
 * their last event. NULL is allowed. */
void gw_engine_destroy(struct gw_engine *engine);

/* Hand a request over. What `asked` points at must stay until the last event. KV_BUSY when as many
 * as may wait are waiting. *id names it for gw_engine_cancel. */
enum kv_status gw_engine_submit(
    struct gw_engine *engine, const struct gw_session_request *asked, void *request, uint64_t *id);

/* Nobody wants the answer any more: the sequence ends at the next step. */
void gw_engine_cancel(struct gw_engine *engine, uint64_t id);

/* Refuse what has not begun, and finish what runs. */
void gw_engine_drain(struct gw_engine *engine);

/* End everything at the next step, in a way that others may resume. GW_ENGINE_ENDED follows. */
void gw_engine_stop(struct gw_engine *engine);

/* Requests that it takes at most: what runs and what waits. */
uint32_t gw_engine_capacity(const struct gw_engine *engine);
/* Requests without their last event, and those of them that have not begun. */
uint32_t gw_engine_unfinished(const struct gw_engine *engine);
uint32_t gw_engine_waiting(const struct gw_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
