/* A backend and the stream that work goes to: what most callers pass on together, and the calls of
 * backend.h that are about memory, shorter. */
#ifndef KN_DEVICE_H
#define KN_DEVICE_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All borrowed. */
struct kn_device {
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	struct kn_stream *stream;
};

static inline enum kv_status kn_device_alloc(
    const struct kn_device *device, enum kn_memory kind, size_t bytes, void **buffer)
{
	return device->ops->buffer_create(device->backend, kind, bytes, buffer);
}

/* NULL is allowed. */
static inline void kn_device_free(const struct kn_device *device, void *buffer)
{
	if (buffer != NULL) device->ops->buffer_destroy(device->backend, buffer);
}

static inline enum kv_status kn_device_upload(
    const struct kn_device *device, void *to, const void *host, size_t bytes)
{
	return device->ops->upload(device->backend, device->stream, to, host, bytes);
}

static inline enum kv_status kn_device_download(
    const struct kn_device *device, void *host, const void *from, size_t bytes)
{
	return device->ops->download(device->backend, device->stream, host, from, bytes);
}

/* Of one backend: see stream_order. */
static inline enum kv_status kn_device_order(
    const struct kn_device *earlier, const struct kn_device *later)
{
	return earlier->ops->stream_order(earlier->backend, earlier->stream, later->stream);
}

static inline enum kv_status kn_device_wait(const struct kn_device *device)
{
	return device->ops->stream_wait(device->backend, device->stream);
}

#ifdef __cplusplus
}
#endif
#endif
