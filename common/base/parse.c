#include "common/base/parse.h"

#include "common/base/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit size_units[] = {
    {"B", 1},
    {"TiB", UINT64_C(1) << 40},
    {"GiB", UINT64_C(1) << 30},
    {"MiB", UINT64_C(1) << 20},
    {"KiB", UINT64_C(1) << 10},
    {"T", UINT64_C(1) << 40},
    {"G", UINT64_C(1) << 30},
    {"M", UINT64_C(1) << 20},
    {"K", UINT64_C(1) << 10},
    {"k", UINT64_C(1) << 10},
    {"TB", UINT64_C(1000000000000)},
    {"GB", UINT64_C(1000000000)},
    {"MB", UINT64_C(1000000)},
    {"kB", UINT64_C(1000)},
};

/* In microseconds. */
static const struct unit duration_units[] = {
    {"us", 1},
    {"ms", 1000},
    {"s", 1000000},
    {"min", 60000000},
    {"h", UINT64_C(3600000000)},
    {"d", UINT64_C(86400000000)},
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int hex_digit(char c)
{
	if (is_digit(c)) return c - '0';
	if (c >= 'a' && c <= 'f') return c - 'a' + 10;
	if (c >= 'A' && c <= 'F') return c - 'A' + 10;
	return -1;
}

/* Digits of `base` up to the first other character; false without a digit or on overflow. */
static bool read_digits(const char **text, unsigned base, uint64_t *value)
{
	const char *start = *text;
	uint64_t sum = 0;

	for (;; (*text)++) {
		int digit = hex_digit(**text);

		if (digit < 0 || (unsigned)digit >= base) break;
		if (!kv_mul_u64(sum, base, &sum) || !kv_add_u64(sum, (uint64_t)digit, &sum)) return false;
	}
	if (*text == start) return false;
	*value = sum;
	return true;
}

static bool read_u64(const char *text, uint64_t *value)
{
	bool hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
	uint64_t sum;

	if (hexadecimal) text += 2;
	if (!read_digits(&text, hexadecimal ? 16 : 10, &sum) || *text) return false;
	*value = sum;
	return true;
}

enum kv_status kv_parse_u64(const char *text, uint64_t *value)
{
	if (read_u64(text, value)) return KV_OK;
	return kv_fail(
	    KV_INVALID, "'%s' is not a whole number from 0 to %" PRIu64, text, (uint64_t)UINT64_MAX);
}

enum kv_status kv_parse_u32(const char *text, uint32_t *value)
{
	uint64_t wide;

	if (!read_u64(text, &wide) || wide > UINT32_MAX)
		return kv_fail(KV_INVALID, "'%s' is not a whole number from 0 to %" PRIu32, text,
		    (uint32_t)UINT32_MAX);
	*value = (uint32_t)wide;
	return KV_OK;
}

enum kv_status kv_parse_i64(const char *text, int64_t *value)
{
	bool negative = text[0] == '-';
	uint64_t magnitude;

	if (!read_u64(text + negative, &magnitude) ||
	    magnitude > (uint64_t)INT64_MAX + (negative ? 1U : 0U))
		return kv_fail(KV_INVALID, "'%s' is not a whole number from %" PRId64 " to %" PRId64, text,
		    INT64_MIN, INT64_MAX);
	/* Negated in unsigned arithmetic, where the lowest number has a magnitude too. */
	*value = (int64_t)(negative ? 0 - magnitude : magnitude);
	return KV_OK;
}

/* [-]digits[.digits][e[+-]digits], which every locale's strtod reads but for the point. */
static bool is_decimal(const char *text)
{
	size_t digits = 0;

	text += *text == '-';
	for (; is_digit(*text); text++)
		digits++;
	if (*text == '.') {
		for (text++; is_digit(*text); text++)
			digits++;
	}
	if (digits == 0) return false;
	if (*text == 'e' || *text == 'E') {
		text++;
		text += *text == '-' || *text == '+';
		if (!is_digit(*text)) return false;
		while (is_digit(*text))
			text++;
	}
	return *text == '\0';
}

enum kv_status kv_parse_double(const char *text, double *value)
{
	char *end = NULL;
	double number = 0.0;

	/* No program of this project calls setlocale, so that the point is strtod's. */
	if (is_decimal(text)) number = strtod(text, &end);
	if (!end || *end || !isfinite(number))
		return kv_fail(KV_INVALID, "'%s' is not a number such as 0.25, -3 or 1e-5", text);
	*value = number;
	return KV_OK;
}

enum kv_status kv_parse_bool(const char *text, bool *value)
{
	static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		if (strcmp(text, words[i]) == 0) {
			*value = i % 2 == 1;
			return KV_OK;
		}
	}
	return kv_fail(KV_INVALID, "'%s' is not one of yes, no, true, false, on, off, 1, 0", text);
}

/* number[.up to three decimals] unit, as whole units of factor 1; false when it is anything else.
 */
static bool read_with_unit(
    const char *text, const struct unit *units, size_t count, uint64_t bare_factor, uint64_t *value)
{
	uint64_t whole;
	uint64_t thousandths = 0;
	uint64_t factor = 0;
	uint64_t scaled;
	uint64_t part;

	if (!read_digits(&text, 10, &whole)) return false;
	if (*text == '.') {
		const char *start = ++text;

		if (!read_digits(&text, 10, &thousandths) || text - start > 3) return false;
		for (ptrdiff_t digits = text - start; digits < 3; digits++)
			thousandths *= 10;
	}
	if (*text == '\0') factor = bare_factor;
	for (size_t i = 0; i < count && !factor; i++) {
		if (strcmp(text, units[i].name) == 0) factor = units[i].factor;
	}
	if (!factor || !kv_mul_u64(whole, factor, &scaled)) return false;
	/* thousandths < 1000 and factor < 2^41: no overflow. */
	part = thousandths * factor;
	if (part % 1000 || !kv_add_u64(scaled, part / 1000, &scaled)) return false;
	*value = scaled;
	return true;
}

enum kv_status kv_parse_size(const char *text, uint64_t *bytes)
{
	if (read_with_unit(text, size_units, sizeof size_units / sizeof size_units[0], 1, bytes))
		return KV_OK;
	return kv_fail(KV_INVALID,
	    "'%s' is not a size such as 4096, 512KiB, 64MiB or 1.5GiB (KiB MiB GiB TiB or k M G T: "
	    "powers of 1024; kB MB GB TB: powers of 1000)",
	    text);
}

enum kv_status kv_parse_duration_ms(const char *text, uint64_t *milliseconds)
{
	uint64_t microseconds;

	if (strcmp(text, "0") == 0) {
		*milliseconds = 0;
		return KV_OK;
	}
	if (!read_with_unit(text, duration_units, sizeof duration_units / sizeof duration_units[0], 0,
	        &microseconds) ||
	    microseconds % 1000)
		return kv_fail(KV_INVALID,
		    "'%s' is not a duration in whole milliseconds such as 500ms, 3s, 1.5s, 10min, 2h or 1d",
		    text);
	*milliseconds = microseconds / 1000;
	return KV_OK;
}

char *kv_format_size(uint64_t bytes, char *text)
{
	static const char *const names[] = {"", "KiB", "MiB", "GiB", "TiB"};
	size_t unit = 0;

	while (bytes && bytes % 1024 == 0 && unit < 4) {
		bytes /= 1024;
		unit++;
	}
	snprintf(text, KV_PARSE_TEXT_SIZE, "%" PRIu64 "%s", bytes, names[unit]);
	return text;
}

char *kv_format_duration_ms(uint64_t milliseconds, char *text)
{
	static const struct unit steps[] = {
	    {"d", 86400000}, {"h", 3600000}, {"min", 60000}, {"s", 1000}, {"ms", 1}};
	size_t at = 0;

	if (milliseconds == 0) {
		snprintf(text, KV_PARSE_TEXT_SIZE, "0");
		return text;
	}
	while (milliseconds % steps[at].factor)
		at++;
	snprintf(
	    text, KV_PARSE_TEXT_SIZE, "%" PRIu64 "%s", milliseconds / steps[at].factor, steps[at].name);
	return text;
}

void kv_hex_encode(const void *bytes, size_t size, char *text)
{
	static const char digits[] = "0123456789abcdef";
	const unsigned char *next = bytes;

	for (size_t i = 0; i < size; i++) {
		*text++ = digits[next[i] >> 4];
		*text++ = digits[next[i] & 15];
	}
	*text = '\0';
}

enum kv_status kv_hex_decode(const char *text, void *bytes, size_t size)
{
	unsigned char *next = bytes;
	size_t digits = strlen(text);

	if (digits % 2 || digits / 2 != size)
		return kv_fail(
		    KV_INVALID, "%zu hexadecimal digits are wanted, %zu given", size * 2, digits);
	for (size_t i = 0; i < digits; i++) {
		if (hex_digit(text[i]) < 0)
			return kv_fail(KV_INVALID, "'%s' is not hexadecimal (at character %zu)", text, i + 1);
	}
	for (size_t i = 0; i < size; i++)
		next[i] = (unsigned char)(hex_digit(text[2 * i]) * 16 + hex_digit(text[2 * i + 1]));
	return KV_OK;
}
