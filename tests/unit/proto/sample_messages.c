#include "sample_messages.h"

#include <string.h>

static uint8_t bytes[64] = {1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0x80, 0, 9};
static uint32_t regions[2] = {0, 4000000000u};
static uint64_t offsets[2] = {64, UINT64_C(1) << 40};
static uint64_t ids[3] = {1, UINT64_MAX, 77};
static uint32_t checksums[6] = {0xdeadbeef, 0, 1, 2, 3, 0xffffffff};
static uint32_t piece_tokens[1] = {17};
static uint32_t sizes[2] = {4096, 0};
static double values[2] = {0.5, -1e300};
static char *names[2] = {"tokens", "cache hits"};

static ProtobufCBinaryData data(size_t length)
{
	ProtobufCBinaryData result = {length, bytes};

	return result;
}

static Kv__Segment *segment(void)
{
	static Kv__Segment result;

	kv__segment__init(&result);
	result.segment_id = 42;
	result.start = 4096;
	result.tokens = 4096;
	result.kind = KVW_CLUSTERED;
	result.provenance = KVW_APPROXIMATE;
	result.n_unit_region = 2;
	result.unit_region = regions;
	result.n_unit_offset = 2;
	result.unit_offset = offsets;
	return &result;
}

static Kv__HelloRequest *hello(void)
{
	static Kv__ModelLayout layout;
	static Kv__HelloRequest result;

	kv__model_layout__init(&layout);
	layout.layers = 30;
	layout.kv_heads = 3;
	layout.head_dim = 64;
	layout.sinks = 16;
	layout.index_digest = data(8);
	kv__hello_request__init(&result);
	result.protocol_version = KV_PROTOCOL_VERSION;
	result.client_name = "worker-1 \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
	result.client_kind = "gpu-worker";
	result.pid = 1234;
	result.model_id = data(32);
	result.model_name = "smollm2";
	result.layout = &layout;
	result.transport = "auto";
	result.staging_descriptor = 1;
	result.staging_bytes = 64 << 20;
	result.build = "0.1.0";
	result.process_id = UINT64_C(0xfedcba9876543210);
	return &result;
}

static Kv__OpenRequest *open(void)
{
	static Kv__Cut first, second, *cuts[2] = {&first, &second};
	static Kv__OpenRequest result;

	kv__cut__init(&first);
	kv__cut__init(&second);
	first.end = 2;
	second.end = 4;
	second.kind = KVW_PLAIN;
	kv__open_request__init(&result);
	result.sequence_id = "chat-1";
	result.prompt = data(16);
	result.n_cuts = 2;
	result.cuts = cuts;
	result.policy_digest = data(32);
	result.parameters = data(40);
	return &result;
}

static Kv__ReserveRequest *reserve(void)
{
	static Kv__NewSegment one, *list[1] = {&one};
	static Kv__ReserveRequest result;

	kv__new_segment__init(&one);
	one.start = 100;
	one.tokens = 320;
	kv__reserve_request__init(&result);
	result.sequence = 3;
	result.n_segments = 1;
	result.segments = list;
	return &result;
}

static Kv__CommitRequest *commit(void)
{
	static Kv__CommitRequest result;

	kv__commit_request__init(&result);
	result.sequence = 3;
	result.n_segment_ids = 3;
	result.segment_ids = ids;
	result.n_checksums = 6;
	result.checksums = checksums;
	result.tokens = data(12);
	result.n_replaced_ids = 1;
	result.replaced_ids = ids;
	return &result;
}

static void fill_small(Kv__Request *request)
{
	static Kv__PutRequest put;
	static Kv__ResumeRequest resume;
	static Kv__CloseRequest close;
	static Kv__HeartbeatRequest heartbeat;

	switch (request->body_case) {
	case KV__REQUEST__BODY_PUT:
		kv__put_request__init(&put);
		put.segment_id = 42;
		put.layer = 29;
		put.staging_offset = 4096;
		put.bytes = 123456;
		put.unit_offset = 1 << 20;
		put.data = data(50);
		request->put = &put;
		return;
	case KV__REQUEST__BODY_RESUME:
		kv__resume_request__init(&resume);
		resume.sequence_id = "chat-1";
		resume.policy_digest = data(32);
		request->resume = &resume;
		return;
	case KV__REQUEST__BODY_CLOSE:
		kv__close_request__init(&close);
		close.sequence = 3;
		close.keep = 1;
		request->close = &close;
		return;
	default:
		kv__heartbeat_request__init(&heartbeat);
		heartbeat.lease_epoch = 9;
		heartbeat.n_let_go = 3;
		heartbeat.let_go = ids;
		request->heartbeat = &heartbeat;
		return;
	}
}

static void fill_lists(Kv__Request *request)
{
	static Kv__PushRequest push;
	static Kv__CountersRequest counters;
	static Kv__ReleaseRequest release;
	static Kv__FetchRequest fetch;
	static Kv__LineRequest line;

	switch (request->body_case) {
	case KV__REQUEST__BODY_PUSH:
		kv__push_request__init(&push);
		push.sequence = 3;
		push.decoded_before = 5;
		push.tokens = data(8);
		push.sampler_state = data(33);
		request->push = &push;
		return;
	case KV__REQUEST__BODY_COUNTERS:
		kv__counters_request__init(&counters);
		counters.n_names = 2;
		counters.names = names;
		counters.n_values = 2;
		counters.values = values;
		counters.lanes = "posix rkey_ptr";
		request->counters = &counters;
		return;
	case KV__REQUEST__BODY_FETCH:
		kv__fetch_request__init(&fetch);
		fetch.n_segment_ids = fetch.n_layers = fetch.n_offsets = fetch.n_bytes = 2;
		fetch.segment_ids = ids;
		fetch.layers = regions;
		fetch.offsets = offsets;
		fetch.bytes = sizes;
		fetch.line_number = UINT64_C(1) << 63;
		request->fetch = &fetch;
		return;
	case KV__REQUEST__BODY_LINE:
		kv__line_request__init(&line);
		line.address = data(38);
		request->line = &line;
		return;
	default:
		kv__release_request__init(&release);
		release.sequence = 3;
		release.n_segment_ids = 3;
		release.segment_ids = ids;
		request->release = &release;
		return;
	}
}

Kv__Request *sample_request(int index)
{
	static Kv__Request request;

	kv__request__init(&request);
	request.id = 1000 + (uint64_t)index;
	request.body_case = (Kv__Request__BodyCase)(KV__REQUEST__BODY_HELLO + index);
	switch (request.body_case) {
	case KV__REQUEST__BODY_HELLO:
		request.hello = hello();
		break;
	case KV__REQUEST__BODY_OPEN:
		request.open = open();
		break;
	case KV__REQUEST__BODY_RESERVE:
		request.reserve = reserve();
		break;
	case KV__REQUEST__BODY_COMMIT:
		request.commit = commit();
		break;
	case KV__REQUEST__BODY_PUSH:
	case KV__REQUEST__BODY_COUNTERS:
	case KV__REQUEST__BODY_RELEASE:
	case KV__REQUEST__BODY_FETCH:
	case KV__REQUEST__BODY_LINE:
		fill_lists(&request);
		break;
	default:
		fill_small(&request);
		break;
	}
	return &request;
}

static void fill_response(Kv__Response *response, Kv__Segment **segments)
{
	static Kv__HelloResponse hello_response;
	static Kv__OpenResponse open_response;
	static Kv__ReserveResponse reserve_response;
	static Kv__ResumeResponse resume_response;
	static Kv__CommitResponse commit_response;
	static Kv__FetchResponse fetch_response;

	kv__hello_response__init(&hello_response);
	hello_response.boot_generation = UINT64_MAX;
	hello_response.transport = "ucx";
	hello_response.transport_address = data(60);
	hello_response.lease_ms = 3000;
	hello_response.has_control_page = 1;
	hello_response.build = "0.1.0";
	kv__open_response__init(&open_response);
	open_response.sequence = 3;
	open_response.sequence_id = "chosen";
	open_response.n_shared = 2;
	open_response.shared = segments;
	open_response.n_pieces = 1;
	open_response.pieces = segments;
	open_response.n_piece_tokens = 1;
	open_response.piece_tokens = piece_tokens;
	kv__reserve_response__init(&reserve_response);
	reserve_response.n_segments = 2;
	reserve_response.segments = segments;
	kv__resume_response__init(&resume_response);
	resume_response.sequence = 4;
	resume_response.prompt = data(20);
	resume_response.decoded = data(4);
	resume_response.sampler_state = data(10);
	resume_response.parameters = data(11);
	resume_response.n_segments = 1;
	resume_response.segments = segments;
	kv__commit_response__init(&commit_response);
	commit_response.n_segments = 2;
	commit_response.segments = segments;
	kv__fetch_response__init(&fetch_response);
	fetch_response.data = data(60);
	if (response->body_case == KV__RESPONSE__BODY_FETCH) response->fetch = &fetch_response;
	if (response->body_case == KV__RESPONSE__BODY_COMMIT) response->commit = &commit_response;
	if (response->body_case == KV__RESPONSE__BODY_HELLO) response->hello = &hello_response;
	if (response->body_case == KV__RESPONSE__BODY_OPEN) response->open = &open_response;
	if (response->body_case == KV__RESPONSE__BODY_RESERVE) response->reserve = &reserve_response;
	if (response->body_case == KV__RESPONSE__BODY_RESUME) response->resume = &resume_response;
}

Kv__Response *sample_response(int index)
{
	static const Kv__Response__BodyCase bodies[SAMPLE_RESPONSES] = {KV__RESPONSE__BODY__NOT_SET,
	    KV__RESPONSE__BODY_HELLO, KV__RESPONSE__BODY_OPEN, KV__RESPONSE__BODY_RESERVE,
	    KV__RESPONSE__BODY_RESUME, KV__RESPONSE__BODY_COMMIT, KV__RESPONSE__BODY_FETCH};
	static Kv__Response response;
	static Kv__Segment *segments[2];
	static Kv__Region region, *new_regions[1] = {&region};

	segments[0] = segments[1] = segment();
	kv__region__init(&region);
	region.index = 2;
	region.bytes = UINT64_C(1) << 30;
	region.descriptor_blob = data(50);
	region.has_descriptor = 1;
	kv__response__init(&response);
	response.id = 7;
	response.status = KV_LIMIT;
	response.never = 1;
	response.message = "the store is full: free 3 segments or raise --memory";
	response.n_new_regions = 1;
	response.new_regions = new_regions;
	response.n_gone_regions = 2;
	response.gone_regions = regions;
	response.draining = 1;
	response.body_case = bodies[index];
	fill_response(&response, segments);
	return &response;
}
