/* What a sequence holds, checked against what the store holds. Looks inside the pipeline on
 * purpose: answers alone would not show a row that is in the wrong place but seldom attended to. */
#ifndef TESTS_LIB_PIPELINE_CHECK_H
#define TESTS_LIB_PIPELINE_CHECK_H

#include "gpu-worker/pipeline/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The list covers positions without a gap; units are well formed; sinks, window, dense rows and
 * cluster indices are bit for bit what the store's units say. In-process stores only. */
void kvt_check_sequence(const struct gw_sequence *sequence);

/* The stored row of a position, NULL where the list has none. */
const uint8_t *kvt_stored_row(
    const struct gw_sequence *sequence, uint32_t layer, uint32_t head, uint32_t position);

/* Both lists are cut alike, and rows of equal positions differ by at most `most` in any number (f32
 * rows). */
void kvt_check_same_store(const struct gw_sequence *a, const struct gw_sequence *b, double most);

/* The list, written as it is cut: "256 512 636 | 700", exact clustered ends, then after a bar those
 * of plain segments; "~" follows an approximate end. */
const char *kvt_list_text(const struct gw_sequence *sequence);

#ifdef __cplusplus
}
#endif
#endif
