/* The channel's way to its store: a socket on this host, or the encrypted stream to another one. */
#include "common/base/clock.h"
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

static void set_deadline(void *context, uint64_t deadline_ms)
{
	struct kvc_channel *channel = context;

	pthread_mutex_lock(&channel->lock);
	channel->hello_by_ms = deadline_ms;
	pthread_cond_broadcast(&channel->changed);
	pthread_mutex_unlock(&channel->lock);
}

uint32_t kvc_channel_hello_ms(const struct kvc_channel *channel)
{
	return channel->remote ? KVC_REMOTE_HELLO_MS : KVC_HELLO_MS;
}

enum kv_status kvc_channel_connect(
    struct kvc_channel *channel, int *socket, struct kv_secure **secure)
{
	struct kv_secure_dial dial = {.allocator = channel->allocator,
	    .address = channel->path,
	    .secret = channel->secret,
	    .timeout_ms = kvc_channel_hello_ms(channel),
	    .silence_ms = KVC_SILENCE_MS,
	    .cancelled = cancelled,
	    .found = set_deadline,
	    .context = channel};

	set_deadline(channel, channel->remote ? 0 : kv_now_ms() + kvc_channel_hello_ms(channel));
	if (!channel->remote) return kv_unix_connect(channel->path, socket);
	pthread_mutex_lock(&channel->lock);
	dial.attempt = channel->attempts;
	pthread_mutex_unlock(&channel->lock);
	return kv_secure_dial(&dial, socket, secure);
}
