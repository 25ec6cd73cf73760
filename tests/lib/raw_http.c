#include "tests/lib/raw_http.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_SECONDS = 20 };

void raw_pause(long ms)
{
	const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

int raw_connect(const struct serve_fixture *fixture, const char *from, int buffer)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)fixture->port)};
	struct sockaddr_in own = {.sin_family = AF_INET};
	const struct timeval limit = {WAIT_SECONDS, 0};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0) return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	if (buffer > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
	if (from != NULL && (inet_pton(AF_INET, from, &own.sin_addr) != 1 ||
	                        bind(fd, (struct sockaddr *)&own, sizeof own) != 0)) {
		close(fd);
		return -1;
	}
	if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
	close(fd);
	return -1;
}

bool raw_send(int fd, const char *bytes, size_t length)
{
	while (length > 0) {
		ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR) continue;
		if (sent <= 0) return false;
		bytes += sent;
		length -= (size_t)sent;
	}
	return true;
}

bool raw_put(int fd, const char *text)
{
	return raw_send(fd, text, strlen(text));
}

bool raw_read(int fd, const char *word, char *out, size_t capacity)
{
	const size_t size = word != NULL ? strlen(word) : 0;
	size_t length = 0, seen = 0;

	out[0] = '\0';
	while (word == NULL || strstr(out + seen, word) == NULL) {
		ssize_t got;

		/* What was cut off is looked at again. */
		seen = length > size ? length - size : 0;

		if (length + 1 >= capacity) return false;
		got = recv(fd, out + length, capacity - 1 - length, 0);
		if (got < 0 && errno == EINTR) continue;
		/* A reset is an end as well. */
		if (got <= 0) return word == NULL && (got == 0 || errno == ECONNRESET);
		length += (size_t)got;
		out[length] = '\0';
	}
	return true;
}

bool raw_ended(int fd)
{
	char some[4096];
	ssize_t got;

	do
		got = recv(fd, some, sizeof some, MSG_DONTWAIT);
	while (got > 0 || (got < 0 && errno == EINTR));
	return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

int raw_ask(const struct serve_fixture *fixture, const char *text, char *out, size_t capacity)
{
	int fd = raw_connect(fixture, NULL, 0), code = 0;

	if (fd < 0) return -1;
	raw_put(fd, text);
	if (!raw_read(fd, NULL, out, capacity)) code = -1;
	close(fd);
	if (code == 0 && strncmp(out, "HTTP/1.1 ", 9) == 0) code = atoi(out + 9);
	return code;
}

static long status_number(pid_t pid, const char *name)
{
	char path[64], line[256];
	long number = -1;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	file = fopen(path, "r");
	while (file != NULL && fgets(line, sizeof line, file) != NULL)
		if (strncmp(line, name, strlen(name)) == 0) number = atol(line + strlen(name));
	if (file != NULL) fclose(file);
	return number;
}

long process_resident_kib(pid_t pid)
{
	return status_number(pid, "VmRSS:");
}

int process_descriptors(pid_t pid)
{
	char path[64];
	int count = 0;
	DIR *folder;

	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	folder = opendir(path);
	if (folder == NULL) return -1;
	while (readdir(folder) != NULL)
		count++;
	closedir(folder);
	return count - 2;
}

long process_cpu_ms(pid_t pid)
{
	char path[64], text[1024];
	unsigned long user = 0, system = 0;
	const char *at = NULL;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	file = fopen(path, "r");
	if (file != NULL && fgets(text, sizeof text, file) != NULL) at = strrchr(text, ')');
	if (file != NULL) fclose(file);
	if (at == NULL ||
	    sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
		return -1;
	return (long)(user + system) * 1000 / sysconf(_SC_CLK_TCK);
}
