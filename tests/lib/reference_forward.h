/* An independent forward pass for tests: full attention in double over dequantised weights.
 *
 * Shares nothing with gpu-worker/model but the GGUF reader and nothing with kernels/ but
 * kn_dequantise_row. Slow and plain on purpose; for tiny models and short prompts.
 */
#ifndef TESTS_LIB_REFERENCE_FORWARD_H
#define TESTS_LIB_REFERENCE_FORWARD_H

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvt_reference;

/* `file` must stay open as long as the reference. llama and qwen2. */
enum kv_status kvt_reference_open(
    struct kv_allocator *allocator, const struct gw_gguf *file, struct kvt_reference **reference);
void kvt_reference_close(struct kvt_reference *reference);
uint32_t kvt_reference_vocabulary(const struct kvt_reference *reference);

/* logits[count][vocabulary] of a prompt of `count` ids at positions 0 …; every position's. */
enum kv_status kvt_reference_logits(
    const struct kvt_reference *reference, const int32_t *ids, uint32_t count, float *logits);

/* The same prompt through gw_model (embed, project, finish, logits), in calls of at most `max_rows`
 * rows, with a plain float32 attention between them. Host memory of the cpu backend only. */
enum kv_status kvt_model_logits(struct gw_model *model, struct kv_allocator *allocator,
    uint32_t max_rows, const int32_t *ids, uint32_t count, float *logits);

#ifdef __cplusplus
}
#endif
#endif
