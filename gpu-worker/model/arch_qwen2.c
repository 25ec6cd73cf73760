/* qwen2: Qwen 2 and 2.5. Biases on q, k and v; rotation of the two halves of a head. */
#include "gpu-worker/model/arch.h"

static enum kv_status read_shape(const struct gw_gguf *file, struct gw_model_shape *shape)
{
	return gw_read_decoder_shape(file, "qwen2", shape);
}

static enum kv_status load_layer(struct gw_loader *loader, const struct gw_model_shape *shape,
    uint32_t index, struct gw_layer *layer)
{
	return gw_block_load(loader, shape, index, 1, layer);
}

const struct gw_architecture gw_arch_qwen2 = {
    .name = "qwen2",
    .read_shape = read_shape,
    .load_layer = load_layer,
    .scale_frequencies = NULL,
    .adjacent_pairs = 0,
};
