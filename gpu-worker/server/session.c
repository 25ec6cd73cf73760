#include "gpu-worker/server/session.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum { PARAMETER_VERSION = 2, MAX_STOP_BYTES_ALL = GW_MAX_STOPS * (GW_MAX_STOP_BYTES + 1) };

/* What a worker that takes the sequence over must know; stored as it is. */
struct parameters {
	uint32_t version, max_tokens, stop_count, ignore_end;
	struct gw_sampler_options sampling;
	char stops[MAX_STOP_BYTES_ALL]; /* terminated texts, one after the other */
};

struct gw_session {
	struct gw_pipeline *pipeline;
	struct kv_allocator *allocator;
	const struct gw_tokenizer *tokenizer;
	struct gw_sequence *sequence;
	struct gw_prompt_run *prompt; /* while it is being computed */
	gw_progress *progress;
	void *progress_context;
	struct gw_sampler sampler;
	struct gw_stream_decoder *decoder;
	struct parameters parameters;
	uint32_t used_parameter_bytes;
	int32_t *tokens;         /* answer, without the end token */
	uint32_t token_count;
	void *scratch;           /* of the sampler */
	uint32_t *counts;        /* [vocabulary], with penalties: how often the answer has each token */
	float *penalised;        /* [vocabulary], with penalties: logits less these */
	struct gw_token_record *records; /* NULL: nobody wants them */
	uint32_t top_logprobs;
	float *logits;           /* [vocabulary], backend memory */
	enum gw_finish finish;
	int digest, resumed;
	int keep;                /* closing leaves the sequence to be resumed */
	uint32_t have_tokens;
	crypto_generichash_state digest_state;
	float *margins;          /* [max_tokens + 1], with `digest`: of each pick */
	uint32_t picked;
};

enum kv_status gw_sequence_id_check(const char *id, size_t length)
{
	if (length == 0 || length >= KVW_MAX_SEQUENCE_ID)
		return kv_fail(KV_INVALID, "a sequence id has 1 to %d characters, not %zu",
			KVW_MAX_SEQUENCE_ID - 1, length);
	for (size_t i = 0; i < length; i++)
		if (id[i] <= ' ' || id[i] > '~')
			return kv_fail(KV_INVALID, "'%.*s': a sequence id is made of visible ASCII characters",
				(int)length, id);
	return KV_OK;
}

static enum kv_status pack(struct gw_session *session, const struct gw_session_request *request)
{
	struct parameters *p = &session->parameters;
	size_t used = 0;

	if (request->stop_count > GW_MAX_STOPS)
		return kv_fail(KV_LIMIT, "%u stop texts, at most %d", request->stop_count, GW_MAX_STOPS);
	p->version = PARAMETER_VERSION;
	p->max_tokens = request->max_tokens;
	p->stop_count = request->stop_count;
	p->ignore_end = request->ignore_end != 0;
	p->sampling = request->sampling;
	for (unsigned i = 0; i < request->stop_count; i++) {
		size_t length = strlen(request->stops[i]);

		if (length == 0 || length > GW_MAX_STOP_BYTES)
			return kv_fail(KV_INVALID, "stop text of %zu bytes: must be 1 to %d", length,
				GW_MAX_STOP_BYTES);
		memcpy(p->stops + used, request->stops[i], length + 1);
		used += length + 1;
	}
	session->used_parameter_bytes = (uint32_t)(offsetof(struct parameters, stops) + used);
	return KV_OK;
}

/* As many texts as it says, each of them terminated: others wrote it. */
static enum kv_status check_stops(const struct parameters *p)
{
	size_t at = 0;

	for (uint32_t i = 0; i < p->stop_count; i++) {
		const char *end =
			at < MAX_STOP_BYTES_ALL ? memchr(p->stops + at, '\0', MAX_STOP_BYTES_ALL - at) : NULL;

		if (i == GW_MAX_STOPS || end == NULL)
			return kv_fail(KV_CORRUPT, "stored parameters name %u stop texts and do not hold them",
				p->stop_count);
		at = (size_t)(end - p->stops) + 1;
	}
	return KV_OK;
}

static enum kv_status unpack(struct gw_session *session, const struct kvc_resume_state *state)
{
	const uint32_t context =
		gw_model_shape(gw_pipeline_options(session->pipeline)->model)->context;
	struct parameters *p = &session->parameters;

	if (state->parameter_bytes < offsetof(struct parameters, stops) ||
		state->parameter_bytes > sizeof *p)
		return kv_fail(KV_CORRUPT, "stored parameters have %zu bytes", state->parameter_bytes);
	memset(p, 0, sizeof *p);
	memcpy(p, state->parameters, state->parameter_bytes);
	if (p->version != PARAMETER_VERSION)
		return kv_fail(KV_CORRUPT, "stored parameters are of version %u, this worker knows %d",
			p->version, PARAMETER_VERSION);
	/* Memory is taken by it. */
	if (p->max_tokens == 0 || p->max_tokens > context)
		return kv_fail(KV_CORRUPT, "stored parameters have max_tokens %u, must be 1 to %u",
			p->max_tokens, context);
	return check_stops(p);
}

/* Memory and state that depend on the parameters. */
static enum kv_status prepare(struct gw_session *session)
{
	const struct gw_pipeline_options *o = gw_pipeline_options(session->pipeline);
	uint32_t vocabulary = gw_model_shape(o->model)->vocabulary;
	const char *stops[GW_MAX_STOPS], *at = session->parameters.stops;
	void *memory;

	for (unsigned i = 0; i < session->parameters.stop_count; i++) {
		stops[i] = at;
		at += strlen(at) + 1;
	}
	KV_TRY(gw_sampler_init(&session->sampler, &session->parameters.sampling));
	KV_TRY(gw_stream_decoder_create(session->allocator, stops, session->parameters.stop_count,
		(size_t)session->parameters.max_tokens * 256 + 4096, &session->decoder));
	session->tokens = kv_alloc_array(session->allocator, session->parameters.max_tokens,
		sizeof *session->tokens);
	if (session->digest) {
		session->margins = kv_alloc_array(session->allocator,
			(size_t)session->parameters.max_tokens + 1, sizeof *session->margins);
		if (session->margins == NULL) return KV_NO_MEMORY;
	}
	session->scratch = kv_alloc(session->allocator, gw_sampler_scratch_bytes(vocabulary));
	if (session->tokens == NULL || session->scratch == NULL) return KV_NO_MEMORY;
	if (gw_sampler_penalises(&session->sampler.options)) {
		session->counts =
			kv_alloc_array_zero(session->allocator, vocabulary, sizeof *session->counts);
		session->penalised =
			kv_alloc_array(session->allocator, vocabulary, sizeof *session->penalised);
		if (session->counts == NULL || session->penalised == NULL) return KV_NO_MEMORY;
	}
	KV_TRY(o->ops->buffer_create(o->backend, KN_SHARED, vocabulary * sizeof(float), &memory));
	session->logits = memory;
	return KV_OK;
}

static enum kv_status open_new(struct gw_session *session, const struct gw_session_request *request)
{
	struct gw_sequence_request open = {0};

	if (request->max_tokens == 0) return kv_fail(KV_INVALID, "max_tokens 0: must be at least 1");
	KV_TRY(pack(session, request));
	KV_TRY(prepare(session));
	open.id = request->sequence_id;
	open.tokens = request->tokens;
	open.token_count = request->token_count;
	open.max_tokens = request->max_tokens;
	open.parameters = &session->parameters;
	open.parameter_bytes = session->used_parameter_bytes;
	return gw_sequence_open(session->pipeline, &open, &session->sequence);
}

static enum kv_status show(struct gw_session *session, int32_t token)
{
	struct gw_text_slice piece;
	size_t taken;
	int stopped = 0;

	session->tokens[session->token_count++] = token;
	if (session->counts != NULL) session->counts[token]++;
	KV_TRY(gw_tokenizer_piece(session->tokenizer, token, session->parameters.ignore_end != 0,
		&piece));
	KV_TRY(gw_stream_decoder_push(session->decoder, piece.bytes, piece.length, &stopped));
	/* What the client was shown with these tokens, it has. */
	if (session->token_count <= session->have_tokens)
		gw_stream_decoder_take(session->decoder, 0, &taken);
	if (stopped) session->finish = GW_FINISH_STOP;
	if (session->finish == GW_RUNNING && session->token_count == session->parameters.max_tokens)
		session->finish = GW_FINISH_LENGTH;
	return KV_OK;
}

/* All that the store compares: the policy's digest and what the model's key/values are known by. */
static const char RESUME_OPTIONS[] =
	"--policy, --budget, --window, --fold, --sinks, --segment, --cluster-tokens, --dense-layers, "
	"--iterations, --score, --estimate, --center, --kv-type and --precision";

static enum kv_status explain_refusal(enum kv_status status)
{
	char why[256];

	if (status != KV_REFUSED) return status;
	snprintf(why, sizeof why, "%s", kv_error_message());
	return kv_fail(KV_REFUSED, "%s; a resume needs the model and the values of %s that the "
		"sequence was begun with", why, RESUME_OPTIONS);
}

static enum kv_status open_resumed(struct gw_session *session, const char *id)
{
	struct kvc_resume_state state = {0};

	/* What fails here may succeed elsewhere. */
	session->keep = session->resumed = 1;
	KV_TRY(explain_refusal(
		gw_sequence_resume(session->pipeline, id, 0, &session->sequence, &state)));
	KV_TRY(unpack(session, &state));
	if (session->have_tokens > session->parameters.max_tokens)
		return kv_fail(KV_INVALID, "have_tokens: %u, but the answer of sequence %s has %u at most",
			session->have_tokens, id, session->parameters.max_tokens);
	if (state.decoded_tokens > session->parameters.max_tokens)
		return kv_fail(KV_CORRUPT, "sequence %s has %u decoded tokens of %u", id,
			state.decoded_tokens, session->parameters.max_tokens);
	KV_TRY(prepare(session));
	if (state.sampler_bytes == sizeof session->sampler.random)
		memcpy(&session->sampler.random, state.sampler_state, state.sampler_bytes);
	else if (state.decoded_tokens > 0)
		return kv_fail(KV_CORRUPT, "sequence %s has no sampler state", id);
	for (uint32_t i = 0; i < state.decoded_tokens; i++)
		KV_TRY(show(session, state.decoded[i]));
	session->keep = 0;
	return KV_OK;
}

enum kv_status gw_session_open(struct gw_pipeline *pipeline, const struct gw_tokenizer *tokenizer,
	const struct gw_session_request *request, struct gw_session **session)
{
	struct gw_session *made =
		kv_alloc_zero(gw_pipeline_options(pipeline)->allocator, sizeof *made);
	enum kv_status status;

	if (made == NULL) return KV_NO_MEMORY;
	made->pipeline = pipeline;
	made->allocator = gw_pipeline_options(pipeline)->allocator;
	made->tokenizer = tokenizer;
	made->digest = request->digest;
	made->have_tokens = request->have_tokens;
	made->records = request->records;
	made->top_logprobs = request->top_logprobs;
	crypto_generichash_init(&made->digest_state, NULL, 0, 32);
	status = request->resume_id != NULL ? open_resumed(made, request->resume_id)
	                                    : open_new(made, request);
	if (status != KV_OK) {
		gw_session_close(made);
		return status;
	}
	*session = made;
	return KV_OK;
}

void gw_session_close(struct gw_session *session)
{
	const struct gw_pipeline_options *o;

	if (session == NULL) return;
	o = gw_pipeline_options(session->pipeline);
	gw_prompt_close(session->prompt);
	gw_sequence_close(session->sequence, session->keep);
	gw_stream_decoder_destroy(session->decoder);
	if (session->logits != NULL) o->ops->buffer_destroy(o->backend, session->logits);
	kv_free(session->allocator, session->margins);
	kv_free(session->allocator, session->counts);
	kv_free(session->allocator, session->penalised);
	kv_free(session->allocator, session->tokens);
	kv_free(session->allocator, session->scratch);
	kv_free(session->allocator, session);
}

void gw_session_keep(struct gw_session *session)
{
	session->keep = 1;
}

enum kv_status gw_session_put_back(struct gw_session *session)
{
	if (session->digest)
		return kv_fail(KV_UNSUPPORTED, "the digest of its logits is not stored");
	KV_TRY(gw_sequence_flush(session->sequence));
	session->keep = 1;
	return KV_OK;
}

void gw_session_give_up(struct gw_session *session)
{
	session->keep = session->resumed;
}

void gw_session_discard(struct gw_session *session)
{
	session->keep = 0;
}

const char *gw_session_id(const struct gw_session *session)
{
	return gw_sequence_id(session->sequence);
}

struct gw_sequence *gw_session_sequence(struct gw_session *session)
{
	return session->sequence;
}

/* What failed here may be finished by another worker; what was given up is wanted by nobody. */
static enum kv_status fail(struct gw_session *session, enum kv_status status)
{
	session->finish = GW_FINISH_ERROR;
	session->keep = session->keep || status != KV_CANCELLED;
	return status;
}

/* How far the best logit is from the next: what rounding must reach to change a greedy token. */
static float margin_of(const float *logits, uint32_t count)
{
	float best = -INFINITY, next = -INFINITY;

	for (uint32_t i = 0; i < count; i++) {
		if (logits[i] > best) {
			next = best;
			best = logits[i];
		} else if (logits[i] > next) {
			next = logits[i];
		}
	}
	return best - next;
}

static void digest(struct gw_session *session, const float *logits, uint32_t vocabulary)
{
	crypto_generichash_update(&session->digest_state, (const unsigned char *)logits,
		vocabulary * sizeof *logits);
	if (session->picked <= session->parameters.max_tokens)
		session->margins[session->picked++] = margin_of(logits, vocabulary);
}

/* Put a token among the likeliest, if it is one. */
static void rank(struct gw_token_record *record, uint32_t most, int32_t token, float logit)
{
	uint32_t at = record->top_count;

	while (at > 0 && logit > record->top_logprobs[at - 1])
		at--;
	if (at == most) return;
	if (record->top_count < most) record->top_count++;
	for (uint32_t i = record->top_count - 1; i > at; i--) {
		record->top_tokens[i] = record->top_tokens[i - 1];
		record->top_logprobs[i] = record->top_logprobs[i - 1];
	}
	record->top_tokens[at] = token;
	record->top_logprobs[at] = logit;
}

static void record(struct gw_session *session, int32_t token, const float *logits, uint32_t count)
{
	struct gw_token_record *made = &session->records[session->token_count];
	double sum = 0.0, best = -INFINITY, norm;

	made->token = token;
	made->top_count = 0;
	/* A NaN counts as minus infinity, as it does to the sampler. */
	for (uint32_t i = 0; i < count; i++) {
		if (isnan(logits[i])) continue;
		if ((double)logits[i] > best) best = (double)logits[i];
		if (session->top_logprobs > 0) rank(made, session->top_logprobs, (int32_t)i, logits[i]);
	}
	for (uint32_t i = 0; i < count; i++)
		sum += isnan(logits[i]) ? 0.0 : exp((double)logits[i] - best);
	norm = best + log(sum);
	made->logprob = (float)((double)logits[token] - norm);
	for (uint32_t i = 0; i < made->top_count; i++)
		made->top_logprobs[i] = (float)((double)made->top_logprobs[i] - norm);
}

enum kv_status gw_session_pick(struct gw_session *session, const float *logits)
{
	uint32_t vocabulary = gw_model_shape(gw_pipeline_options(session->pipeline)->model)->vocabulary;
	uint32_t spoken = gw_tokenizer_vocabulary(session->tokenizer);
	const float *chances = logits;
	int32_t token;
	enum kv_status status;

	if (session->digest) digest(session, logits, vocabulary);
	/* Rows that only fill the model's table up have no text. */
	if (spoken > vocabulary) spoken = vocabulary;
	if (session->counts != NULL) {
		gw_sampler_penalise(&session->sampler.options, logits, session->counts, spoken,
			session->penalised);
		chances = session->penalised;
	}
	token = gw_sampler_pick(&session->sampler, chances, spoken, session->scratch);
	status = gw_check_logit((double)logits[token]);
	if (status != KV_OK) return fail(session, status);
	if (!session->parameters.ignore_end && gw_tokenizer_is_end(session->tokenizer, token)) {
		session->finish = GW_FINISH_STOP;
		return KV_OK;
	}
	if (session->records != NULL) record(session, token, logits, spoken);
	status = gw_sequence_accept(session->sequence, token, &session->sampler.random,
		sizeof session->sampler.random);
	if (status == KV_OK) status = show(session, token);
	return status == KV_OK ? KV_OK : fail(session, status);
}

enum kv_status gw_session_begin(struct gw_session *session, gw_progress *progress, void *context)
{
	enum kv_status status;

	session->progress = progress;
	session->progress_context = context;
	if (session->finish != GW_RUNNING || session->resumed) return KV_OK;
	status = gw_prompt_open(session->sequence, NULL, progress, context, &session->prompt);
	return status == KV_OK ? KV_OK : fail(session, status);
}

enum kv_status gw_session_advance(struct gw_session *session, int *ready)
{
	enum kv_status status;

	*ready = 1;
	if (session->finish != GW_RUNNING) return KV_OK;
	status = session->resumed
		? gw_sequence_replay_step(session->sequence, session->logits, session->progress,
			session->progress_context, ready)
		: gw_prompt_step(session->prompt, session->logits, ready);
	if (status != KV_OK) return fail(session, status);
	if (!*ready) return KV_OK;
	gw_prompt_close(session->prompt);
	session->prompt = NULL;
	return gw_session_pick(session, session->logits);
}

enum kv_status gw_session_start(struct gw_session *session, gw_progress *progress, void *context)
{
	int ready = 0;

	KV_TRY(gw_session_begin(session, progress, context));
	while (!ready)
		KV_TRY(gw_session_advance(session, &ready));
	return KV_OK;
}

enum kv_status gw_session_step(struct gw_session *session)
{
	struct gw_sequence *batch[1] = {session->sequence};
	enum kv_status failure = KV_OK, status;

	status = gw_run_token(session->pipeline, batch, 1, session->logits, &failure);
	if (status == KV_OK) status = failure;
	if (status != KV_OK) return fail(session, status);
	return gw_session_pick(session, session->logits);
}

enum gw_finish gw_session_finish(const struct gw_session *session)
{
	return session->finish;
}

const char *gw_finish_text(enum gw_finish finish)
{
	switch (finish) {
	case GW_RUNNING:
		return "running";
	case GW_FINISH_STOP:
		return "stop";
	case GW_FINISH_LENGTH:
		return "length";
	case GW_FINISH_ERROR:
		return "error";
	}
	return "error";
}

const char *gw_session_take(struct gw_session *session, size_t *length)
{
	return gw_stream_decoder_take(session->decoder, session->finish != GW_RUNNING, length);
}

const int32_t *gw_session_tokens(const struct gw_session *session, uint32_t *count)
{
	*count = session->token_count;
	return session->tokens;
}

const char *gw_session_text(const struct gw_session *session, size_t *length)
{
	return gw_stream_decoder_text(session->decoder, length);
}

static json_t *mean(double sum, uint64_t count)
{
	return count > 0 ? json_real(sum / (double)count) : json_null();
}

json_t *gw_report_json(const struct gw_pipeline *pipeline, const struct gw_report *report)
{
	const struct gw_pipeline_options *o = gw_pipeline_options(pipeline);
	const struct gw_cache_stats *cache = &report->cache;
	uint64_t looked_up = cache->hit_bytes + cache->miss_bytes;
	json_t *object = json_pack("{s:s, s:i, s:s, s:s, s:s}", "policy", o->policy.name, "budget",
		(int)o->policy.budget, "transport", o->store != NULL ? kvc_transport(o->store) : "none",
		"backend", o->ops->name, "kv_type", kn_kv_type_name(o->kv_type));

	if (object == NULL) return NULL;
	json_object_set_new(object, "prefill_seconds", json_real(report->prefill_seconds));
	json_object_set_new(object, "index_seconds", json_real(report->index_seconds));
	json_object_set_new(object, "decode_seconds", json_real(report->decode_seconds));
	json_object_set_new(object, "select_seconds", json_real(report->select_seconds));
	json_object_set_new(object, "fetch_seconds", json_real(report->fetch_seconds));
	json_object_set_new(object, "ms_per_token",
		mean(report->decode_seconds * 1e3, report->decode_steps));
	json_object_set_new(object, "budget_tokens_mean",
		mean(report->budget_tokens, report->selections));
	json_object_set_new(object, "window_tokens_mean",
		mean(report->window_tokens, report->selections));
	json_object_set_new(object, "bytes_touched_mean",
		mean(report->bytes_touched, report->decode_steps));
	json_object_set_new(object, "lost_mass_estimated_mean",
		mean(report->lost_mass_estimated, report->estimates));
	if (o->estimate_misses)
		json_object_set_new(object, "degraded_steps",
			json_integer((json_int_t)report->degraded_steps));
	if (!o->ops->unified) {
		json_object_set_new(object, "device_steps",
			json_integer((json_int_t)report->device_steps));
		json_object_set_new(object, "repeated_steps",
			json_integer((json_int_t)report->repeated_steps));
	}
	if (o->audit) {
		json_object_set_new(object, "lost_mass_mean", mean(report->lost_mass, report->audits));
		json_object_set_new(object, "output_error_mean",
			mean(report->output_error, report->audits));
		json_object_set_new(object, "recall_mean", mean(report->recall, report->recalls));
	}
	json_object_set_new(object, "cache",
		json_pack("{s:I, s:I, s:o}", "hit_bytes", (json_int_t)cache->hit_bytes, "miss_bytes",
			(json_int_t)cache->miss_bytes, "hit_rate",
			mean((double)cache->hit_bytes, looked_up)));
	return object;
}

static void add_digest(const struct gw_session *session, json_t *object)
{
	crypto_generichash_state state = session->digest_state;
	json_t *margins = json_array();
	unsigned char bytes[32];
	char hex[65];

	crypto_generichash_final(&state, bytes, sizeof bytes);
	sodium_bin2hex(hex, sizeof hex, bytes, sizeof bytes);
	json_object_set_new(object, "logits_digest", json_string(hex));
	for (uint32_t i = 0; i < session->picked; i++)
		json_array_append_new(margins, json_real((double)session->margins[i]));
	json_object_set_new(object, "margins", margins);
}

json_t *gw_session_report(const struct gw_session *session)
{
	json_t *object = gw_report_json(session->pipeline, gw_sequence_report(session->sequence));
	json_t *tokens = json_array();
	size_t length = 0;
	const char *text = gw_session_text(session, &length);

	if (object == NULL || tokens == NULL) {
		json_decref(object);
		json_decref(tokens);
		return NULL;
	}
	for (uint32_t i = 0; i < session->token_count; i++)
		json_array_append_new(tokens, json_integer(session->tokens[i]));
	json_object_set_new(object, "tokens", tokens);
	json_object_set_new(object, "text", json_stringn_nocheck(text, length));
	json_object_set_new(object, "finish_reason", json_string(gw_finish_text(session->finish)));
	json_object_set_new(object, "prompt_tokens",
		json_integer(gw_sequence_prompt_tokens(session->sequence)));
	json_object_set_new(object, "prefix_hit_tokens",
		json_integer(gw_sequence_prefix_hit(session->sequence)));
	json_object_set_new(object, "sequence", json_string(gw_session_id(session)));
	if (session->digest) add_digest(session, object);
	return object;
}
