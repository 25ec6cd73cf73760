#include "common/base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Opened the wrong way round: whoever reads standard input or writes standard output is told that
 * it is not there. */
static const int stream_modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};

static enum kv_status open_streams(void)
{
	for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++) {
		if (fcntl(i, F_GETFD) >= 0 || errno != EBADF) continue;
		/* All below i are open: the lowest free number is i. */
		if (open("/dev/null", stream_modes[i]) != i)
			return kv_fail(KV_IO, "descriptor %d is closed and /dev/null cannot take its place: %s",
			    i, strerror(errno));
	}
	return KV_OK;
}

enum kv_status kv_process_prepare(void)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};

	sigaction(SIGPIPE, &ignore, NULL);
	sigaction(SIGXFSZ, &ignore, NULL);
	/* Meant for some other program: no reason to end. */
	sigaction(SIGUSR1, &ignore, NULL);
	sigaction(SIGUSR2, &ignore, NULL);
	return open_streams();
}

enum kv_status kv_process_descriptors(uint64_t needed, const char *user, const char *option)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return kv_fail(KV_IO, "the limit of open files cannot be read: %s", strerror(errno));
	if (limit.rlim_cur >= needed) return KV_OK;
	if (limit.rlim_max >= needed) {
		limit.rlim_cur = (rlim_t)needed;
		if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return KV_OK;
	}
	return kv_fail(KV_USAGE,
	    "%s %llu file descriptors, but this process may have %llu; lower %s or raise the limit "
	    "(ulimit -n, LimitNOFILE= in a unit)",
	    user, (unsigned long long)needed, (unsigned long long)limit.rlim_max, option);
}

enum kv_status kv_process_finish(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout)) return KV_OK;
	return kv_fail(KV_IO, "standard output cannot be written");
}
