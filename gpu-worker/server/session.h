/* One answer: a sequence with its sampler, its text and its end. Used by `generate` and by the
 * server.
 *
 *     open → start (prefill, or replay of a resumed one) → next … next → result → close
 */
#ifndef GW_SERVER_SESSION_H
#define GW_SERVER_SESSION_H

#include <jansson.h>

#include "gpu-worker/pipeline/pipeline.h"
#include "gpu-worker/text/sampler.h"
#include "gpu-worker/text/stream_decoder.h"
#include "gpu-worker/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_session;

/* Ids of sequences are written to logs and into addresses, so they are plain. KV_INVALID says what
 * `length` bytes of `id` must be. */
enum kv_status gw_sequence_id_check(const char *id, size_t length);

enum { GW_MAX_TOP_LOGPROBS = 20 };

/* Natural logarithms of probabilities that the model gave an answer's token: before temperature,
 * penalties and cuts. */
struct gw_token_record {
	int32_t token;
	float logprob;
	uint32_t top_count;                         /* the likeliest tokens at this place, falling */
	int32_t top_tokens[GW_MAX_TOP_LOGPROBS];
	float top_logprobs[GW_MAX_TOP_LOGPROBS];
};

enum gw_finish { GW_RUNNING, GW_FINISH_STOP, GW_FINISH_LENGTH, GW_FINISH_ERROR };

struct gw_session_request {
	const char *request_id;    /* for the log; NULL: none */
	const char *sequence_id;   /* NULL: the store chooses */
	const char *resume_id;     /* NULL: a new sequence; else tokens, sampling and stop texts are the
	                              stored ones */
	const int32_t *tokens;
	uint32_t token_count, max_tokens;
	struct gw_sampler_options sampling;
	const char *const *stops;
	unsigned stop_count;
	int ignore_end;            /* go on after an end token */
	uint32_t have_tokens;      /* the answer's first tokens, which gw_session_take leaves out */
	struct gw_token_record *records; /* NULL, or [max_tokens]: written as tokens are picked. The
	                                    caller's. With resume_id only what was put back: those of
	                                    the tokens that it has are there. */
	uint32_t top_logprobs;     /* of each record, at most GW_MAX_TOP_LOGPROBS */
	int digest;                /* BLAKE2b-256 of all logits that tokens were picked from, and how
	                              far the best was from the next each time */
};

/* All memory of the answer is taken here; the id is known afterwards. */
enum kv_status gw_session_open(struct gw_pipeline *pipeline, const struct gw_tokenizer *tokenizer,
	const struct gw_session_request *request, struct gw_session **session);
void gw_session_close(struct gw_session *session);

/* Closing shall leave the sequence for others to resume, as closing a failed one does, and one that
 * could not be taken over. */
void gw_session_keep(struct gw_session *session);

/* The same, with all that was picked known to the store: who resumes it goes on where it is.
 * KV_UNSUPPORTED where nobody could. */
enum kv_status gw_session_put_back(struct gw_session *session);

/* Closing shall leave nothing of it but what was there before. */
void gw_session_give_up(struct gw_session *session);

/* Closing shall leave nothing of it, also when it was there before. */
void gw_session_discard(struct gw_session *session);

const char *gw_session_id(const struct gw_session *session);
struct gw_sequence *gw_session_sequence(struct gw_session *session);

/* Prefill or replay, then pick the first token. */
enum kv_status gw_session_start(struct gw_session *session, gw_progress *progress, void *context);

/* The same in units, between which other sessions may advance and step. *ready is set when the
 * first token was picked. Of a replay, the prompt is one unit and each token another. */
enum kv_status gw_session_begin(struct gw_session *session, gw_progress *progress, void *context);
enum kv_status gw_session_advance(struct gw_session *session, int *ready);

/* Pick the next token from the logits that gw_run_token gave this session's sequence. */
enum kv_status gw_session_pick(struct gw_session *session, const float *logits);

/* Run one step alone and pick: gw_run_token for this session only. */
enum kv_status gw_session_step(struct gw_session *session);

enum gw_finish gw_session_finish(const struct gw_session *session);
const char *gw_finish_text(enum gw_finish finish); /* "stop", "length", "error" */

/* New text that may be shown (whole characters, nothing that may become a stop text). Borrowed. */
const char *gw_session_take(struct gw_session *session, size_t *length);

/* The answer so far: ids (end token excluded) and text. Borrowed. */
const int32_t *gw_session_tokens(const struct gw_session *session, uint32_t *count);
const char *gw_session_text(const struct gw_session *session, size_t *length);

/* The report as a JSON object; the caller adds what it knows and owns the reference. */
json_t *gw_session_report(const struct gw_session *session);
/* The shared part of it, for perplexity too. */
json_t *gw_report_json(const struct gw_pipeline *pipeline, const struct gw_report *report);

#ifdef __cplusplus
}
#endif
#endif
