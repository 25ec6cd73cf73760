#include "common/base/journal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ENTRY_SIZE = 4096 };

static const char *journal_path = "/run/systemd/journal/socket";

/* Kept open; the address is given with each entry, so that a journal that starts anew is found. */
static atomic_int journal_socket = -1;

void kv_journal_set_path(const char *path)
{
	journal_path = path != NULL ? path : "/run/systemd/journal/socket";
}

/* A number up to `end`, in digits alone. */
static bool read_number(const char **text, char end, uintmax_t *number)
{
	char *behind;

	if (**text < '0' || **text > '9') return false;
	errno = 0;
	*number = strtoumax(*text, &behind, 10);
	if (errno != 0 || *behind != end) return false;
	*text = behind + 1;
	return true;
}

int kv_journal_is_stderr(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	uintmax_t device, inode;
	struct stat facts;

	if (stream == NULL || !read_number(&stream, ':', &device) ||
	    !read_number(&stream, '\0', &inode))
		return 0;
	return fstat(STDERR_FILENO, &facts) == 0 && (uintmax_t)facts.st_dev == device &&
	       (uintmax_t)facts.st_ino == inode;
}

static int open_socket(void)
{
	int there = atomic_load(&journal_socket), made;

	if (there >= 0) return there;
	made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (made < 0) return -1;
	/* Another thread may have been faster. */
	if (atomic_compare_exchange_strong(&journal_socket, &there, made)) return made;
	close(made);
	return there;
}

struct datagram {
	char bytes[ENTRY_SIZE];
	size_t length;
	bool whole;
};

static void put(struct datagram *datagram, const char *name, const char *value, size_t length)
{
	size_t head = strlen(name);

	if (value == NULL || length == 0) return;
	if (head + length + 2 > sizeof datagram->bytes - datagram->length) {
		datagram->whole = false;
		return;
	}
	memcpy(datagram->bytes + datagram->length, name, head);
	datagram->bytes[datagram->length + head] = '=';
	memcpy(datagram->bytes + datagram->length + head + 1, value, length);
	datagram->length += head + length + 2;
	datagram->bytes[datagram->length - 1] = '\n';
}

static void put_text(struct datagram *datagram, const char *name, const char *value)
{
	put(datagram, name, value, value != NULL ? strlen(value) : 0);
}

static bool send_datagram(const struct datagram *datagram, bool wait)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = open_socket();
	ssize_t sent;

	if (fd < 0 || strlen(journal_path) >= sizeof address.sun_path) return false;
	strcpy(address.sun_path, journal_path);
	do
		sent = sendto(fd, datagram->bytes, datagram->length,
		    MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT), (const struct sockaddr *)&address,
		    sizeof address);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)datagram->length;
}

int kv_journal_send(const struct kv_journal_entry *entry, int wait)
{
	struct datagram datagram = {.whole = true};
	char priority[16];

	snprintf(priority, sizeof priority, "%d", entry->priority);
	put(&datagram, "MESSAGE", entry->message, entry->message_length);
	put_text(&datagram, "PRIORITY", priority);
	put_text(&datagram, "SYSLOG_IDENTIFIER", entry->identifier);
	put_text(&datagram, "CLUSTERKV_MODULE", entry->module);
	put_text(&datagram, "CLUSTERKV_REQUEST", entry->request);
	put_text(&datagram, "CLUSTERKV_SEQUENCE", entry->sequence);
	return datagram.whole && send_datagram(&datagram, wait != 0);
}
