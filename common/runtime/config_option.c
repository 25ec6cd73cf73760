#include "common/runtime/config_internal.h"

#include "common/base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

size_t kv_option_field_size(const struct kv_option *option)
{
	switch (option->kind) {
	case KV_OPTION_STRING:
		return sizeof(const char *);
	case KV_OPTION_U32:
		return sizeof(uint32_t);
	case KV_OPTION_U64:
	case KV_OPTION_SIZE:
	case KV_OPTION_DURATION:
		return sizeof(uint64_t);
	case KV_OPTION_DOUBLE:
		return sizeof(double);
	case KV_OPTION_BOOL:
	case KV_OPTION_FLAG:
		return sizeof(bool);
	case KV_OPTION_WORD:
		return sizeof(int);
	}
	return 0;
}

static void write_field(const struct kv_option *option, void *settings, const void *value)
{
	memcpy((char *)settings + option->offset, value, kv_option_field_size(option));
}

static void read_field(const struct kv_option *option, const void *settings, void *value)
{
	memcpy(value, (const char *)settings + option->offset, kv_option_field_size(option));
}

static void put_whole(const struct kv_option *option, uint64_t value, struct kv_text_buffer *text)
{
	char formatted[KV_PARSE_TEXT_SIZE];

	if (option->kind == KV_OPTION_SIZE)
		kv_text_put(text, kv_format_size(value, formatted));
	else if (option->kind == KV_OPTION_DURATION)
		kv_text_put(text, kv_format_duration_ms(value, formatted));
	else
		kv_text_printf(text, "%" PRIu64, value);
}

void kv_option_put_range(const struct kv_option *option, struct kv_text_buffer *text)
{
	if (option->kind == KV_OPTION_DOUBLE) {
		if (option->minimum_real < option->maximum_real)
			kv_text_printf(text, "%g to %g", option->minimum_real, option->maximum_real);
	} else if (option->minimum && option->maximum) {
		put_whole(option, option->minimum, text);
		kv_text_put(text, " to ");
		put_whole(option, option->maximum, text);
	} else if (option->minimum || option->maximum) {
		kv_text_put(text, option->minimum ? "at least " : "at most ");
		put_whole(option, option->minimum ? option->minimum : option->maximum, text);
	}
}

/* `what` is said of the value, then what is allowed. Only an error path: the range is put together
 * by the same code as --help's. */
static enum kv_status refuse(const struct kv_option *option, const char *value, const char *what)
{
	struct kv_option limited = *option;
	struct kv_text_buffer range;
	enum kv_status status;

	/* Without a limit of the option there is that of its kind. */
	if (!option->maximum && option->kind == KV_OPTION_U32) limited.maximum = UINT32_MAX;
	if (!option->maximum && option->kind == KV_OPTION_U64) limited.maximum = UINT64_MAX;
	kv_text_init(&range, kv_heap(), 256);
	kv_option_put_range(&limited, &range);
	status = kv_fail(KV_INVALID, "'%s' %s: allowed is %s%s%s", value, what, kv_text(&range),
	    option->unit ? " " : "", option->unit ? option->unit : "");
	kv_text_deinit(&range);
	return status;
}

static bool in_range(const struct kv_option *option, uint64_t value)
{
	uint64_t most = option->kind == KV_OPTION_U32 ? UINT32_MAX : UINT64_MAX;

	if (option->maximum) most = option->maximum;
	return value >= option->minimum && value <= most;
}

/* The index of `value` in the option's words. */
static enum kv_status find_word(const struct kv_option *option, const char *value, int *index)
{
	char list[256] = "";
	size_t length = 0;

	for (int i = 0; option->words[i]; i++) {
		if (strcmp(option->words[i], value) == 0) {
			*index = i;
			return KV_OK;
		}
		if (length < sizeof list) {
			int added = snprintf(
			    list + length, sizeof list - length, "%s%s", i ? ", " : "", option->words[i]);

			if (added > 0) length += (size_t)added;
		}
	}
	return kv_fail(KV_INVALID, "'%s' is not one of %s", value, list);
}

static enum kv_status parse_word(const struct kv_option *option, const char *value, void *settings)
{
	int index;

	KV_TRY(find_word(option, value, &index));
	write_field(option, settings, &index);
	return KV_OK;
}

static enum kv_status parse_string(
    const struct kv_option *option, const char *value, void *settings, struct kv_arena *arena)
{
	const char *copy;
	int index;

	if (option->words) KV_TRY(find_word(option, value, &index));
	if (option->check) KV_TRY(option->check(value));
	copy = kv_arena_strdup(arena, value);
	if (!copy) return KV_NO_MEMORY;
	write_field(option, settings, &copy);
	return KV_OK;
}

static enum kv_status parse_whole(const struct kv_option *option, const char *value, void *settings)
{
	uint64_t whole;
	uint32_t narrow;

	if (option->kind == KV_OPTION_SIZE) {
		KV_TRY(kv_parse_size(value, &whole));
	} else if (option->kind == KV_OPTION_DURATION) {
		KV_TRY(kv_parse_duration_ms(value, &whole));
	} else if (kv_parse_u64(value, &whole) != KV_OK) {
		return refuse(option, value, "is not a whole number in the range");
	}
	if (!in_range(option, whole)) return refuse(option, value, "is out of range");
	narrow = (uint32_t)whole;
	if (option->kind == KV_OPTION_U32)
		write_field(option, settings, &narrow);
	else
		write_field(option, settings, &whole);
	return KV_OK;
}

static enum kv_status parse_real(const struct kv_option *option, const char *value, void *settings)
{
	double real;

	KV_TRY(kv_parse_double(value, &real));
	if (option->minimum_real < option->maximum_real &&
	    (real < option->minimum_real || real > option->maximum_real))
		return refuse(option, value, "is out of range");
	write_field(option, settings, &real);
	return KV_OK;
}

enum kv_status kv_option_parse(
    const struct kv_option *option, const char *value, void *settings, struct kv_arena *arena)
{
	bool boolean;

	switch (option->kind) {
	case KV_OPTION_STRING:
		return parse_string(option, value, settings, arena);
	case KV_OPTION_U32:
	case KV_OPTION_U64:
	case KV_OPTION_SIZE:
	case KV_OPTION_DURATION:
		return parse_whole(option, value, settings);
	case KV_OPTION_DOUBLE:
		return parse_real(option, value, settings);
	case KV_OPTION_BOOL:
	case KV_OPTION_FLAG:
		KV_TRY(kv_parse_bool(value, &boolean));
		write_field(option, settings, &boolean);
		return KV_OK;
	case KV_OPTION_WORD:
		return parse_word(option, value, settings);
	}
	return kv_fail(KV_INTERNAL, "option %s has no known kind", option->name);
}

bool kv_option_equal(const struct kv_option *option, const void *left, const void *right)
{
	const char *left_text;
	const char *right_text;

	if (option->kind != KV_OPTION_STRING)
		return memcmp((const char *)left + option->offset, (const char *)right + option->offset,
		           kv_option_field_size(option)) == 0;
	read_field(option, left, &left_text);
	read_field(option, right, &right_text);
	if (!left_text || !right_text) return left_text == right_text;
	return strcmp(left_text, right_text) == 0;
}

bool kv_option_format(
    const struct kv_option *option, const void *settings, struct kv_text_buffer *text)
{
	union {
		const char *string;
		uint32_t u32;
		uint64_t u64;
		double real;
		bool boolean;
		int word;
	} value;

	read_field(option, settings, &value);
	switch (option->kind) {
	case KV_OPTION_STRING:
		if (!value.string) return false;
		kv_text_put(text, value.string);
		break;
	case KV_OPTION_U32:
		kv_text_printf(text, "%" PRIu32, value.u32);
		break;
	case KV_OPTION_U64:
	case KV_OPTION_SIZE:
	case KV_OPTION_DURATION:
		put_whole(option, value.u64, text);
		break;
	case KV_OPTION_DOUBLE:
		kv_text_put_double(text, value.real, "0");
		break;
	case KV_OPTION_BOOL:
	case KV_OPTION_FLAG:
		kv_text_put(text, value.boolean ? "yes" : "no");
		break;
	case KV_OPTION_WORD:
		kv_text_put(text, option->words[value.word]);
		break;
	}
	return true;
}

void kv_option_variable(const char *name, char *variable)
{
	snprintf(variable, KV_CONFIG_NAME_SIZE + 16, "CLUSTERKV_%s", name);
	for (char *c = variable; *c; c++) {
		if (*c == '-') *c = '_';
		if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
	}
}

unsigned kv_config_distance(const char *left, size_t left_length, const char *right)
{
	unsigned row[KV_CONFIG_NAME_SIZE + 1];
	size_t right_length = strlen(right);

	if (left_length > KV_CONFIG_NAME_SIZE || right_length > KV_CONFIG_NAME_SIZE)
		return KV_CONFIG_NAME_SIZE;
	for (size_t j = 0; j <= right_length; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= left_length; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= right_length; j++) {
			unsigned best = diagonal + (left[i - 1] != right[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best) best = row[j] + 1;
			if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[right_length];
}
