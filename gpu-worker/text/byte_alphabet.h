/* The printable alphabet in which GPT-2's vocabulary files spell bytes (Radford et al., 2019):
 * a printable Latin-1 byte stands for itself, the 68 others follow from U+0100 in order. */
#ifndef GW_TEXT_BYTE_ALPHABET_H
#define GW_TEXT_BYTE_ALPHABET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The code point that spells `byte`. */
uint32_t gw_byte_letter(uint8_t byte);

/* Turn text[length] in the alphabet to bytes. out has room for `length` bytes. Returns 1 and sets
 * *out_length; 0 when something in the text is no letter of the alphabet (then out is undefined).
 */
int gw_byte_alphabet_decode(const char *text, size_t length, char *out, size_t *out_length);

#ifdef __cplusplus
}
#endif
#endif
