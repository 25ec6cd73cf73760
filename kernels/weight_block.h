/* Reading GGUF weight blocks: 32 elements at a time, as codes with scales. Private to kernels.
 *
 * Every quantised type comes down to element k = scale[k / 16] * (code[k] - offset) + minimum, with
 * at most 8 bits of code; types with one scale for 32 elements give it twice.
 */
#ifndef KN_WEIGHT_BLOCK_H
#define KN_WEIGHT_BLOCK_H

#include <stdint.h>

#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_block32 {
	uint8_t code[32];
	float scale[2];
	float minimum;
	int32_t offset;
};

/* Read elements [32 * index, 32 * index + 32) of a row of a quantised type (not F32, F16, BF16). */
void kn_block32_read(
    enum kn_weight_type type, const void *row, uint32_t index, struct kn_block32 *block);

/* 1 for the types that kn_block32_read takes. */
int kn_weight_is_quantised(enum kn_weight_type type);

#ifdef __cplusplus
}
#endif
#endif
