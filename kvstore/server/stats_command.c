#include "kvstore/server/stats_command.h"

#include <string.h>

#include "common/base/parse.h"

enum { QUOTED_BYTES = 40, MAX_WORDS = 3 };

struct word {
	const char *start;
	size_t length;
};

struct command {
	const char *first, *second; /* second NULL: no second word */
	enum kvs_stats_command command;
};

static const struct command commands[] = {
    {"stats", NULL, KVS_COMMAND_STATS},
    {"stats", "store", KVS_COMMAND_STORE},
    {"stats", "workers", KVS_COMMAND_WORKERS},
    {"stats", "json", KVS_COMMAND_JSON},
    {"metrics", NULL, KVS_COMMAND_METRICS},
    {"info", NULL, KVS_COMMAND_INFO},
    {"health", NULL, KVS_COMMAND_HEALTH},
    {"ready", NULL, KVS_COMMAND_READY},
    {"version", NULL, KVS_COMMAND_VERSION},
    {"help", NULL, KVS_COMMAND_HELP},
    {"quit", NULL, KVS_COMMAND_QUIT},
    {"reset", NULL, KVS_COMMAND_RESET},
    {"drain", NULL, KVS_COMMAND_DRAIN},
    {"drain", "off", KVS_COMMAND_DRAIN_OFF},
};

static size_t split(const char *line, struct word words[MAX_WORDS])
{
	size_t count = 0;

	while (count < MAX_WORDS) {
		line += strspn(line, " \t");
		if (!*line) break;
		words[count].start = line;
		words[count].length = strcspn(line, " \t");
		line += words[count++].length;
	}
	return count;
}

static int is(const struct word *word, const char *text)
{
	return strlen(text) == word->length && memcmp(word->start, text, word->length) == 0;
}

/* Nothing but blanks behind a word. */
static int is_last(const struct word *word)
{
	const char *rest = word->start + word->length;

	return rest[strspn(rest, " \t")] == '\0';
}

int kvs_stats_evict_target(const char *line, struct kvs_evict_target *target)
{
	struct word words[MAX_WORDS];
	size_t count = split(line, words);
	struct kvs_evict_target found = {0};

	if (!count || !is(&words[0], "evict")) return 0;
	if (count == 2) {
		char number[32];

		if (words[1].length >= sizeof number) return 0;
		memcpy(number, words[1].start, words[1].length);
		number[words[1].length] = '\0';
		if (kv_parse_size(number, &found.bytes) != KV_OK || !found.bytes) return 0;
	} else if (count == 3) {
		if (!is(&words[1], "tenant") || !is_last(&words[2])) return 0;
		if (words[2].length >= sizeof found.tenant) return 0;
		memcpy(found.tenant, words[2].start, words[2].length);
	}
	*target = found;
	return 1;
}

enum kvs_stats_command kvs_stats_parse(const char *line)
{
	struct word words[MAX_WORDS];
	struct kvs_evict_target target;
	size_t count = split(line, words);

	if (!count) return KVS_COMMAND_NONE;
	if (kvs_stats_evict_target(line, &target)) return KVS_COMMAND_EVICT;
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		if (count != (commands[i].second ? 2u : 1u) || !is(&words[0], commands[i].first)) continue;
		if (!commands[i].second || is(&words[1], commands[i].second)) return commands[i].command;
	}
	return KVS_COMMAND_UNKNOWN;
}

void kvs_stats_unknown(const char *line, struct kv_text_buffer *text)
{
	char quoted[QUOTED_BYTES + 1];
	size_t length = 0;

	for (; line[length] && length < QUOTED_BYTES; length++) {
		unsigned char c = (unsigned char)line[length];

		quoted[length] = c >= 0x20 && c < 0x7f && c != '"' ? (char)c : '?';
	}
	quoted[length] = '\0';
	kv_text_printf(text, "ERROR unknown command \"%s\", try help\r\n", quoted);
}
