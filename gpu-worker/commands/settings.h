/* The options of gpu-worker, all commands, from one table. */
#ifndef GW_COMMANDS_SETTINGS_H
#define GW_COMMANDS_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/runtime/config.h"
#include "gpu-worker/policy/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gw_command_bit {
	GW_SERVE = 1,
	GW_GENERATE = 2,
	GW_PERPLEXITY = 4,
	GW_LOGITS = 8,
	GW_TOKENIZE = 16,
	GW_DETOKENIZE = 32,
	GW_MODEL_COMMANDS = GW_SERVE | GW_GENERATE | GW_PERPLEXITY | GW_LOGITS
};

/* Words of --kv-type. */
enum gw_kv_word { GW_KV_AUTO, GW_KV_F16, GW_KV_F32, GW_KV_BF16 };

struct gw_settings {
	/* model and backend */
	const char *model, *backend;
	const char *backend_path;        /* "": where the installation has plug-ins */
	uint64_t device_memory;
	int precision, kv_type;          /* words: default fp32; enum gw_kv_word */
	uint32_t threads, chunk, max_batch;
	uint32_t context;                /* most tokens of a sequence; 0: the model's */
	int cpu_level;                   /* words: auto plain avx2 avx512 */
	/* store */
	const char *store, *store_secret, *transport, *name;
	const char *trusted_network;     /* "": none */
	uint64_t local_memory, store_wait_ms, call_ms, fetch_ms;
	/* policy */
	const char *policy, *cache_policy;
	uint32_t budget, sinks, window, fold, segment, cluster_tokens, dense_layers, iterations;
	int score, estimate, center;     /* words: size paper; off on; off on */
	int on_miss;                     /* word: wait */
	uint64_t cache;
	/* input and output */
	const char *prompt, *prompt_file, *tokens_file, *file;
	bool parse_special, json, logits_digest, audit, ignore_end;
	uint32_t max_tokens, top, prefill, decode;
	const char *api_key_file;
	double temperature, top_p, min_p, frequency_penalty, presence_penalty;
	uint32_t top_k;
	uint64_t seed;
	const char *sequence, *resume, *stop;
	/* serve */
	const char *listen, *worker_socket; /* worker_socket "": none */
	uint32_t max_sequences, max_requests;
	uint64_t max_body, idle_ms, drain_ms, latency_ms, sequence_memory;
	uint32_t max_connections, address_connections;
	uint64_t client_ms, client_rate, stream_backlog;
	/* log */
	int log_level;                   /* words: error warning info debug */
	const char *faults;              /* where the worker stops itself, for tests */
};

extern const struct kv_program gw_program;

/* The policy's options, with what the policy fixes; `name` overrides --policy when not NULL.
 * KV_INVALID for a policy that there is not, and for options that contradict each other. */
enum kv_status gw_settings_policy(const struct gw_settings *settings, const char *name,
	const struct gw_policy_ops **policy, struct gw_policy_options *options);

/* R of --cache-policy recency:R, 0 for clock. */
enum kv_status gw_settings_recency(const char *cache_policy, uint32_t *recency);

/* KV_USAGE when a command that reads a prompt is told of none, or of more than one. */
enum kv_status gw_settings_input_check(uint32_t command, const struct gw_settings *settings);

/* Of settings_check.c, for the table: what the values of single options must look like. */
enum kv_status gw_check_transport(const char *value);
enum kv_status gw_check_cache_policy(const char *value);
enum kv_status gw_check_name(const char *value);
enum kv_status gw_check_sequence_id(const char *value);
enum kv_status gw_check_stop(const char *value);
/* For the table: with --check, what a start would take: files, prompts, addresses, descriptors, and
 * what goes with some models only. */
enum kv_status gw_settings_look(const struct kv_command *command, const void *settings);
/* For the table: say what was given and has no effect with the rest, a line for each reason. */
void gw_settings_warn(const struct kv_config *config, const struct kv_command *command,
	const void *settings);
/* For the table: what concerns several options. */
enum kv_status gw_settings_validate(const struct kv_command *command, const void *settings);

#ifdef __cplusplus
}
#endif
#endif
