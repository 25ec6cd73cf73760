/* gpu-worker serve. */
#include "gpu-worker/commands/commands.h"
#include "gpu-worker/commands/worker.h"

enum kv_status gw_command_serve(const struct gw_settings *s, struct kv_allocator *allocator)
{
	struct gw_worker worker;

	KV_TRY(gw_worker_open(s, allocator, NULL, &worker));
	gw_worker_close(&worker);
	return kv_fail(KV_UNSUPPORTED, "serving on %s is not in this build yet; use generate", s->listen);
}
