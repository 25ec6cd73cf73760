/* A worker without its process, for tests of the data path: a tiny model on the cpu backend, an
 * in-process store, pipelines on it, and talks: a sequence with what it answered so far.
 *
 * Uses cmocka's assertions. What the pipeline and the store take comes from two allocators of their
 * own; closing checks that nothing is left.
 */
#ifndef TESTS_LIB_PIPELINE_FIXTURE_H
#define TESTS_LIB_PIPELINE_FIXTURE_H

#include "gpu-worker/pipeline/pipeline.h"
#include "gpu-worker/text/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVT_MAX_ROWS_OF_A_CALL = 512, KVT_MAX_ANSWER = 400 };

/* Tables of cases are walked in steps of this: the thread sanitizer makes everything some thirty
 * times as slow, and says nothing new about the cases left out. */
#if defined(KV_THREAD_SANITIZER)
enum { KVT_EVERY = 4 };
#else
enum { KVT_EVERY = 1 };
#endif

struct kvt_worker {
	struct kv_allocator *model_allocator, *allocator, *store_allocator;
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	struct kn_stream *stream;
	struct gw_model *model;
	const struct gw_model_shape *shape;
	struct kvc_store *store;            /* NULL until kvt_store_open */
	struct gw_pipeline_options options; /* of the next pipeline; change what a test is about */
};

/* Open tests/models/MODEL in fp32 and set options: clusterkv, budget 128, 16 sinks, window 64, fold
 * 96, segments of 256, clusters of 16, one dense layer, f32 rows, chunk 64, 4 sequences at once. */
void kvt_worker_open(struct kvt_worker *worker, const char *model, uint32_t threads);
void kvt_worker_close(struct kvt_worker *worker);

/* An in-process store of `memory` bytes (0: 256 MiB), for pipelines of worker->options. */
void kvt_store_open(struct kvt_worker *worker, uint64_t memory);
/* The same at an address, over a transport. */
void kvt_store_connect(struct kvt_worker *worker, const char *address, const char *transport);
void kvt_store_close(struct kvt_worker *worker);

/* A pipeline of worker->options on worker->store (a policy without a store needs none). */
struct gw_pipeline *kvt_pipeline_open(struct kvt_worker *worker);

/* Token ids without structure, none of them special; equal seeds give equal prefixes. */
void kvt_make_prompt(const struct kvt_worker *worker, uint64_t seed, int32_t *ids, uint32_t count);

struct kvt_question {
	const int32_t *prompt;
	uint32_t prompt_tokens;
	uint32_t room; /* for decoded tokens */
	struct gw_sampler_options sampling;
	const int32_t *teacher; /* these tokens follow whatever the logits say, or NULL */
	const char *id;         /* NULL: the store chooses */
};

/* A sequence and what it said: logits row i is what tokens[i] was picked from. */
struct kvt_talk {
	struct gw_pipeline *pipeline;
	struct gw_sequence *sequence;
	struct kvt_question question;
	struct gw_sampler sampler;
	uint32_t vocabulary, count; /* tokens picked */
	uint32_t accepted;          /* of them, given to the sequence */
	int32_t tokens[KVT_MAX_ANSWER];
	float *logits; /* [KVT_MAX_ANSWER][vocabulary] */
	void *scratch;
	char id[64]; /* of its sequence, also after its end */
};

/* Open, run the prompt, pick the first token. The statuses are asserted. */
void kvt_talk_begin(
    struct kvt_talk *talk, struct gw_pipeline *pipeline, const struct kvt_question *question);
/* Take over `id`; its answer so far is in tokens, its logits are not. Picks the next token. */
void kvt_talk_resume(struct kvt_talk *talk, struct gw_pipeline *pipeline,
    const struct kvt_question *question, const char *id);
/* Accept what each picked last, run one step together, pick again. */
void kvt_talk_step(struct kvt_talk *const *talks, uint32_t count);
/* Begin and step until `count` tokens are picked. */
void kvt_talk_run(struct kvt_talk *talk, struct gw_pipeline *pipeline,
    const struct kvt_question *question, uint32_t count);
/* Four on a pipeline that is opened for them, each with room for so many tokens. The first prompt
 * is computed; the second finds all of it, the third a piece, the fourth nothing. */
enum { KVT_TALKS = 4, KVT_TALK_PROMPT = 700 };
void kvt_talks_begin(struct kvt_talk talks[KVT_TALKS], struct kvt_worker *worker, uint32_t room);
/* Close the sequence; the answer stays. */
void kvt_talk_close(struct kvt_talk *talk, int keep);
/* Free the answer too. */
void kvt_talk_end(struct kvt_talk *talk);

static inline float *kvt_talk_logits(const struct kvt_talk *talk, uint32_t row)
{
	return talk->logits + (size_t)row * talk->vocabulary;
}

/* Rows [first, first + count) of both: same tokens and the same bits of logits. */
void kvt_assert_same(
    const struct kvt_talk *a, const struct kvt_talk *b, uint32_t first, uint32_t count);

/* Rows [0, count): logits within `most` of each other (their deviation is about 6). For talks whose
 * tokens are the same: give them a teacher. Returns the largest difference. */
double kvt_assert_close(
    const struct kvt_talk *a, const struct kvt_talk *b, uint32_t count, double most);

/* Greedy tokens equal until the first row where a's two best logits are nearer than `margin`. */
void kvt_assert_greedy(
    const struct kvt_talk *a, const struct kvt_talk *b, uint32_t count, double margin);

#ifdef __cplusplus
}
#endif
#endif
