#include "gpu-worker/commands/settings.h"

#include <stddef.h>

#include "gpu-worker/server/http_server.h"
#include "common/transport/trusted_network.h"
#include "common/transport/unix_socket.h"
#include "kvstore/client/store_client.h"

static const char *const backend_words[] = {"auto", "cpu", "cuda", NULL};
static const char *const precision_words[] = {"default", "fp32", NULL};
static const char *const kv_type_words[] = {"auto", "f16", "f32", "bf16", NULL};
static const char *const level_words[] = {"auto", "plain", "avx2", "avx512", NULL};
static const char *const score_words[] = {"size", "paper", NULL};
static const char *const switch_words[] = {"off", "on", NULL};
static const char *const miss_words[] = {"wait", "estimate", NULL};
static const char *const log_words[] = {"error", "warning", "info", "debug", NULL};

#define AT(field) offsetof(struct gw_settings, field)

/* X-style rows: every field is written once, by name. */
#define STRING(n, field, value, what, text, mask)                                                  \
	{                                                                                              \
		.name = n, .kind = KV_OPTION_STRING, .offset = AT(field), .default_text = value,           \
		.unit = what, .help = text, .commands = mask                                               \
	}
#define CHECKED(n, field, value, what, judge, text, mask)                                          \
	{                                                                                              \
		.name = n, .kind = KV_OPTION_STRING, .offset = AT(field), .default_text = value,           \
		.unit = what, .help = text, .commands = mask, .check = judge                               \
	}
#define NUMBER(n, field, value, what, text, mask, low, high)                                       \
	{                                                                                              \
		.name = n, .kind = KV_OPTION_U32, .offset = AT(field), .default_text = value,              \
		.unit = what, .help = text, .commands = mask, .minimum = low, .maximum = high              \
	}
#define WORD(n, field, value, list, text, mask)                                                    \
	{                                                                                              \
		.name = n, .kind = KV_OPTION_WORD, .offset = AT(field), .default_text = value,             \
		.words = list, .help = text, .commands = mask                                              \
	}
#define FLAG(n, field, text, mask)                                                                 \
	{                                                                                              \
		.name = n, .kind = KV_OPTION_FLAG, .offset = AT(field), .help = text, .commands = mask     \
	}
#define OTHER(k, n, field, value, text, mask, low, high)                                           \
	{                                                                                              \
		.name = n, .kind = k, .offset = AT(field), .default_text = value, .help = text,            \
		.commands = mask, .minimum = low, .maximum = high                                          \
	}

enum {
	DECODING = GW_SERVE | GW_GENERATE | GW_PERPLEXITY,
	WORKING = GW_MODEL_COMMANDS,
	CONTEXT_LIMIT = 1048576,
	LONGEST_MS = 7 * 24 * 3600 * 1000
};

static enum kv_status check_folder(const char *folder)
{
	if (folder[0] == '\0' || folder[0] == '/') return KV_OK;
	return kv_fail(KV_INVALID, "plug-in folder \"%s\" must be an absolute path", folder);
}

static enum kv_status check_socket(const char *path)
{
	return *path != '\0' ? kv_unix_path_check(path) : KV_OK;
}

static const struct kv_option options[] = {
	{.name = "model", .kind = KV_OPTION_STRING, .offset = AT(model), .unit = "FILE",
		.help = "GGUF file of the model (llama or qwen2 architecture), or synthetic:NAME: random "
			"weights in the shape of llama-3.1-8b, llama-3.2-1b or tiny.",
		.group = "Model",
		.flags = KV_OPTION_REQUIRED},
	{.name = "backend", .kind = KV_OPTION_STRING, .offset = AT(backend), .default_text = "auto",
		.words = backend_words,
		.help = "Compute backend; auto is cuda where there is a device and its plug-in, else cpu.",
		.commands = WORKING},
	CHECKED("backend-path", backend_path, "", "FOLDER", check_folder,
		"Folder of libclusterkv_cuda.so, an absolute path, instead of lib/clusterkv beside this "
			"program.", WORKING),
	OTHER(KV_OPTION_SIZE, "device-memory", device_memory, "0",
		"Most memory of a GPU to use; 0: what is free when the worker starts. It is shared out at "
			"the start, and what does not fit is refused then.", WORKING, 0, 0),
	WORD("precision", precision, "default", precision_words,
		"fp32 keeps activations in float (slow, for tests) and implies --kv-type f32.", WORKING),
	WORD("kv-type", kv_type, "auto", kv_type_words,
		"Type of stored keys and values; auto is f16, f32 with --precision fp32. bf16 is for GPUs: "
			"the range of f32, fewer digits than f16.", WORKING),
	NUMBER("threads", threads, "0", "threads", "Compute threads; 0: one for each CPU.", WORKING, 0,
		256),
	WORD("cpu-level", cpu_level, "auto", level_words, "Highest CPU instructions to use.", WORKING),
	NUMBER("context", context, "0", "tokens",
		"Most tokens of a sequence, prompt and answer; 0: the model's context. On a GPU memory is "
			"kept for --max-sequences of that length.", WORKING, 0, CONTEXT_LIMIT),
	NUMBER("chunk", chunk, "512", "tokens", "Prompt tokens computed in one call.", WORKING, 1,
		4096),

	{.name = "store", .kind = KV_OPTION_STRING, .offset = AT(store), .default_text = "none",
		.unit = "unix:PATH|tcp:HOST:PORT|none", .group = "Store", .commands = DECODING,
		.help = "Socket of kvstored, or its --listen address on another host; none keeps an arena "
			"in this process.",
		.check = kvc_address_check},
	STRING("store-secret", store_secret, "", "FILE",
		"With --store tcp: the secret file of that kvstored, or a copy of it.", DECODING),
	CHECKED("transport", transport, "auto", "NAME", gw_check_transport,
		"auto, ucx or map; with --store tcp stream (auto), or ucx with --trusted-network.",
		DECODING),
	CHECKED("trusted-network", trusted_network, "", "NETWORK", kv_trusted_network_check,
		"With --store tcp and --transport ucx: the interface (eth1), IPv4 address or network "
		"(10.0.0.0/24) of this host over which to fetch from the store, NEITHER ENCRYPTED NOR "
		"AUTHENTICATED: one that everybody on it may read and change. Empty for none.", DECODING),
	CHECKED("name", name, "", "NAME", gw_check_name,
		"This worker's name in the store's statistics; default: worker-PID.", DECODING),
	OTHER(KV_OPTION_SIZE, "local-memory", local_memory, "4GiB",
		"Arena limit with --store none.", DECODING, 1048576, 0),
	OTHER(KV_OPTION_DURATION, "store-wait", store_wait_ms, "0ms",
		"How long to wait for the store at the start; serve goes on waiting.", DECODING, 0,
		LONGEST_MS),
	OTHER(KV_OPTION_DURATION, "call-timeout", call_ms, "5s", "Deadline of a control call.",
		DECODING, 1, LONGEST_MS),
	OTHER(KV_OPTION_DURATION, "fetch-timeout", fetch_ms, "2s", "Deadline of a fetch.", DECODING, 1,
		LONGEST_MS),

	{.name = "policy", .kind = KV_OPTION_STRING, .offset = AT(policy),
		.default_text = "clusterkv", .words = gw_policy_words, .group = "Attention",
		.commands = DECODING,
		.help = "What is attended to; full: everything, KV kept in the worker."},
	NUMBER("budget", budget, "1024", "tokens",
		"Tokens that each KV head attends to: sinks and selected clusters.", DECODING, 1,
		CONTEXT_LIMIT),
	WORD("score", score, "size", score_words,
		"Score of a cluster: size adds ln(size), paper does not.", DECODING),
	WORD("estimate", estimate, "on", switch_words, "Estimate the clusters that are not selected.",
		DECODING),
	WORD("center", center, "on", switch_words, "Subtract the mean key before clustering.",
		DECODING),
	OTHER(KV_OPTION_SIZE, "cache", cache, "0",
		"Cluster cache in bytes; 0: twice the budget for each of --max-batch sequences, on a GPU "
			"what is left of its memory, as far as it is of use.", DECODING,
		0, 0),
	CHECKED("cache-policy", cache_policy, "clock", "POLICY", gw_check_cache_policy,
		"clock (by bytes), or recency:R (also drop what R steps did not use).", DECODING),
	WORD("on-miss", on_miss, "wait", miss_words,
		"What a fetch that is late (--fetch-timeout) or fails leads to: wait fails the request, "
		"estimate covers its clusters by their means in this step; later folds cannot be resumed.",
		DECODING),
	NUMBER("dense-layers", dense_layers, "2", "layers",
		"Leading layers that attend to everything.", DECODING, 0, 256),
	NUMBER("sinks", sinks, "16", "tokens", "First tokens, always attended.", DECODING, 0, 4096),
	NUMBER("window", window, "128", "tokens", "Last tokens, kept dense.", DECODING, 0, 65536),
	NUMBER("fold", fold, "320", "tokens", "Tokens that leave a full window together.", DECODING, 1,
		65536),
	NUMBER("segment", segment, "4096", "tokens", "Tokens of a prompt's segments.", DECODING, 1,
		65536),
	NUMBER("cluster-tokens", cluster_tokens, "32", "tokens", "Mean tokens of a cluster.", DECODING,
		1, 4096),
	NUMBER("iterations", iterations, "5", "rounds", "k-means iterations, at most.", DECODING, 1,
		100),
	NUMBER("max-batch", max_batch, "4", "sequences", "Sequences decoded in one step.", GW_SERVE, 1,
		16),

	{.name = "prompt", .kind = KV_OPTION_STRING, .offset = AT(prompt), .unit = "TEXT",
		.group = "Input and output", .commands = GW_GENERATE | GW_LOGITS,
		.help = "The prompt, taken verbatim."},
	{.name = "prompt-file", .kind = KV_OPTION_STRING, .offset = AT(prompt_file), .unit = "FILE|-",
		.commands = GW_GENERATE | GW_LOGITS,
		.help = "Text of the prompt, taken verbatim; - is standard input."},
	STRING("tokens-file", tokens_file, NULL, "FILE|-",
		"Token ids of the prompt, separated by spaces, commas or newlines.",
		GW_GENERATE | GW_LOGITS | GW_PERPLEXITY | GW_DETOKENIZE),
	STRING("file", file, NULL, "FILE|-", "Text to read; - is standard input.",
		GW_TOKENIZE | GW_PERPLEXITY),
	FLAG("parse-special", parse_special,
		"Text of special tokens in the input becomes those tokens.",
		GW_GENERATE | GW_LOGITS | GW_TOKENIZE | GW_PERPLEXITY),
	NUMBER("max-tokens", max_tokens, "128", "tokens", "Tokens to generate, at most.", GW_GENERATE,
		1, CONTEXT_LIMIT),
	FLAG("ignore-end", ignore_end, "Go on after an end token.", GW_GENERATE),
	{.name = "temperature", .kind = KV_OPTION_DOUBLE, .offset = AT(temperature),
		.default_text = "0", .help = "0 takes the likeliest token.", .commands = GW_GENERATE,
		.maximum_real = 100.0},
	NUMBER("top-k", top_k, "0", "tokens", "Sample among the K likeliest; 0: all.", GW_GENERATE, 0,
		0),
	{.name = "top-p", .kind = KV_OPTION_DOUBLE, .offset = AT(top_p), .default_text = "1",
		.help = "Sample among the likeliest that make up this probability.",
		.commands = GW_GENERATE, .maximum_real = 1.0},
	{.name = "min-p", .kind = KV_OPTION_DOUBLE, .offset = AT(min_p), .default_text = "0",
		.help = "Leave out tokens that are less than this many times as likely as the likeliest.",
		.commands = GW_GENERATE, .maximum_real = 1.0},
	{.name = "frequency-penalty", .kind = KV_OPTION_DOUBLE, .offset = AT(frequency_penalty),
		.default_text = "0", .help = "Taken off a token's logit for each time that the answer "
		"has it.", .commands = GW_GENERATE, .minimum_real = -2.0, .maximum_real = 2.0},
	{.name = "presence-penalty", .kind = KV_OPTION_DOUBLE, .offset = AT(presence_penalty),
		.default_text = "0", .help = "Taken off a token's logit once the answer has it.",
		.commands = GW_GENERATE, .minimum_real = -2.0, .maximum_real = 2.0},
	OTHER(KV_OPTION_U64, "seed", seed, "0", "Seed of the sampler.", GW_GENERATE, 0, 0),
	CHECKED("stop", stop, NULL, "TEXT", gw_check_stop, "End the answer before this text.",
		GW_GENERATE),
	CHECKED("sequence", sequence, NULL, "ID", gw_check_sequence_id,
		"Name the sequence, so that it can be resumed.", GW_GENERATE),
	CHECKED("resume", resume, NULL, "ID", gw_check_sequence_id,
		"Go on with a sequence whose worker died; prompt and sampling are the stored ones.",
		GW_GENERATE),
	FLAG("logits-digest", logits_digest,
		"Report a digest of all logits, and how far the best was from the next.", GW_GENERATE),
	FLAG("audit", audit, "Also compute full attention, and report what was lost.",
		GW_GENERATE | GW_PERPLEXITY),
	NUMBER("prefill", prefill, "2048", "tokens", "Tokens of the text that are prefilled.",
		GW_PERPLEXITY, 1, CONTEXT_LIMIT),
	NUMBER("decode", decode, "256", "tokens", "Teacher-forced decode steps after them.",
		GW_PERPLEXITY, 1, CONTEXT_LIMIT),
	NUMBER("top", top, "10", "tokens", "How many of the top logits to print.", GW_LOGITS, 1, 1000),
	FLAG("json", json, "Print one JSON object on standard output.",
		GW_GENERATE | GW_PERPLEXITY | GW_LOGITS | GW_TOKENIZE | GW_DETOKENIZE),

	{.name = "listen", .kind = KV_OPTION_STRING, .offset = AT(listen),
		.default_text = "127.0.0.1:8080", .unit = "HOST:PORT", .group = "Serving",
		.commands = GW_SERVE,
		.help = "Address of the HTTP API; without HOST 127.0.0.1, port 0 takes a free one.",
		.check = gw_http_address_check},
	CHECKED("worker-socket", worker_socket, "", "PATH", check_socket,
		"This worker's stats socket, where kvctl trace asks for the time of single requests. "
		"Empty: none.", GW_SERVE),
	NUMBER("max-sequences", max_sequences, "4", "sequences", "Requests that decode at once.",
		GW_SERVE, 1, 16),
	NUMBER("max-requests", max_requests, "64", "requests", "Requests that may wait, at most.",
		GW_SERVE, 1, 4096),
	OTHER(KV_OPTION_SIZE, "sequence-memory", sequence_memory, "0",
		"Memory of the worker that sequences may hold together, the cluster cache aside; 0: no "
			"limit. A request for which there is none left waits.", GW_SERVE, 0, 0),
	OTHER(KV_OPTION_DURATION, "decode-latency-target", latency_ms, "100ms",
		"How long running answers may wait for their next token while a prompt is computed; one "
		"chunk of a layer comes on top.", GW_SERVE, 1, LONGEST_MS),
	STRING("api-key-file", api_key_file, NULL, "FILE",
		"Keys of clients, a line each, of 16 to 512 characters; nobody else may read it. Without "
		"it nobody needs one.",
		GW_SERVE),
	OTHER(KV_OPTION_SIZE, "max-body", max_body, "4MiB", "Largest request body.", GW_SERVE, 1024, 0),
	OTHER(KV_OPTION_DURATION, "idle-timeout", idle_ms, "60s", "Close a silent connection after.",
		GW_SERVE, 100, LONGEST_MS),
	NUMBER("max-connections", max_connections, "256", "connections",
		"Connections at once. Those without a running request make room for others.", GW_SERVE, 4,
		4096),
	NUMBER("address-connections", address_connections, "0", "connections",
		"The same of one address (IPv6: of one /64; Unix sockets have no limit), 0 for no limit.",
		GW_SERVE, 0, 4096),
	OTHER(KV_OPTION_DURATION, "client-timeout", client_ms, "10s",
		"How long a client may take for a request's head, for its body, and to take its answer.",
		GW_SERVE, 100, LONGEST_MS),
	OTHER(KV_OPTION_SIZE, "client-rate", client_rate, "4KiB",
		"Bytes of body or answer that give it another second.", GW_SERVE, 1, 0),
	OTHER(KV_OPTION_SIZE, "stream-backlog", stream_backlog, "4MiB",
		"Bytes of a stream that may wait for a client that does not read.", GW_SERVE, 4096, 0),
	OTHER(KV_OPTION_DURATION, "drain-timeout", drain_ms, "10s",
		"How long running requests may go on after SIGTERM.", GW_SERVE, 0, LONGEST_MS),

	{.name = "log-level", .kind = KV_OPTION_WORD, .offset = AT(log_level), .default_text = "info",
		.words = log_words, .group = "Log", .help = "error, warning, info or debug."},
	{.name = "faults", .kind = KV_OPTION_STRING, .offset = AT(faults), .default_text = "",
		.flags = KV_OPTION_HIDDEN, .help = "Where the worker stops itself, as name=count@skip."},
};

static const struct kv_command commands[] = {
	{"serve", "Answer HTTP requests until SIGTERM.", GW_SERVE},
	{"generate", "Answer one prompt.", GW_GENERATE},
	{"perplexity", "Prefill a text, then measure teacher-forced decode steps.", GW_PERPLEXITY},
	{"logits", "Print the top logits after a prompt, and the prompt's mean NLL.", GW_LOGITS},
	{"tokenize", "Turn text into token ids.", GW_TOKENIZE},
	{"detokenize", "Turn token ids into text.", GW_DETOKENIZE},
};

static const char *const other_sections[] = {"kvstored", "kvctl", NULL};

const struct kv_program gw_program = {
	.name = "gpu-worker",
	.summary = "Runs a model; keeps long contexts' key/values in kvstored, by cluster.",
	.options = options,
	.option_count = sizeof options / sizeof options[0],
	.settings_size = sizeof(struct gw_settings),
	.commands = commands,
	.command_count = sizeof commands / sizeof commands[0],
	.other_sections = other_sections,
	.validate = gw_settings_validate,
	.warn = gw_settings_warn,
	.check = gw_settings_look,
};
