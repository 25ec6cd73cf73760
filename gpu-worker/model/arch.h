/* An architecture: how the tensors and numbers of a model file map onto the shared blocks.
 *
 * One file for each, arch_NAME.c; registry.c lists them.
 */
#ifndef GW_MODEL_ARCH_H
#define GW_MODEL_ARCH_H

#include "gpu-worker/model/blocks.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/model.h"
#include "gpu-worker/model/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_architecture {
	const char *name; /* general.architecture of the file */
	enum kv_status (*read_shape)(const struct gw_gguf *file, struct gw_model_shape *shape);
	/* Load one layer into `layer`, which is zero; what a failed call leaves there is destroyed by
	 * the caller. */
	enum kv_status (*load_layer)(struct gw_loader *loader, const struct gw_model_shape *shape,
	    uint32_t index, struct gw_layer *layer);
	/* Divide inverse frequencies [rotary_dim / 2] by factors of the file, or NULL. */
	enum kv_status (*scale_frequencies)(
	    struct gw_loader *loader, uint32_t count, float *inverse_frequency);
	int adjacent_pairs; /* kn_rotate_arguments */
};

extern const struct gw_architecture gw_arch_llama;
extern const struct gw_architecture gw_arch_qwen2;

/* The architecture that the file names; KV_UNSUPPORTED names it and lists those that there are. */
enum kv_status gw_architecture_of(
    const struct gw_gguf *file, const struct gw_architecture **architecture);

/* The numbers that all decoder-only files have under `PREFIX.`, checked and bounded. */
enum kv_status gw_read_decoder_shape(
    const struct gw_gguf *file, const char *prefix, struct gw_model_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
