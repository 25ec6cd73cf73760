/* tokenize and detokenize. */
#include <jansson.h>
#include <stdio.h>

#include "gpu-worker/commands/commands.h"
#include "gpu-worker/commands/output.h"
#include "gpu-worker/commands/worker.h"

static enum kv_status print_ids(const struct gw_settings *s, const int32_t *ids, uint32_t count)
{
	json_t *list;

	if (!s->json) {
		for (uint32_t i = 0; i < count; i++)
			printf(i + 1 < count ? "%d " : "%d\n", (int)ids[i]);
		return fflush(stdout) == 0 ? KV_OK : kv_fail(KV_IO, "standard output cannot be written");
	}
	list = json_array();
	for (uint32_t i = 0; i < count; i++)
		json_array_append_new(list, json_integer(ids[i]));
	return gw_print_json(json_pack("{s:o}", "tokens", list));
}

enum kv_status gw_command_tokenize(const struct gw_settings *s, struct kv_allocator *allocator)
{
	struct gw_worker worker;
	int32_t *ids = NULL;
	uint32_t count = 0;
	enum kv_status status;

	KV_TRY(gw_worker_open_text(s, allocator, &worker));
	status = gw_worker_prompt(&worker, s->file, &ids, &count);
	if (status == KV_OK) status = print_ids(s, ids, count);
	kv_free(allocator, ids);
	gw_worker_close(&worker);
	return status;
}

enum kv_status gw_command_detokenize(const struct gw_settings *s, struct kv_allocator *allocator)
{
	struct gw_worker worker;
	int32_t *ids = NULL;
	uint32_t count = 0;
	char *text = NULL;
	size_t length = 0;
	enum kv_status status;

	KV_TRY(gw_worker_open_text(s, allocator, &worker));
	KV_TRY_GOTO(status, gw_worker_prompt(&worker, NULL, &ids, &count), done);
	KV_TRY_GOTO(status,
		gw_tokenizer_decode(worker.tokenizer, allocator, ids, count, 1, &text, &length), done);
	if (s->json)
		status = gw_print_json(json_pack("{s:o}", "text", json_stringn_nocheck(text, length)));
	else if (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0)
		status = kv_fail(KV_IO, "standard output cannot be written");
done:
	kv_free(allocator, text);
	kv_free(allocator, ids);
	gw_worker_close(&worker);
	return status;
}
