/* Random weights, uniform: as good as normal ones here, and made several times faster. */
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/base/random.h"
#include "gpu-worker/model/synthetic_internal.h"
#include "kernels/backend.h"
#include "kernels/cpu/half.h"

enum {
	BLOCK = 32,
	Q8_0_BYTES = 34,
	Q4_0_BYTES = 18,
	BAND = 256, /* rows with random numbers of their own */
	MOST_THREADS = 16,
	ALONE_BYTES = 1 << 20 /* a tensor of less is not worth a thread */
};

/* Deviation of an output of a matrix for inputs of deviation 1. */
static const struct {
	const char *name;
	float deviation;
} matrices[] = {
    {"attn_q.weight", 1.9f},
    {"attn_k.weight", 1.9f},
    {"attn_v.weight", 1.0f},
    {"attn_output.weight", 1.2f},
    {"ffn_gate.weight", 1.5f},
    {"ffn_up.weight", 1.0f},
    {"ffn_down.weight", 0.8f},
    {"output.weight", 6.0f},
};

static int ends_with(struct gw_gguf_string name, const char *end)
{
	size_t length = strlen(end);

	return name.length >= length && memcmp(name.bytes + name.length - length, end, length) == 0;
}

static int is_named(struct gw_gguf_string name, const char *whole)
{
	return name.length == strlen(whole) && ends_with(name, whole);
}

/* Of an element; rows may have less (row_gain). */
static float element_deviation(
    const struct gw_synthetic_shape *shape, const struct gw_gguf_tensor *tensor)
{
	float root = sqrtf((float)tensor->shape[0]);

	if (is_named(tensor->name, "token_embd.weight")) return shape->tied ? 6.0f / root : 1.0f;
	if (is_named(tensor->name, "output.weight")) return 6.0f / root;
	for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
		if (ends_with(tensor->name, matrices[i].name)) return matrices[i].deviation / root;
	return 1.0f / root;
}

/* Less weight on the channels that turn fast: what a key says then depends on its token more than
 * on its position, as in trained models. Special tokens are never the best. */
static float row_gain(const struct gw_synthetic_shape *shape, const struct gw_gguf_tensor *tensor,
    uint64_t row)
{
	if (ends_with(tensor->name, "attn_q.weight") || ends_with(tensor->name, "attn_k.weight"))
		return row % shape->head_dim / 2 < shape->head_dim / 6 ? 0.35f : 1.2f;
	if (is_named(tensor->name, "output.weight") && row < GW_SYNTHETIC_SPECIALS) return 0.02f;
	return 1.0f;
}

static void put_half(uint8_t *out, float value)
{
	uint16_t half = kn_half_from_float(value);

	memcpy(out, &half, sizeof half);
}

/* Codes are uniform from -127 to 127; their deviation is 73.6. Kernels that take a sign off a byte
 * may rely on there being no -128, as quantisers make none. */
static void fill_q8_0(struct kv_random *random, uint8_t *out, uint64_t columns, float deviation)
{
	for (uint64_t block = 0; block < columns / BLOCK; block++, out += Q8_0_BYTES) {
		uint64_t words[BLOCK / 8];
		uint8_t *codes = out + 2;

		for (int i = 0; i < BLOCK / 8; i++)
			words[i] = kv_random_next(random);
		put_half(out, deviation / 73.6f);
		memcpy(codes, words, sizeof words);
		for (int i = 0; i < BLOCK; i++)
			codes[i] = codes[i] == 0x80 ? 0x7f : codes[i];
	}
}

/* Codes are uniform from -8 to 7, of deviation 4.61; the sign of the scale takes the bias off. */
static void fill_q4_0(struct kv_random *random, uint8_t *out, uint64_t columns, float deviation)
{
	for (uint64_t block = 0; block < columns / BLOCK; block++, out += Q4_0_BYTES) {
		uint64_t words[2] = {kv_random_next(random), kv_random_next(random)};
		float scale = deviation / 4.61f;

		put_half(out, (words[0] ^ words[1]) >> 63 ? scale : -scale);
		memcpy(out + 2, words, sizeof words);
	}
}

/* Uniform from -√3 to √3 deviations, in steps of 2^-31 of that. */
static void fill_floats(
    struct kv_random *random, uint32_t type, uint8_t *out, uint64_t columns, float deviation)
{
	float step = deviation * 1.7320508f / 2147483648.0f;

	for (uint64_t i = 0; i < columns; i += 2) {
		uint64_t word = kv_random_next(random);
		float pair[2] = {(float)(int32_t)(uint32_t)word * step,
		    (float)(int32_t)(uint32_t)(word >> 32) * step};

		for (uint64_t j = i; j < i + 2 && j < columns; j++) {
			uint32_t bits = kn_float_bits(pair[j - i]);
			uint16_t high = (uint16_t)(bits >> 16);

			if (type == KN_F32)
				memcpy(out + 4 * j, &bits, sizeof bits);
			else if (type == KN_BF16)
				memcpy(out + 2 * j, &high, sizeof high);
			else
				put_half(out + 2 * j, pair[j - i]);
		}
	}
}

/* Weights of norms lie around 1. */
static void fill_vector(struct kv_random *random, uint8_t *out, uint64_t length)
{
	for (uint64_t i = 0; i < length; i++) {
		float value = 1.0f + 0.17f * (2.0f * (float)kv_random_unit(random) - 1.0f);

		memcpy(out + 4 * i, &value, sizeof value);
	}
}

/* Each tensor's numbers are its own, so that neither order nor other tensors change them. */
static uint64_t tensor_seed(uint64_t seed, struct gw_gguf_string name)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ seed * UINT64_C(0x9e3779b97f4a7c15);

	for (uint64_t i = 0; i < name.length; i++)
		hash = (hash ^ (unsigned char)name.bytes[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* What one thread makes: bands index, index + step, … */
struct share {
	const struct gw_synthetic_shape *shape;
	const struct gw_gguf_tensor *tensor;
	uint8_t *data;
	uint64_t seed, row_bytes;
	uint64_t index, step;
};

static void fill_band(const struct share *share, uint64_t band)
{
	const struct gw_gguf_tensor *tensor = share->tensor;
	uint64_t columns = tensor->shape[0], end = (band + 1) * BAND;
	float deviation = element_deviation(share->shape, tensor);
	struct kv_random random;

	kv_random_seed(&random, share->seed + band);
	if (end > tensor->shape[1]) end = tensor->shape[1];
	for (uint64_t row = band * BAND; row < end; row++) {
		uint8_t *out = share->data + row * share->row_bytes;
		float row_deviation = deviation * row_gain(share->shape, tensor, row);

		if (tensor->type == KN_Q8_0)
			fill_q8_0(&random, out, columns, row_deviation);
		else if (tensor->type == KN_Q4_0)
			fill_q4_0(&random, out, columns, row_deviation);
		else
			fill_floats(&random, tensor->type, out, columns, row_deviation);
	}
}

static void *fill_share(void *opaque)
{
	const struct share *share = opaque;

	for (uint64_t band = share->index; band * BAND < share->tensor->shape[1]; band += share->step)
		fill_band(share, band);
	return NULL;
}

static uint64_t thread_count(const struct gw_gguf_tensor *tensor)
{
	uint64_t bands = (tensor->shape[1] + BAND - 1) / BAND;
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t count = processors > 1 ? (uint64_t)processors : 1;

	if (tensor->bytes < ALONE_BYTES) return 1;
	if (count > MOST_THREADS) count = MOST_THREADS;
	return count < bands ? count : bands;
}

void gw_synthetic_fill(const struct gw_synthetic_shape *shape, uint64_t seed,
    const struct gw_gguf_tensor *tensor, void *data)
{
	uint64_t columns = tensor->shape[0], count = thread_count(tensor);
	struct share shares[MOST_THREADS] = {{.shape = shape,
	    .tensor = tensor,
	    .data = data,
	    .seed = tensor_seed(seed, tensor->name),
	    .row_bytes = kn_weight_row_bytes((enum kn_weight_type)tensor->type, (uint32_t)columns)}};
	pthread_t threads[MOST_THREADS];
	int started[MOST_THREADS] = {0};

	if (tensor->dimensions == 1) {
		struct kv_random random;

		kv_random_seed(&random, shares[0].seed);
		fill_vector(&random, data, columns);
		return;
	}
	for (uint64_t i = 0; i < count; i++) {
		shares[i] = shares[0];
		shares[i].index = i;
		shares[i].step = count;
		/* This thread has the first share, and those for which there is no thread. */
		started[i] = i > 0 && pthread_create(&threads[i], NULL, fill_share, &shares[i]) == 0;
	}
	for (uint64_t i = 0; i < count; i++) {
		if (started[i])
			pthread_join(threads[i], NULL);
		else
			fill_share(&shares[i]);
	}
}
