/* A model: everything of the forward pass but the middle of attention.
 *
 * The pipeline calls embed, then for each layer project → (attention of its own making) → finish,
 * then logits. All activations are float rows in backend memory, where positions are, too.
 * Architectures register in registry.c; each arch_NAME.c maps its tensors onto the shared blocks.
 */
#ifndef GW_MODEL_MODEL_H
#define GW_MODEL_MODEL_H

#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/shape.h"
#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_model;

struct gw_model_options {
	struct kv_allocator *allocator;
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	struct kn_stream *stream;
	enum kn_precision precision;
	uint32_t max_rows;        /* most rows of one call, sizes the scratch memory */
	/* Called now and then while weights are packed, or NULL. */
	void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
	void *progress_context;
};

/* The shape alone, without loading weights: for sizing the backend (its widest matmul input is the
 * largest of hidden, feed_forward and heads × head_dim) before a model is opened on it. */
enum kv_status gw_model_read_shape(const struct gw_gguf *file, struct gw_model_shape *shape);

/* What opening it takes of a backend's memory that is not the host's: the file's tensors, and
 * activations of calls of up to max_rows rows. */
uint64_t gw_model_weight_bound(const struct gw_gguf *file);
uint64_t gw_model_activation_bytes(const struct gw_model_shape *shape, uint32_t max_rows);

/* Build from an open file, which may be closed afterwards. KV_UNSUPPORTED names the architecture or
 * tensor type; KV_CORRUPT names a missing or misshapen tensor. */
enum kv_status gw_model_open(const struct gw_gguf *file, const struct gw_model_options *options,
	struct gw_model **model);
void gw_model_close(struct gw_model *model);

const struct gw_model_shape *gw_model_shape(const struct gw_model *model);
const char *gw_model_architecture(const struct gw_model *model); /* "llama", "qwen2" */
uint64_t gw_model_weight_bytes(const struct gw_model *model);

/* x[count][hidden] = embeddings of ids. Ids are checked by the caller: 0 ≤ id < vocabulary. They
 * are memory of the host, and stay as they are until stream_wait. */
enum kv_status gw_model_embed(struct gw_model *model, const int32_t *ids, uint32_t count, float *x);

/* q[count][heads][head_dim], k and v [count][kv_heads][head_dim] of layer `layer` after norm, bias,
 * q/k norm and rotary position; one row of qkv is [q | k | v], row stride gw_model_qkv_width
 * floats. */
uint32_t gw_model_qkv_width(const struct gw_model *model);
enum kv_status gw_model_project(struct gw_model *model, uint32_t layer, const float *x,
	const uint32_t *positions, uint32_t count, float *qkv);

/* x[count][hidden] += output projection of attention[count][heads × head_dim], then +=
 * feed-forward. */
enum kv_status gw_model_finish(struct gw_model *model, uint32_t layer, const float *attention,
	uint32_t count, float *x);

/* logits[count][vocabulary] of the residual rows x[count][hidden]. */
enum kv_status gw_model_logits(
    struct gw_model *model, const float *x, uint32_t count, float *logits);

#ifdef __cplusplus
}
#endif
#endif
