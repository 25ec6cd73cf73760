/* The store's end: slots go out in pieces, each a message of UCX. */
#include <string.h>

#include "kvstore/line/kvline.h"

/* What is being sent of a slot. It stays until UCX is done with every piece. */
struct job {
	struct kvline *line;
	uint32_t slot;
	uint32_t left; /* pieces */
	struct kv_line_header headers[KV_LINE_PIECES];
};

static struct job jobs[KV_LINE_SLOTS];
static struct kv_line_header opening; /* number 0 */
static ucp_ep_h endpoint;
static ucs_status_t lost;

static void note(ucs_status_t status)
{
	if (status != UCS_OK && lost == UCS_OK) lost = status;
}

static void on_error(void *argument, ucp_ep_h failed, ucs_status_t status)
{
	(void)argument;
	(void)failed;
	note(status);
}

static void piece_done(struct job *job)
{
	if (--job->left == 0) kvline_say(job->line, KV_LINE_SENT, job->slot, 0);
}

static void on_sent(void *request, ucs_status_t status, void *untyped)
{
	struct job *job = untyped;

	kv_ucx.ucp_request_free(request);
	note(status);
	if (job && status == UCS_OK) piece_done(job);
}

static void send_message(
    const struct kv_line_header *header, const void *data, size_t bytes, struct job *job)
{
	ucp_request_param_t parameters;
	ucs_status_ptr_t request;

	memset(&parameters, 0, sizeof parameters);
	parameters.op_attr_mask =
	    UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
	parameters.cb.send = on_sent;
	parameters.user_data = job;
	parameters.flags = UCP_AM_SEND_FLAG_EAGER;
	request = kv_ucx.ucp_am_send_nbx(
	    endpoint, KV_LINE_HANDLER, header, sizeof *header, data, bytes, &parameters);
	if (UCS_PTR_IS_ERR(request))
		note(UCS_PTR_STATUS(request));
	else if (!request && job)
		piece_done(job);
}

static enum kv_status connect_endpoint(struct kvline *line, const struct kv_line_message *message)
{
	ucp_ep_params_t parameters;
	ucs_status_t result;

	if (endpoint) return kv_fail(KV_PROTOCOL, "kvline was told twice to connect");
	memset(&parameters, 0, sizeof parameters);
	parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
	                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
	parameters.address = (const ucp_address_t *)(const void *)message->text;
	parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
	parameters.err_handler.cb = on_error;
	result = kv_ucx.ucp_ep_create(line->ucx.worker, &parameters, &endpoint);
	if (result != UCS_OK)
		return kv_fail(
		    KV_DISCONNECTED, "UCX cannot reach the worker: %s", kv_ucx.ucs_status_string(result));
	send_message(&opening, NULL, 0, NULL);
	return KV_OK;
}

static enum kv_status send_slot(struct kvline *line, const struct kv_line_message *message)
{
	struct job *job = &jobs[message->slot];
	const uint32_t pieces = kvline_pieces(message->bytes);

	if (!endpoint || job->left || !message->number || !pieces ||
	    message->bytes > KV_LINE_SLOT_BYTES)
		return kv_fail(KV_PROTOCOL, "kvline was told to send what it cannot");
	job->line = line;
	job->slot = message->slot;
	job->left = pieces;
	for (uint32_t i = 0; i < pieces; i++) {
		const uint32_t offset = i * KV_LINE_PIECE;

		job->headers[i] = (struct kv_line_header){message->number, offset};
		send_message(&job->headers[i], kvline_slot(line, message->slot) + offset,
		    kvline_piece_bytes(message->bytes, offset), job);
	}
	return KV_OK;
}

enum kv_status kvline_sender_told(struct kvline *line, const struct kv_line_message *message)
{
	if (message->kind == KV_LINE_CONNECT) return connect_endpoint(line, message);
	if (message->kind == KV_LINE_SEND) return send_slot(line, message);
	return kv_fail(KV_PROTOCOL, "kvline was told something unknown");
}

enum kv_status kvline_sender_check(void)
{
	if (lost == UCS_OK) return KV_OK;
	return kv_fail(KV_DISCONNECTED, "UCX lost the worker: %s", kv_ucx.ucs_status_string(lost));
}
