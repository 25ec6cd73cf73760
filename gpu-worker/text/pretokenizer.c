#include "gpu-worker/text/pretokenizer.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* White space by Unicode's White_Space property. It is spelled out because libpcre2's \s is ASCII
 * without UCP and takes U+180E, which is no white space any more, with it. */
#define WHITE                                                                                      \
	"\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"        \
	"\\x{205f}\\x{3000}"
#define SPACE  "[" WHITE "]"
#define SYMBOL "[^" WHITE "\\p{L}\\p{N}]"

/* The last space of a run goes to the word after it, if there is one. */
#define SPACES SPACE "+(?![^" WHITE "])|" SPACE "+"

#define ENDING "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"

#define WORDS_GPT2 "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?" SYMBOL "+|" SPACES

#define WORDS_CL100K(digits)                                                                       \
	ENDING "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?" SYMBOL "+[\\r\\n]*|" SPACE               \
	       "*[\\r\\n]+|" SPACES

enum { MAX_STAGES = 2 };

struct expression {
	const char *name;
	/* Each stage splits what the one before it made of the text. */
	const char *stages[MAX_STAGES];
	int ignores_merges;
};

#define STAGES_DIGIT_FIRST                                                                         \
	{                                                                                              \
		"\\p{N}", WORDS_GPT2                                                                       \
	}
#define STAGES_GPT2                                                                                \
	{                                                                                              \
		WORDS_GPT2, NULL                                                                           \
	}
#define STAGES_QWEN2                                                                               \
	{                                                                                              \
		WORDS_CL100K("\\p{N}"), NULL                                                               \
	}
#define STAGES_LLAMA3                                                                              \
	{                                                                                              \
		WORDS_CL100K("\\p{N}{1,3}"), NULL                                                          \
	}

static const struct expression EXPRESSIONS[] = {
    {"smollm", STAGES_DIGIT_FIRST, 0},
    {"starcoder", STAGES_DIGIT_FIRST, 0},
    {"refact", STAGES_DIGIT_FIRST, 0},
    {"command-r", STAGES_DIGIT_FIRST, 0},
    {"qwen2", STAGES_QWEN2, 0},
    {"deepseek-r1-qwen", STAGES_QWEN2, 0},
    {"llama-bpe", STAGES_LLAMA3, 1},
    {"llama3", STAGES_LLAMA3, 1},
    {"llama-v3", STAGES_LLAMA3, 1},
    {"glm4", STAGES_LLAMA3, 0},
    {"chatglm-bpe", STAGES_LLAMA3, 0},
    {"gpt-2", STAGES_GPT2, 0},
    {"phi-2", STAGES_GPT2, 0},
    {"mpt", STAGES_GPT2, 0},
    {"olmo", STAGES_GPT2, 0},
};

struct gw_pretokenizer {
	struct kv_allocator *allocator;
	pcre2_general_context *general;
	pcre2_code *stages[MAX_STAGES];
	unsigned stage_count;
	int ignores_merges;
};

struct gw_word_matcher {
	struct kv_allocator *allocator;
	pcre2_general_context *general;
	pcre2_match_data *match;
};

static void *allocate(PCRE2_SIZE size, void *allocator)
{
	return kv_alloc(allocator, size);
}

static void release(void *block, void *allocator)
{
	kv_free(allocator, block);
}

static const struct expression *find_expression(const char *name)
{
	for (size_t i = 0; i < sizeof EXPRESSIONS / sizeof EXPRESSIONS[0]; i++)
		if (strcmp(EXPRESSIONS[i].name, name) == 0) return &EXPRESSIONS[i];
	return NULL;
}

static enum kv_status compile(struct gw_pretokenizer *self, const char *pattern)
{
	int error = 0;
	PCRE2_SIZE offset = 0;
	pcre2_compile_context *context = pcre2_compile_context_create(self->general);
	if (!context) return kv_fail(KV_NO_MEMORY, "no memory to compile a word expression");
	pcre2_code *code = pcre2_compile(
	    (PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, context);
	pcre2_compile_context_free(context);
	if (!code) {
		if (error == PCRE2_ERROR_HEAP_FAILED)
			return kv_fail(KV_NO_MEMORY, "no memory to compile a word expression");
		return kv_fail(KV_INTERNAL, "libpcre2 refuses the word expression at offset %zu (error %d)",
		    (size_t)offset, error);
	}
	/* Without executable memory the expression is interpreted: slower, with the same words. */
	(void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
	self->stages[self->stage_count++] = code;
	return KV_OK;
}

enum kv_status gw_pretokenizer_create(
    struct kv_allocator *allocator, const char *name, struct gw_pretokenizer **pretokenizer)
{
	const struct expression *expression = find_expression(name);
	if (!expression)
		return kv_fail(KV_UNSUPPORTED,
		    "the pre-tokenizer '%s' is not known; known are smollm, qwen2, llama-bpe, glm4, gpt-2 "
		    "and "
		    "those that share their expressions",
		    name);
	struct gw_pretokenizer *self = kv_alloc_zero(allocator, sizeof *self);
	if (!self) return KV_NO_MEMORY;
	self->allocator = allocator;
	self->ignores_merges = expression->ignores_merges;
	enum kv_status status = KV_OK;
	self->general = pcre2_general_context_create(allocate, release, allocator);
	if (!self->general) {
		status = kv_fail(KV_NO_MEMORY, "no memory for the word expressions");
		goto destroy;
	}
	for (unsigned i = 0; i < MAX_STAGES && expression->stages[i]; i++)
		KV_TRY_GOTO(status, compile(self, expression->stages[i]), destroy);
	*pretokenizer = self;
	return KV_OK;

destroy:
	gw_pretokenizer_destroy(self);
	return status;
}

void gw_pretokenizer_destroy(struct gw_pretokenizer *pretokenizer)
{
	if (!pretokenizer) return;
	for (unsigned i = 0; i < pretokenizer->stage_count; i++)
		pcre2_code_free(pretokenizer->stages[i]);
	pcre2_general_context_free(pretokenizer->general);
	kv_free(pretokenizer->allocator, pretokenizer);
}

int gw_pretokenizer_ignores_merges(const struct gw_pretokenizer *pretokenizer)
{
	return pretokenizer->ignores_merges;
}

enum kv_status gw_word_matcher_create(
    struct kv_allocator *allocator, struct gw_word_matcher **matcher)
{
	struct gw_word_matcher *self = kv_alloc_zero(allocator, sizeof *self);
	if (!self) return KV_NO_MEMORY;
	self->allocator = allocator;
	self->general = pcre2_general_context_create(allocate, release, allocator);
	if (self->general) self->match = pcre2_match_data_create(1, self->general);
	if (!self->match) {
		gw_word_matcher_destroy(self);
		return kv_fail(KV_NO_MEMORY, "no memory to match words");
	}
	*matcher = self;
	return KV_OK;
}

void gw_word_matcher_destroy(struct gw_word_matcher *matcher)
{
	if (!matcher) return;
	pcre2_match_data_free(matcher->match);
	pcre2_general_context_free(matcher->general);
	kv_free(matcher->allocator, matcher);
}

/* What one split passes down from stage to stage. */
struct split {
	const struct gw_pretokenizer *pretokenizer;
	struct gw_word_matcher *matcher;
	const char *text;
	gw_word_function *word;
	void *context;
};

static enum kv_status split_stage(
    const struct split *split, unsigned stage, size_t start, size_t length)
{
	if (length == 0) return KV_OK;
	if (stage == split->pretokenizer->stage_count)
		return split->word(split->context, start, length);
	/* A stage sees its piece as the whole text, so a lookahead stops at the end of the piece. */
	const char *piece = split->text + start;
	size_t at = 0;
	while (at < length) {
		int found = pcre2_match(split->pretokenizer->stages[stage], (PCRE2_SPTR)piece, length, at,
		    PCRE2_NO_UTF_CHECK, split->matcher->match, NULL);
		if (found == PCRE2_ERROR_NOMATCH) break;
		if (found == PCRE2_ERROR_NOMEMORY) return kv_fail(KV_NO_MEMORY, "no memory to match words");
		if (found < 0)
			return kv_fail(KV_LIMIT,
			    "a piece of text of %zu bytes cannot be split to words (libpcre2 error %d); send "
			    "shorter text",
			    length, found);
		const PCRE2_SIZE *range = pcre2_get_ovector_pointer(split->matcher->match);
		size_t from = range[0], to = range[1];
		if (to <= from) return kv_fail(KV_INTERNAL, "a word expression matched nothing");
		KV_TRY(split_stage(split, stage + 1, start + at, from - at));
		KV_TRY(split_stage(split, stage + 1, start + from, to - from));
		at = to;
	}
	return split_stage(split, stage + 1, start + at, length - at);
}

enum kv_status gw_pretokenizer_split(const struct gw_pretokenizer *pretokenizer,
    struct gw_word_matcher *matcher, const char *text, size_t length, gw_word_function *word,
    void *context)
{
	struct split split = {pretokenizer, matcher, text, word, context};
	return split_stage(&split, 0, 0, length);
}
