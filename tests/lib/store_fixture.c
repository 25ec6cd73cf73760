#include "tests/lib/store_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { START_MS = 20000, STOP_MS = 20000, ANSWER_MS = 5000, ANSWER_BYTES = 256 << 10 };

uint64_t store_fixture_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void store_fixture_sleep(unsigned milliseconds)
{
	struct timespec pause = {
	    .tv_sec = milliseconds / 1000, .tv_nsec = (long)(milliseconds % 1000) * 1000000};

	while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {
	}
}

/* What UCX left there; other programs' objects are none of ours. */
static unsigned count_shm(void)
{
	DIR *directory = opendir("/dev/shm");
	struct dirent *entry;
	unsigned count = 0;

	if (!directory) return 0;
	while ((entry = readdir(directory)))
		if (strncmp(entry->d_name, "ucx_shm", 7) == 0) count++;
	closedir(directory);
	return count;
}

bool store_fixture_init(struct store_fixture *fixture)
{
	const char *base = getenv("TMPDIR");

	memset(fixture, 0, sizeof *fixture);
	snprintf(fixture->directory, sizeof fixture->directory, "%s/clusterkv-test-XXXXXX",
	    base && strlen(base) < 60 ? base : "/tmp");
	if (!mkdtemp(fixture->directory)) {
		fprintf(stderr, "cannot make %s: %s\n", fixture->directory, strerror(errno));
		return false;
	}
	snprintf(fixture->socket, sizeof fixture->socket, "%s/kvstored.sock", fixture->directory);
	snprintf(fixture->stats, sizeof fixture->stats, "%s/stats.sock", fixture->directory);
	snprintf(fixture->log, sizeof fixture->log, "%s/log", fixture->directory);
	snprintf(fixture->secret, sizeof fixture->secret, "%s/secret", fixture->directory);
	snprintf(fixture->address, sizeof fixture->address, "unix:%s", fixture->socket);
	fixture->shm_before = count_shm();
	return true;
}

static const char *const *spawn_prefix;

void store_fixture_prefix(const char *const *prefix)
{
	spawn_prefix = prefix;
}

static pid_t spawn(const char *const *arguments, const char *log)
{
	char *copy[2 * STORE_FIXTURE_ARGUMENTS + 1] = {0};
	int count = 0;
	pid_t pid;

	for (int i = 0; spawn_prefix && i < STORE_FIXTURE_ARGUMENTS - 1 && spawn_prefix[i]; i++)
		copy[count++] = (char *)(uintptr_t)spawn_prefix[i];
	if (count) copy[count++] = (char *)(uintptr_t)KVSTORED_PATH;
	for (int i = count ? 1 : 0; i < STORE_FIXTURE_ARGUMENTS && arguments[i]; i++)
		copy[count++] = (char *)(uintptr_t)arguments[i];
	pid = fork();
	if (pid != 0) return pid;
	int output = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

	if (output >= 0) {
		dup2(output, 1);
		dup2(output, 2);
	}
	/* The test's own descriptors, above all its connections to the store, stay here. */
	for (int i = 3; i < 256; i++)
		close(i);
	/* A test that is killed takes its store along. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (spawn_prefix)
		execvp(copy[0], copy);
	else
		execv(KVSTORED_PATH, copy);
	_exit(127);
}

static void print_log(const char *path)
{
	char bytes[4096];
	FILE *file = fopen(path, "r");
	size_t n;

	if (!file) return;
	fprintf(stderr, "---- log of kvstored\n");
	while ((n = fread(bytes, 1, sizeof bytes, file)) > 0)
		fwrite(bytes, 1, n, stderr);
	fprintf(stderr, "----\n");
	fclose(file);
}

/* True when it has ended, with its status. */
static bool wait_end(pid_t pid, unsigned wait_ms, int *status)
{
	uint64_t deadline = store_fixture_now() + wait_ms;

	for (;;) {
		pid_t ended = waitpid(pid, status, WNOHANG);

		if (ended == pid) return true;
		if (ended < 0 || store_fixture_now() >= deadline) return false;
		store_fixture_sleep(5);
	}
}

static bool wait_ready(struct store_fixture *fixture)
{
	uint64_t deadline = store_fixture_now() + START_MS;
	char answer[256];
	int status;

	while (store_fixture_now() < deadline) {
		if (store_fixture_ask(fixture, "health", answer, sizeof answer) &&
		    strncmp(answer, "OK", 2) == 0)
			return true;
		if (waitpid(fixture->pid, &status, WNOHANG) == fixture->pid) {
			fixture->pid = 0;
			break;
		}
		store_fixture_sleep(10);
	}
	print_log(fixture->log);
	return false;
}

const uint8_t store_fixture_secret[STORE_FIXTURE_SECRET] = {
    0x10, 0x21, 0x32, 0x43, 0x54, 0x65, 0x76, 0x87, 0x98, 0xa9, 0xba, 0xcb, 0xdc, 0xed, 0xfe, 0x0f};

static bool write_secret(const struct store_fixture *fixture)
{
	int descriptor = open(fixture->secret, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	char text[2 * STORE_FIXTURE_SECRET + 2];
	bool written;

	for (int i = 0; i < STORE_FIXTURE_SECRET; i++)
		snprintf(text + 2 * i, 4, "%02x\n", store_fixture_secret[i]);
	if (descriptor < 0) return false;
	written = write(descriptor, text, sizeof text - 1) == (ssize_t)sizeof text - 1;
	return close(descriptor) == 0 && written;
}

/* Where it listens for other hosts. */
static bool find_remote(struct store_fixture *fixture)
{
	char answer[4096];
	char *line, *end;

	if (!store_fixture_ask(fixture, "info", answer, sizeof answer)) return false;
	line = strstr(answer, "\nlisten: ");
	end = line ? strchr(line, '\r') : NULL;
	if (!end) return false;
	*end = '\0';
	line = strrchr(line, ':');
	fixture->port = (unsigned)strtoul(line + 1, NULL, 10);
	snprintf(fixture->address, sizeof fixture->address, "tcp:%s:%u",
	    fixture->host[0] ? fixture->host : "127.0.0.1", fixture->port);
	return fixture->port != 0;
}

bool store_fixture_start(struct store_fixture *fixture, const char *const *arguments)
{
	char socket[160];
	char stats[160];
	char listen[120];
	char secret[160];
	const char *all[STORE_FIXTURE_ARGUMENTS + 1] = {
	    "kvstored", socket, stats, "--config=", "--memory=64MiB", "--log-level=debug"};
	int count = 6;

	snprintf(socket, sizeof socket, "--socket=%s", fixture->socket);
	snprintf(stats, sizeof stats, "--stats-socket=%s", fixture->stats);
	if (fixture->remote) {
		if (!write_secret(fixture)) return false;
		snprintf(listen, sizeof listen, "--listen=%s:%u",
		    fixture->host[0] ? fixture->host : "127.0.0.1", fixture->port);
		snprintf(secret, sizeof secret, "--secret-file=%s", fixture->secret);
		all[count++] = listen;
		all[count++] = secret;
	}
	while (arguments && *arguments && count < STORE_FIXTURE_ARGUMENTS)
		all[count++] = *arguments++;
	fixture->pid = spawn(all, fixture->log);
	if (fixture->pid < 0) {
		fixture->pid = 0;
		fprintf(stderr, "cannot start kvstored: %s\n", strerror(errno));
		return false;
	}
	return wait_ready(fixture) && (!fixture->remote || find_remote(fixture));
}

int store_fixture_run(
    const struct store_fixture *fixture, const char *const *arguments, char *output, size_t size)
{
	char path[160];
	int status = 0;
	FILE *file;
	pid_t pid;

	snprintf(path, sizeof path, "%s/run.log", fixture->directory);
	unlink(path);
	output[0] = '\0';
	pid = spawn(arguments, path);
	if (pid < 0) return -1;
	if (!wait_end(pid, 5000, &status)) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		return -1;
	}
	file = fopen(path, "r");
	if (file) {
		output[fread(output, 1, size - 1, file)] = '\0';
		fclose(file);
	}
	unlink(path);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void store_fixture_signal(const struct store_fixture *fixture, int number)
{
	if (fixture->pid > 0) kill(fixture->pid, number);
}

void store_fixture_kill(struct store_fixture *fixture)
{
	int status;

	if (fixture->pid <= 0) return;
	kill(fixture->pid, SIGKILL);
	waitpid(fixture->pid, &status, 0);
	fixture->pid = 0;
}

bool store_fixture_stop(struct store_fixture *fixture)
{
	if (fixture->pid <= 0) return true;
	kill(fixture->pid, SIGTERM);
	return store_fixture_ended(fixture);
}

bool store_fixture_ended(struct store_fixture *fixture)
{
	int status = 0;

	if (!wait_end(fixture->pid, STOP_MS, &status)) {
		fprintf(stderr, "kvstored does not end after SIGTERM\n");
		store_fixture_kill(fixture);
		return false;
	}
	fixture->pid = 0;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fprintf(stderr, "kvstored ended with status 0x%x\n", (unsigned)status);
		return false;
	}
	if (access(fixture->socket, F_OK) == 0 || access(fixture->stats, F_OK) == 0) {
		fprintf(stderr, "kvstored left its sockets behind\n");
		return false;
	}
	return true;
}

bool store_fixture_deinit(struct store_fixture *fixture, bool failed)
{
	bool stopped = store_fixture_stop(fixture);
	uint64_t deadline = store_fixture_now() + STOP_MS;
	unsigned shm;

	/* A store of other tests has objects there for a moment, too. */
	while ((shm = count_shm()) > fixture->shm_before && store_fixture_now() < deadline)
		store_fixture_sleep(20);
	if (failed || !stopped) print_log(fixture->log);
	unlink(fixture->log);
	unlink(fixture->secret);
	unlink(fixture->socket);
	unlink(fixture->stats);
	if (rmdir(fixture->directory) != 0)
		fprintf(stderr, "something is left in %s\n", fixture->directory);
	if (shm > fixture->shm_before) {
		fprintf(stderr, "%u objects are left in /dev/shm\n", shm - fixture->shm_before);
		return false;
	}
	return stopped;
}

static int connect_stats(const struct store_fixture *fixture)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);

	if (descriptor < 0 || strlen(fixture->stats) >= sizeof address.sun_path) return -1;
	strncpy(address.sun_path, fixture->stats, sizeof address.sun_path - 1);
	fcntl(descriptor, F_SETFD, FD_CLOEXEC);
	if (connect(descriptor, (const struct sockaddr *)&address, sizeof address) == 0)
		return descriptor;
	close(descriptor);
	return -1;
}

bool store_fixture_ask(
    const struct store_fixture *fixture, const char *command, char *answer, size_t size)
{
	int descriptor = connect_stats(fixture);
	uint64_t deadline = store_fixture_now() + ANSWER_MS;
	char line[128];
	size_t length = 0;
	int n;

	if (descriptor < 0) return false;
	n = snprintf(line, sizeof line, "%s\nquit\n", command);
	if (send(descriptor, line, (size_t)n, MSG_NOSIGNAL) != n) {
		close(descriptor);
		return false;
	}
	while (length + 1 < size && store_fixture_now() < deadline) {
		struct pollfd poll_one = {.fd = descriptor, .events = POLLIN};
		ssize_t got;

		if (poll(&poll_one, 1, 100) <= 0) continue;
		got = recv(descriptor, answer + length, size - 1 - length, 0);
		if (got <= 0) break;
		length += (size_t)got;
	}
	answer[length] = '\0';
	close(descriptor);
	return length > 0;
}

double store_fixture_stat(const struct store_fixture *fixture, const char *name)
{
	char *answer = malloc(ANSWER_BYTES);
	char wanted[192];
	const char *found;
	double value = -1;

	snprintf(wanted, sizeof wanted, "STAT %s ", name);
	if (answer && store_fixture_ask(fixture, "stats", answer, ANSWER_BYTES)) {
		found = strstr(answer, wanted);
		if (found) value = strtod(found + strlen(wanted), NULL);
	}
	free(answer);
	return value;
}

unsigned store_fixture_logged(const struct store_fixture *fixture, const char *words)
{
	FILE *file = fopen(fixture->log, "r");
	char line[1024];
	unsigned count = 0;

	while (file && fgets(line, sizeof line, file))
		count += strstr(line, words) != NULL;
	if (file) fclose(file);
	return count;
}

bool store_fixture_start_with_disk(struct store_fixture *fixture, const char *const *arguments)
{
	static const char read[] = "disk tier: index read";
	const unsigned before = store_fixture_logged(fixture, read);
	const uint64_t deadline = store_fixture_now() + STOP_MS;

	if (!store_fixture_start(fixture, arguments)) return false;
	while (store_fixture_logged(fixture, read) == before) {
		if (store_fixture_now() >= deadline) {
			fprintf(stderr, "kvstored does not read its folder of files\n");
			return false;
		}
		store_fixture_sleep(5);
	}
	return true;
}

bool store_fixture_wait_stat(
    const struct store_fixture *fixture, const char *name, double value, unsigned wait_ms)
{
	uint64_t deadline = store_fixture_now() + wait_ms;
	double found;

	for (;;) {
		found = store_fixture_stat(fixture, name);
		if (found >= value && found <= value) return true;
		if (store_fixture_now() >= deadline) break;
		store_fixture_sleep(20);
	}
	fprintf(stderr, "%s is %g, not %g\n", name, found, value);
	return false;
}
