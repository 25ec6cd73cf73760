#include "gpu-worker/text/byte_alphabet.h"

#include "gpu-worker/text/utf8.h"

/* The bytes that do not stand for themselves, as ranges: 0x00-0x20, 0x7f-0xa0, 0xad. */
enum { FIRST_RUN = 0x21, SECOND_START = 0x7f, SECOND_END = 0xa0, SOFT_HYPHEN = 0xad };
enum { LETTERS_START = 0x100, LETTERS_COUNT = 68 };

uint32_t gw_byte_letter(uint8_t byte)
{
	if (byte < FIRST_RUN) return LETTERS_START + (uint32_t)byte;
	if (byte >= SECOND_START && byte <= SECOND_END)
		return LETTERS_START + FIRST_RUN + (uint32_t)byte - SECOND_START;
	if (byte == SOFT_HYPHEN) return LETTERS_START + LETTERS_COUNT - 1;
	return byte;
}

/* The byte that a letter spells, or -1. */
static int byte_of_letter(uint32_t letter)
{
	if (letter >= LETTERS_START) {
		uint32_t index = letter - LETTERS_START;
		if (index < FIRST_RUN) return (int)index;
		if (index < LETTERS_COUNT - 1) return (int)(index - FIRST_RUN + SECOND_START);
		return index == LETTERS_COUNT - 1 ? SOFT_HYPHEN : -1;
	}
	return gw_byte_letter((uint8_t)letter) == letter ? (int)letter : -1;
}

int gw_byte_alphabet_decode(const char *text, size_t length, char *out, size_t *out_length)
{
	size_t at = 0, written = 0;
	while (at < length) {
		uint32_t letter;
		size_t used = gw_utf8_decode_loose(text + at, length - at, &letter);
		if (used == 0) return 0;
		int byte = byte_of_letter(letter);
		if (byte < 0) return 0;
		out[written++] = (char)byte;
		at += used;
	}
	*out_length = written;
	return 1;
}
