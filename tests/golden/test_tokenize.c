/* Token ids and rendered conversations against what llama.cpp and jinja2 made of the same texts.
 *
 *     test_golden_tokenize MODEL
 *
 * MODEL: smollm2 or qwen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "gpu-worker/commands/load_text.h"

enum { PATH_BYTES = 4096 };

struct model {
	const char *name;     /* as in the names of the golden files */
	const char *variable; /* the environment variable that holds the model's path */
	enum gw_chat_format format;
	struct gw_gguf *file;
	struct gw_tokenizer *tokenizer;
};

static struct model models[] = {
    {"smollm2", "CLUSTERKV_MODEL_SMOLLM2", GW_CHAT_CHATML_SMOLLM, NULL, NULL},
    {"qwen", "CLUSTERKV_MODEL_QWEN", GW_CHAT_CHATML_QWEN, NULL, NULL},
};
static int skipped;

static void require(enum kv_status status)
{
	if (status != KV_OK) fail_msg("%s", kv_error_message());
}

static void miss(const char *what, const char *value)
{
	printf("skipped: %s%s\n", what, value);
	skipped = 1;
	skip();
}

static json_t *load_golden(const char *kind, const char *model)
{
	char path[PATH_BYTES];
	json_error_t error;
	const char *shared = getenv("CLUSTERKV_SHARED");
	snprintf(
	    path, sizeof path, "%s/golden/%s_%s_dev.json", shared ? shared : "../shared", kind, model);
	FILE *file = fopen(path, "rb");
	if (!file) miss("there is no golden file ", path);
	json_t *root = json_loadf(file, JSON_ALLOW_NUL, &error);
	fclose(file);
	if (!root) fail_msg("%s:%d: %s", path, error.line, error.text);
	return root;
}

static void load_model(struct model *model)
{
	if (model->tokenizer) return;
	const char *path = getenv(model->variable);
	if (!path || !*path) miss("no path of a model in ", model->variable);
	require(gw_gguf_open(kv_heap(), path, &model->file));
	require(gw_load_tokenizer(model->file, kv_heap(), &model->tokenizer));
}

static void unload_model(struct model *model)
{
	gw_tokenizer_destroy(model->tokenizer);
	if (model->file) gw_gguf_close(model->file);
}

static int nibble(char digit)
{
	return digit <= '9' ? digit - '0' : digit - 'a' + 10;
}

/* The bytes that `key` spells in hexadecimal; those of `otherwise` when the item has no such key.
 */
static size_t expected_bytes(
    const json_t *item, const char *key, const char *otherwise, size_t otherwise_length, char *out)
{
	const json_t *hex = json_object_get(item, key);
	if (!hex) {
		memcpy(out, otherwise, otherwise_length);
		return otherwise_length;
	}
	const char *digits = json_string_value(hex);
	size_t length = json_string_length(hex) / 2;
	for (size_t i = 0; i < length; i++)
		out[i] = (char)(nibble(digits[2 * i]) << 4 | nibble(digits[2 * i + 1]));
	return length;
}

static void check_decoded(const struct model *model, const int32_t *ids, uint32_t count, int show,
    const char *expected, size_t expected_length, size_t index)
{
	char *text;
	size_t length;
	require(gw_tokenizer_decode(model->tokenizer, kv_heap(), ids, count, show, &text, &length));
	if (length != expected_length || memcmp(text, expected, length) != 0)
		fail_msg("%s item %zu: bytes differ (special %s): '%s'", model->name, index,
		    show ? "shown" : "hidden", text);
	kv_free(kv_heap(), text);
}

static void check_item(const struct model *model, const json_t *item, size_t index)
{
	static char whole[1 << 16], hidden[1 << 16];
	const json_t *text = json_object_get(item, "text"), *wanted = json_object_get(item, "ids");
	const char *bytes = json_string_value(text);
	size_t length = json_string_length(text);
	int parse = json_is_true(json_object_get(item, "parse_special"));
	int32_t *ids;
	uint32_t count;
	assert_true(length < sizeof whole);
	require(
	    gw_tokenizer_encode(model->tokenizer, kv_heap(), bytes, length, parse, 0, &ids, &count));
	if (count != json_array_size(wanted))
		fail_msg("%s item %zu '%s': %u ids, not %zu", model->name, index, bytes, count,
		    json_array_size(wanted));
	for (uint32_t i = 0; i < count; i++) {
		json_int_t id = json_integer_value(json_array_get(wanted, i));
		if (id != ids[i])
			fail_msg("%s item %zu '%s': id %u is %d, not %d", model->name, index, bytes, i,
			    (int)ids[i], (int)id);
	}
	size_t whole_length = expected_bytes(item, "detok_hex", bytes, length, whole);
	size_t hidden_length =
	    expected_bytes(item, "detok_special_hidden_hex", whole, whole_length, hidden);
	check_decoded(model, ids, count, 1, whole, whole_length, index);
	check_decoded(model, ids, count, 0, hidden, hidden_length, index);
	kv_free(kv_heap(), ids);
}

static void test_tokenize(void **state)
{
	struct model *model = *state;
	load_model(model);
	json_t *root = load_golden("tokenize", model->name), *item;
	size_t index;
	assert_true(json_array_size(json_object_get(root, "items")) > 100);
	json_array_foreach(json_object_get(root, "items"), index, item) check_item(model, item, index);
	json_decref(root);
}

/* The ids of the conversation: those of the rendered text, unless a message spells a marker. */
static void check_chat_ids(const struct model *model, const struct gw_chat_message *messages,
    unsigned count, int prompt, const char *rendered, size_t length, size_t index)
{
	int32_t *ids, *plain, *marker;
	uint32_t id_count, plain_count, marker_count, turns = 0;
	int spelled = 0;
	for (unsigned i = 0; i < count; i++)
		spelled |= strstr(messages[i].content, "<|") != NULL;
	require(gw_chat_encode(
	    model->format, model->tokenizer, kv_heap(), messages, count, prompt, &ids, &id_count));
	require(gw_tokenizer_encode(
	    model->tokenizer, kv_heap(), rendered, length, GW_PARSE_SPECIAL, 0, &plain, &plain_count));
	require(gw_tokenizer_encode(model->tokenizer, kv_heap(), "<|im_end|>", 10, GW_PARSE_SPECIAL, 0,
	    &marker, &marker_count));
	assert_int_equal(marker_count, 1);
	for (uint32_t i = 0; i < id_count; i++)
		turns += ids[i] == marker[0];
	assert_int_equal(turns, count + (strcmp(messages[0].role, "system") != 0));
	check_decoded(model, ids, id_count, 1, rendered, length, index);
	if (spelled) {
		assert_true(id_count > plain_count);
	} else {
		assert_int_equal(id_count, plain_count);
		assert_memory_equal(ids, plain, id_count * sizeof *ids);
	}
	kv_free(kv_heap(), marker);
	kv_free(kv_heap(), plain);
	kv_free(kv_heap(), ids);
}

static void check_chat(const struct model *model, const json_t *item, size_t index)
{
	struct gw_chat_message messages[16];
	unsigned count = 0;
	const json_t *list = json_object_get(item, "messages"), *message;
	assert_in_range(json_array_size(list), 1, 16);
	size_t i;
	json_array_foreach(list, i, message)
	{
		messages[count].role = json_string_value(json_object_get(message, "role"));
		messages[count++].content = json_string_value(json_object_get(message, "content"));
	}
	int prompt = json_is_true(json_object_get(item, "add_generation_prompt"));
	const json_t *rendered = json_object_get(item, "rendered");
	char *text;
	size_t length;
	require(gw_chat_render(model->format, kv_heap(), messages, count, prompt, &text, &length));
	if (length != json_string_length(rendered) ||
	    memcmp(text, json_string_value(rendered), length) != 0)
		fail_msg("%s conversation %zu: rendered as '%s'", model->name, index, text);
	check_chat_ids(model, messages, count, prompt, text, length, index);
	kv_free(kv_heap(), text);
}

static void test_chat(void **state)
{
	struct model *model = *state;
	load_model(model);
	json_t *root = load_golden("chat", model->name), *item;
	const json_t *text = json_object_get(root, "template");
	enum gw_chat_format format;
	require(gw_load_chat_format(model->file, &format));
	assert_int_equal(format, model->format);
	assert_int_equal(gw_chat_detect(json_string_value(text), json_string_length(text)), format);
	size_t index;
	assert_true(json_array_size(json_object_get(root, "items")) > 0);
	json_array_foreach(json_object_get(root, "items"), index, item) check_chat(model, item, index);
	json_decref(root);
}

int main(int argc, char **argv)
{
	struct model *model = NULL;
	for (size_t i = 0; argc == 2 && i < sizeof models / sizeof models[0]; i++)
		if (strcmp(argv[1], models[i].name) == 0) model = &models[i];
	if (!model) {
		fprintf(stderr, "usage: test_golden_tokenize smollm2|qwen\n");
		return 2;
	}
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_prestate(test_tokenize, model),
	    cmocka_unit_test_prestate(test_chat, model),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unload_model(model);
	return failed ? failed : skipped ? 77 : 0;
}
