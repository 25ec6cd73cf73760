/* A worker, put together from its settings: backend, model, tokenizer, store, pipeline. */
#ifndef GW_COMMANDS_WORKER_H
#define GW_COMMANDS_WORKER_H

#include "gpu-worker/commands/settings.h"
#include "gpu-worker/pipeline/memory_plan.h"
#include "gpu-worker/pipeline/pipeline.h"
#include "gpu-worker/text/chat_template.h"
#include "gpu-worker/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_worker {
	const struct gw_settings *settings;
	struct kv_allocator *allocator;
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	struct kn_stream *stream;
	struct gw_model *model;
	struct gw_tokenizer *tokenizer;
	enum gw_chat_format chat_format;
	struct kvc_store *store;
	struct gw_pipeline *pipeline;
	struct gw_policy_options policy;
	enum kn_kv_type kv_type;
	uint32_t max_batch;
	uint32_t sequences;                /* open at once */
	uint32_t context, prompt;          /* most tokens of a sequence, and of them its prompt's */
	struct gw_memory_plan plan;        /* all zeros where memory is the host's */
	bool offloads;                     /* the policy needs a store */
	bool synthetic;                    /* the weights are random */
	uint8_t file_digest[32];
	char model_name[128], name[64];
};

/* What a command with one sequence is about to run. */
struct gw_worker_input {
	const char *text_file;             /* as for gw_worker_prompt */
	uint32_t prompt;                   /* tokens of it that are the prompt; 0: all */
	uint32_t room;                     /* for tokens behind the prompt */
	int32_t *ids;                      /* out, owned by the caller, who frees them in any case */
	uint32_t count;
};

/* Everything, for one sequence. `policy` overrides --policy when not NULL (measuring commands).
 * `input` is read, and memory planned for a sequence of its length; NULL: one that is resumed. */
enum kv_status gw_worker_open(const struct gw_settings *settings, struct kv_allocator *allocator,
	const char *policy, struct gw_worker_input *input, struct gw_worker *worker);
/* The same in two steps. prepare: everything but store and pipeline. connect: these, in the thread
 * that will use them; may be tried again after a failure. disconnect: undo connect, in the same
 * thread. */
enum kv_status gw_worker_prepare(const struct gw_settings *settings,
	struct kv_allocator *allocator, const char *policy, struct gw_worker *worker);
enum kv_status gw_worker_connect(struct gw_worker *worker, uint64_t wait_ms);
void gw_worker_disconnect(struct gw_worker *worker);
/* Only the tokenizer. */
enum kv_status gw_worker_open_text(const struct gw_settings *settings,
	struct kv_allocator *allocator, struct gw_worker *worker);
void gw_worker_close(struct gw_worker *worker);
/* Would it open, for the command of this bit? The model file is looked at and not read, a device is
 * opened, and what would be taken of its memory is told. */
enum kv_status gw_worker_look(const struct gw_settings *settings, struct kv_allocator *allocator,
	uint32_t command);

/* Read a whole file ("-": standard input), at most `limit` bytes; owned by the caller. */
enum kv_status gw_read_file(struct kv_allocator *allocator, const char *path, size_t limit,
	char **text, size_t *length);
/* Token ids from a text of numbers; owned by the caller. */
enum kv_status gw_parse_ids(struct kv_allocator *allocator, const char *text, size_t length,
	const char *path, int32_t **ids, uint32_t *count);
/* The prompt: of `text_file` (--prompt-file, --file), else of --prompt, else of --tokens-file, of
 * which gw_settings_input_check has found one. */
enum kv_status gw_worker_prompt(const struct gw_worker *worker, const char *text_file,
	int32_t **ids, uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif
