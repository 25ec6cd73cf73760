/* Leveled, structured, line-oriented log on stderr.
 *
 * A line is `time level module: text key=value …`; under a service manager (JOURNAL_STREAM set) the
 * time is left out and the line starts with the <N> priority. Thread-safe: one write(2) for a line.
 * Where stderr is the journal itself, the line goes there with its fields (journal.h) instead, and
 * to stderr when that fails.
 */
#ifndef KV_COMMON_BASE_LOG_H
#define KV_COMMON_BASE_LOG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kv_log_level { KV_LOG_ERROR, KV_LOG_WARNING, KV_LOG_INFO, KV_LOG_DEBUG };

void kv_log_set_level(enum kv_log_level level);
enum kv_log_level kv_log_level(void);

/* Before there are threads: by what name the journal has this program. Borrowed. */
void kv_log_set_program(const char *name);

/* For processes that others wait for, to be called before there are threads: from now on a line
 * that standard error does not take at once (a terminal that is stopped, a reader that hangs) is
 * dropped, and the first one that is taken again is preceded by one that says how many were.
 * Before, and in programs that do not call this, logging waits for as long as the reader does. */
void kv_log_never_wait(void);

/* "error", "warning", "info", "debug"; 0 on success, -1 when the word is none of them. */
int kv_log_parse_level(const char *word, enum kv_log_level *level);

void kv_log(enum kv_log_level level, const char *module, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* What the calling thread works on: its lines end in ` request=… sequence=…` until it is set anew.
 * Texts are borrowed; NULL and "" leave theirs out. */
struct kv_log_subject {
	const char *request, *sequence;
};
void kv_log_set_subject(struct kv_log_subject subject);

/* For lines that a peer can cause as often as it likes: in any ten seconds, KV_LOG_BURST lines of
 * one limit go out; how many more there were is said in one line with the first that comes later.
 * A limit starts as zeros and is used by one thread. Returns whether the line may go out. */
enum { KV_LOG_BURST = 20 };
struct kv_log_limit {
	uint64_t since_ms;
	uint32_t lines, left_out;
};
int kv_log_allows(struct kv_log_limit *limit, const char *module);

#define kv_warning_limited(limit, module, ...)                                                     \
	do {                                                                                           \
		if (kv_log_allows(limit, module)) kv_warning(module, __VA_ARGS__);                         \
	} while (0)

#define kv_error(module, ...)   kv_log(KV_LOG_ERROR, module, __VA_ARGS__)
#define kv_warning(module, ...) kv_log(KV_LOG_WARNING, module, __VA_ARGS__)
#define kv_info(module, ...)    kv_log(KV_LOG_INFO, module, __VA_ARGS__)
#define kv_debug(module, ...)   kv_log(KV_LOG_DEBUG, module, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif
