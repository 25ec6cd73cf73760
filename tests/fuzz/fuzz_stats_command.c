/* Lines for the stats socket that no sane reader sends. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore/server/stats_command.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
	if (holds) return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

/* An answer is one line of printable text, whatever it quotes. */
static void check_answer(const char *line)
{
	struct kv_text_buffer text;
	const char *answer;
	size_t length;

	kv_text_init(&text, kv_heap(), 256);
	kvs_stats_unknown(line, &text);
	require(kv_text_status(&text) == KV_OK, "the answer has a bounded length");
	answer = kv_text(&text);
	length = strlen(answer);
	require(length > 2 && strcmp(answer + length - 2, "\r\n") == 0, "the answer ends its line");
	for (size_t i = 0; i + 2 < length; i++)
		require((unsigned char)answer[i] >= 0x20 && (unsigned char)answer[i] < 0x7f,
		    "the answer is printable");
	kv_text_deinit(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t start = 0;

	for (size_t i = 0; i <= size; i++) {
		char *line;
		enum kvs_stats_command command;

		if (i < size && data[i] != '\n' && data[i] != 0) continue;
		/* In a block of its own, so that a read past the end is noticed. */
		line = malloc(i - start + 1);
		if (!line) return 0;
		memcpy(line, data + start, i - start);
		line[i - start] = '\0';
		command = kvs_stats_parse(line);
		require(command <= KVS_COMMAND_UNKNOWN, "a command is one of the table");
		check_answer(line);
		free(line);
		start = i + 1;
	}
	return 0;
}
