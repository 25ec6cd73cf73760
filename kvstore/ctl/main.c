/* kvctl: looks at a running kvstored and its workers, and tells it to evict or drain. */
#include <stddef.h>
#include <stdio.h>

#include "common/base/log.h"
#include "common/base/process.h"
#include "common/transport/transport.h"
#include "common/transport/trusted_network.h"
#include "common/transport/unix_socket.h"
#include "kvstore/client/store_client.h"
#include "kvstore/ctl/ctl.h"

enum {
	COMMAND_STAT = 1,
	COMMAND_PING = 2,
	COMMAND_READY = 4,
	COMMAND_DESCRIBE = 8,
	COMMAND_TOP = 16,
	COMMAND_EVICT = 32,
	COMMAND_DRAIN = 64,
	COMMAND_BENCH = 128,
	COMMAND_SECRET = 256,
	COMMAND_TRACE = 512
};

#define FIELD(name) offsetof(struct ctl_settings, name)

static enum kv_status check_store(const char *address)
{
	return *address ? kvc_address_check(address) : KV_OK;
}

static enum kv_status check_worker_socket(const char *path)
{
	return *path ? kv_unix_path_check(path) : KV_OK;
}

static const char *const transport_words[] = {"auto", "ucx", "map", "stream", NULL};

static const struct kv_option options[] = {
    {.name = "stats-socket",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(stats_socket),
        .default_text = "/run/clusterkv/stats.sock",
        .unit = "PATH",
        .group = "Store",
        .help = "The store's stats socket.",
        .check = kv_unix_path_check,
        .commands = COMMAND_STAT | COMMAND_READY | COMMAND_DESCRIBE | COMMAND_TOP | COMMAND_EVICT |
                    COMMAND_DRAIN},
    {.name = "socket",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(socket),
        .default_text = "/run/clusterkv/kvstored.sock",
        .unit = "PATH",
        .help = "The store's control socket.",
        .check = kv_unix_path_check,
        .commands = COMMAND_PING | COMMAND_BENCH},
    {.name = "store",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(store),
        .default_text = "",
        .unit = "tcp:HOST:PORT",
        .help = "Instead of the socket: the --listen address of a store on another host.",
        .check = check_store,
        .commands = COMMAND_PING | COMMAND_BENCH},
    {.name = "store-secret",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(store_secret),
        .default_text = "",
        .unit = "FILE",
        .help = "That store's secret file.",
        .commands = COMMAND_PING | COMMAND_BENCH},
    {.name = "transport",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(transport),
        .default_text = "auto",
        .words = transport_words,
        .help = "What is asked for, as of gpu-worker.",
        .commands = COMMAND_BENCH},
    {.name = "trusted-network",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(trusted_network),
        .default_text = "",
        .unit = "NETWORK",
        .help = "For transport ucx with --store, as of gpu-worker.",
        .check = kv_trusted_network_check,
        .commands = COMMAND_BENCH},
    {.name = "worker-socket",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(worker_socket),
        .default_text = "",
        .unit = "PATH",
        .group = "Worker",
        .help = "The worker's stats socket, its own --worker-socket.",
        .check = check_worker_socket,
        .commands = COMMAND_TRACE},
    {.name = "request",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(request),
        .unit = "ID",
        .help = "X-Request-Id of the request. Without it the worker's requests are listed, the "
                "newest first.",
        .check = ctl_trace_check,
        .commands = COMMAND_TRACE,
        .flags = KV_OPTION_POSITIONAL},
    {.name = "timeout",
        .kind = KV_OPTION_DURATION,
        .offset = FIELD(timeout_ms),
        .default_text = "5s",
        .group = "Answer",
        .help = "How long an answer may take.",
        .minimum = 1,
        .maximum = 3600000},
    {.name = "json",
        .kind = KV_OPTION_FLAG,
        .offset = FIELD(json),
        .help = "Print JSON, one object a line."},
    {.name = "interval",
        .kind = KV_OPTION_DOUBLE,
        .offset = FIELD(interval),
        .default_text = "0",
        .unit = "seconds",
        .help =
            "stat: print a line of rates after each interval, until interrupted; 0: all numbers "
            "once. top: between two tables; 0: two seconds.",
        .maximum_real = 86400.0,
        .commands = COMMAND_STAT | COMMAND_TOP},
    {.name = "count",
        .kind = KV_OPTION_U32,
        .offset = FIELD(count),
        .default_text = "0",
        .help = "End after so many intervals or tables (0: never), or send so many pings (0: "
                "three).",
        .commands = COMMAND_STAT | COMMAND_PING | COMMAND_TOP},
    {.name = "wait",
        .kind = KV_OPTION_DOUBLE,
        .offset = FIELD(wait),
        .default_text = "0",
        .unit = "seconds",
        .help = "Wait so long for the store to become ready, or to have no active sequence.",
        .maximum_real = 86400.0,
        .commands = COMMAND_READY | COMMAND_DRAIN},
    {.name = "once",
        .kind = KV_OPTION_FLAG,
        .offset = FIELD(once),
        .help = "Print one table and end.",
        .commands = COMMAND_TOP},
    {.name = "off",
        .kind = KV_OPTION_FLAG,
        .offset = FIELD(off),
        .help = "Take in new workers and sequences again.",
        .commands = COMMAND_DRAIN},
    {.name = "clients",
        .kind = KV_OPTION_U32,
        .offset = FIELD(clients),
        .default_text = "1",
        .group = "Bench",
        .help = "Measure with 1, 2, 4 and so on up to so many clients at once.",
        .minimum = 1,
        .maximum = 64,
        .commands = COMMAND_BENCH},
    {.name = "seconds",
        .kind = KV_OPTION_DOUBLE,
        .offset = FIELD(seconds),
        .default_text = "0.6",
        .unit = "seconds",
        .help = "Time for each figure, half of it for memcpy.",
        .maximum_real = 30.0,
        .commands = COMMAND_BENCH},
    {.name = "working-set",
        .kind = KV_OPTION_SIZE,
        .offset = FIELD(working_set),
        .default_text = "128MiB",
        .help =
            "What is read from. The store needs some more than this, and 48MiB for each client.",
        .minimum = 16 << 20,
        .maximum = 256 << 20,
        .commands = COMMAND_BENCH},
    {.name = "verify",
        .kind = KV_OPTION_FLAG,
        .offset = FIELD(verify),
        .help = "Compare all that is read with what was written.",
        .commands = COMMAND_BENCH},
};

static const struct kv_command commands[] = {
    {.name = "stat", .summary = "Print the store's numbers, or its rates.", .bit = COMMAND_STAT},
    {.name = "ping", .summary = "Greet the store and measure round trips.", .bit = COMMAND_PING},
    {.name = "ready", .summary = "Succeed when the store serves.", .bit = COMMAND_READY},
    {.name = "describe",
        .summary = "Say what the store is and who works with it.",
        .bit = COMMAND_DESCRIBE},
    {.name = "top", .summary = "Show the workers, again and again.", .bit = COMMAND_TOP},
    {.name = "trace",
        .summary = "Show where the time of a worker's request went, or list its requests.",
        .bit = COMMAND_TRACE},
    {.name = "evict", .summary = "Drop every segment that nobody uses.", .bit = COMMAND_EVICT},
    {.name = "drain",
        .summary = "Take in no new worker and no new sequence.",
        .bit = COMMAND_DRAIN},
    {.name = "bench",
        .summary = "Measure fetches and commits beside memcpy.",
        .bit = COMMAND_BENCH},
    {.name = "secret",
        .summary = "Print a new secret for kvstored --secret-file.",
        .bit = COMMAND_SECRET},
};

static const char *const other_sections[] = {"kvstored", "gpu-worker", NULL};

static void warn(
    const struct kv_config *config, const struct kv_command *command, const void *untyped)
{
	static const char *const once[] = {"count", NULL};
	const struct ctl_settings *settings = untyped;

	if (command->bit == COMMAND_STAT && settings->interval <= 0)
		kv_config_warn_ignored(config, once, "interval 0");
}

const struct kv_program ctl_program = {
    .name = "kvctl",
    .summary = "Looks at a running kvstored.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .settings_size = sizeof(struct ctl_settings),
    .commands = commands,
    .command_count = sizeof commands / sizeof commands[0],
    .other_sections = other_sections,
    .warn = warn,
};

static enum kv_status run(const struct kv_command *command, const struct ctl_settings *settings)
{
	switch (command->bit) {
	case COMMAND_STAT:
		return ctl_stat(settings);
	case COMMAND_PING:
		return ctl_ping(settings);
	case COMMAND_READY:
		return ctl_ready(settings);
	case COMMAND_SECRET:
		return ctl_secret(settings);
	case COMMAND_TRACE:
		return ctl_trace(settings);
	case COMMAND_TOP:
		return ctl_top(settings);
	case COMMAND_EVICT:
		return ctl_evict(settings);
	case COMMAND_DRAIN:
		return ctl_drain(settings);
	case COMMAND_BENCH:
		kv_transport_prepare();
		return ctl_bench(settings);
	default:
		return ctl_describe(settings);
	}
}

int main(int argc, char **argv)
{
	const struct kv_command *command = NULL;
	struct ctl_settings settings = {0};
	struct kv_config *config = NULL;
	enum kv_status status;
	int exit_code = KV_EXIT_FAILED;

	if (kv_process_prepare() != KV_OK) return kv_exit_code(&ctl_program, KV_IO);
	kv_log_set_level(KV_LOG_WARNING);
	if (!kv_config_start(
	        &ctl_program, argc, argv, kv_heap(), &settings, &config, &command, &exit_code))
		return exit_code;
	status = run(command, &settings);
	if (status == KV_OK) status = kv_process_finish();
	if (status != KV_OK) fprintf(stderr, "kvctl %s: %s\n", command->name, kv_error_message());
	kv_config_destroy(config);
	if (status == KV_USAGE) return KV_EXIT_USAGE;
	return status == KV_OK ? KV_EXIT_OK : KV_EXIT_FAILED;
}
