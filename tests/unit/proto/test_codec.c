/* Control messages: round trips, every limit, and bytes that nobody sane sent. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/random.h"
#include "sample_messages.h"

enum { MUTATIONS = 4000, MOST_MEMORY = 52 << 20 };

static struct kv_allocator *heap;

static int open_heap(void **state)
{
	(void)state;
	heap = kv_allocator_create("codec", 0);
	return heap ? 0 : -1;
}

static int close_heap(void **state)
{
	uint64_t blocks = kv_allocator_stats(heap).blocks;

	(void)state;
	kv_allocator_destroy(heap);
	return blocks == 0 ? 0 : -1;
}

static void pack_request(const Kv__Request *request, uint8_t **bytes, size_t *length)
{
	assert_int_equal(kv_codec_request_pack(heap, request, bytes, length), KV_OK);
}

static void pack_response(const Kv__Response *response, uint8_t **bytes, size_t *length)
{
	assert_int_equal(kv_codec_response_pack(heap, response, bytes, length), KV_OK);
}

/* Packed without the codec's checks, as a hostile peer would. */
static uint8_t *pack_unchecked(const ProtobufCMessage *message, size_t *length)
{
	uint8_t *bytes = malloc(protobuf_c_message_get_packed_size(message) + 1);

	assert_non_null(bytes);
	*length = protobuf_c_message_pack(message, bytes);
	return bytes;
}

/* Packing refuses it, and so does unpacking what another implementation packed. */
static void refuse_request(const Kv__Request *request, const char *word)
{
	uint8_t *bytes = NULL, *raw;
	Kv__Request *unpacked = NULL;
	size_t length = 0;

	assert_int_equal(kv_codec_request_pack(heap, request, &bytes, &length), KV_PROTOCOL);
	assert_null(bytes);
	raw = pack_unchecked(&request->base, &length);
	assert_int_equal(kv_codec_request_unpack(heap, raw, length, &unpacked), KV_PROTOCOL);
	assert_null(unpacked);
	if (!strstr(kv_error_message(), word)) fail_msg("\"%s\" lacks %s", kv_error_message(), word);
	free(raw);
}

static void refuse_response(const Kv__Response *response, const char *word)
{
	uint8_t *bytes = NULL, *raw;
	Kv__Response *unpacked = NULL;
	size_t length = 0;

	assert_int_equal(kv_codec_response_pack(heap, response, &bytes, &length), KV_PROTOCOL);
	assert_null(bytes);
	raw = pack_unchecked(&response->base, &length);
	assert_int_equal(kv_codec_response_unpack(heap, raw, length, &unpacked), KV_PROTOCOL);
	assert_null(unpacked);
	if (!strstr(kv_error_message(), word)) fail_msg("\"%s\" lacks %s", kv_error_message(), word);
	free(raw);
}

static void accept_request(const Kv__Request *request)
{
	Kv__Request *unpacked = NULL;
	uint8_t *bytes = NULL;
	size_t length = 0;

	pack_request(request, &bytes, &length);
	assert_int_equal(kv_codec_request_unpack(heap, bytes, length, &unpacked), KV_OK);
	kv_codec_request_free(heap, unpacked);
	kv_free(heap, bytes);
}

static void test_requests_round_trip(void **state)
{
	int i;

	(void)state;
	for (i = 0; i < SAMPLE_REQUESTS; i++) {
		uint8_t *bytes = NULL, *again = NULL;
		size_t length = 0, again_length = 0;
		Kv__Request *request = NULL;

		pack_request(sample_request(i), &bytes, &length);
		assert_int_equal(kv_codec_request_unpack(heap, bytes, length, &request), KV_OK);
		assert_int_equal(request->id, 1000 + i);
		assert_int_equal((int)request->body_case, (int)KV__REQUEST__BODY_HELLO + i);
		pack_request(request, &again, &again_length);
		assert_int_equal(again_length, length);
		assert_memory_equal(again, bytes, length);
		kv_codec_request_free(heap, request);
		kv_free(heap, bytes);
		kv_free(heap, again);
	}
}

static void test_responses_round_trip(void **state)
{
	int i;

	(void)state;
	for (i = 0; i < SAMPLE_RESPONSES; i++) {
		uint8_t *bytes = NULL, *again = NULL;
		size_t length = 0, again_length = 0;
		Kv__Response *response = NULL;

		pack_response(sample_response(i), &bytes, &length);
		assert_int_equal(kv_codec_response_unpack(heap, bytes, length, &response), KV_OK);
		assert_int_equal(response->status, KV_LIMIT);
		assert_int_equal(response->new_regions[0]->bytes, UINT64_C(1) << 30);
		pack_response(response, &again, &again_length);
		assert_int_equal(again_length, length);
		assert_memory_equal(again, bytes, length);
		kv_codec_response_free(heap, response);
		kv_free(heap, bytes);
		kv_free(heap, again);
	}
}

static void test_values_survive(void **state)
{
	Kv__Request *request = NULL;
	uint8_t *bytes = NULL;
	size_t length = 0;

	(void)state;
	pack_request(sample_request(4), &bytes, &length);
	assert_int_equal(kv_codec_request_unpack(heap, bytes, length, &request), KV_OK);
	assert_int_equal(request->commit->n_segment_ids, 3);
	assert_true(request->commit->segment_ids[1] == UINT64_MAX);
	assert_int_equal(request->commit->n_checksums, 6);
	assert_int_equal(request->commit->checksums[0], 0xdeadbeef);
	assert_int_equal(request->commit->tokens.len, 12);
	assert_int_equal(request->commit->tokens.data[8], 0xff);
	kv_codec_request_free(heap, request);
	kv_codec_request_free(heap, NULL);
	kv_codec_response_free(heap, NULL);
	kv_free(heap, bytes);
}

static void test_layout(void **state)
{
	struct kvw_model_layout layout = {30, 3, 64, KVW_KV_F16, 2, 16, 80, {1, 2, 3, 4, 5, 6, 7, 8}};
	struct kvw_model_layout back = {0};
	Kv__ModelLayout wire;

	(void)state;
	kv__model_layout__init(&wire);
	kv_codec_layout_to_wire(&layout, &wire);
	assert_int_equal(kv_codec_layout_from_wire(&wire, &back), KV_OK);
	assert_memory_equal(&back, &layout, sizeof layout);
	assert_int_equal(kv_codec_layout_from_wire(NULL, &back), KV_PROTOCOL);
	wire.index_digest.len = 7;
	assert_int_equal(kv_codec_layout_from_wire(&wire, &back), KV_PROTOCOL);
	assert_memory_equal(&back, &layout, sizeof layout);
}

static void test_requests_need_a_body(void **state)
{
	static const uint8_t unknown_body[] = {0x08, 1, 0x82, 0x06, 0}; /* field 96, empty */
	Kv__Request request, *unpacked = NULL;

	(void)state;
	kv__request__init(&request);
	request.id = 5;
	refuse_request(&request, "request 5");
	assert_int_equal(
	    kv_codec_request_unpack(heap, unknown_body, sizeof unknown_body, &unpacked), KV_PROTOCOL);
	assert_int_equal(kv_codec_request_unpack(heap, unknown_body, 0, &unpacked), KV_PROTOCOL);
	assert_null(unpacked);
}

static void test_text_limits(void **state)
{
	static const char *const bad[] = {"tab\t", "new\nline", "\x1b[31m", "\x7f", "\xc2\x80", "\xff",
	    "cut \xe2\x82", "overlong \xc0\xaf", "\xe0\x80\xaf", "surrogate \xed\xa0\x80",
	    "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\x80"};
	char text[KV_CODEC_MAX_STRING + 2];
	Kv__Request *request;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		request = sample_request(0);
		request->hello->client_name = (char *)(uintptr_t)bad[i];
		refuse_request(request, "hello.client_name");
	}
	memset(text, 'a', sizeof text);
	text[KV_CODEC_MAX_STRING] = '\0';
	request = sample_request(0);
	request->hello->build = text;
	accept_request(request);
	text[KV_CODEC_MAX_STRING] = 'a';
	text[KV_CODEC_MAX_STRING + 1] = '\0';
	refuse_request(request, "hello.build");
	text[KVW_MAX_SEQUENCE_ID - 1] = '\0';
	request = sample_request(1);
	request->open->sequence_id = text;
	accept_request(request);
	text[KVW_MAX_SEQUENCE_ID - 1] = 'a';
	text[KVW_MAX_SEQUENCE_ID] = '\0';
	refuse_request(request, "open.sequence_id");
	request = sample_request(5);
	request->resume->sequence_id = text;
	refuse_request(request, "resume.sequence_id");
}

static void test_byte_limits(void **state)
{
	uint8_t *large = calloc(1, KV_CODEC_MAX_TOKEN_BYTES + 8);
	Kv__Request *request = sample_request(1);

	(void)state;
	assert_non_null(large);
	request->open->prompt.data = large;
	request->open->prompt.len = KV_CODEC_MAX_TOKEN_BYTES;
	accept_request(request);
	request->open->prompt.len += 4;
	refuse_request(request, "open.prompt");
	request->open->prompt.len = 5;
	refuse_request(request, "open.prompt");
	request = sample_request(1);
	request->open->parameters.data = large;
	request->open->parameters.len = KV_CODEC_MAX_PARAMETERS;
	accept_request(request);
	request->open->parameters.len++;
	refuse_request(request, "open.parameters");
	request = sample_request(1);
	request->open->policy_digest.len = 31;
	refuse_request(request, "open.policy_digest");
	request = sample_request(8);
	request->push->sampler_state.data = large;
	request->push->sampler_state.len = KV_CODEC_MAX_SAMPLER + 1;
	refuse_request(request, "push.sampler_state");
	request = sample_request(0);
	request->hello->model_id.len = 31;
	refuse_request(request, "hello.model_id");
	request = sample_request(0);
	request->hello->layout->index_digest.len = 9;
	refuse_request(request, "index_digest");
	request = sample_request(0);
	request->hello->layout = NULL;
	refuse_request(request, "layout");
	request->hello->model_id.len = 0; /* kvctl */
	accept_request(request);
	free(large);
}

static void test_count_limits(void **state)
{
	enum { MOST = KV_CODEC_MAX_CHECKSUMS + KV_CODEC_MAX_SEGMENTS };
	uint64_t *many_ids = calloc(MOST, sizeof *many_ids);
	uint32_t *many = calloc(MOST, sizeof *many);
	Kv__Cut cut = KV__CUT__INIT, **cuts = calloc(KV_CODEC_MAX_CUTS + 1, sizeof *cuts);
	Kv__Request *request = sample_request(1);
	size_t i;

	(void)state;
	assert_true(many_ids && many && cuts);
	for (i = 0; i <= KV_CODEC_MAX_CUTS; i++)
		cuts[i] = &cut;
	request->open->cuts = cuts;
	request->open->n_cuts = KV_CODEC_MAX_CUTS;
	accept_request(request);
	request->open->n_cuts++;
	refuse_request(request, "open.cuts");
	request = sample_request(4);
	request->commit->segment_ids = many_ids;
	request->commit->checksums = many;
	request->commit->n_segment_ids = KV_CODEC_MAX_SEGMENTS;
	request->commit->n_checksums = KV_CODEC_MAX_SEGMENTS * 64;
	accept_request(request);
	request->commit->n_checksums += KV_CODEC_MAX_SEGMENTS;
	refuse_request(request, "commit.checksums");
	request->commit->n_checksums = 1;
	refuse_request(request, "checksums for");
	request->commit->n_segment_ids = 0;
	refuse_request(request, "checksums for");
	request->commit->n_segment_ids = KV_CODEC_MAX_SEGMENTS + 1;
	refuse_request(request, "commit.segment_ids");
	request = sample_request(10);
	request->release->segment_ids = many_ids;
	request->release->n_segment_ids = KV_CODEC_MAX_SEGMENTS + 1;
	refuse_request(request, "release.segment_ids");
	free(many_ids);
	free(many);
	free(cuts);
}

static void test_counters(void **state)
{
	char *names[KV_CODEC_MAX_COUNTERS + 1];
	double values[KV_CODEC_MAX_COUNTERS + 1] = {0};
	Kv__Request *request = sample_request(9);
	size_t i;

	(void)state;
	for (i = 0; i <= KV_CODEC_MAX_COUNTERS; i++)
		names[i] = "n";
	request->counters->names = names;
	request->counters->values = values;
	request->counters->n_names = request->counters->n_values = KV_CODEC_MAX_COUNTERS;
	accept_request(request);
	request->counters->n_names = request->counters->n_values = KV_CODEC_MAX_COUNTERS + 1;
	refuse_request(request, "counters.names");
	request->counters->n_names = request->counters->n_values = 1;
	request->counters->lanes = "bell\a";
	refuse_request(request, "counters.lanes");
	request->counters->lanes = "posix";
	request->counters->n_names = 2;
	request->counters->n_values = 1;
	refuse_request(request, "2 names and 1 values");
	request->counters->n_values = 2;
	values[1] = (double)INFINITY;
	refuse_request(request, "finite");
	values[1] = (double)NAN;
	refuse_request(request, "finite");
}

static void test_response_limits(void **state)
{
	uint32_t regions[KV_CODEC_MAX_UNITS + 1] = {0};
	uint64_t offsets[KV_CODEC_MAX_UNITS + 1] = {0};
	Kv__Region region = KV__REGION__INIT, *list[KV_CODEC_MAX_REGIONS + 1];
	static uint8_t blob[KV_CODEC_MAX_BLOB + 1];
	static uint32_t gone[KV_CODEC_MAX_GONE + 1];
	Kv__Response *response = sample_response(3);
	Kv__Segment *segment = response->reserve->segments[0];
	size_t i;

	(void)state;
	segment->unit_region = regions;
	segment->unit_offset = offsets;
	segment->n_unit_region = segment->n_unit_offset = KV_CODEC_MAX_UNITS + 1;
	refuse_response(response, "unit_region");
	segment->n_unit_offset = 3;
	segment->n_unit_region = 4;
	refuse_response(response, "4 unit regions and 3");
	response = sample_response(2);
	response->open->n_piece_tokens = 0;
	refuse_response(response, "piece_tokens");
	response = sample_response(1);
	response->hello->transport_address.data = blob;
	response->hello->transport_address.len = sizeof blob;
	refuse_response(response, "transport_address");
	response = sample_response(0);
	for (i = 0; i <= KV_CODEC_MAX_REGIONS; i++)
		list[i] = &region;
	response->new_regions = list;
	response->n_new_regions = KV_CODEC_MAX_REGIONS + 1;
	refuse_response(response, "new_regions");
	response->n_new_regions = 1;
	region.descriptor_blob.data = blob;
	region.descriptor_blob.len = sizeof blob;
	refuse_response(response, "descriptor_blob");
	response = sample_response(0);
	response->gone_regions = gone;
	response->n_gone_regions = KV_CODEC_MAX_GONE + 1;
	refuse_response(response, "gone_regions");
	response = sample_response(5);
	response->commit->n_segments = 1;
	segment = response->commit->segments[0];
	segment->n_unit_offset = 0;
	refuse_response(response, "commit.segments");
	response = sample_response(0);
	response->message = "two\nlines";
	refuse_response(response, "message");
}

/* Whatever unpack says of these bytes, it neither leaks nor takes much memory. */
static void judge(const uint8_t *bytes, size_t length)
{
	struct kv_allocator_stats before = kv_allocator_stats(heap), after;
	/* An exact copy, so that a sanitizer sees a read past the end. */
	uint8_t *copy = malloc(length ? length : 1);
	Kv__Response *response = NULL;
	Kv__Request *request = NULL;
	enum kv_status status;

	assert_non_null(copy);
	memcpy(copy, bytes, length);
	status = kv_codec_request_unpack(heap, copy, length, &request);
	assert_true(status == KV_OK || status == KV_PROTOCOL);
	kv_codec_request_free(heap, request);
	status = kv_codec_response_unpack(heap, copy, length, &response);
	assert_true(status == KV_OK || status == KV_PROTOCOL);
	kv_codec_response_free(heap, response);
	free(copy);
	after = kv_allocator_stats(heap);
	assert_int_equal(after.blocks, before.blocks);
	assert_true(after.peak_bytes < MOST_MEMORY);
}

static void pack_sample(int index, uint8_t **bytes, size_t *length)
{
	if (index < SAMPLE_REQUESTS)
		pack_request(sample_request(index), bytes, length);
	else
		pack_response(sample_response(index - SAMPLE_REQUESTS), bytes, length);
}

static void test_truncated(void **state)
{
	size_t length = 0, cut;
	uint8_t *bytes = NULL;
	int i;

	(void)state;
	for (i = 0; i < SAMPLE_REQUESTS + SAMPLE_RESPONSES; i++) {
		pack_sample(i, &bytes, &length);
		for (cut = 0; cut < length; cut++)
			judge(bytes, cut);
		kv_free(heap, bytes);
	}
}

static void test_mutated(void **state)
{
	struct kv_random random;
	size_t length = 0;
	uint8_t *bytes = NULL, work[1024];
	int i, turn;

	(void)state;
	kv_random_seed(&random, 11);
	for (i = 0; i < SAMPLE_REQUESTS + SAMPLE_RESPONSES; i++) {
		pack_sample(i, &bytes, &length);
		assert_true(length <= sizeof work);
		for (turn = 0; turn < MUTATIONS; turn++) {
			uint64_t changes = 1 + kv_random_below(&random, 4);

			memcpy(work, bytes, length);
			while (changes-- > 0)
				work[kv_random_below(&random, length)] = (uint8_t)kv_random_next(&random);
			judge(work, length);
		}
		kv_free(heap, bytes);
	}
}

/* `count` bytes inside nested fields `outer`, `inner` (tag bytes; 0: none). */
static uint8_t *wrap(
    const uint8_t *unit, size_t unit_length, size_t count, uint8_t outer, size_t *length)
{
	size_t content = unit_length * count, at = 0, i, left;
	uint8_t *bytes = malloc(content + 16);

	assert_non_null(bytes);
	if (outer) {
		bytes[at++] = outer;
		for (left = content; left >= 0x80; left >>= 7)
			bytes[at++] = (uint8_t)(left | 0x80);
		bytes[at++] = (uint8_t)left;
	}
	for (i = 0; i < count; i++, at += unit_length)
		memcpy(bytes + at, unit, unit_length);
	*length = at;
	return bytes;
}

/* Few bytes that unpack to many: cut off by the budget, with a sentence. */
static void test_expanding_messages(void **state)
{
	static const uint8_t empty_region[] = {0x22, 0}, empty_cut[] = {0x1a, 0}, unknown[] = {0x78, 1},
	                     one_id[] = {0x10, 1};
	struct {
		const uint8_t *unit;
		size_t unit_length;
		uint8_t outer;
	} cases[] = {{empty_region, 2, 0}, {empty_cut, 2, 0x1a}, {unknown, 2, 0}, {one_id, 2, 0x32},
	    {unknown, 2, 0x1a}};
	size_t length = 0, i;
	uint8_t *bytes;

	(void)state;
	for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		bytes = wrap(cases[i].unit, cases[i].unit_length, (KV_CODEC_MAX_MESSAGE - 16) / 2,
		    cases[i].outer, &length);
		judge(bytes, length);
		free(bytes);
	}
}

static void test_too_long(void **state)
{
	static uint8_t bytes[KV_CODEC_MAX_MESSAGE + 1];
	Kv__Request *request = NULL;
	uint64_t before = kv_allocator_stats(heap).allocations;

	(void)state;
	assert_int_equal(kv_codec_request_unpack(heap, bytes, sizeof bytes, &request), KV_PROTOCOL);
	assert_int_equal(kv_allocator_stats(heap).allocations, before);
	assert_null(request);
}

static void test_allocation_failures(void **state)
{
	int i;

	(void)state;
	for (i = 0; i < SAMPLE_REQUESTS + SAMPLE_RESPONSES; i++) {
		uint8_t *bytes = NULL, *unused = NULL;
		size_t length = 0;
		uint64_t n;

		kv_allocator_fail_at(heap, 1);
		assert_int_equal(
		    kv_codec_request_pack(heap, sample_request(0), &unused, &length), KV_NO_MEMORY);
		pack_sample(i, &bytes, &length);
		for (n = 1;; n++) {
			Kv__Request *request = NULL;
			Kv__Response *response = NULL;
			enum kv_status status;

			kv_allocator_fail_at(heap, n);
			status = i < SAMPLE_REQUESTS ? kv_codec_request_unpack(heap, bytes, length, &request)
			                             : kv_codec_response_unpack(heap, bytes, length, &response);
			kv_codec_request_free(heap, request);
			kv_codec_response_free(heap, response);
			assert_int_equal(kv_allocator_stats(heap).blocks, 1);
			if (status == KV_OK) break;
			assert_int_equal(status, KV_NO_MEMORY);
		}
		kv_allocator_fail_at(heap, 0);
		assert_true(n > 1);
		kv_free(heap, bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_requests_round_trip),
	    cmocka_unit_test(test_responses_round_trip),
	    cmocka_unit_test(test_values_survive),
	    cmocka_unit_test(test_layout),
	    cmocka_unit_test(test_requests_need_a_body),
	    cmocka_unit_test(test_text_limits),
	    cmocka_unit_test(test_byte_limits),
	    cmocka_unit_test(test_count_limits),
	    cmocka_unit_test(test_counters),
	    cmocka_unit_test(test_response_limits),
	    cmocka_unit_test(test_truncated),
	    cmocka_unit_test(test_mutated),
	    cmocka_unit_test(test_expanding_messages),
	    cmocka_unit_test(test_too_long),
	    cmocka_unit_test(test_allocation_failures),
	};

	return cmocka_run_group_tests(tests, open_heap, close_heap);
}
