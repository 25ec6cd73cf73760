/* gpu-worker: find the command, load the settings, run it. */
#include <sodium.h>

#include "common/base/process.h"
#include "common/runtime/fault_point.h"
#include "common/transport/transport.h"
#include "gpu-worker/commands/commands.h"

static const char *const fault_points[] = {"client.connect", "client.reserve", "client.write",
	"client.commit", "client.fetch", "client.late", NULL};

static enum kv_status run(const struct kv_command *command, const struct gw_settings *settings)
{
	struct kv_allocator *heap = kv_heap();

	KV_TRY(gw_settings_input_check(command->bit, settings));
	switch (command->bit) {
	case GW_SERVE:
		return gw_command_serve(settings, heap);
	case GW_GENERATE:
		return gw_command_generate(settings, heap);
	case GW_PERPLEXITY:
		return gw_command_perplexity(settings, heap);
	case GW_LOGITS:
		return gw_command_logits(settings, heap);
	case GW_TOKENIZE:
		return gw_command_tokenize(settings, heap);
	case GW_DETOKENIZE:
		return gw_command_detokenize(settings, heap);
	default:
		return kv_fail(KV_INTERNAL, "command %s has no function", command->name);
	}
}

int main(int argc, char **argv)
{
	const struct kv_command *command = NULL;
	struct kv_config *config = NULL;
	struct gw_settings settings;
	enum kv_status status;
	int code = KV_EXIT_OK;

	if (kv_process_prepare() != KV_OK) return kv_exit_code(&gw_program, KV_IO);
	kv_transport_prepare();
	if (!kv_config_start(&gw_program, argc, argv, kv_heap(), &settings, &config, &command, &code))
		return code;
	status = kv_fault_configure(settings.faults, fault_points);
	if (status != KV_OK)
		status = KV_USAGE;
	else
		status = sodium_init() < 0 ? kv_fail(KV_INTERNAL, "libsodium cannot be initialised")
	                           : run(command, &settings);
	if (status == KV_OK) status = kv_process_finish();
	kv_config_destroy(config);
	return kv_exit_code(&gw_program, status);
}
