/* Fuzz target: any bytes as a GGUF file. What opens is read through every getter and offered to the
 * architectures; nothing may crash, hang or read outside the input. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const keys[] = {"general.architecture", "general.alignment", "llama.block_count",
    "llama.attention.head_count", "llama.rope.freq_base", "qwen2.context_length",
    "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores",
    "tokenizer.ggml.merges", "tokenizer.ggml.add_bos_token", "tokenizer.chat_template"};

/* Sums over what the getters hand out, so that reading outside the input is seen. */
static uint64_t sum_bytes(const void *data, uint64_t size)
{
	const uint8_t *bytes = data;
	uint64_t sum = 0;

	for (uint64_t i = 0; i < size; i++)
		sum += bytes[i];
	return sum;
}

static uint64_t read_array(const struct gw_gguf *file, const char *key, uint64_t count)
{
	struct gw_gguf_string *strings = malloc((size_t)count * sizeof *strings + 1);
	int32_t *integers = malloc((size_t)count * sizeof *integers + 1);
	float *floats = malloc((size_t)count * sizeof *floats + 1);
	uint64_t sum = 0;

	if (strings && gw_gguf_array_strings(file, key, strings, count) == KV_OK) {
		for (uint64_t i = 0; i < count; i++)
			sum += sum_bytes(strings[i].bytes, strings[i].length);
	}
	if (integers && gw_gguf_array_i32(file, key, integers, count) == KV_OK)
		sum += sum_bytes(integers, count * sizeof *integers);
	if (floats && gw_gguf_array_f32(file, key, floats, count) == KV_OK)
		sum += sum_bytes(floats, count * sizeof *floats);
	free(strings);
	free(integers);
	free(floats);
	return sum;
}

static uint64_t read_key(const struct gw_gguf *file, const char *key)
{
	struct gw_gguf_string string;
	uint64_t count, sum = 0;
	uint32_t small;
	double real;
	int flag;

	if (gw_gguf_u32(file, key, &small) == KV_OK) sum += small;
	if (gw_gguf_f64(file, key, &real) == KV_OK) sum += real > 0;
	if (gw_gguf_bool(file, key, &flag) == KV_OK) sum += (uint64_t)flag;
	if (gw_gguf_string(file, key, &string) == KV_OK) sum += sum_bytes(string.bytes, string.length);
	if (gw_gguf_array_count(file, key, &count) == KV_OK && count <= 1 << 20)
		sum += read_array(file, key, count);
	return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static volatile uint64_t sink;
	struct gw_model_shape shape;
	struct gw_gguf_tensor tensor;
	struct gw_gguf *file;
	uint64_t sum = 0;

	if (gw_gguf_open_memory(kv_heap(), data, size, "fuzz", &file) != KV_OK) return 0;
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
		sum += read_key(file, keys[i]);
	for (uint64_t i = 0; i < gw_gguf_tensor_count(file); i++) {
		gw_gguf_tensor_at(file, i, &tensor);
		sum += sum_bytes(tensor.name.bytes, tensor.name.length);
		if (tensor.data) sum += sum_bytes(tensor.data, tensor.bytes);
	}
	if (gw_model_read_shape(file, &shape) == KV_OK) sum += shape.layers;
	sink = sum;
	(void)sink;
	gw_gguf_close(file);
	return 0;
}
