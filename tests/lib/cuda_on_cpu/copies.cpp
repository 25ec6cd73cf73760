/* Copies and fills. What is checked: both ends are of the kind that was said, to the last byte.
 * What is synchronous follows "API synchronization behavior" of the CUDA documentation. */
#include <cstring>
#include <vector>

#include "tests/lib/cuda_on_cpu/streams.h"

namespace
{
using namespace emu;

struct copy_work : emu::work {
	void *to;
	const void *from;
	size_t bytes;
	std::vector<char> staged; /* pageable memory is read when the copy is called */

	copy_work(void *target, const void *source, size_t size, bool stage, int kinds)
	    : work("a copy"), to(target), from(source), bytes(size)
	{
		type = NODE_COPY;
		memory = kinds;
		if (!stage) return;
		staged.resize(bytes);
		memcpy(staged.data(), source, bytes);
		from = staged.data();
	}
	void run(struct operation *) override
	{
		memmove(to, from, bytes);
	}
};

struct fill_work : emu::work {
	void *at;
	int value;
	size_t bytes;
	fill_work(void *target, int byte, size_t size)
	    : work("a fill"), at(target), value(byte), bytes(size)
	{
		type = NODE_FILL;
	}
	void run(struct operation *) override
	{
		memset(at, value, bytes);
	}
};

bool is_host(enum memory_kind kind)
{
	return kind == MEMORY_PAGEABLE || kind == MEMORY_PINNED;
}

bool is_copy_of_kind(enum memory_kind to, enum memory_kind from, cudaMemcpyKind kind)
{
	if (to == MEMORY_BROKEN || from == MEMORY_BROKEN) return false;
	switch (kind) {
	case cudaMemcpyHostToHost:
		return is_host(to) && is_host(from);
	case cudaMemcpyHostToDevice:
		return to == MEMORY_DEVICE && is_host(from);
	case cudaMemcpyDeviceToHost:
		return is_host(to) && from == MEMORY_DEVICE;
	case cudaMemcpyDeviceToDevice:
		return to == MEMORY_DEVICE && from == MEMORY_DEVICE;
	default:
		return kind == cudaMemcpyDefault;
	}
}

cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
    bool blocking)
{
	enum memory_kind to_kind = memory_kind(to, bytes), from_kind = memory_kind(from, bytes);
	cudaError_t error = cudaSuccess;
	struct stream *s = stream_find(stream, &error);
	if (!s) return error;
	if (bytes == 0) return cudaSuccess;
	if (!is_copy_of_kind(to_kind, from_kind, kind)) return cudaErrorInvalidValue;
	bool pageable = to_kind == MEMORY_PAGEABLE || from_kind == MEMORY_PAGEABLE;
	if (pageable && stream_captures(s))
		return capture_break(s->capture, cudaErrorStreamCaptureUnsupported);
	/* A blocking copy waits for the stream before it reads pageable memory. */
	bool stage = from_kind == MEMORY_PAGEABLE && to_kind == MEMORY_DEVICE;
	if (blocking && stage && (error = stream_wait(stream)) != cudaSuccess) return error;
	int kinds = static_cast<int>(to_kind) * 4 + static_cast<int>(from_kind);
	error = stream_submit(stream, std::make_shared<copy_work>(to, from, bytes, stage, kinds));
	bool waits = blocking ? !stage && (is_host(to_kind) || is_host(from_kind))
	                      : to_kind == MEMORY_PAGEABLE || (is_host(to_kind) && is_host(from_kind));
	return error || !waits ? error : stream_wait(stream);
}

cudaError_t fill(void *at, int value, size_t bytes, cudaStream_t stream)
{
	enum memory_kind kind = memory_kind(at, bytes);
	if (kind != MEMORY_DEVICE && kind != MEMORY_PINNED) return cudaErrorInvalidValue;
	return stream_submit(stream, std::make_shared<fill_work>(at, value, bytes));
}
} // namespace

extern "C" {
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
	api_call call(true);
	return failed(call.refused ? call.refused : copy(to, from, bytes, kind, nullptr, true));
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
	api_call call;
	return failed(call.refused ? call.refused : copy(to, from, bytes, kind, stream, false));
}

/* Asynchronous, but for pinned memory. */
cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
	api_call call(true);
	cudaError_t error = call.refused ? call.refused : fill(at, value, bytes, nullptr);
	if (!error && memory_kind(at, bytes) == MEMORY_PINNED) error = stream_wait(nullptr);
	return failed(error);
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
	api_call call;
	return failed(call.refused ? call.refused : fill(at, value, bytes, stream));
}
}
