/* What the two sides of the engine share. Private to this folder. */
#ifndef GW_SERVER_ENGINE_INTERNAL_H
#define GW_SERVER_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "common/collect/ring.h"
#include "gpu-worker/server/engine.h"
#include "gpu-worker/server/prefill_order.h"

/* Loop side: made by gw_engine_submit, freed after its last event. In between the engine's. */
struct gw_engine_request {
	struct gw_engine *engine;
	uint64_t id;
	void *owner;
	struct gw_session_request asked;
	bool begun;        /* loop side */
	bool others_began; /* it was asked for as a resume; what was put back here is one, too, later */

	struct gw_engine_request *next; /* in the waiting queue */
	struct gw_session *session;
	bool cancelled;
	bool begun_prompt;    /* the prompt's run has begun */
	uint32_t prompt_left; /* tokens of the prompt that are to be computed */
	uint64_t bytes;       /* gw_sequence_bytes, where they have a limit; 0: not known */
	bool told_opened;     /* GW_EVENT_OPENED was sent */
	bool stalled;         /* the store has no memory for what its next step needs */
	bool put_back;        /* its sequence is in the store and nobody's, until it is resumed */
	uint64_t finds_until; /* above prompts_closed: it is to find what an open prompt stores */
	/* What finds no memory waits in the queue, by age, and those behind it may pass. */
	bool lacks_memory;                     /* since it last had its first token, or ever */
	uint32_t passes;                       /* how many younger ones have begun meanwhile */
	bool held;                             /* it was refused, and is not tried again before: */
	uint64_t after_ends;                   /* ... so many have ended, */
	uint64_t retry_ms;                     /* ... or then, when there is none that could end */
	uint32_t refusals_alone;               /* while nothing else of this worker was in the store */
	char sequence_id[KVW_MAX_SEQUENCE_ID]; /* of the sequence that it had */
	uint64_t progress_ms;                  /* when the last progress was told */
	struct gw_request_times times;
	uint32_t told_layers; /* that GW_EVENT_LAYER told of */
	uint64_t layer_ns;    /* that the layer after them has taken so far */
	struct gw_engine_result result;
};

enum gw_message_kind { GW_MESSAGE_SUBMIT, GW_MESSAGE_CANCEL, GW_MESSAGE_DRAIN, GW_MESSAGE_STOP };

struct gw_message {
	enum gw_message_kind kind;
	uint64_t id;
	struct gw_engine_request *request;
};

struct gw_engine {
	struct gw_engine_options options;
	struct kv_ring *in, *out;
	/* Wakes the engine; the loop has a waker. */
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	bool pending;

	/* Loop side. */
	struct kv_waker *waker;
	pthread_t thread;
	bool thread_runs, stop_sent, ended;
	uint64_t last_id;
	uint32_t unfinished, waiting;

	/* Engine side. */
	struct gw_pipeline *pipeline;
	enum gw_engine_state state;
	char reason[GW_EVENT_TEXT_BYTES];
	struct gw_engine_request *first, *last;             /* waiting */
	struct gw_engine_request *open[KN_MAX_DECODE_ROWS]; /* prompts that are being computed, in the
	                                                       order in which they were opened */
	uint32_t open_count;
	uint64_t prompts_closed; /* that were open: through, failed, cancelled or refused */
	uint64_t ends;           /* sequences that have ended */
	int64_t owed_ns;         /* to the first of them: prefill_order.h */
	uint64_t unit_ns;        /* that the last unit of a prompt took */
	uint64_t longest_ns;     /* the longest of all */
	uint64_t stepped_ns;     /* when the running ones got their last token */
	struct gw_engine_request *running[KN_MAX_DECODE_ROWS];
	uint32_t running_count;
	float *logits; /* [max_batch][vocabulary] */
	bool draining, stopping;
	uint64_t report_ms, connect_ms, backoff_ms;
};

/* engine_thread.c */
void *gw_engine_main(void *engine);

/* engine_events.c. An event of a request, with where its time went so far. */
void gw_engine_tell(
    struct gw_engine *engine, struct gw_engine_request *request, struct gw_engine_event *event);
/* The text of its answer that may be shown. */
void gw_engine_tell_text(struct gw_engine *engine, struct gw_engine_request *request);
void gw_engine_tell_state(struct gw_engine *engine, enum gw_engine_state state, const char *reason);
/* Closes the session and hands the request back. The thread's error text says why it failed. */
void gw_engine_finish(
    struct gw_engine *engine, struct gw_engine_request *request, enum kv_status status);
enum kv_status gw_engine_why_cancelled(const struct gw_engine *engine);
void gw_engine_remove_at(struct gw_engine_request **list, uint32_t *count, uint32_t index);

/* engine_queue.c */
void gw_queue_append(struct gw_engine *engine, struct gw_engine_request *request);
/* Requests that will never begin go back at once, wherever in the queue they are. */
void gw_queue_refuse(struct gw_engine *engine);
/* Open what waits: what is stored of a prompt says how much is left to compute. One at a time, as
 * answers that run may wait for their next token. */
void gw_queue_open_one(struct gw_engine *engine);
/* When there may be something to open, if nobody ends before: 0 at once, UINT64_MAX never. */
uint64_t gw_queue_look_ms(struct gw_engine *engine);
/* Its prompt has begun: who is older and lacks memory was passed. */
void gw_queue_begun(struct gw_engine *engine, const struct gw_engine_request *request);
/* It has its first token: what it lacked, it had. */
void gw_queue_ready(struct gw_engine_request *request);
/* Nothing was picked since it was opened, and there was no memory for it. False when it is not to
 * be tried again. */
bool gw_queue_postpone(
    struct gw_engine *engine, struct gw_engine_request *request, enum kv_status status);
/* When no running answer can go on, as the store is full, the youngest makes room. */
void gw_queue_relieve(struct gw_engine *engine);
void gw_queue_describe_open(const struct gw_engine *engine, struct gw_open_prompt *prompts);

/* engine_times.c: lines of the log are about this request from now on; NULL: about none. */
void gw_log_subject(const struct gw_engine_request *request);
/* Bring request->times up to date, from its session while it has one. */
void gw_times_update(struct gw_engine_request *request);
/* A unit of the prompt took so long. True when it was the last of a layer: *layer_ns is then what
 * the layer took in all. */
bool gw_times_unit(struct gw_engine_request *request, uint64_t unit_ns, uint64_t *layer_ns);

#endif
