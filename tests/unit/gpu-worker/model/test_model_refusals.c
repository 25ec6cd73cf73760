/* Files that are valid GGUF but do not hold a model that can be run: each refusal names the reason.
 *
 * A good one-layer model is described in a table; each case changes one thing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/model/model.h"
#include "tests/lib/gguf_builder.h"

enum {
	HIDDEN = 32,
	HEADS = 2,
	KV_HEADS = 1,
	HEAD_DIM = 16,
	FEED_FORWARD = 64,
	VOCABULARY = 8,
	UNSET = -1
};

/* What a case changes; the defaults give a model that opens. */
struct variant {
	const char *architecture;
	const char *omit_key, *omit_tensor, *transpose_tensor, *foreign_tensor, *extra_tensor;
	const char *scaling;
	int32_t heads, kv_heads, key_length, value_length, context, layers, rotary, experts, vocabulary;
	float epsilon, base;
	int heads_as_string;
};

static struct variant good(void)
{
	return (struct variant){
	    .architecture = "llama",
	    .heads = HEADS,
	    .kv_heads = KV_HEADS,
	    .key_length = UNSET,
	    .value_length = UNSET,
	    .context = 128,
	    .layers = 1,
	    .rotary = UNSET,
	    .experts = UNSET,
	    .vocabulary = UNSET,
	    .epsilon = 1e-5f,
	    .base = 10000.0f,
	};
}

struct writer {
	const struct variant *variant;
	struct kvt_bytes bytes;
	uint32_t keys;
};

static void put_count(struct writer *writer, const char *key, int32_t value)
{
	if (value == UNSET || (writer->variant->omit_key && !strcmp(key, writer->variant->omit_key)))
		return;
	kvt_put_key_u32(&writer->bytes, key, (uint32_t)value);
	writer->keys++;
}

static void put_real(struct writer *writer, const char *key, float value)
{
	if (writer->variant->omit_key && !strcmp(key, writer->variant->omit_key)) return;
	kvt_put_key_f32(&writer->bytes, key, value);
	writer->keys++;
}

static void put_metadata(struct writer *writer)
{
	const struct variant *variant = writer->variant;

	if (variant->architecture) {
		kvt_put_key_string(&writer->bytes, "general.architecture", variant->architecture);
		writer->keys++;
	}
	put_count(writer, "llama.block_count", variant->layers);
	put_count(writer, "llama.embedding_length", HIDDEN);
	put_count(writer, "llama.feed_forward_length", FEED_FORWARD);
	put_count(writer, "llama.context_length", variant->context);
	if (variant->heads_as_string) {
		kvt_put_key_string(&writer->bytes, "llama.attention.head_count", "2");
		writer->keys++;
	} else {
		put_count(writer, "llama.attention.head_count", variant->heads);
	}
	put_count(writer, "llama.attention.head_count_kv", variant->kv_heads);
	put_count(writer, "llama.attention.key_length", variant->key_length);
	put_count(writer, "llama.attention.value_length", variant->value_length);
	put_count(writer, "llama.rope.dimension_count", variant->rotary);
	put_count(writer, "llama.expert_count", variant->experts);
	put_count(writer, "llama.vocab_size", variant->vocabulary);
	put_real(writer, "llama.attention.layer_norm_rms_epsilon", variant->epsilon);
	put_real(writer, "llama.rope.freq_base", variant->base);
	if (variant->scaling) {
		kvt_put_key_string(&writer->bytes, "llama.rope.scaling.type", variant->scaling);
		writer->keys++;
	}
}

static const struct {
	const char *name;
	uint64_t columns, rows;
} tensors[] = {
    {"token_embd.weight", HIDDEN, VOCABULARY},
    {"output_norm.weight", HIDDEN, 1},
    {"blk.0.attn_norm.weight", HIDDEN, 1},
    {"blk.0.attn_q.weight", HIDDEN, HEADS *HEAD_DIM},
    {"blk.0.attn_k.weight", HIDDEN, KV_HEADS *HEAD_DIM},
    {"blk.0.attn_v.weight", HIDDEN, KV_HEADS *HEAD_DIM},
    {"blk.0.attn_output.weight", HEADS *HEAD_DIM, HIDDEN},
    {"blk.0.ffn_norm.weight", HIDDEN, 1},
    {"blk.0.ffn_gate.weight", HIDDEN, FEED_FORWARD},
    {"blk.0.ffn_up.weight", HIDDEN, FEED_FORWARD},
    {"blk.0.ffn_down.weight", FEED_FORWARD, HIDDEN},
};

static uint32_t put_tensors(struct writer *writer)
{
	const struct variant *variant = writer->variant;
	uint32_t count = 0;

	for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
		const char *name = tensors[i].name;
		uint64_t shape[] = {tensors[i].columns, tensors[i].rows};
		uint32_t type = KN_F32;

		if (variant->omit_tensor && !strcmp(name, variant->omit_tensor)) continue;
		if (variant->transpose_tensor && !strcmp(name, variant->transpose_tensor)) {
			shape[0] = tensors[i].rows;
			shape[1] = tensors[i].columns;
		}
		if (variant->foreign_tensor && !strcmp(name, variant->foreign_tensor)) type = 29;
		/* All share the zeros at the start of the data. */
		kvt_put_tensor(&writer->bytes, name, 2, shape, type, 0);
		count++;
	}
	if (variant->extra_tensor) {
		const uint64_t shape[] = {HIDDEN};

		kvt_put_tensor(&writer->bytes, variant->extra_tensor, 1, shape, KN_F32, 0);
		count++;
	}
	return count;
}

/* Open the model of a variant; the status, with the error text left as it is. */
static enum kv_status open_variant(const struct variant *variant)
{
	struct kn_backend_options backend_options = {
	    .allocator = kv_heap(), .threads = 1, .max_rows = 4, .max_columns = 64};
	struct gw_model_options options = {.allocator = kv_heap(), .max_rows = 4};
	struct writer *writer = calloc(1, sizeof *writer);
	struct kn_backend *backend;
	struct gw_model *model = NULL;
	struct gw_gguf *file;
	enum kv_status status;
	uint64_t tensor_count;

	assert_non_null(writer);
	writer->variant = variant;
	kvt_put_head(&writer->bytes, 0, 0);
	put_metadata(writer);
	tensor_count = put_tensors(writer);
	kvt_put_padding(&writer->bytes, 32, (size_t)FEED_FORWARD * HIDDEN * sizeof(float));
	memcpy(writer->bytes.data + 8, &tensor_count, sizeof tensor_count);
	memcpy(writer->bytes.data + 16, &writer->keys, sizeof writer->keys);
	if (gw_gguf_open_memory(
	        kv_heap(), writer->bytes.data, writer->bytes.size, "case.gguf", &file) != KV_OK)
		fail_msg("%s", kv_error_message());
	assert_int_equal(kn_backend_open("cpu", &backend_options, &options.ops, &backend), KV_OK);
	options.backend = backend;
	assert_int_equal(
	    options.ops->stream_create(backend, KN_STREAM_COMPUTE, &options.stream), KV_OK);
	status = gw_model_open(file, &options, &model);
	if (status == KV_OK) gw_model_close(model);
	options.ops->stream_destroy(backend, options.stream);
	options.ops->close(backend);
	gw_gguf_close(file);
	free(writer);
	return status;
}

static void assert_refused(struct variant variant, enum kv_status status, const char *words)
{
	enum kv_status actual = open_variant(&variant);

	if (actual != status || !strstr(kv_error_message(), words))
		fail_msg("status %d, %s; wanted %d with: %s", actual, kv_error_message(), status, words);
	assert_non_null(strstr(kv_error_message(), "case.gguf"));
}

static void test_good(void **state)
{
	struct variant variant = good();

	(void)state;
	if (open_variant(&variant) != KV_OK) fail_msg("%s", kv_error_message());
	variant.key_length = HEAD_DIM;
	variant.scaling = "none";
	variant.vocabulary = VOCABULARY;
	variant.experts = 0;
	if (open_variant(&variant) != KV_OK) fail_msg("%s", kv_error_message());
}

static void test_architecture(void **state)
{
	struct variant variant = good();

	(void)state;
	variant.architecture = "mamba";
	assert_refused(
	    variant, KV_UNSUPPORTED, "architecture mamba is not supported; there are: llama, qwen2");
	variant.architecture = NULL;
	assert_refused(variant, KV_CORRUPT, "general.architecture");
}

static void test_missing_keys(void **state)
{
	static const char *const keys[] = {
	    "llama.block_count",
	    "llama.embedding_length",
	    "llama.feed_forward_length",
	    "llama.context_length",
	    "llama.attention.head_count",
	    "llama.attention.layer_norm_rms_epsilon",
	};

	(void)state;
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		struct variant variant = good();

		variant.omit_key = keys[i];
		assert_refused(variant, KV_CORRUPT, keys[i]);
	}
}

static void test_bad_numbers(void **state)
{
	struct variant variant;

	(void)state;
	variant = good();
	variant.layers = 0;
	assert_refused(variant, KV_CORRUPT, "llama.block_count is 0");
	variant.layers = 100000;
	assert_refused(variant, KV_UNSUPPORTED, "llama.block_count is 100000");
	variant = good();
	variant.context = (1 << 20) + 1;
	assert_refused(variant, KV_UNSUPPORTED, "llama.context_length is 1048577");
	variant = good();
	variant.kv_heads = 3;
	assert_refused(variant, KV_UNSUPPORTED, "2 query heads over 3 KV heads");
	variant = good();
	variant.heads = 0;
	assert_refused(variant, KV_CORRUPT, "head_count is 0");
	variant = good();
	variant.heads_as_string = 1;
	assert_refused(variant, KV_CORRUPT, "head_count is not an integer");
	variant = good();
	variant.key_length = 3;
	assert_refused(variant, KV_UNSUPPORTED, "heads of 3");
	variant = good();
	variant.key_length = 12;
	assert_refused(variant, KV_UNSUPPORTED, "heads of 12");
	assert_refused(variant, KV_UNSUPPORTED, "a multiple of 8");
	variant = good();
	variant.key_length = 512;
	assert_refused(variant, KV_UNSUPPORTED, "key_length is 512");
	variant = good();
	variant.value_length = 4;
	assert_refused(variant, KV_UNSUPPORTED, "heads of 16 (keys) and 4 (values)");
	variant = good();
	variant.rotary = 18;
	assert_refused(variant, KV_UNSUPPORTED, "dimension_count is 18");
	variant = good();
	variant.vocabulary = 9;
	assert_refused(variant, KV_CORRUPT, "vocab_size says 9");
	variant = good();
	variant.epsilon = 0.0f;
	assert_refused(variant, KV_CORRUPT, "layer_norm_rms_epsilon is 0");
	variant = good();
	variant.base = 0.0f;
	assert_refused(variant, KV_CORRUPT, "freq_base is 0");
}

static void test_variants(void **state)
{
	struct variant variant;

	(void)state;
	variant = good();
	variant.scaling = "linear";
	assert_refused(variant, KV_UNSUPPORTED, "llama.rope.scaling.type is linear");
	variant = good();
	variant.experts = 8;
	assert_refused(variant, KV_UNSUPPORTED, "mixtures of experts");
	variant = good();
	variant.extra_tensor = "blk.0.attn_output.bias";
	assert_refused(variant, KV_UNSUPPORTED, "tensor blk.0.attn_output.bias is not part");
	variant.extra_tensor = "blk.0.attn_q.bias";
	assert_refused(variant, KV_CORRUPT, "tensor blk.0.attn_k.bias is missing");
	variant.extra_tensor = "rope_freqs.weight";
	assert_refused(variant, KV_CORRUPT, "tensor rope_freqs.weight has shape 32 x 1");
}

static void test_tensors(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
		struct variant variant = good();

		variant.omit_tensor = tensors[i].name;
		assert_refused(variant, KV_CORRUPT, tensors[i].name);
		variant = good();
		variant.foreign_tensor = tensors[i].name;
		assert_refused(variant, KV_UNSUPPORTED, "has type number 29");
		/* Square ones look alike both ways round. */
		if (tensors[i].columns == tensors[i].rows) continue;
		variant = good();
		variant.transpose_tensor = tensors[i].name;
		assert_refused(variant, KV_CORRUPT, tensors[i].name);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_good),
	    cmocka_unit_test(test_architecture),
	    cmocka_unit_test(test_missing_keys),
	    cmocka_unit_test(test_bad_numbers),
	    cmocka_unit_test(test_variants),
	    cmocka_unit_test(test_tensors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
