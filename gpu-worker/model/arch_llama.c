/* llama: Llama 1 to 3.x, SmolLM2, TinyLlama and their like.
 *
 * The files hold the rows of q and k permuted so that rotation turns adjacent pairs. Llama 3.1 and
 * later scale the frequencies by factors in rope_freqs.weight.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "gpu-worker/model/arch.h"

static enum kv_status read_shape(const struct gw_gguf *file, struct gw_model_shape *shape)
{
	return gw_read_decoder_shape(file, "llama", shape);
}

static enum kv_status load_layer(struct gw_loader *loader, const struct gw_model_shape *shape,
    uint32_t index, struct gw_layer *layer)
{
	const struct gw_part bias = gw_layer_part(index, "attn_q.bias", 0);

	return gw_block_load(loader, shape, index, gw_loader_has(loader, bias.name), layer);
}

static enum kv_status scale_frequencies(
    struct gw_loader *loader, uint32_t count, float *inverse_frequency)
{
	float factors[KN_MAX_HEAD_DIM / 2];

	if (!gw_loader_has(loader, "rope_freqs.weight")) return KV_OK;
	if (count > KN_MAX_HEAD_DIM / 2) return kv_fail(KV_INTERNAL, "%" PRIu32 " frequencies", count);
	KV_TRY(gw_read_vector(loader, "rope_freqs.weight", count, factors));
	for (uint32_t i = 0; i < count; i++) {
		if (!(factors[i] > 0.0f) || !isfinite(factors[i])) {
			return kv_fail(KV_CORRUPT, "%s: tensor rope_freqs.weight: factor %" PRIu32 " is %g",
			    gw_gguf_path(loader->file), i, (double)factors[i]);
		}
		inverse_frequency[i] /= factors[i];
	}
	return KV_OK;
}

const struct gw_architecture gw_arch_llama = {
    .name = "llama",
    .read_shape = read_shape,
    .load_layer = load_layer,
    .scale_frequencies = scale_frequencies,
    .adjacent_pairs = 1,
};
