#include "gpu-worker/text/utf8.h"

/* How long a sequence is by its first byte, and the range that its second byte must lie in: the
 * range is what rules out overlong forms, surrogates and values over U+10FFFF. */
static size_t sequence_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
	*low = 0x80;
	*high = 0xbf;
	if (lead < 0x80) return 1;
	if (lead < 0xc2) return 0;
	if (lead < 0xe0) return 2;
	if (lead < 0xf0) {
		if (lead == 0xe0) *low = 0xa0;
		if (lead == 0xed) *high = 0x9f;
		return 3;
	}
	if (lead < 0xf5) {
		if (lead == 0xf0) *low = 0x90;
		if (lead == 0xf4) *high = 0x8f;
		return 4;
	}
	return 0;
}

enum gw_utf8_kind gw_utf8_scan(const char *bytes, size_t length, size_t *used)
{
	const unsigned char *at = (const unsigned char *)bytes;
	unsigned char low, high;
	size_t need = sequence_length(at[0], &low, &high);
	if (need == 0) {
		*used = 1;
		return GW_UTF8_BROKEN;
	}
	for (size_t i = 1; i < need; i++) {
		if (i >= length) {
			*used = length;
			return GW_UTF8_PART;
		}
		if (at[i] < low || at[i] > high) {
			*used = i;
			return GW_UTF8_BROKEN;
		}
		low = 0x80;
		high = 0xbf;
	}
	*used = need;
	return GW_UTF8_WHOLE;
}

int gw_utf8_valid(const char *bytes, size_t length)
{
	size_t at = 0;
	while (at < length) {
		size_t used = 1;
		if ((unsigned char)bytes[at] >= 0x80 &&
		    gw_utf8_scan(bytes + at, length - at, &used) != GW_UTF8_WHOLE)
			return 0;
		at += used;
	}
	return 1;
}

size_t gw_utf8_decode_loose(const char *bytes, size_t length, uint32_t *codepoint)
{
	const unsigned char *at = (const unsigned char *)bytes;
	size_t need;
	uint32_t value;
	if (length == 0) return 0;
	if (at[0] < 0x80) {
		*codepoint = at[0];
		return 1;
	}
	if (at[0] < 0xc0 || at[0] >= 0xf8) return 0;
	if (at[0] < 0xe0) {
		need = 2;
		value = at[0] & 0x1fu;
	} else if (at[0] < 0xf0) {
		need = 3;
		value = at[0] & 0x0fu;
	} else {
		need = 4;
		value = at[0] & 0x07u;
	}
	if (length < need) return 0;
	for (size_t i = 1; i < need; i++) {
		if ((at[i] & 0xc0u) != 0x80u) return 0;
		value = value << 6 | (at[i] & 0x3fu);
	}
	if (value > 0x10ffffu) return 0;
	*codepoint = value;
	return need;
}

size_t gw_utf8_encode(uint32_t codepoint, char *out)
{
	if (codepoint < 0x80) {
		out[0] = (char)codepoint;
		return 1;
	}
	if (codepoint < 0x800) {
		out[0] = (char)(0xc0u | codepoint >> 6);
		out[1] = (char)(0x80u | (codepoint & 0x3fu));
		return 2;
	}
	if (codepoint < 0x10000) {
		out[0] = (char)(0xe0u | codepoint >> 12);
		out[1] = (char)(0x80u | (codepoint >> 6 & 0x3fu));
		out[2] = (char)(0x80u | (codepoint & 0x3fu));
		return 3;
	}
	out[0] = (char)(0xf0u | codepoint >> 18);
	out[1] = (char)(0x80u | (codepoint >> 12 & 0x3fu));
	out[2] = (char)(0x80u | (codepoint >> 6 & 0x3fu));
	out[3] = (char)(0x80u | (codepoint & 0x3fu));
	return 4;
}
