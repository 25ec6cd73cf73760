/* The worker's end of a line, told by this test what UCX would hand it: whoever is on the trusted
 * network can send that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kvstore/line/kvline.h"

enum { SLOT = 2, NUMBER = 77, BYTES = 2 * KV_LINE_PIECE + 100 };

static uint8_t memory[KV_LINE_SLOTS * KV_LINE_SLOT_BYTES], data[BYTES];
static struct kvline line = {.memory = memory, .receives = true};
static ucp_am_recv_callback_t receive;
static unsigned linked, arrived;

/* ---- what receiver.c calls ---- */

void kvline_say(struct kvline *said_by, enum kv_line_kind kind, uint32_t slot, uint64_t number)
{
	assert_ptr_equal(said_by, &line);
	linked += kind == KV_LINE_LINKED;
	if (kind != KV_LINE_ARRIVED) return;
	arrived++;
	assert_int_equal(slot, SLOT);
	assert_int_equal(number, NUMBER);
}

void kvline_say_text(
    struct kvline *said_by, enum kv_line_kind kind, const void *text, size_t length)
{
	(void)said_by;
	(void)text;
	assert_int_equal(kind, KV_LINE_READY);
	assert_int_equal(length, 1);
}

enum kv_status kvline_hear(struct kvline *heard_by)
{
	(void)heard_by;
	return KV_OK;
}

static ucs_status_t set_handler(ucp_worker_h worker, const ucp_am_handler_param_t *parameters)
{
	(void)worker;
	receive = parameters->cb;
	return UCS_OK;
}

static ucs_status_t get_address(ucp_worker_h worker, ucp_address_t **address, size_t *length)
{
	static uint8_t one;

	(void)worker;
	*address = (ucp_address_t *)(void *)&one;
	*length = 1;
	return UCS_OK;
}

static void release_address(ucp_worker_h worker, ucp_address_t *address)
{
	(void)worker;
	(void)address;
}

/* ---- tests ---- */

static void send_piece(uint64_t number, uint64_t offset, size_t bytes)
{
	const struct kv_line_header header = {number, offset};
	const ucp_am_recv_param_t parameters = {0};
	const uint8_t *from = offset < BYTES ? data + offset : data;

	assert_int_equal(receive(&line, &header, sizeof header, (void *)(uintptr_t)from, bytes,
	                     &parameters),
	    UCS_OK);
}

static void tell(uint32_t kind, uint32_t bytes)
{
	const struct kv_line_message message = {
	    .kind = kind, .slot = SLOT, .number = NUMBER, .bytes = bytes};

	assert_int_equal(kvline_receiver_told(&line, &message), KV_OK);
}

static void pieces_in_any_order_arrive_once(void **state)
{
	(void)state;
	tell(KV_LINE_EXPECT, BYTES);
	send_piece(NUMBER, 2 * KV_LINE_PIECE, 100);
	send_piece(NUMBER, 0, KV_LINE_PIECE);
	send_piece(NUMBER, 0, KV_LINE_PIECE);
	assert_int_equal(arrived, 0);
	send_piece(NUMBER, KV_LINE_PIECE, KV_LINE_PIECE);
	assert_int_equal(arrived, 1);
	assert_memory_equal(memory + SLOT * KV_LINE_SLOT_BYTES, data, BYTES);
	send_piece(NUMBER, KV_LINE_PIECE, KV_LINE_PIECE);
	assert_int_equal(arrived, 1);
}

/* Nothing of this is written anywhere, and what is missing stays missing. */
static void nonsense_is_dropped(void **state)
{
	static const struct {
		uint64_t number, offset;
		size_t bytes;
	} wrong[] = {{NUMBER + 1, 0, KV_LINE_PIECE}, {NUMBER, 1, KV_LINE_PIECE},
	    {NUMBER, 0, KV_LINE_PIECE - 1}, {NUMBER, 0, KV_LINE_PIECE + 1}, {NUMBER, 0, 0},
	    {NUMBER, 2 * KV_LINE_PIECE, KV_LINE_PIECE}, {NUMBER, 3 * KV_LINE_PIECE, 100},
	    {NUMBER, UINT64_C(1) << 40, 100}, {NUMBER, UINT64_MAX - KV_LINE_PIECE + 1, KV_LINE_PIECE}};
	static const uint8_t nothing[KV_LINE_SLOT_BYTES];

	(void)state;
	memset(memory, 0, sizeof memory);
	tell(KV_LINE_EXPECT, BYTES);
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		send_piece(wrong[i].number, wrong[i].offset, wrong[i].bytes);
	for (uint32_t slot = 0; slot < KV_LINE_SLOTS; slot++)
		assert_memory_equal(memory + slot * KV_LINE_SLOT_BYTES, nothing, sizeof nothing);
	tell(KV_LINE_FORGET, 0);
	send_piece(NUMBER, 0, KV_LINE_PIECE);
	assert_memory_equal(memory + SLOT * KV_LINE_SLOT_BYTES, nothing, sizeof nothing);
	assert_int_equal(arrived, 1);
}

/* Else a flood of them keeps the program, which waits for other news, beyond its deadline. */
static void the_way_is_told_to_be_open_once(void **state)
{
	(void)state;
	for (int i = 0; i < 100; i++)
		send_piece(0, 0, 0);
	assert_int_equal(linked, 1);
}

static int start(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)(1 + i % 251);
	kv_ucx.ucp_worker_set_am_recv_handler = set_handler;
	kv_ucx.ucp_worker_get_address = get_address;
	kv_ucx.ucp_worker_release_address = release_address;
	return kvline_receiver_start(&line) == KV_OK ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(pieces_in_any_order_arrive_once),
	    cmocka_unit_test(nonsense_is_dropped),
	    cmocka_unit_test(the_way_is_told_to_be_open_once),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
