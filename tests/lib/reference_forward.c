#include "tests/lib/reference_forward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"

struct kvt_reference {
	struct kv_allocator *allocator;
	const struct gw_gguf *file;
	int adjacent, with_bias;
	uint32_t layers, heads, kv_heads, head_dim, hidden, feed_forward, vocabulary;
	double base, epsilon;
};

/* Working memory of one prompt, all [count][…]. */
struct pass {
	const struct kvt_reference *reference;
	uint32_t count;
	double *x, *normed, *q, *k, *v, *attention, *gate, *up, *scores;
};

static enum kv_status read_u32(
    const struct gw_gguf *file, const char *arch, const char *name, uint32_t *value)
{
	char key[96];

	snprintf(key, sizeof key, "%s.%s", arch, name);
	return gw_gguf_u32(file, key, value);
}

static enum kv_status read_f64(
    const struct gw_gguf *file, const char *arch, const char *name, double *value)
{
	char key[96];

	snprintf(key, sizeof key, "%s.%s", arch, name);
	return gw_gguf_f64(file, key, value);
}

enum kv_status kvt_reference_open(
    struct kv_allocator *allocator, const struct gw_gguf *file, struct kvt_reference **reference)
{
	struct kvt_reference made = {.allocator = allocator, .file = file};
	struct gw_gguf_string name;
	struct gw_gguf_tensor table;
	const char *arch;

	KV_TRY(gw_gguf_string(file, "general.architecture", &name));
	made.adjacent = name.length == 5 && memcmp(name.bytes, "llama", 5) == 0;
	made.with_bias = !made.adjacent;
	arch = made.adjacent ? "llama" : "qwen2";
	KV_TRY(read_u32(file, arch, "block_count", &made.layers));
	KV_TRY(read_u32(file, arch, "attention.head_count", &made.heads));
	KV_TRY(read_u32(file, arch, "attention.head_count_kv", &made.kv_heads));
	KV_TRY(read_u32(file, arch, "embedding_length", &made.hidden));
	KV_TRY(read_u32(file, arch, "feed_forward_length", &made.feed_forward));
	made.head_dim = made.hidden / made.heads;
	read_u32(file, arch, "attention.key_length", &made.head_dim);
	KV_TRY(read_f64(file, arch, "rope.freq_base", &made.base));
	KV_TRY(read_f64(file, arch, "attention.layer_norm_rms_epsilon", &made.epsilon));
	KV_TRY(gw_gguf_tensor(file, "token_embd.weight", &table));
	made.vocabulary = (uint32_t)table.shape[1];
	*reference = kv_alloc(allocator, sizeof made);
	if (!*reference) return KV_NO_MEMORY;
	**reference = made;
	return KV_OK;
}

void kvt_reference_close(struct kvt_reference *reference)
{
	if (reference) kv_free(reference->allocator, reference);
}

uint32_t kvt_reference_vocabulary(const struct kvt_reference *reference)
{
	return reference->vocabulary;
}

/* out[i] = row i of the tensor (or row rows[i]) as floats. */
static enum kv_status dequantise(const struct gw_gguf_tensor *tensor, uint64_t row, float *out)
{
	uint64_t row_bytes = tensor->bytes / tensor->shape[1];

	return kn_dequantise_row((enum kn_weight_type)tensor->type,
	    (const uint8_t *)tensor->data + row * row_bytes, out, (uint32_t)tensor->shape[0]);
}

/* y[count][rows] = x[count][columns] · Wᵀ (+ bias) (added to y where `add`). */
static enum kv_status multiply(const struct pass *pass, const char *name, const char *bias,
    const double *x, double *y, int add)
{
	struct kv_allocator *allocator = pass->reference->allocator;
	struct gw_gguf_tensor tensor, bias_tensor = {0};
	enum kv_status status = KV_OK;
	uint64_t columns, rows;
	float *row, offset = 0;

	KV_TRY(gw_gguf_tensor(pass->reference->file, name, &tensor));
	if (bias) KV_TRY(gw_gguf_tensor(pass->reference->file, bias, &bias_tensor));
	columns = tensor.shape[0];
	rows = tensor.shape[1];
	row = kv_alloc_array(allocator, columns, sizeof *row);
	if (!row) return KV_NO_MEMORY;
	for (uint64_t r = 0; r < rows; r++) {
		KV_TRY_GOTO(status, dequantise(&tensor, r, row), done);
		if (bias)
			memcpy(&offset, (const uint8_t *)bias_tensor.data + r * sizeof offset, sizeof offset);
		for (uint32_t i = 0; i < pass->count; i++) {
			double sum = (double)offset;

			for (uint64_t c = 0; c < columns; c++)
				sum += (double)row[c] * x[i * columns + c];
			y[i * rows + r] = add ? y[i * rows + r] + sum : sum;
		}
	}

done:
	kv_free(allocator, row);
	return status;
}

static enum kv_status normalise(const struct pass *pass, const char *name)
{
	const struct kvt_reference *reference = pass->reference;
	uint32_t hidden = reference->hidden;
	struct gw_gguf_tensor tensor;

	KV_TRY(gw_gguf_tensor(reference->file, name, &tensor));
	for (uint32_t i = 0; i < pass->count; i++) {
		double sum = 0, factor;

		for (uint32_t c = 0; c < hidden; c++)
			sum += pass->x[i * hidden + c] * pass->x[i * hidden + c];
		factor = 1.0 / sqrt(sum / hidden + reference->epsilon);
		for (uint32_t c = 0; c < hidden; c++) {
			float weight;

			memcpy(&weight, (const uint8_t *)tensor.data + c * sizeof weight, sizeof weight);
			pass->normed[i * hidden + c] = pass->x[i * hidden + c] * factor * (double)weight;
		}
	}
	return KV_OK;
}

/* Rotate every head of rows x[count][heads][head_dim]; `factors` divide the frequencies, or NULL.
 */
static void rotate(const struct pass *pass, double *x, uint32_t heads, const float *factors)
{
	const struct kvt_reference *reference = pass->reference;
	uint32_t half = reference->head_dim / 2;

	for (uint32_t i = 0; i < pass->count; i++) {
		for (uint32_t h = 0; h < heads; h++) {
			double *head = x + ((size_t)i * heads + h) * reference->head_dim;

			for (uint32_t p = 0; p < half; p++) {
				double angle = i * pow(reference->base, -(double)p / half);
				uint32_t first = reference->adjacent ? 2 * p : p;
				uint32_t second = reference->adjacent ? 2 * p + 1 : p + half;
				double a = head[first], b = head[second];

				if (factors) angle /= (double)factors[p];
				head[first] = a * cos(angle) - b * sin(angle);
				head[second] = a * sin(angle) + b * cos(angle);
			}
		}
	}
}

static void attend(const struct pass *pass)
{
	const struct kvt_reference *reference = pass->reference;
	uint32_t d = reference->head_dim, heads = reference->heads, kv_heads = reference->kv_heads;

	for (uint32_t i = 0; i < pass->count; i++) {
		for (uint32_t h = 0; h < heads; h++) {
			uint32_t g = h / (heads / kv_heads);
			const double *q = pass->q + ((size_t)i * heads + h) * d;
			double *out = pass->attention + ((size_t)i * heads + h) * d;
			double top = -INFINITY, sum = 0;

			for (uint32_t j = 0; j <= i; j++) {
				const double *k = pass->k + ((size_t)j * kv_heads + g) * d;
				double dot = 0;

				for (uint32_t c = 0; c < d; c++)
					dot += q[c] * k[c];
				pass->scores[j] = dot / sqrt(d);
				top = fmax(top, pass->scores[j]);
			}
			for (uint32_t c = 0; c < d; c++)
				out[c] = 0;
			for (uint32_t j = 0; j <= i; j++) {
				double weight = exp(pass->scores[j] - top);

				sum += weight;
				for (uint32_t c = 0; c < d; c++)
					out[c] += weight * pass->v[((size_t)j * kv_heads + g) * d + c];
			}
			for (uint32_t c = 0; c < d; c++)
				out[c] /= sum;
		}
	}
}

static void name_tensor(char *out, size_t size, uint32_t layer, const char *name)
{
	snprintf(out, size, "blk.%u.%s", (unsigned)layer, name);
}

static enum kv_status run_attention(const struct pass *pass, uint32_t layer, const float *factors)
{
	static const char *const letters[] = {"q", "k", "v"};
	const struct kvt_reference *reference = pass->reference;
	double *const outputs[] = {pass->q, pass->k, pass->v};
	char name[64], bias[64], part[32];

	name_tensor(name, sizeof name, layer, "attn_norm.weight");
	KV_TRY(normalise(pass, name));
	for (int i = 0; i < 3; i++) {
		snprintf(part, sizeof part, "attn_%s.weight", letters[i]);
		name_tensor(name, sizeof name, layer, part);
		snprintf(part, sizeof part, "attn_%s.bias", letters[i]);
		name_tensor(bias, sizeof bias, layer, part);
		KV_TRY(
		    multiply(pass, name, reference->with_bias ? bias : NULL, pass->normed, outputs[i], 0));
	}
	rotate(pass, pass->q, reference->heads, factors);
	rotate(pass, pass->k, reference->kv_heads, factors);
	attend(pass);
	name_tensor(name, sizeof name, layer, "attn_output.weight");
	return multiply(pass, name, NULL, pass->attention, pass->x, 1);
}

static enum kv_status run_feed_forward(const struct pass *pass, uint32_t layer)
{
	size_t cells = (size_t)pass->count * pass->reference->feed_forward;
	char name[64];

	name_tensor(name, sizeof name, layer, "ffn_norm.weight");
	KV_TRY(normalise(pass, name));
	name_tensor(name, sizeof name, layer, "ffn_gate.weight");
	KV_TRY(multiply(pass, name, NULL, pass->normed, pass->gate, 0));
	name_tensor(name, sizeof name, layer, "ffn_up.weight");
	KV_TRY(multiply(pass, name, NULL, pass->normed, pass->up, 0));
	for (size_t i = 0; i < cells; i++)
		pass->gate[i] = pass->gate[i] / (1.0 + exp(-pass->gate[i])) * pass->up[i];
	name_tensor(name, sizeof name, layer, "ffn_down.weight");
	return multiply(pass, name, NULL, pass->gate, pass->x, 1);
}

static enum kv_status run(const struct pass *pass, const int32_t *ids, double *logits)
{
	const struct kvt_reference *reference = pass->reference;
	struct gw_gguf_tensor tensor;
	const float *factors = NULL;
	float row[65536 / sizeof(float)];
	const char *output = "output.weight";

	KV_TRY(gw_gguf_tensor(reference->file, "token_embd.weight", &tensor));
	if (reference->hidden > sizeof row / sizeof row[0]) return kv_fail(KV_LIMIT, "rows too wide");
	for (uint32_t i = 0; i < pass->count; i++) {
		KV_TRY(dequantise(&tensor, (uint64_t)ids[i], row));
		for (uint32_t c = 0; c < reference->hidden; c++)
			pass->x[(size_t)i * reference->hidden + c] = (double)row[c];
	}
	if (gw_gguf_tensor(reference->file, "rope_freqs.weight", &tensor) == KV_OK)
		factors = tensor.data;
	for (uint32_t layer = 0; layer < reference->layers; layer++) {
		KV_TRY(run_attention(pass, layer, factors));
		KV_TRY(run_feed_forward(pass, layer));
	}
	KV_TRY(normalise(pass, "output_norm.weight"));
	if (gw_gguf_tensor(reference->file, output, &tensor) != KV_OK) output = "token_embd.weight";
	return multiply(pass, output, NULL, pass->normed, logits, 0);
}

enum kv_status kvt_reference_logits(
    const struct kvt_reference *reference, const int32_t *ids, uint32_t count, float *logits)
{
	size_t n = count, d = reference->head_dim;
	size_t hidden = n * reference->hidden, q = n * reference->heads * d;
	size_t kv = n * reference->kv_heads * d, wide = n * reference->feed_forward;
	size_t cells = n * reference->vocabulary;
	double *memory = kv_alloc_array(
	    reference->allocator, 2 * hidden + 2 * q + 2 * kv + 2 * wide + n + cells, sizeof *memory);
	struct pass pass = {.reference = reference, .count = count};
	double *out;
	enum kv_status status;

	if (!memory) return KV_NO_MEMORY;
	pass.x = memory;
	pass.normed = pass.x + hidden;
	pass.q = pass.normed + hidden;
	pass.attention = pass.q + q;
	pass.k = pass.attention + q;
	pass.v = pass.k + kv;
	pass.gate = pass.v + kv;
	pass.up = pass.gate + wide;
	pass.scores = pass.up + wide;
	out = pass.scores + n;
	status = run(&pass, ids, out);
	for (size_t i = 0; status == KV_OK && i < cells; i++)
		logits[i] = (float)out[i];
	kv_free(reference->allocator, memory);
	return status;
}
