#include "proto/codec_check.h"

#include "proto/codec.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static enum kv_status check_count(const char *field, size_t count, size_t limit)
{
	if (count <= limit) return KV_OK;
	return kv_fail(KV_PROTOCOL, "%s has %zu entries, at most %zu are allowed", field, count, limit);
}

static enum kv_status check_bytes(const char *field, const ProtobufCBinaryData *data, size_t limit)
{
	if (data->len <= limit) return KV_OK;
	return kv_fail(
	    KV_PROTOCOL, "%s has %zu bytes, at most %zu are allowed", field, data->len, limit);
}

/* Token ids: whole little-endian u32s. */
static enum kv_status check_tokens(const char *field, const ProtobufCBinaryData *data)
{
	KV_TRY(check_bytes(field, data, KV_CODEC_MAX_TOKEN_BYTES));
	if (data->len % sizeof(uint32_t) == 0) return KV_OK;
	return kv_fail(
	    KV_PROTOCOL, "%s has %zu bytes, which is no whole number of token ids", field, data->len);
}

/* Empty, or exactly `length` bytes. */
static enum kv_status check_digest(
    const char *field, const ProtobufCBinaryData *data, size_t length)
{
	if (data->len == 0 || data->len == length) return KV_OK;
	return kv_fail(
	    KV_PROTOCOL, "%s has %zu bytes, %zu (or none) are expected", field, data->len, length);
}

/* The length of the UTF-8 sequence at `text` (NUL terminated), 0 when it is none: overlong forms,
 * surrogates and values above U+10FFFF are none. */
static size_t utf8_length(const unsigned char *text, uint32_t *point)
{
	size_t length, i;
	uint32_t value, least;

	if (text[0] < 0x80) {
		*point = text[0];
		return 1;
	}
	if ((text[0] & 0xe0) == 0xc0) {
		length = 2, value = text[0] & 0x1fu, least = 0x80;
	} else if ((text[0] & 0xf0) == 0xe0) {
		length = 3, value = text[0] & 0x0fu, least = 0x800;
	} else if ((text[0] & 0xf8) == 0xf0) {
		length = 4, value = text[0] & 0x07u, least = 0x10000;
	} else {
		return 0;
	}
	for (i = 1; i < length; i++) {
		if ((text[i] & 0xc0) != 0x80) return 0;
		value = value << 6 | (text[i] & 0x3fu);
	}
	if (value < least || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return 0;
	*point = value;
	return length;
}

/* These texts end in logs and on terminals: no control characters, neither C0, DEL nor C1. */
static enum kv_status check_text(const char *field, const char *text, size_t limit)
{
	const unsigned char *at = (const unsigned char *)(text ? text : "");
	size_t length = strlen((const char *)at);
	uint32_t point = 0;

	if (length > limit) {
		return kv_fail(
		    KV_PROTOCOL, "%s has %zu bytes, at most %zu are allowed", field, length, limit);
	}
	while (*at) {
		size_t step = utf8_length(at, &point);

		if (step == 0) return kv_fail(KV_PROTOCOL, "%s is not valid UTF-8", field);
		if (point < 0x20 || (point >= 0x7f && point < 0xa0)) {
			return kv_fail(
			    KV_PROTOCOL, "%s holds the control character U+%04X", field, (unsigned)point);
		}
		at += step;
	}
	return KV_OK;
}

static enum kv_status check_sequence_id(const char *field, const char *text)
{
	return check_text(field, text, KVW_MAX_SEQUENCE_ID - 1);
}

static enum kv_status check_segment(const char *field, const Kv__Segment *segment)
{
	if (!segment) return kv_fail(KV_PROTOCOL, "%s holds an empty entry", field);
	if (segment->n_unit_region != segment->n_unit_offset) {
		return kv_fail(KV_PROTOCOL, "a segment of %s has %zu unit regions and %zu unit offsets",
		    field, segment->n_unit_region, segment->n_unit_offset);
	}
	if (segment->n_checksums && segment->n_checksums != segment->n_unit_region)
		return kv_fail(KV_PROTOCOL, "a segment of %s has %zu checksums for %zu units", field,
		    segment->n_checksums, segment->n_unit_region);
	return check_count("unit_region", segment->n_unit_region, KV_CODEC_MAX_UNITS);
}

static enum kv_status check_segments(const char *field, size_t count, Kv__Segment *const *segments)
{
	size_t i;

	KV_TRY(check_count(field, count, KV_CODEC_MAX_SEGMENTS));
	for (i = 0; i < count; i++)
		KV_TRY(check_segment(field, segments[i]));
	return KV_OK;
}

static enum kv_status check_hello_request(const Kv__HelloRequest *hello)
{
	KV_TRY(check_text("hello.client_name", hello->client_name, KV_CODEC_MAX_STRING));
	KV_TRY(check_text("hello.client_kind", hello->client_kind, KV_CODEC_MAX_STRING));
	KV_TRY(check_text("hello.model_name", hello->model_name, KV_CODEC_MAX_STRING));
	KV_TRY(check_text("hello.transport", hello->transport, KV_CODEC_MAX_STRING));
	KV_TRY(check_text("hello.build", hello->build, KV_CODEC_MAX_STRING));
	KV_TRY(check_digest("hello.model_id", &hello->model_id, KVW_MODEL_ID_BYTES));
	if (hello->layout &&
	    hello->layout->index_digest.len != sizeof((struct kvw_model_layout){0}).index_digest) {
		return kv_fail(KV_PROTOCOL, "hello.layout.index_digest has %zu bytes, 8 are expected",
		    hello->layout->index_digest.len);
	}
	if (hello->model_id.len > 0 && !hello->layout)
		return kv_fail(KV_PROTOCOL, "hello names a model and gives no layout of it");
	return KV_OK;
}

static enum kv_status check_open_request(const Kv__OpenRequest *open)
{
	size_t i;

	KV_TRY(check_sequence_id("open.sequence_id", open->sequence_id));
	KV_TRY(check_tokens("open.prompt", &open->prompt));
	KV_TRY(check_count("open.cuts", open->n_cuts, KV_CODEC_MAX_CUTS));
	for (i = 0; i < open->n_cuts; i++) {
		if (!open->cuts[i]) return kv_fail(KV_PROTOCOL, "open.cuts holds an empty entry");
	}
	KV_TRY(check_digest("open.policy_digest", &open->policy_digest, KV_CODEC_DIGEST_BYTES));
	return check_bytes("open.parameters", &open->parameters, KV_CODEC_MAX_PARAMETERS);
}

static enum kv_status check_reserve_request(const Kv__ReserveRequest *reserve)
{
	size_t i;

	KV_TRY(check_count("reserve.segments", reserve->n_segments, KV_CODEC_MAX_SEGMENTS));
	for (i = 0; i < reserve->n_segments; i++) {
		if (!reserve->segments[i])
			return kv_fail(KV_PROTOCOL, "reserve.segments holds an empty entry");
	}
	return KV_OK;
}

static enum kv_status check_commit_request(const Kv__CommitRequest *commit)
{
	KV_TRY(check_count("commit.segment_ids", commit->n_segment_ids, KV_CODEC_MAX_SEGMENTS));
	KV_TRY(check_count("commit.checksums", commit->n_checksums, KV_CODEC_MAX_CHECKSUMS));
	KV_TRY(check_tokens("commit.tokens", &commit->tokens));
	KV_TRY(check_count("commit.replaced_ids", commit->n_replaced_ids, KV_CODEC_MAX_SEGMENTS));
	if (commit->n_segment_ids == 0 ? commit->n_checksums != 0
	                               : commit->n_checksums % commit->n_segment_ids != 0) {
		return kv_fail(KV_PROTOCOL,
		    "commit has %zu checksums for %zu segments: one for each unit is expected",
		    commit->n_checksums, commit->n_segment_ids);
	}
	return KV_OK;
}

static enum kv_status check_push_request(const Kv__PushRequest *push)
{
	KV_TRY(check_tokens("push.tokens", &push->tokens));
	return check_bytes("push.sampler_state", &push->sampler_state, KV_CODEC_MAX_SAMPLER);
}

static enum kv_status check_counters_request(const Kv__CountersRequest *counters)
{
	size_t i;

	KV_TRY(check_count("counters.names", counters->n_names, KV_CODEC_MAX_COUNTERS));
	if (counters->n_names != counters->n_values) {
		return kv_fail(KV_PROTOCOL, "counters has %zu names and %zu values", counters->n_names,
		    counters->n_values);
	}
	for (i = 0; i < counters->n_names; i++) {
		KV_TRY(check_text("counters.names", counters->names[i], KV_CODEC_MAX_STRING));
		if (!isfinite(counters->values[i]))
			return kv_fail(KV_PROTOCOL, "counters holds a value that is no finite number");
	}
	return check_text("counters.lanes", counters->lanes, KV_CODEC_MAX_STRING);
}

static enum kv_status check_resume_request(const Kv__ResumeRequest *resume)
{
	KV_TRY(check_sequence_id("resume.sequence_id", resume->sequence_id));
	return check_digest("resume.policy_digest", &resume->policy_digest, KV_CODEC_DIGEST_BYTES);
}

static enum kv_status check_fetch_request(const Kv__FetchRequest *fetch)
{
	uint64_t total = 0;
	size_t i;

	KV_TRY(check_count("fetch.segment_ids", fetch->n_segment_ids, KV_CODEC_MAX_READS));
	if (fetch->n_layers != fetch->n_segment_ids || fetch->n_offsets != fetch->n_segment_ids ||
	    fetch->n_bytes != fetch->n_segment_ids)
		return kv_fail(KV_PROTOCOL, "fetch has %zu segments, %zu layers, %zu offsets and %zu sizes",
		    fetch->n_segment_ids, fetch->n_layers, fetch->n_offsets, fetch->n_bytes);
	for (i = 0; i < fetch->n_bytes; i++)
		total += fetch->bytes[i];
	if (total && total <= KV_CODEC_MAX_DATA) return KV_OK;
	return kv_fail(KV_PROTOCOL, "fetch asks for %llu bytes, 1 to %d are allowed",
	    (unsigned long long)total, KV_CODEC_MAX_DATA);
}

enum kv_status kv_codec_check_request(const Kv__Request *request)
{
	/* All alternatives of the union are pointers; one look is enough to see that it is set. */
	if (request->body_case != KV__REQUEST__BODY__NOT_SET && !request->hello)
		return kv_fail(
		    KV_PROTOCOL, "request %llu has an empty body", (unsigned long long)request->id);
	switch (request->body_case) {
	case KV__REQUEST__BODY_HELLO:
		return check_hello_request(request->hello);
	case KV__REQUEST__BODY_OPEN:
		return check_open_request(request->open);
	case KV__REQUEST__BODY_RESERVE:
		return check_reserve_request(request->reserve);
	case KV__REQUEST__BODY_COMMIT:
		return check_commit_request(request->commit);
	case KV__REQUEST__BODY_RESUME:
		return check_resume_request(request->resume);
	case KV__REQUEST__BODY_PUSH:
		return check_push_request(request->push);
	case KV__REQUEST__BODY_COUNTERS:
		return check_counters_request(request->counters);
	case KV__REQUEST__BODY_RELEASE:
		return check_count(
		    "release.segment_ids", request->release->n_segment_ids, KV_CODEC_MAX_SEGMENTS);
	case KV__REQUEST__BODY_HEARTBEAT:
		return check_count("heartbeat.let_go", request->heartbeat->n_let_go, KV_CODEC_MAX_LET_GO);
	case KV__REQUEST__BODY_PUT:
		return check_bytes("put.data", &request->put->data, KV_CODEC_MAX_DATA);
	case KV__REQUEST__BODY_FETCH:
		return check_fetch_request(request->fetch);
	case KV__REQUEST__BODY_LINE:
		return check_bytes("line.address", &request->line->address, KV_CODEC_MAX_ADDRESS);
	case KV__REQUEST__BODY_CLOSE:
		return KV_OK;
	case KV__REQUEST__BODY__NOT_SET:
	default:
		break;
	}
	return kv_fail(KV_PROTOCOL,
	    "request %llu asks for nothing that protocol version %d knows; versions differ?",
	    (unsigned long long)request->id, KV_PROTOCOL_VERSION);
}

static enum kv_status check_hello_response(const Kv__HelloResponse *hello)
{
	KV_TRY(check_text("hello.transport", hello->transport, KV_CODEC_MAX_STRING));
	KV_TRY(check_text("hello.build", hello->build, KV_CODEC_MAX_STRING));
	return check_bytes("hello.transport_address", &hello->transport_address, KV_CODEC_MAX_BLOB);
}

static enum kv_status check_open_response(const Kv__OpenResponse *open)
{
	KV_TRY(check_sequence_id("open.sequence_id", open->sequence_id));
	KV_TRY(check_segments("open.shared", open->n_shared, open->shared));
	KV_TRY(check_segments("open.pieces", open->n_pieces, open->pieces));
	if (open->n_piece_tokens == open->n_pieces) return KV_OK;
	return kv_fail(KV_PROTOCOL, "open has %zu pieces and %zu piece_tokens", open->n_pieces,
	    open->n_piece_tokens);
}

static enum kv_status check_resume_response(const Kv__ResumeResponse *resume)
{
	KV_TRY(check_tokens("resume.prompt", &resume->prompt));
	KV_TRY(check_tokens("resume.decoded", &resume->decoded));
	KV_TRY(check_bytes("resume.sampler_state", &resume->sampler_state, KV_CODEC_MAX_SAMPLER));
	KV_TRY(check_bytes("resume.parameters", &resume->parameters, KV_CODEC_MAX_PARAMETERS));
	return check_segments("resume.segments", resume->n_segments, resume->segments);
}

static enum kv_status check_regions(const Kv__Response *response)
{
	size_t i;

	KV_TRY(check_count("new_regions", response->n_new_regions, KV_CODEC_MAX_REGIONS));
	KV_TRY(check_count("gone_regions", response->n_gone_regions, KV_CODEC_MAX_GONE));
	for (i = 0; i < response->n_new_regions; i++) {
		const Kv__Region *region = response->new_regions[i];

		if (!region) return kv_fail(KV_PROTOCOL, "new_regions holds an empty entry");
		KV_TRY(check_bytes("descriptor_blob", &region->descriptor_blob, KV_CODEC_MAX_BLOB));
	}
	return KV_OK;
}

enum kv_status kv_codec_check_response(const Kv__Response *response)
{
	KV_TRY(check_text("message", response->message, KV_CODEC_MAX_MESSAGE_TEXT));
	KV_TRY(check_regions(response));
	if (response->body_case != KV__RESPONSE__BODY__NOT_SET && !response->hello)
		return kv_fail(
		    KV_PROTOCOL, "response %llu has an empty body", (unsigned long long)response->id);
	switch (response->body_case) {
	case KV__RESPONSE__BODY_HELLO:
		return check_hello_response(response->hello);
	case KV__RESPONSE__BODY_OPEN:
		return check_open_response(response->open);
	case KV__RESPONSE__BODY_RESERVE:
		return check_segments(
		    "reserve.segments", response->reserve->n_segments, response->reserve->segments);
	case KV__RESPONSE__BODY_RESUME:
		return check_resume_response(response->resume);
	case KV__RESPONSE__BODY_COMMIT:
		return check_segments(
		    "commit.segments", response->commit->n_segments, response->commit->segments);
	case KV__RESPONSE__BODY_FETCH:
		return check_bytes("fetch.data", &response->fetch->data, KV_CODEC_MAX_DATA);
	case KV__RESPONSE__BODY__NOT_SET:
		return KV_OK; /* most requests need no more than a status */
	default:
		return kv_fail(KV_PROTOCOL, "response %llu has a body of an unknown kind",
		    (unsigned long long)response->id);
	}
}
