/* From the tensors of a file to packed weights and vectors of a backend.
 *
 * A loader lives while a model is opened. It remembers which tensors were taken, so that a file
 * with tensors that the architecture knows nothing of is refused and not run wrongly.
 */
#ifndef GW_MODEL_WEIGHTS_H
#define GW_MODEL_WEIGHTS_H

#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GW_MAX_PARTS = 3, GW_TENSOR_NAME_BYTES = 64 };

struct gw_loader {
	const struct gw_gguf *file;
	const struct gw_model_options *options;
	const char **used; /* [tensor_count]: names, as pointers into the file */
	uint64_t used_count;
	uint64_t done_bytes, total_bytes;
	uint64_t weight_bytes; /* what the backend holds so far */
};

/* One of the tensors that are stacked by rows. */
struct gw_part {
	char name[GW_TENSOR_NAME_BYTES];
	uint32_t rows;
};

enum kv_status gw_loader_init(
    struct gw_loader *loader, const struct gw_gguf *file, const struct gw_model_options *options);
void gw_loader_deinit(struct gw_loader *loader);

int gw_loader_has(const struct gw_loader *loader, const char *name);

/* `blk.LAYER.NAME` */
struct gw_part gw_layer_part(uint32_t layer, const char *name, uint32_t rows);

/* Pack the tensors [columns, rows] of `parts`, stacked in order. KV_CORRUPT names a missing or
 * misshapen tensor, KV_UNSUPPORTED one whose type the kernels do not know. */
enum kv_status gw_load_matrix(struct gw_loader *loader, const struct gw_part *parts, uint32_t count,
    uint32_t columns, struct kn_weight **weight);

/* Vectors [rows], one after the other, as floats in one backend buffer. */
enum kv_status gw_load_vector(
    struct gw_loader *loader, const struct gw_part *parts, uint32_t count, float **vector);

/* Copy host floats into a new backend buffer. */
enum kv_status gw_upload_floats(
    const struct gw_model_options *options, const float *host, uint32_t count, float **buffer);

/* A vector of a file as host floats, `out` [length]. */
enum kv_status gw_read_vector(
    struct gw_loader *loader, const char *name, uint32_t length, float *out);

/* KV_UNSUPPORTED, naming one, when the file has tensors that were not taken. */
enum kv_status gw_loader_check_all_used(const struct gw_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
