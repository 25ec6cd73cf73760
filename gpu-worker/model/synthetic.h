/* Models without a file: the shape of a known model with random weights, for measuring and for
 * tests on machines that have no model.
 *
 * synthetic:NAME[,type=f32|f16|bf16|q8_0|q4_0][,seed=N] is opened as if it were a GGUF file; type
 * (q8_0) is that of its matrices, seed (1) that of its weights. The same name gives the same bytes
 * everywhere. Tensors are made one by one while a model is loaded (gw_gguf_fetch), and take no
 * memory afterwards. Its vocabulary is bytes, three ChatML tokens, and words that no text is split
 * into; matrices are scaled as tests/lib/make_tiny_model.py does it, so that attention is peaky and
 * logits are finite and apart.
 */
#ifndef GW_MODEL_SYNTHETIC_H
#define GW_MODEL_SYNTHETIC_H

#include "gpu-worker/model/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Does `name` begin with synthetic: ? */
int gw_is_synthetic(const char *name);

/* Open a synthetic model, or the file that `name` is the path of. KV_USAGE lists the models, types
 * and words that there are. */
enum kv_status gw_model_file_open(
    struct kv_allocator *allocator, const char *name, struct gw_gguf **file);

#ifdef __cplusplus
}
#endif
#endif
