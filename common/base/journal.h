/* The systemd journal's native protocol: an entry is a datagram of fields, so that `journalctl
 * FIELD=value` finds it. */
#ifndef KV_COMMON_BASE_JOURNAL_H
#define KV_COMMON_BASE_JOURNAL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Texts have no line breaks; NULL and "" leave their field out. */
struct kv_journal_entry {
	const char *message;
	size_t message_length;
	int priority;                   /* as of syslog: 3 is an error, 6 is information */
	const char *identifier;         /* SYSLOG_IDENTIFIER */
	const char *module;             /* CLUSTERKV_MODULE */
	const char *request, *sequence; /* CLUSTERKV_REQUEST, CLUSTERKV_SEQUENCE */
};

/* Is standard error the journal? JOURNAL_STREAM names its device and inode then; a program whose
 * standard error was redirected has the variable as well. */
int kv_journal_is_stderr(void);

/* True when the journal has taken it. `wait`: for one that is busy. Thread-safe. */
int kv_journal_send(const struct kv_journal_entry *entry, int wait);

/* For tests, before there are threads: where it listens; NULL: where systemd has it. Borrowed. */
void kv_journal_set_path(const char *path);

#ifdef __cplusplus
}
#endif
#endif
