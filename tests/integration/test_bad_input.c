/* What is wrong is refused, with an exit code and a sentence that says what, which and what to do:
 * options, model files, prompts, and stores that are not there, full, or of another kind. */
#include "tests/lib/trial.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/random.h"
#include "common/transport/unix_socket.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/model.h"
#include "gpu-worker/pipeline/pipeline.h"
#include "kvstore/client/store_client.h"
#include "proto/codec.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"
#define SMALL KV_TINY_MODELS "/tiny_tiny.gguf"
#define WIDE  KV_TINY_MODELS "/tiny_wide.gguf"

enum { WORDS = 14, NAMED = 3, LIMIT_MS = 20000, FLIPS = 60, PROMPT = 1300, SMALL_CONTEXT = 64 };

static struct trial trial;
static struct store_fixture store;
static struct serve_fixture worker;
static pid_t other_store;

/* Run a program; its standard error must name every one of `named`. */
static void check_program(
    const char *const *arguments, const char *input, int code, const char *const *named)
{
	struct process process;
	char *errors;
	int found;

	assert_true(process_start(&process, arguments, input));
	found = process_wait(&process, LIMIT_MS);
	errors = process_errors(&process);
	for (int i = 0; i < NAMED && named[i]; i++)
		if (!strstr(errors, named[i]))
			fail_msg("%s %s %s: no word of \"%s\":\n%s", arguments[0],
			    arguments[1] ? arguments[1] : "", arguments[1] && arguments[2] ? arguments[2] : "",
			    named[i], errors);
	if (found != code) fail_msg("exit code %d, expected %d:\n%s", found, code, errors);
	free(errors);
	process_deinit(&process);
}

static void check_input(
    const char *const *arguments, const char *input, int code, const char *const *named)
{
	struct trial_arguments all = {0};
	const char *const program[] = {KV_GPU_WORKER, NULL};

	trial_add(&all, program);
	trial_add(&all, arguments);
	check_program(all.all, input, code, named);
}

static void check(const char *const *arguments, int code, const char *const *named)
{
	check_input(arguments, "1 2 3", code, named);
}

struct wrong {
	const char *arguments[WORDS];
	int code;
	const char *named[NAMED];
};

/* A command with a model and a prompt, to which one thing is added that is wrong. */
#define GENERATE "generate", "--model", MODEL, "--tokens-file", "-"

static void options(void **state)
{
	static const struct wrong list[] = {
	    {{NULL}, 2, {"COMMAND", "generate", "serve"}},
	    {{"genrate"}, 2, {"genrate", "did you mean 'generate'"}},
	    {{"generate"}, 2, {"model is required", "--model=VALUE", "--help"}},
	    {{GENERATE, "--polcy", "full"}, 2, {"polcy", "did you mean 'policy'"}},
	    {{GENERATE, "--policy", "quest"}, 2, {"option policy", "'quest'", "clusterkv-paper, full"}},
	    {{GENERATE, "--budget"}, 2, {"budget needs a value", "--budget=VALUE"}},
	    {{GENERATE, "--budget", "0"}, 2, {"budget", "'0'", "1 to 1048576 tokens"}},
	    {{GENERATE, "--budget", "-1"}, 2, {"budget", "'-1'", "1 to 1048576 tokens"}},
	    {{GENERATE, "--budget", "5000000000"}, 2, {"budget", "1 to 1048576 tokens"}},
	    {{GENERATE, "--budget", "many"}, 2, {"budget", "'many'", "whole number"}},
	    {{GENERATE, "--budget", "32", "--sinks", "64"}, 2, {"--budget 32", "--sinks 64"}},
	    {{GENERATE, "--cache", "12XB"}, 2, {"cache", "'12XB'", "64MiB"}},
	    {{GENERATE, "--cache-policy", "lru"}, 2, {"option cache-policy", "'lru'", "recency:R"}},
	    {{GENERATE, "--transport", "pigeon"}, 2, {"option transport", "'pigeon'", "ucx, map"}},
	    {{GENERATE, "--store", "foo:bar"}, 2, {"option store", "\"foo:bar\"", "unix:PATH"}},
	    {{GENERATE, "--store", "unix:"}, 2, {"option store", "path is empty"}},
	    {{GENERATE, "--score", "x"}, 2, {"option score", "'x'", "size, paper"}},
	    {{GENERATE, "--precision", "int4"}, 2, {"option precision", "'int4'", "default, fp32"}},
	    {{GENERATE, "--on-miss", "skip"}, 2, {"option on-miss", "'skip'", "wait"}},
	    {{GENERATE, "--cpu-level", "sse"}, 2, {"option cpu-level", "'sse'", "plain, avx2"}},
	    {{GENERATE, "--cache", "100"}, 2, {"--cache 100", "at least"}},
	    {{GENERATE, "--sequence", "a b"}, 2, {"option sequence", "'a b'", "ASCII"}},
	    {{GENERATE, "--stop", ""}, 2, {"option stop", "1 to 256"}},
	    {{GENERATE, "--call-timeout", "60d"}, 2, {"call-timeout", "'60d'"}},
	    {{GENERATE, "--segment", "16384", "--cluster-tokens", "1"}, 2,
	        {"tiny_llama.gguf", "--segment 16384 with --cluster-tokens 1", "raise"}},
	    {{GENERATE, "--resume", "a", "--policy", "full"}, 2, {"--resume a", "--policy full"}},
	    {{GENERATE, "--prompt-file", "x"}, 2, {"--prompt-file x", "--tokens-file -", "one of"}},
	    {{"tokenize", "--model", MODEL}, 2, {"no input", "--file"}},
	    {{"detokenize", "--model", MODEL}, 2, {"no input", "--tokens-file"}},
	    {{"perplexity", "--model", MODEL}, 2, {"no input", "--file"}},
	    {{"serve", "--model", MODEL, "--json"}, 2, {"json", "generate", "not to serve"}},
	    {{"serve", "--model", MODEL, "--check", "--policy", "quest"}, 2, {"'quest'"}},
	    {{"serve", "--model", "no-such-model", "--check"}, 1, {"no-such-model"}},
	    {{"tokenize", "--model", "no-such-model", "--check"}, 1, {"no-such-model"}},
	    {{"serve", "--model", MODEL, "--check"}, 0, {NULL}},
	    {{"tokenize", "--model", MODEL, "--file", "gone", "--check"}, 1, {"--file gone"}},
	    {{"serve", "--model", MODEL, "--check", "--segment", "16384", "--cluster-tokens", "1"}, 2,
	        {"tiny_llama.gguf", "--segment 16384", "raise"}},
	    {{GENERATE, "--prompt", "a"}, 2, {"--prompt and --tokens-file -", "one of"}},
	    {{GENERATE, "--kv-type", "f8"}, 2, {"kv-type", "'f8'", "f16"}},
	    {{GENERATE, "--precision", "fp32", "--kv-type", "f16"}, 2, {"--precision fp32", "leave"}},
	    {{GENERATE, "--on-miss", "estimate", "--estimate", "off"}, 2, {"--on-miss", "wait"}},
	    {{GENERATE, "--temperature", "-1"}, 2, {"temperature", "'-1'", "0 to 100"}},
	    {{GENERATE, "--top-p", "1.5"}, 2, {"top-p", "'1.5'", "0 to 1"}},
	    {{"generate", "--model", MODEL, "--check", "--top-p", "0"}, 2, {"--top-p 0", "over 0"}},
	    {{GENERATE, "--threads", "1000"}, 2, {"threads", "'1000'", "256"}},
	    {{GENERATE, "--top", "5"}, 2, {"top", "logits", "generate"}},
	    {{GENERATE, "--json", "more"}, 2, {"'more'", "one argument too many"}},
	    {{GENERATE, "--resume", "a", "--sequence", "b"}, 2, {"--resume a", "--sequence b"}},
	    {{GENERATE, "--resume", "nobody"}, 1, {"nobody", "not in the store"}},
	    {{"serve", "--model", MODEL, "--listen", "127.0.0.1:99999"}, 2,
	        {"listen", "127.0.0.1:99999", "port"}},
	    {{"serve", "--model", MODEL, "--listen", "8080"}, 2, {"option listen", "\"8080\"", "HOST"}},
	};

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		check(list[i].arguments, list[i].code, list[i].named);
}

static void options_of_backends(void **state)
{
	static const struct wrong list[] = {
	    {{GENERATE, "--backend", "tpu"}, 2, {"option backend", "'tpu'", "auto, cpu, cuda"}},
	    {{GENERATE, "--backend-path", "plugins"}, 2, {"backend-path", "absolute path"}},
	    {{GENERATE, "--backend", "cuda", "--backend-path", "/nowhere"}, 1,
	        {"backend cuda", "no libclusterkv_cuda.so in /nowhere"}},
	    {{GENERATE, "--backend", "cpu", "--backend-path", "/nowhere"}, 2,
	        {"--backend-path /nowhere with --backend cpu", "leave it out"}},
	    {{GENERATE, "--backend", "cpu", "--device-memory", "1GiB"}, 2,
	        {"--device-memory 1073741824 with --backend cpu", "leave it out"}},
	    {{GENERATE, "--backend-path", "/nowhere", "--device-memory", "1GiB"}, 2,
	        {"--device-memory 1073741824 on the cpu backend", "leave it out"}},
	    {{"serve", "--model", MODEL, "--check", "--backend", "cuda", "--backend-path", "/nowhere"},
	        1, {"backend cuda", "no libclusterkv_cuda.so in /nowhere"}},
	    {{GENERATE, "--backend", "cpu", "--kv-type", "bf16"}, 2, {"--kv-type bf16", "f16 and f32"}},
	    {{GENERATE, "--backend-path", "/nowhere", "--kv-type", "bf16"}, 2,
	        {"--kv-type bf16: the cpu backend", "use f16 or f32"}},
	    {{GENERATE, "--precision", "fp32", "--kv-type", "bf16"}, 2, {"--precision fp32", "leave"}},
	    {{"perplexity", "--model", MODEL, "--tokens-file", "-", "--audit", "--kv-type", "bf16"}, 2,
	        {"--audit with --kv-type bf16", "use one of them"}},
	    {{GENERATE, "--context", "100000"}, 2, {"--context 100000", "tiny_llama.gguf"}},
	    {{GENERATE, "--context", "100"}, 1, {"128 to generate", "worker's context is 100"}},
	};

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		check(list[i].arguments, list[i].code, list[i].named);
}

/* A wrong value is one wherever it comes from. */
static void options_of_other_sources(void **state)
{
	static const char *const file_text = "[gpu-worker]\nbudget = 64\nstore = foo:bar\n";
	char path[160];
	const char *const plain[] = {GENERATE, NULL};
	const char *const with_file[] = {GENERATE, "--config", path, NULL};
	const char *const of_variable[] = {"CLUSTERKV_POLICY: option policy", "'quest'", NULL};
	const char *const of_file[] = {"worker.conf:3: option store", "\"foo:bar\"", "unix:PATH"};
	FILE *file;

	(void)state;
	setenv("CLUSTERKV_POLICY", "quest", 1);
	check(plain, 2, of_variable);
	unsetenv("CLUSTERKV_POLICY");
	snprintf(path, sizeof path, "%s/worker.conf", store.directory);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(file_text, file);
	assert_int_equal(fclose(file), 0);
	check(with_file, 2, of_file);
	unlink(path);
}

static void options_of_other_programs(void **state)
{
	static const struct wrong list[] = {
	    {{KVSTORED_PATH, "--config=", "--transport", "x"}, 2, {"transport", "'x'", "auto, ucx"}},
	    {{KVSTORED_PATH, "--config=", "--verify", "x"}, 2, {"verify", "'x'", "off, commit"}},
	    {{KVSTORED_PATH, "--config=", "--socket="}, 2, {"option socket", "empty"}},
	    {{KVSTORED_PATH, "--config=", "--memory", "lots"}, 2, {"memory", "'lots'"}},
	    {{KVCTL_PATH, "ping", "--timeout", "x"}, 2, {"timeout", "'x'"}},
	    {{KVCTL_PATH, "stat", "--stats-socket="}, 2, {"option stats-socket", "empty"}},
	    {{KVCTL_PATH, "ready", "--wait", "-1"}, 2, {"wait", "'-1'", "0 to"}},
	    {{KVCTL_PATH, "stat", "--count", "2", "--stats-socket", "no.sock"}, 1,
	        {"--count: given, and without effect with interval 0"}},
	    {{KVSTORED_PATH, "--config=", "--tenants", "7=team", "--tenant-quota", "teem=1GiB"}, 2,
	        {"tenant-quota", "\"teem\""}},
	    {{KVSTORED_PATH, "--config=", "--disk-wait", "1s", "--low-watermark", "50",
	         "--remote-tenant", "far", "--memory", "5000TiB"},
	        1,
	        {"--disk-wait: given, and without effect with a store without disk",
	            "--low-watermark: given, and without effect with high-watermark 0",
	            "--remote-tenant: given, and without effect with a store without listen"}},
	    {{KVSTORED_PATH, "--config=", "--transport", "ucx", "--warm-restart", "--memory",
	         "5000TiB"},
	        1, {"--warm-restart: given, and without effect with transport ucx"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--socket", "/nowhere/s.sock"}, 1,
	        {"/nowhere/s.sock", "directory is not there"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--stats-socket", KVSTORED_PATH}, 1,
	        {"exists and is no socket"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--disk", "/nowhere/disk", "--disk-size", "1GiB"},
	        1, {"/nowhere/disk", "cannot be made"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--disk", KVSTORED_PATH, "--disk-size", "1GiB"}, 1,
	        {"cannot be opened", "Not a directory"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--disk", "/tmp", "--disk-size", "1GiB"}, 1,
	        {"others may write to /tmp"}},
	    {{KVSTORED_PATH, "--config=", "--check"}, 0, {NULL}},
	};
	static const char *const named[] = {"option socket", "choose a shorter one", NULL};
	char path[160];
	const char *const with_long[] = {KVCTL_PATH, "ping", "--socket", path, NULL};

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		check_program(list[i].arguments, NULL, list[i].code, list[i].named);
	memset(path, 'p', sizeof path - 1);
	path[sizeof path - 1] = '\0';
	check_program(with_long, NULL, 2, named);
}

/* A shell that may have few descriptors, and becomes the program; a host that is none. */
#define FEW(number) "/bin/sh", "-c", "ulimit -n " number "; exec \"$0\" \"$@\""
#define NOBODY      "[fe80::1%nowhere]:80" /* no name server need be asked */

/* --check says and refuses what a start would say and refuse, and takes what a start would take. */
static void a_check_is_as_a_start(void **state)
{
	static const struct wrong list[] = {
	    {{KVSTORED_PATH, "--config=", "--check", "--low-watermark", "50"}, 0,
	        {"--low-watermark: given, and without effect with high-watermark 0"}},
	    {{KV_GPU_WORKER, "serve", "--model", MODEL, "--check", "--policy", "full", "--sinks", "8"},
	        0, {"--sinks: given, and without effect with policy full"}},
	    {{KVCTL_PATH, "stat", "--check", "--count", "2"}, 0,
	        {"--count: given, and without effect with interval 0"}},
	    {{KV_GPU_WORKER, "generate", "--model", MODEL, "--check", "--prompt", "a", "--tokens-file",
	         "-"},
	        2, {"--prompt and --tokens-file -", "one of"}},
	    {{KV_GPU_WORKER, "serve", "--model", MODEL, "--check", "--worker-socket",
	         "/nowhere/w.sock"},
	        1, {"/nowhere/w.sock", "directory is not there"}},
	    {{KV_GPU_WORKER, "serve", "--model", MODEL, "--check", "--listen", "192.0.2.1:80"}, 1,
	        {"--listen", "192.0.2.1:80"}},
	    {{KV_GPU_WORKER, "serve", "--model", MODEL, "--check", "--listen", NOBODY}, 2,
	        {"--listen: cannot find host"}},
	    {{KV_GPU_WORKER, "serve", "--model", MODEL, "--store", "none", "--listen", NOBODY}, 2,
	        {"--listen: cannot find host"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--listen", NOBODY, "--secret-file", "/"}, 2,
	        {"listen: cannot find host"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--listen", "192.0.2.1:80", "--secret-file", "/"},
	        1, {"listen: ", "192.0.2.1:80"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--http-listen", "192.0.2.1:80"}, 0,
	        {"http-listen: ", "192.0.2.1:80"}},
	    {{FEW("300"), KV_GPU_WORKER, "serve", "--model", MODEL, "--check", "--max-connections",
	         "1000"},
	        2, {"max-connections: 1000 connections need", "may have 300", "ulimit -n"}},
	    {{FEW("300"), KVSTORED_PATH, "--config=", "--check", "--max-workers", "400"}, 2,
	        {"max-workers: 400 workers", "may have 300", "ulimit -n"}},
	    {{KVSTORED_PATH, "--config=", "--check", "--memory", "900TiB"}, 1, {"this machine has ("}},
	    {{FEW("12"), KVSTORED_PATH, "--config=", "--transport", "map", "--memory", "1MiB"}, 2,
	        {"max-workers: 64 workers", "may have 12", "ulimit -n"}},
	};

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		check_program(list[i].arguments, NULL, list[i].code, list[i].named);
}

/* What --check finds to be usable is as it was, also where a store is running. */
static void a_check_changes_nothing(void **state)
{
	char socket[192], disk[192], made[192];
	const char *const arguments[] = {KVSTORED_PATH, "--config=", "--check", "--socket", socket,
	    "--stats-socket", store.stats, "--disk", disk, "--disk-size", "1GiB", NULL};
	static const char *const nothing[NAMED] = {NULL};

	(void)state;
	snprintf(socket, sizeof socket, "%s/checked.sock", store.directory);
	snprintf(disk, sizeof disk, "%s/disk/", store.directory);
	snprintf(made, sizeof made, "%s/disk", store.directory);
	assert_true(store_fixture_start(&store, NULL));
	check_program(arguments, NULL, 0, nothing);
	assert_int_equal(access(socket, F_OK), -1);
	assert_int_equal(access(made, F_OK), -1);
	assert_int_equal(mkdir(made, 0700), 0);
	check_program(arguments, NULL, 0, nothing);
	/* Not even a lock is in it. */
	assert_int_equal(rmdir(made), 0);
	assert_true(store_fixture_stop(&store));
}

/* What was asked for and cannot be had is not kept quiet, and nobody else is bothered. */
static void options_without_effect(void **state)
{
	static const struct wrong list[] = {
	    {{GENERATE, "--policy", "full", "--budget", "64", "--store", "unix:/none"}, 0,
	        {"warning gpu-worker: --store, --budget: given", "policy full"}},
	    {{GENERATE, "--policy", "clusterkv-paper", "--score", "size", "--estimate", "off"}, 0,
	        {"--score: given", "clusterkv-paper"}},
	    {{GENERATE, "--transport", "map"}, 0, {"--transport: given", "store none"}},
	    {{GENERATE, "--seed", "3", "--top-p", "0.5"}, 0,
	        {"--top-p, --seed: given", "temperature 0"}},
	    {{GENERATE, "--parse-special"}, 0, {"--parse-special: given", "tokens-file"}},
	};
	const char *const quiet[] = {
	    KV_GPU_WORKER, GENERATE, "--temperature", "1", "--seed", "3", "--budget", "64", NULL};
	struct process process;
	char *errors;

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		check(list[i].arguments, list[i].code, list[i].named);
	assert_true(process_start(&process, quiet, "1 2 3"));
	assert_int_equal(process_wait(&process, LIMIT_MS), 0);
	errors = process_errors(&process);
	assert_null(strstr(errors, "warning"));
	free(errors);
	process_deinit(&process);
}

static void prompts(void **state)
{
	static const struct wrong list[] = {
	    {{"generate", "--model", MODEL}, 2, {"no input", "--prompt TEXT"}},
	    {{"generate", "--model", MODEL, "--prompt", ""}, 1, {"empty", "at least one"}},
	    {{"generate", "--model", MODEL, "--prompt", "the", "--max-tokens", "2"}, 0,
	        {"prompt 1 tokens"}},
	    {{"generate", "--model", MODEL, "--prompt-file", "no-such-file"}, 1, {"no-such-file"}},
	    {{"generate", "--model", MODEL, "--prompt-file", "/dev/null"}, 1,
	        {"empty", "at least one"}},
	    /* As good as drawing lots: by this seed the first lot is an end token. */
	    {{GENERATE, "--temperature", "100", "--seed", "9"}, 0,
	        {"0 tokens: the model ended at once"}},
	    {{GENERATE, "--max-tokens", "20000"}, 1, {"20000", "context is 16384", "shorten"}},
	};
	static const char *const texts[] = {"1 two 3", "1 2 99999", "1 -2"};
	static const char *const named[][NAMED] = {
	    {"two", "not a token id", "numbers"}, {"99999", "vocabulary"}, {"-2", "not a token id"}};
	const char *const small[] = {"generate", "--model", SMALL, "--tokens-file", "-", NULL};
	const char *const given[] = {GENERATE, NULL};
	const char *const too_long[] = {"80 tokens", "context is 64", "shorten the prompt"};
	int32_t *prompt = trial_prompt(&trial, 0, SMALL_CONTEXT + 16);
	char *ids = trial_ids(prompt, SMALL_CONTEXT + 16, ",");

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		check(list[i].arguments, list[i].code, list[i].named);
	for (size_t i = 0; i < 3; i++)
		check_input(given, texts[i], 1, named[i]);
	check_input(small, ids, 1, too_long);
	free(ids);
	free(prompt);
}

/* An answer that does not reach anybody is no success. */
static void outputs(void **state)
{
	static const char *const lost[] = {"exec \"$0\" \"$@\" >&-", "exec \"$0\" \"$@\" >/dev/full"};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		const char *const arguments[] = {
		    "/bin/sh", "-c", lost[i], KV_GPU_WORKER, GENERATE, "--max-tokens", "4", NULL};
		struct process process;
		char *errors;

		assert_true(process_start(&process, arguments, "1 2 3"));
		if (process_wait(&process, LIMIT_MS) != 1) fail_msg("%s: not an error", lost[i]);
		errors = process_errors(&process);
		assert_non_null(strstr(errors, "standard output cannot be written"));
		free(errors);
		process_deinit(&process);
	}
}

/* Two signals at once, as `timeout` and service managers send them, are one wish: the worker ends
 * as after one, with 0. */
static void signals(void **state)
{
	const char *const arguments[] = {
	    KV_GPU_WORKER, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", NULL};
	struct process process;

	(void)state;
	assert_true(process_start(&process, arguments, NULL));
	assert_true(process_wait_error(&process, "listening on", LIMIT_MS));
	process_signal(&process, SIGTERM);
	process_signal(&process, SIGINT);
	assert_int_equal(process_wait(&process, LIMIT_MS), 0);
	process_deinit(&process);
}

/* ---- model files ---- */

static char *read_model(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	struct stat facts;
	char *bytes;

	assert_non_null(file);
	assert_int_equal(fstat(fileno(file), &facts), 0);
	*size = (size_t)facts.st_size;
	bytes = malloc(*size);
	assert_non_null(bytes);
	assert_int_equal(fread(bytes, 1, *size, file), *size);
	fclose(file);
	return bytes;
}

static void write_model(const char *path, const char *bytes, size_t size)
{
	FILE *file = fopen(path, "wb");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, size, file), size);
	assert_int_equal(fclose(file), 0);
}

static void check_model(const char *path, const char *named)
{
	const char *const arguments[] = {"generate", "--model", path, "--tokens-file", "-", NULL};
	const char *const all[] = {path, named, NULL};

	check(arguments, 1, all);
}

static void model_files(void **state)
{
	char path[160], *bytes;
	size_t size;

	(void)state;
	snprintf(path, sizeof path, "%s/model.gguf", store.directory);
	check_model(path, "No such file");
	check_model(store.directory, "not a regular file");
	check_model(KV_GPU_WORKER, "not a GGUF file");
	bytes = read_model(MODEL, &size);
	/* In the header, in the metadata, in the tensors' names, in their data. */
	for (size_t cut = 0; cut < size; cut = cut * 3 / 2 + 7) {
		write_model(path, bytes, cut);
		check_model(path, cut < 4 ? "GGUF" : "truncated");
	}
	write_model(path, bytes, size - 1);
	check_model(path, "truncated");
	/* Of an architecture that is none of ours. */
	for (char *at = bytes; at + 5 <= bytes + 4096; at++)
		if (memcmp(at, "llama", 5) == 0) memcpy(at, "mamba", 5);
	write_model(path, bytes, size);
	check_model(path, "architecture mamba");
	free(bytes);
	unlink(path);
}

/* Weights that are no numbers: whatever would be picked then is no answer. */
static void damaged_weights(void **state)
{
	enum { DAMAGED_BYTES = 600000 };
	static const char *const commands[] = {"generate", "generate", "generate", "logits"};
	static const char *const options[] = {
	    "--temperature=0", "--temperature=1", "--policy=full", "--json"};
	const char *const named[] = {"not finite", "damaged", NULL};
	char path[160], *bytes;
	size_t size;

	(void)state;
	snprintf(path, sizeof path, "%s/model.gguf", store.directory);
	bytes = read_model(MODEL, &size);
	assert_true(size > DAMAGED_BYTES);
	/* NaN, as halves and as floats. */
	for (size_t i = size - DAMAGED_BYTES; i < size; i++)
		bytes[i] = (char)(i % 2 ? 0x7f : 0xc0);
	write_model(path, bytes, size);
	for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
		const char *const arguments[] = {
		    commands[i], "--model", path, "--tokens-file", "-", options[i], NULL};

		check(arguments, 1, named);
	}
	free(bytes);
	unlink(path);
}

/* Counts and lengths that would take all memory, and bits that are wrong anywhere in the header. */
static void hostile_model_files(void **state)
{
	static const uint64_t values[] = {UINT64_MAX, (uint64_t)1 << 62, 1 << 30};
	char path[160], *bytes, *copy;
	struct kv_random random;
	size_t size;

	(void)state;
	snprintf(path, sizeof path, "%s/model.gguf", store.directory);
	bytes = read_model(SMALL, &size);
	copy = malloc(size);
	assert_non_null(copy);
	/* The tensors' number, the metadata's, and the length of the first key. */
	for (size_t at = 8; at <= 24; at += 8) {
		for (size_t i = 0; i < 3; i++) {
			memcpy(copy, bytes, size);
			memcpy(copy + at, &values[i], sizeof values[i]);
			write_model(path, copy, size);
			check_model(path, "model.gguf");
		}
	}
	kv_random_seed(&random, 5);
	for (unsigned i = 0; i < FLIPS; i++) {
		const char *const arguments[] = {
		    KV_GPU_WORKER, "logits", "--model", path, "--tokens-file", "-", NULL};
		struct process process;
		int code;

		memcpy(copy, bytes, size);
		for (unsigned flip = 0; flip < 3; flip++)
			copy[kv_random_below(&random, 9000)] ^= (char)(1 << kv_random_below(&random, 8));
		write_model(path, copy, size);
		assert_true(process_start(&process, arguments, "1 2 3"));
		code = process_wait(&process, LIMIT_MS);
		if (code != 0 && code != 1) fail_msg("bits of round %u: exit code %d", i, code);
		process_deinit(&process);
	}
	free(copy);
	free(bytes);
	unlink(path);
}

/* ---- sockets and files of those that only ask ---- */

/* The option, what it names, and what to look for; nothing of a traceback. */
static void what_is_asked_of_the_wrong_one(void **state)
{
	static const struct wrong list[] = {
	    {{KVCTL_PATH, "stat", "--stats-socket", "/nowhere/t"}, 1,
	        {"--stats-socket /nowhere/t: nobody listens", "does the store run"}},
	    {{KVCTL_PATH, "stat", "--stats-socket", "/"}, 1, {"--stats-socket /: / is no socket"}},
	    {{KVCTL_PATH, "trace", "--worker-socket", "/nowhere/t"}, 1,
	        {"--worker-socket /nowhere/t: nobody listens", "does the worker run"}},
	    {{KVCTL_PATH, "ping", "--socket", "/nowhere/s"}, 1, {"--socket /nowhere/s: "}},
	    {{"/usr/bin/env", "python3", "deploy/scripts/ask.py", "--url", "http://127.0.0.1:1",
	         "--text", "/nowhere/text", "what?"},
	        1, {"ask: --text /nowhere/text: No such file or directory\n"}},
	    {{"/usr/bin/env", "python3", "deploy/scripts/ask.py", "--url", "http://127.0.0.1:1",
	         "--text", KVCTL_PATH, "what?"},
	        1, {"ask: --text " KVCTL_PATH ": this is no text in UTF-8: byte "}},
	    {{"/usr/bin/env", "python3", "deploy/scripts/ask.py", "--url", "http://127.0.0.1:1",
	         "what?"},
	        1, {"ask: no answer from http://127.0.0.1:1: Connection refused\n"}},
	    {{"/usr/bin/env", "python3", "deploy/scripts/ask.py", "--url", "http://here:x", "what?"}, 1,
	        {"ask: --url http://here:x is no address"}},
	};
	const char *const stat[] = {KVCTL_PATH, "stat", "--stats-socket", store.socket, NULL};
	const char *const ping[] = {
	    KVCTL_PATH, "ping", "--timeout", "300ms", "--socket", store.stats, NULL};
	const char *const of_stat[] = {"--stats-socket ", store.socket, "should be the stats socket"};
	const char *const of_ping[] = {"--socket ", store.stats, NULL};

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		check_program(list[i].arguments, NULL, list[i].code, list[i].named);
	assert_true(store_fixture_start(&store, NULL));
	check_program(stat, NULL, 1, of_stat);
	check_program(ping, NULL, 1, of_ping);
	assert_true(store_fixture_stop(&store));
}

/* ---- stores ---- */

static void a_store_that_is_not_there(void **state)
{
	char address[160];
	const char *const arguments[] = {GENERATE, "--store", address, NULL};
	const char *const named[] = {"gone.sock", "is the store running", NULL};

	(void)state;
	snprintf(address, sizeof address, "unix:%s/gone.sock", store.directory);
	check(arguments, 1, named);
}

static void more_memory_than_there_is(void **state)
{
	static const char *const arguments[] = {
	    "kvstored", "--config=", "--socket=no.sock", "--stats-socket=", "--memory=900TiB", NULL};
	static const char *const empty[] = {"kvstored", "--config=", "--memory=lots", NULL};
	char output[4096];

	(void)state;
	assert_int_equal(store_fixture_run(&store, arguments, output, sizeof output), 1);
	assert_non_null(strstr(output, "memory=900TiB"));
	assert_non_null(strstr(output, "more than this machine has"));
	assert_non_null(strstr(output, "lower --memory"));
	assert_int_equal(store_fixture_run(&store, empty, output, sizeof output), 2);
	assert_non_null(strstr(output, "'lots'"));
}

/* What a store of another kind may do when it is greeted. */
enum manner { OTHER_VERSION, REFUSES_VERSION, NONSENSE, HANGS_UP };

/* The answer to a greeting, as a frame. */
static size_t reply_to(enum manner manner, const uint8_t *greeting, size_t size, uint8_t **frame)
{
	Kv__Response response = KV__RESPONSE__INIT;
	Kv__HelloResponse hello = KV__HELLO_RESPONSE__INIT;
	Kv__Request *request = NULL;
	uint8_t *bytes = NULL;
	size_t length = 0;

	if (kv_codec_request_unpack(kv_heap(), greeting + 4, size - 4, &request) != KV_OK) _exit(3);
	response.id = request->id;
	kv_codec_request_free(kv_heap(), request);
	if (manner == REFUSES_VERSION) {
		response.status = KV_PROTOCOL;
		response.message = (char *)(uintptr_t) "this store speaks protocol version 7";
	} else {
		hello.protocol_version = KV_PROTOCOL_VERSION + 1;
		hello.build = (char *)(uintptr_t) "9.9";
		hello.transport = (char *)(uintptr_t) "map";
		hello.lease_ms = 3000;
		hello.heartbeat_ms = 500;
		response.body_case = KV__RESPONSE__BODY_HELLO;
		response.hello = &hello;
	}
	if (kv_codec_response_pack(kv_heap(), &response, &bytes, &length) != KV_OK) _exit(3);
	*frame = calloc(1, length + 4);
	if (!*frame) _exit(3);
	(*frame)[0] = (uint8_t)length;
	(*frame)[1] = (uint8_t)(length >> 8);
	memcpy(*frame + 4, bytes, length);
	kv_free(kv_heap(), bytes);
	return length + 4;
}

static void greet(int peer, enum manner manner)
{
	static const char nonsense[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
	uint8_t greeting[4096], *frame = NULL;
	ssize_t got = -1;
	size_t length = 0;

	while (got < 0) {
		got = recv(peer, greeting, sizeof greeting, 0);
		store_fixture_sleep(2);
	}
	if (manner == HANGS_UP) return;
	if (manner != NONSENSE) length = reply_to(manner, greeting, (size_t)got, &frame);
	if (manner == NONSENSE) got = send(peer, nonsense, sizeof nonsense - 1, MSG_NOSIGNAL);
	if (frame) got = send(peer, frame, length, MSG_NOSIGNAL);
	free(frame);
	/* Until the other side has gone, or long enough. */
	for (int i = 0; i < 100 && recv(peer, greeting, sizeof greeting, 0) != 0; i++)
		store_fixture_sleep(20);
}

static void be_store(int listener, enum manner manner)
{
	for (;;) {
		int peer = -1;

		if (kv_unix_accept(listener, &peer) == KV_OK && peer >= 0) {
			greet(peer, manner);
			close(peer);
		}
		store_fixture_sleep(2);
	}
}

static void end_other_store(void)
{
	char path[160];

	if (other_store <= 0) return;
	kill(other_store, SIGKILL);
	waitpid(other_store, NULL, 0);
	other_store = 0;
	snprintf(path, sizeof path, "%s/other.sock", store.directory);
	unlink(path);
}

static void check_store(enum manner manner, const char *const *named)
{
	char path[160], address[168];
	const char *const arguments[] = {GENERATE, "--store", address, "--call-timeout", "2s", NULL};
	int listener = -1;

	snprintf(path, sizeof path, "%s/other.sock", store.directory);
	snprintf(address, sizeof address, "unix:%s", path);
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &listener), KV_OK);
	fflush(stdout);
	other_store = fork();
	if (other_store == 0) be_store(listener, manner);
	close(listener);
	check(arguments, 1, named);
	end_other_store();
}

static void stores_of_another_kind(void **state)
{
	static const char *const version[] = {"protocol version 2", "9.9", "same release"};
	static const char *const refused[] = {"protocol version 7", NULL};
	static const char *const other[] = {"other.sock", "store", NULL};

	(void)state;
	check_store(OTHER_VERSION, version);
	check_store(REFUSES_VERSION, refused);
	check_store(NONSENSE, other);
	check_store(HANGS_UP, other);
}

static void start_store(const char *memory)
{
	const char *const arguments[] = {"--transport=map", memory, NULL};

	assert_true(store_fixture_start(&store, arguments));
}

/* The id is that of a real worker's model; the layout is not. */
static void a_forged_layout(void **state)
{
	static const char *const arguments[] = {"--store", NULL, NULL};
	const char *copy[3];
	struct gw_policy_options policy = {
	    .sinks = 4, .cluster_tokens = 8, .dense_layers = 1, .iterations = 5, .center = 1};
	struct kvc_options options = {.allocator = kv_heap(),
	    .address = store.address,
	    .transport = "map",
	    .name = "forger",
	    .model_name = "forged",
	    .connect_ms = 1000};
	struct gw_gguf *file = NULL;
	struct gw_model_shape shape;
	struct kvc_store *client = NULL;
	uint8_t digest[32];

	(void)state;
	start_store("--memory=16MiB");
	memcpy(copy, arguments, sizeof copy);
	copy[1] = store.address;
	trial_serve(&worker, &trial, copy);
	assert_int_equal(gw_gguf_open(kv_heap(), MODEL, &file), KV_OK);
	assert_int_equal(gw_gguf_digest(file, digest), KV_OK);
	assert_int_equal(gw_model_read_shape(file, &shape), KV_OK);
	gw_gguf_close(file);
	gw_pipeline_layout(&shape, &policy, KN_KV_F16, &options.layout);
	gw_pipeline_model_id(digest, KN_PRECISION_DEFAULT, &options.layout, options.model_id);
	options.layout.cluster_tokens *= 2;
	assert_int_equal(kvc_open(&options, &client), KV_REFUSED);
	assert_non_null(strstr(kv_error_message(), "cluster_tokens 8"));
	assert_non_null(strstr(kv_error_message(), "16"));
	options.layout.cluster_tokens /= 2;
	options.layout.head_dim *= 2;
	assert_int_equal(kvc_open(&options, &client), KV_REFUSED);
	assert_non_null(strstr(kv_error_message(), "head_dim"));
	options.layout.head_dim /= 2;
	assert_int_equal(kvc_open(&options, &client), KV_OK);
	kvc_close(client);
	assert_true(serve_fixture_stop(&worker, false));
}

/* Workers of one model file with other options share nothing, and disturb nobody. */
static void other_layouts_side_by_side(void **state)
{
	static const char *const more[][3] = {{NULL}, {"--cluster-tokens", "16", NULL},
	    {"--kv-type", "f32", NULL}, {"--precision", "fp32", NULL}, {"--dense-layers", "2", NULL},
	    {"--center", "off", NULL}};
	int32_t *prompt = trial_prompt(&trial, 0, 300);

	(void)state;
	start_store("--memory=16MiB");
	for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
		for (unsigned again = 0; again < 2; again++) {
			const char *const own[] = {"--store", store.address, "--max-tokens", "3", NULL};
			struct trial_arguments arguments = {0};
			json_t *report;

			trial_add(&arguments, own);
			trial_add(&arguments, more[i]);
			report = trial_generate(&trial, prompt, 300, arguments.all);
			assert_int_equal(trial_number(report, "prefix_hit_tokens"), again ? 299 : 0);
			json_decref(report);
		}
	}
	free(prompt);
}

static void a_store_that_is_too_small(void **state)
{
	const char *const arguments[] = {GENERATE, "--store", store.address, NULL};
	const char *const serving[] = {"--store", store.address, NULL};
	const char *const named[] = {"the store is too small", "1048576", "raise the store's --memory"};
	int32_t *prompt = trial_prompt(&trial, 0, PROMPT);
	char *ids = trial_ids(prompt, PROMPT, " ");
	char *body = trial_body(prompt, PROMPT, 4, ""), *small = trial_body(prompt, 100, 4, "");
	struct serve_reply reply;

	(void)state;
	start_store("--memory=1MiB");
	check_input(arguments, ids, 1, named);
	trial_serve(&worker, &trial, serving);
	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
	assert_int_equal(reply.code, 400);
	assert_non_null(strstr(reply.body, "store_too_small"));
	assert_non_null(strstr(reply.body, "the store is too small"));
	serve_reply_deinit(&reply);
	/* What fits is answered still. */
	json_decref(trial_ask(&worker, small));
	assert_true(store_fixture_wait_stat(&store, "arena_bytes{state=\"reserved\"}", 0, 5000));
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"active\"}", 0, 5000));
	assert_true(serve_fixture_stop(&worker, false));
	free(small);
	free(body);
	free(ids);
	free(prompt);
}

/* What looks like too much and is not: a segment of which one layer is larger than what is usual.
 */
static void a_large_segment(void **state)
{
	enum { TOKENS = 2200 };
	const char *const arguments[] = {"generate", "--model", WIDE, "--tokens-file", "-",
	    "--max-tokens", "2", "--kv-type", "f32", "--segment", "65536", "--dense-layers", "0",
	    "--window", "0", "--store", store.address, "--transport", "map", NULL};
	const char *const named[] = {"connected", NULL};
	int32_t *prompt = trial_prompt(&trial, 0, TOKENS);
	char *ids = trial_ids(prompt, TOKENS, " ");

	(void)state;
	start_store("--memory=256MiB");
	check_input(arguments, ids, 0, named);
	free(ids);
	free(prompt);
}

static int begin(void **state)
{
	(void)state;
	memset(&worker, 0, sizeof worker);
	return store_fixture_init(&store) ? 0 : -1;
}

static int end(void **state)
{
	char path[160];
	bool clean = serve_fixture_stop(&worker, false);

	(void)state;
	end_other_store();
	snprintf(path, sizeof path, "%s/model.gguf", store.directory);
	unlink(path);
	return store_fixture_deinit(&store, !clean) && clean ? 0 : -1;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(options, begin, end),
	    cmocka_unit_test_setup_teardown(options_of_backends, begin, end),
	    cmocka_unit_test_setup_teardown(options_of_other_sources, begin, end),
	    cmocka_unit_test_setup_teardown(options_of_other_programs, begin, end),
	    cmocka_unit_test_setup_teardown(a_check_is_as_a_start, begin, end),
	    cmocka_unit_test_setup_teardown(a_check_changes_nothing, begin, end),
	    cmocka_unit_test_setup_teardown(options_without_effect, begin, end),
	    cmocka_unit_test_setup_teardown(prompts, begin, end),
	    cmocka_unit_test_setup_teardown(outputs, begin, end),
	    cmocka_unit_test_setup_teardown(signals, begin, end),
	    cmocka_unit_test_setup_teardown(model_files, begin, end),
	    cmocka_unit_test_setup_teardown(damaged_weights, begin, end),
	    cmocka_unit_test_setup_teardown(hostile_model_files, begin, end),
	    cmocka_unit_test_setup_teardown(what_is_asked_of_the_wrong_one, begin, end),
	    cmocka_unit_test_setup_teardown(a_store_that_is_not_there, begin, end),
	    cmocka_unit_test_setup_teardown(more_memory_than_there_is, begin, end),
	    cmocka_unit_test_setup_teardown(stores_of_another_kind, begin, end),
	    cmocka_unit_test_setup_teardown(a_forged_layout, begin, end),
	    cmocka_unit_test_setup_teardown(other_layouts_side_by_side, begin, end),
	    cmocka_unit_test_setup_teardown(a_store_that_is_too_small, begin, end),
	    cmocka_unit_test_setup_teardown(a_large_segment, begin, end),
	};

	if (!trial_init(&trial, "tiny_llama")) return 77;
	if (argc > 1) cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
