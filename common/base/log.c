#include "common/base/log.h"

#include "common/base/clock.h"
#include "common/base/journal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_SIZE = 2048, SUBJECT_SIZE = 256 };

static atomic_int current_level = KV_LOG_INFO;

static _Thread_local struct kv_log_subject current_subject;

/* Set once, before there are threads. */
static const char *program = "clusterkv";
static bool never_waits;

/* Of processes that never wait: keeps what poll said true until the line is written. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t dropped;

static const char *const level_words[] = {"error", "warning", "info", "debug"};

/* syslog priorities, as the service manager reads them from the start of a line. */
static const int level_priorities[] = {3, 4, 6, 7};

void kv_log_set_level(enum kv_log_level level)
{
	atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

enum kv_log_level kv_log_level(void)
{
	return (enum kv_log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

int kv_log_parse_level(const char *word, enum kv_log_level *level)
{
	for (int i = 0; i < (int)(sizeof level_words / sizeof level_words[0]); i++) {
		if (strcmp(word, level_words[i]) == 0) {
			*level = (enum kv_log_level)i;
			return 0;
		}
	}
	return -1;
}

static size_t put_head(char *line, size_t size, enum kv_log_level level, const char *module)
{
	uint64_t now = kv_wall_ms();
	time_t seconds = (time_t)(now / 1000);
	struct tm utc;
	int length;

	if (getenv("JOURNAL_STREAM")) {
		length = snprintf(line, size, "<%d>%s: ", level_priorities[level], module);
	} else {
		gmtime_r(&seconds, &utc);
		length =
		    snprintf(line, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ %s %s: ", utc.tm_year + 1900,
		        utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
		        (unsigned)(now % 1000), level_words[level], module);
	}
	if (length < 0) return 0;
	return (size_t)length < size ? (size_t)length : size - 1;
}

/* One event is one line: a newline inside untrusted text must not start a forged second one. */
static void hide_control_characters(char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		unsigned char byte = (unsigned char)text[i];

		if (byte < 0x20 || byte == 0x7f) text[i] = byte == '\n' || byte == '\t' ? ' ' : '?';
	}
}

void kv_log_set_program(const char *name)
{
	program = name;
}

void kv_log_never_wait(void)
{
	never_waits = true;
}

/* A pipe, a terminal or a socket that can be written to takes at least a line without waiting. */
static bool is_writable(void)
{
	struct pollfd one = {.fd = STDERR_FILENO, .events = POLLOUT};

	return poll(&one, 1, 0) > 0;
}

/* A log line that cannot be written has nowhere else to go. */
static void put_line(const char *line, size_t length)
{
	if (write(STDERR_FILENO, line, length) < 0) return;
}

static void put_count(uint64_t lines)
{
	char line[256];
	size_t head = put_head(line, sizeof line, KV_LOG_WARNING, "log");
	int length = snprintf(line + head, sizeof line - head,
	    "standard error was not read, lines dropped: %" PRIu64 "\n", lines);

	if (length > 0) put_line(line, head + (size_t)length);
}

static void put_or_drop(const char *line, size_t length)
{
	pthread_mutex_lock(&lock);
	if (dropped > 0 && is_writable()) {
		put_count(dropped);
		dropped = 0;
	}
	if (dropped == 0 && is_writable())
		put_line(line, length);
	else
		dropped++;
	pthread_mutex_unlock(&lock);
}

void kv_log_set_subject(struct kv_log_subject subject)
{
	current_subject = subject;
}

static bool is_set(const char *text)
{
	return text != NULL && text[0] != '\0';
}

/* What a line ends in. */
static void put_subject(char text[SUBJECT_SIZE])
{
	const struct kv_log_subject *subject = &current_subject;
	bool request = is_set(subject->request), sequence = is_set(subject->sequence);

	snprintf(text, SUBJECT_SIZE, "%s%.100s%s%.100s", request ? " request=" : "",
	    request ? subject->request : "", sequence ? " sequence=" : "",
	    sequence ? subject->sequence : "");
}

/* A journal that does not take the line reads it from standard error, without its fields. */
static bool send_to_journal(
    enum kv_log_level level, const char *module, const char *line, size_t length)
{
	const size_t mark = sizeof "<6>" - 1;
	struct kv_journal_entry entry = {.priority = level_priorities[level],
	    .identifier = program,
	    .module = module,
	    .request = current_subject.request,
	    .sequence = current_subject.sequence};

	if (!kv_journal_is_stderr()) return false;
	entry.message = line + mark;
	entry.message_length = length - mark - 1; /* nor the line's end */
	return kv_journal_send(&entry, !never_waits) != 0;
}

void kv_log(enum kv_log_level level, const char *module, const char *format, ...)
{
	char line[LINE_SIZE], subject[SUBJECT_SIZE];
	size_t head, length, room;
	int saved_errno = errno;
	int written;
	va_list arguments;

	if (level > kv_log_level()) return;
	put_subject(subject);
	room = sizeof line - 1 - strlen(subject);
	head = put_head(line, room, level, module);
	va_start(arguments, format);
	written = vsnprintf(line + head, room - head, format, arguments);
	va_end(arguments);
	length = strlen(line);
	if (written >= 0 && (size_t)written > length - head) memcpy(line + length - 3, "...", 3);
	memcpy(line + length, subject, strlen(subject));
	length += strlen(subject);
	hide_control_characters(line + head, length - head);
	line[length++] = '\n';
	if (send_to_journal(level, module, line, length)) {
		errno = saved_errno;
		return;
	}
	if (never_waits)
		put_or_drop(line, length);
	else
		put_line(line, length);
	errno = saved_errno;
}

int kv_log_allows(struct kv_log_limit *limit, const char *module)
{
	enum { WINDOW_MS = 10000 };
	uint64_t now = kv_now_ms();

	if (limit->lines == 0 || now - limit->since_ms >= WINDOW_MS) {
		if (limit->left_out > 0)
			kv_warning(module, "%" PRIu32 " more lines like the next one were left out",
			    limit->left_out);
		*limit = (struct kv_log_limit){.since_ms = now};
	}
	if (limit->lines == KV_LOG_BURST) {
		limit->left_out++;
		return 0;
	}
	limit->lines++;
	return 1;
}
