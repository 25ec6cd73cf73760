/* Cut text to words before the merges of byte-level BPE.
 *
 * The expressions are those that the models were trained with, in the form in which llama.cpp
 * applies them; a model file names its own ("tokenizer.ggml.pre"). Thread-safe after creation.
 */
#ifndef GW_TEXT_PRETOKENIZER_H
#define GW_TEXT_PRETOKENIZER_H

#include <stddef.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_pretokenizer;
struct gw_word_matcher;

/* KV_UNSUPPORTED for a name that is not in the table. */
enum kv_status gw_pretokenizer_create(
    struct kv_allocator *allocator, const char *name, struct gw_pretokenizer **pretokenizer);
void gw_pretokenizer_destroy(struct gw_pretokenizer *pretokenizer);

/* 1 when a word that is a token as it stands is taken without merging (llama-bpe). */
int gw_pretokenizer_ignores_merges(const struct gw_pretokenizer *pretokenizer);

/* The working memory of one thread's matching. */
enum kv_status gw_word_matcher_create(
    struct kv_allocator *allocator, struct gw_word_matcher **matcher);
void gw_word_matcher_destroy(struct gw_word_matcher *matcher);

/* Called for each word, in order; words are not empty and together make up the whole text. A status
 * other than KV_OK ends the split and is returned from it. */
typedef enum kv_status gw_word_function(void *context, size_t start, size_t length);

/* Split text[length], which must be valid UTF-8. KV_LIMIT when libpcre2 gives up. */
enum kv_status gw_pretokenizer_split(const struct gw_pretokenizer *pretokenizer,
    struct gw_word_matcher *matcher, const char *text, size_t length, gw_word_function *word,
    void *context);

#ifdef __cplusplus
}
#endif
#endif
