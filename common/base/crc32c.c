#include "common/base/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_INSTRUCTION 1
#include <nmmintrin.h>
#endif

#define POLYNOMIAL UINT32_C(0x82f63b78)

enum { STREAM_BYTES = 4096 }; /* of each of the three interleaved streams */

static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static bool instruction_there;
/* byte_table[k][b]: what byte b does to the register when k zero bytes follow it. */
static uint32_t byte_table[8][256];
/* shift_table[k][b]: the register's byte k with value b, after STREAM_BYTES zero bytes. */
static uint32_t shift_table[4][256];

/* The register after one zero byte, with byte_table[0] ready. */
static uint32_t step_zero(uint32_t value)
{
	return (value >> 8) ^ byte_table[0][value & 0xff];
}

static void prepare(void)
{
	uint32_t bits[32];

	for (uint32_t b = 0; b < 256; b++) {
		uint32_t value = b;

		for (int i = 0; i < 8; i++)
			value = value & 1 ? (value >> 1) ^ POLYNOMIAL : value >> 1;
		byte_table[0][b] = value;
	}
	for (int k = 1; k < 8; k++) {
		for (uint32_t b = 0; b < 256; b++)
			byte_table[k][b] = step_zero(byte_table[k - 1][b]);
	}
	for (int i = 0; i < 32; i++) {
		bits[i] = UINT32_C(1) << i;
		for (int n = 0; n < STREAM_BYTES; n++)
			bits[i] = step_zero(bits[i]);
	}
	/* The register is linear in its bits, so a byte's effect is the sum of its bits'. */
	for (int k = 0; k < 4; k++) {
		for (uint32_t b = 0; b < 256; b++) {
			uint32_t value = 0;

			for (int i = 0; i < 8; i++)
				if (b & (UINT32_C(1) << i)) value ^= bits[8 * k + i];
			shift_table[k][b] = value;
		}
	}
#ifdef HAVE_INSTRUCTION
	instruction_there = __builtin_cpu_supports("sse4.2") != 0;
#endif
}

static uint32_t run_tables(uint32_t value, const uint8_t *bytes, size_t size)
{
	for (; size >= 8; size -= 8, bytes += 8) {
		uint32_t low = value ^ ((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 |
		                           (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);

		value = byte_table[7][low & 0xff] ^ byte_table[6][(low >> 8) & 0xff] ^
		        byte_table[5][(low >> 16) & 0xff] ^ byte_table[4][low >> 24] ^
		        byte_table[3][bytes[4]] ^ byte_table[2][bytes[5]] ^ byte_table[1][bytes[6]] ^
		        byte_table[0][bytes[7]];
	}
	for (; size; size--, bytes++)
		value = (value >> 8) ^ byte_table[0][(value ^ *bytes) & 0xff];
	return value;
}

#ifdef HAVE_INSTRUCTION

static uint32_t shift_stream(uint32_t value)
{
	return shift_table[0][value & 0xff] ^ shift_table[1][(value >> 8) & 0xff] ^
	       shift_table[2][(value >> 16) & 0xff] ^ shift_table[3][value >> 24];
}

static uint64_t load64(const uint8_t *bytes)
{
	uint64_t value;

	memcpy(&value, bytes, sizeof value);
	return value;
}

/* One instruction takes three cycles but one can start each cycle: three streams hide the wait. */
__attribute__((target("sse4.2"))) static uint32_t run_instruction(
    uint32_t value, const uint8_t *bytes, size_t size)
{
	uint64_t first = value;

	for (; size >= 3 * (size_t)STREAM_BYTES; size -= 3 * (size_t)STREAM_BYTES) {
		uint64_t second = 0;
		uint64_t third = 0;

		for (size_t i = 0; i < STREAM_BYTES; i += 8) {
			first = _mm_crc32_u64(first, load64(bytes + i));
			second = _mm_crc32_u64(second, load64(bytes + STREAM_BYTES + i));
			third = _mm_crc32_u64(third, load64(bytes + 2 * STREAM_BYTES + i));
		}
		first = shift_stream((uint32_t)first) ^ second;
		first = shift_stream((uint32_t)first) ^ third;
		bytes += 3 * (size_t)STREAM_BYTES;
	}
	for (; size >= 8; size -= 8, bytes += 8)
		first = _mm_crc32_u64(first, load64(bytes));
	value = (uint32_t)first;
	for (; size; size--, bytes++)
		value = _mm_crc32_u8(value, *bytes);
	return value;
}

#endif

uint32_t kv_crc32c_portable(uint32_t before, const void *bytes, size_t size)
{
	pthread_once(&prepared, prepare);
	return ~run_tables(~before, bytes, size);
}

uint32_t kv_crc32c(uint32_t before, const void *bytes, size_t size)
{
	pthread_once(&prepared, prepare);
#ifdef HAVE_INSTRUCTION
	if (instruction_there) return ~run_instruction(~before, bytes, size);
#endif
	return ~run_tables(~before, bytes, size);
}
