/* Steps: nothing is put off yet, operations are queued one by one. */
#include "kernels/cuda/backend_cuda.h"

enum kv_status kn_cuda_step_begin(
    struct kn_backend *backend, struct kn_stream *stream, uint32_t shape)
{
	(void)backend;
	(void)shape;
	if (stream->stepping) return kv_fail(KV_INVALID, "a step begins within a step");
	stream->stepping = 1;
	return KV_OK;
}

enum kv_status kn_cuda_step_end(struct kn_backend *backend, struct kn_stream *stream)
{
	(void)backend;
	if (!stream->stepping) return kv_fail(KV_INVALID, "a step ends that was not begun");
	stream->stepping = 0;
	return KV_OK;
}
