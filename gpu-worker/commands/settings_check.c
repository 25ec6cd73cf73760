/* What is wrong with options beyond what their table says, and what of them has no effect. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/secret.h"
#include "common/transport/trusted_network.h"
#include "common/transport/unix_socket.h"
#include "gpu-worker/commands/settings.h"
#include "gpu-worker/commands/worker.h"
#include "gpu-worker/server/api_keys.h"
#include "gpu-worker/server/http_server.h"
#include "gpu-worker/server/session.h"
#include "gpu-worker/text/stream_decoder.h"
#include "kvstore/client/store_client.h"

enum { NAME_LENGTH = 63, MOST_RECENCY = 1000, SCORE_SIZE = 0, SCORE_PAPER = 1 };

enum kv_status gw_check_transport(const char *value)
{
	if (strcmp(value, "auto") == 0 || strcmp(value, "ucx") == 0 || strcmp(value, "map") == 0 ||
		strcmp(value, "stream") == 0 ||
		strncmp(value, "faulty-", 7) == 0)
		return KV_OK;
	return kv_fail(KV_INVALID, "'%s' is not one of auto, ucx, map, stream", value);
}

enum kv_status gw_settings_recency(const char *text, uint32_t *recency)
{
	char *end = NULL;
	unsigned long value;

	if (strcmp(text, "clock") == 0) {
		*recency = 0;
		return KV_OK;
	}
	if (strncmp(text, "recency:", 8) == 0 && text[8] >= '1' && text[8] <= '9') {
		value = strtoul(text + 8, &end, 10);
		if (*end == '\0' && value <= MOST_RECENCY) {
			*recency = (uint32_t)value;
			return KV_OK;
		}
	}
	return kv_fail(KV_INVALID, "'%s' is not clock, nor recency:R with R from 1 to %d", text,
		MOST_RECENCY);
}

enum kv_status gw_check_cache_policy(const char *value)
{
	uint32_t recency;

	return gw_settings_recency(value, &recency);
}

enum kv_status gw_check_name(const char *value)
{
	if (strlen(value) <= NAME_LENGTH) return KV_OK;
	return kv_fail(KV_INVALID, "'%s' has %zu bytes: at most %d are possible", value, strlen(value),
		NAME_LENGTH);
}

enum kv_status gw_check_sequence_id(const char *value)
{
	return gw_sequence_id_check(value, strlen(value));
}

enum kv_status gw_check_stop(const char *value)
{
	size_t length = strlen(value);

	if (length > 0 && length <= GW_MAX_STOP_BYTES) return KV_OK;
	return kv_fail(KV_INVALID, "'%s' has %zu bytes: a text has 1 to %d", value, length,
		GW_MAX_STOP_BYTES);
}

enum kv_status gw_settings_policy(const struct gw_settings *s, const char *name,
	const struct gw_policy_ops **policy, struct gw_policy_options *options)
{
	const struct gw_policy_ops *found;
	struct gw_policy_options made = {
		.name = name != NULL ? name : s->policy,
		.budget = s->budget,
		.sinks = s->sinks,
		.window = s->window,
		.fold = s->fold,
		.segment = s->segment,
		.cluster_tokens = s->cluster_tokens,
		.dense_layers = s->dense_layers,
		.iterations = s->iterations,
		.size_term = s->score == SCORE_SIZE,
		.estimate = s->estimate == 1,
		.center = s->center == 1,
	};

	KV_TRY(gw_policy_find(made.name, &found));
	found->adjust(&made);
	KV_TRY(gw_policy_options_check(&made));
	*policy = found;
	*options = made;
	return KV_OK;
}

static enum kv_status check_remote(const struct gw_settings *s)
{
	bool remote, secret, by_ucx, trusts;

	if (s->store == NULL) return KV_OK;
	remote = strncmp(s->store, "tcp:", 4) == 0;
	secret = s->store_secret != NULL && *s->store_secret != '\0';
	if (remote && !secret)
		return kv_fail(KV_INVALID, "--store %s without --store-secret: a store on another host "
			"lets nobody in who has not its secret", s->store);
	if (!remote && secret)
		return kv_fail(KV_INVALID, "--store-secret %s with --store %s: only tcp:HOST:PORT takes "
			"one", s->store_secret, s->store);
	by_ucx = remote && strcmp(s->transport, "ucx") == 0;
	if (remote && !by_ucx && strcmp(s->transport, "auto") != 0 &&
		strcmp(s->transport, "stream") != 0)
		return kv_fail(KV_INVALID, "--transport %s with --store %s is not there: use auto, stream "
			"or ucx", s->transport, s->store);
	trusts = s->trusted_network != NULL && *s->trusted_network != '\0';
	if (by_ucx && !trusts)
		return kv_fail(KV_INVALID, "--transport ucx with --store %s without --trusted-network: it "
			"is neither encrypted nor authenticated; name the network that you trust, or use "
			"stream", s->store);
	if (trusts && !by_ucx)
		return kv_fail(KV_INVALID, "--trusted-network %s with --store %s and --transport %s: it is "
			"for tcp:HOST:PORT and ucx", s->trusted_network, s->store, s->transport);
	if (!remote && strcmp(s->transport, "stream") == 0)
		return kv_fail(KV_INVALID, "--transport stream with --store %s: it is for tcp:HOST:PORT",
			s->store);
	return KV_OK;
}

static enum kv_status check_device_options(const struct gw_settings *s)
{
	if (strcmp(s->backend, "cpu") != 0) return KV_OK;
	if (s->device_memory > 0)
		return kv_fail(KV_INVALID, "--device-memory %llu with --backend cpu: it is for a GPU's "
			"memory; leave it out, or use --backend cuda", (unsigned long long)s->device_memory);
	if (s->backend_path[0] != '\0')
		return kv_fail(KV_INVALID, "--backend-path %s with --backend cpu: it is where the plug-in "
			"for GPUs is; leave it out, or use --backend cuda", s->backend_path);
	if (s->kv_type == GW_KV_BF16)
		return kv_fail(KV_INVALID, "--kv-type bf16 with --backend cpu: the cpu backend has f16 and "
			"f32; use one of them, or --backend cuda");
	return KV_OK;
}

enum kv_status gw_settings_validate(const struct kv_command *command, const void *opaque)
{
	const struct gw_settings *s = opaque;
	const struct gw_policy_ops *policy;
	struct gw_policy_options options;

	KV_TRY(check_device_options(s));
	if (s->precision == 1 && (s->kv_type == GW_KV_F16 || s->kv_type == GW_KV_BF16))
		return kv_fail(KV_INVALID, "--precision fp32 with --kv-type %s: fp32 implies f32 "
			"key/values; leave --kv-type out", s->kv_type == GW_KV_F16 ? "f16" : "bf16");
	if (s->audit && s->kv_type == GW_KV_BF16)
		return kv_fail(KV_INVALID, "--audit with --kv-type bf16: audits are computed on the CPU, "
			"which has f16 and f32; use one of them");
	if (s->resume != NULL && s->sequence != NULL)
		return kv_fail(KV_INVALID,
			"--resume %s with --sequence %s: a resumed sequence keeps its id", s->resume,
			s->sequence);
	KV_TRY(check_remote(s));
	KV_TRY(gw_settings_policy(s, NULL, &policy, &options));
	if (s->on_miss == 1 && policy->offloads && !options.estimate)
		return kv_fail(KV_INVALID, "--on-miss estimate without estimates (--policy %s, "
			"--estimate): what is not fetched would be lost; use wait", policy->name);
	if (s->resume != NULL && !policy->offloads)
		return kv_fail(KV_INVALID, "--resume %s with --policy %s: it keeps nothing in a store; "
			"use the policy that the sequence was begun with", s->resume, policy->name);
	if ((command->bit & GW_GENERATE) != 0 && !(s->top_p > 0.0))
		return kv_fail(KV_INVALID, "--top-p %g: must be over 0 and at most 1", s->top_p);
	return KV_OK;
}

static enum kv_status look_at_file(const char *option, const char *path)
{
	if (path == NULL || strcmp(path, "-") == 0 || access(path, R_OK) == 0) return KV_OK;
	return kv_fail(KV_IO, "--%s %s: %s", option, path, strerror(errno));
}

static enum kv_status look_at_secret(const char *path)
{
	uint8_t secret[KV_SECRET_BYTES];
	enum kv_status status;

	if (path == NULL || *path == '\0') return KV_OK;
	status = kv_secret_read(path, secret);
	kv_secret_wipe(secret);
	return status;
}

static enum kv_status look_at_keys(const char *path)
{
	struct gw_api_keys *keys;

	if (path == NULL || *path == '\0') return KV_OK;
	KV_TRY(gw_api_keys_load(kv_heap(), path, &keys));
	gw_api_keys_destroy(keys);
	return KV_OK;
}

enum kv_status gw_settings_look(const struct kv_command *command, const void *opaque)
{
	const struct gw_settings *s = opaque;
	struct kv_trusted_network network;

	KV_TRY(gw_worker_look(s, kv_heap(), command->bit));
	KV_TRY(gw_settings_input_check(command->bit, s));
	KV_TRY(look_at_secret(s->store_secret));
	if (s->trusted_network != NULL && *s->trusted_network != '\0')
		KV_TRY(kv_trusted_network_find(s->trusted_network, &network));
	KV_TRY(look_at_keys(s->api_key_file));
	if (s->worker_socket != NULL && *s->worker_socket != '\0')
		KV_TRY(kv_unix_listen_check(s->worker_socket));
	if (command->bit == GW_SERVE) KV_TRY(gw_http_listen_check(s->listen, s->max_connections));
	KV_TRY(look_at_file("prompt-file", s->prompt_file));
	KV_TRY(look_at_file("tokens-file", s->tokens_file));
	return look_at_file("file", s->file);
}

enum kv_status gw_settings_input_check(uint32_t command, const struct gw_settings *s)
{
	bool text_file = (command & (GW_TOKENIZE | GW_PERPLEXITY)) != 0;
	const char *option = text_file ? "--file" : "--prompt-file";
	const char *text = text_file ? s->file : s->prompt_file;
	const char *prompt = text_file ? NULL : s->prompt;

	if (command == GW_SERVE || (command == GW_GENERATE && s->resume != NULL)) return KV_OK;
	if (text != NULL && s->tokens_file != NULL)
		return kv_fail(KV_USAGE, "%s %s and --tokens-file %s: give one of them", option, text,
			s->tokens_file);
	if (prompt != NULL && (text != NULL || s->tokens_file != NULL))
		return kv_fail(KV_USAGE, "--prompt and %s %s: give one of them",
			text != NULL ? option : "--tokens-file", text != NULL ? text : s->tokens_file);
	if (prompt != NULL || text != NULL || s->tokens_file != NULL) return KV_OK;
	if (command == GW_TOKENIZE) return kv_fail(KV_USAGE, "no input: give --file FILE or --file -");
	if (command == GW_DETOKENIZE)
		return kv_fail(KV_USAGE, "no input: give --tokens-file FILE or --tokens-file -");
	return kv_fail(KV_USAGE, "no input: give %s%s or --tokens-file, FILE or - for standard input",
		text_file ? "" : "--prompt TEXT, ", option);
}

/* What a policy that fixes some options leaves without effect: those given as it does not say. */
static void warn_fixed(const struct kv_config *config, const struct gw_settings *s,
	const struct gw_policy_options *fixed)
{
	const char *names[5] = {NULL};
	size_t count = 0;

	if (s->cluster_tokens != fixed->cluster_tokens) names[count++] = "cluster-tokens";
	if ((s->score == SCORE_SIZE) != (fixed->size_term != 0)) names[count++] = "score";
	if (s->estimate != fixed->estimate) names[count++] = "estimate";
	if (s->center != fixed->center) names[count++] = "center";
	kv_config_warn_ignored(config, names, "policy clusterkv-paper, which fixes it");
}

static void warn_ignored(
	const struct kv_config *config, uint32_t command, const struct gw_settings *s)
{
	static const char *const with_full[] = {"store", "transport", "name", "local-memory",
		"store-wait", "call-timeout", "fetch-timeout", "budget", "score", "estimate", "center",
		"cache", "cache-policy", "on-miss", "dense-layers", "sinks", "window", "fold", "segment",
		"cluster-tokens", "iterations", "sequence", NULL};
	static const char *const without_store[] = {"transport", "name", "store-wait", "call-timeout",
		"fetch-timeout", NULL};
	static const char *const with_store[] = {"local-memory", NULL};
	static const char *const when_greedy[] = {"top-k", "top-p", "min-p", "seed", NULL};
	static const char *const when_resumed[] = {"prompt", "prompt-file", "tokens-file",
		"parse-special", "max-tokens", "ignore-end", "temperature", "top-k", "top-p", "min-p",
		"frequency-penalty", "presence-penalty", "seed", "stop", NULL};
	static const char *const with_ids[] = {"parse-special", NULL};
	const struct gw_policy_ops *policy;
	struct gw_policy_options options;

	if ((command & (GW_SERVE | GW_GENERATE | GW_PERPLEXITY)) != 0 &&
		gw_settings_policy(s, NULL, &policy, &options) == KV_OK) {
		bool own = strcmp(s->store, "none") == 0;

		if (!policy->offloads)
			kv_config_warn_ignored(config, with_full, "policy full");
		else
			kv_config_warn_ignored(config, own ? without_store : with_store,
				own ? "store none" : "a store");
		if (policy->offloads) warn_fixed(config, s, &options);
	}
	if (command == GW_GENERATE && s->resume != NULL)
		kv_config_warn_ignored(config, when_resumed, "resume: the stored ones are used");
	else if (command == GW_GENERATE && s->temperature <= 0.0)
		kv_config_warn_ignored(config, when_greedy, "temperature 0");
	if (s->tokens_file != NULL && s->resume == NULL)
		kv_config_warn_ignored(config, with_ids, "tokens-file");
}

void gw_settings_warn(const struct kv_config *config, const struct kv_command *command,
	const void *opaque)
{
	const struct gw_settings *s = opaque;

	kv_log_set_level((enum kv_log_level)s->log_level);
	warn_ignored(config, command->bit, s);
}
