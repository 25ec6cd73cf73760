#include "common/base/crc32c.h"
#include "common/base/random.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { LARGE = 3 * 4096 * 3 + 777 };

static unsigned char bytes[LARGE + 8];

static void published_values_come_out(void **state)
{
	(void)state;
	/* The check value of the catalogues, and the vectors of RFC 3720, appendix B.4. */
	assert_true(kv_crc32c(0, "123456789", 9) == 0xe3069283U);
	memset(bytes, 0, 32);
	assert_true(kv_crc32c(0, bytes, 32) == 0x8a9136aaU);
	memset(bytes, 0xff, 32);
	assert_true(kv_crc32c(0, bytes, 32) == 0x62a8ab43U);
	for (int i = 0; i < 32; i++)
		bytes[i] = (unsigned char)i;
	assert_true(kv_crc32c(0, bytes, 32) == 0x46dd794eU);
	assert_true(kv_crc32c_portable(0, bytes, 32) == 0x46dd794eU);
	assert_true(kv_crc32c(0, bytes, 0) == 0);
}

static void both_ways_agree_and_go_on(void **state)
{
	static const size_t sizes[] = {0, 1, 7, 8, 9, 63, 64, 4095, 4096, 3 * 4096 - 1, 3 * 4096,
	    3 * 4096 + 1, 2 * 3 * 4096 + 5, LARGE};
	struct kv_random random;
	uint32_t whole;

	(void)state;
	kv_random_seed(&random, 4);
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (unsigned char)kv_random_next(&random);
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		for (size_t start = 0; start < 8; start++) {
			uint32_t sum = kv_crc32c(5, bytes + start, sizes[i]);

			assert_true(sum == kv_crc32c_portable(5, bytes + start, sizes[i]));
		}
	}
	whole = kv_crc32c(0, bytes, LARGE);
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		uint32_t first = kv_crc32c(0, bytes, sizes[i]);

		assert_true(kv_crc32c(first, bytes + sizes[i], LARGE - sizes[i]) == whole);
	}
	bytes[LARGE / 2] ^= 1;
	assert_true(kv_crc32c(0, bytes, LARGE) != whole);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(published_values_come_out),
	    cmocka_unit_test(both_ways_agree_and_go_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
