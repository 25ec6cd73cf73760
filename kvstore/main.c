/* kvstored: options, loop, server, signals. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/process.h"
#include "common/runtime/config.h"
#include "common/runtime/event_loop.h"
#include "common/runtime/fault_point.h"
#include "common/runtime/sd_notify.h"
#include "common/transport/transport.h"
#include "kvstore/server/server.h"
#include "kvstore/server/settings.h"

struct daemon {
	struct kv_loop *loop;
	struct kv_sd_notify *notify;
	struct kv_config *config;
	struct kvs_settings settings;
};

static const char *const fault_points[] = {"store.hello", "store.reserve", "store.evict",
    "store.commit", "disk.write", "disk.read", "disk.hang", "disk.full", "disk.error", NULL};

static void reload(struct daemon *daemon)
{
	size_t changed = 0;

	kv_sd_reloading(daemon->notify);
	if (kv_config_reload(daemon->config, &daemon->settings, &changed) == KV_OK) {
		kv_log_set_level((enum kv_log_level)daemon->settings.log_level);
		kv_info("kvstored", "configuration read again, options changed: %zu", changed);
	} else {
		kv_error("kvstored", "configuration not changed: %s", kv_error_message());
	}
	kv_sd_ready(daemon->notify);
}

static void on_signal(void *context, int number)
{
	struct daemon *daemon = context;

	if (number == SIGHUP) {
		reload(daemon);
		return;
	}
	kv_info("kvstored", "stopping signal=%d", number);
	kv_sd_stopping(daemon->notify);
	kv_loop_stop(daemon->loop);
}

static enum kv_status serve(struct daemon *daemon)
{
	struct kvs_server *server = NULL;
	char memory[KV_PARSE_TEXT_SIZE];
	enum kv_status status;

	KV_TRY(kv_loop_signals(daemon->loop, on_signal, daemon));
	KV_TRY(kvs_server_create(kv_heap(), &daemon->settings, daemon->loop, daemon->notify, &server));
	kv_info("kvstored", "ready version=%s socket=%s stats=%s memory=%s", KV_VERSION,
	    daemon->settings.socket, daemon->settings.stats_socket,
	    kv_format_size(daemon->settings.memory, memory));
	kv_sd_ready(daemon->notify);
	status = kv_loop_run(daemon->loop);
	/* exit would wait for the pool's threads. */
	if (!kvs_server_destroy(server)) _exit(KV_EXIT_FAILED);
	return status;
}

static enum kv_status run(struct daemon *daemon)
{
	enum kv_status status;

	KV_TRY(kvs_settings_complete(&daemon->settings));
	KV_TRY(kvs_settings_descriptors(&daemon->settings));
	KV_TRY(kv_sd_open(kv_heap(), &daemon->notify));
	KV_TRY_GOTO(status, kv_loop_create(kv_heap(), &daemon->loop), out);
	status = serve(daemon);
out:
	kv_loop_destroy(daemon->loop);
	kv_sd_close(daemon->notify);
	return status;
}

int main(int argc, char **argv)
{
	struct daemon daemon = {0};
	const struct kv_command *command = NULL;
	int exit_code = KV_EXIT_FAILED;
	enum kv_status status;

	if (kv_process_prepare() != KV_OK) return kv_exit_code(&kvs_program, KV_IO);
	if (!kv_config_start(&kvs_program, argc, argv, kv_heap(), &daemon.settings, &daemon.config,
	        &command, &exit_code))
		return exit_code;
	kv_log_never_wait();
	kv_transport_prepare();
	status = kv_fault_configure(daemon.settings.faults, fault_points);
	exit_code = kv_exit_code(&kvs_program, status == KV_OK ? run(&daemon) : KV_USAGE);
	kv_config_destroy(daemon.config);
	return exit_code;
}
