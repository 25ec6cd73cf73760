/* The channel's way to its store: a socket on this host, or the encrypted stream to another one. */
#include "common/transport/secure_dial.h"
#include "common/transport/unix_socket.h"
#include "kvstore/client/channel_internal.h"

bool kvc_channel_stopping(struct kvc_channel *channel)
{
	bool value;

	pthread_mutex_lock(&channel->lock);
	value = channel->stopping;
	pthread_mutex_unlock(&channel->lock);
	return value;
}

static bool cancelled(void *context)
{
	return kvc_channel_stopping(context);
}

uint32_t kvc_channel_hello_ms(const struct kvc_channel *channel)
{
	return channel->remote ? KVC_REMOTE_HELLO_MS : KVC_HELLO_MS;
}

enum kv_status kvc_channel_connect(
    struct kvc_channel *channel, uint64_t deadline_ms, int *socket, struct kv_secure **secure)
{
	struct kv_secure_dial dial = {.allocator = channel->allocator,
	    .address = channel->path,
	    .secret = channel->secret,
	    .deadline_ms = deadline_ms,
	    .silence_ms = KVC_SILENCE_MS,
	    .cancelled = cancelled,
	    .context = channel};

	if (!channel->remote) return kv_unix_connect(channel->path, socket);
	pthread_mutex_lock(&channel->lock);
	dial.attempt = channel->attempts;
	pthread_mutex_unlock(&channel->lock);
	return kv_secure_dial(&dial, socket, secure);
}
