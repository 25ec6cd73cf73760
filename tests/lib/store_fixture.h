/* A real kvstored in a directory of its own, for tests. */
#ifndef TESTS_LIB_STORE_FIXTURE_H
#define TESTS_LIB_STORE_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STORE_FIXTURE_ARGUMENTS = 24 };

struct store_fixture {
	char directory[96];
	char socket[128], stats[128], log[128];
	char address[136];   /* unix:SOCKET; with `remote` tcp:HOST:PORT once it has been started */
	bool remote;         /* set before the start: also listen on TCP, with the secret below */
	char host[64];       /* where, to set before the start as well; "": 127.0.0.1 */
	unsigned port;       /* 0: a free one, which stays over restarts */
	char secret[136];    /* the secret's file */
	pid_t pid;           /* 0: not running */
	unsigned shm_before; /* objects in /dev/shm when it was set up */
};

enum { STORE_FIXTURE_SECRET = 32 };
extern const uint8_t store_fixture_secret[STORE_FIXTURE_SECRET];

/* Make the directory. False after printing why. */
bool store_fixture_init(struct store_fixture *fixture);

/* Start kvstored with --socket, --stats-socket, a small --memory, and then the NULL-terminated
 * `arguments` (may be NULL), and wait until it answers health. False after printing its log. */
bool store_fixture_start(struct store_fixture *fixture, const char *const *arguments);
/* The same with options of a disk tier, and wait until its folder has been read: before, a store
 * that is ready may not find what has a file. */
bool store_fixture_start_with_disk(struct store_fixture *fixture, const char *const *arguments);

/* Run every program that is started from now on by these arguments before its own (a command with
 * its options, such as ip netns exec NAME); NULL: none. Borrowed. */
void store_fixture_prefix(const char *const *prefix);

/* Start kvstored with exactly these arguments and wait for its end. Its exit code, -1 for a signal
 * or when it still ran after five seconds (it is killed then). What it wrote goes to `output`. */
int store_fixture_run(
    const struct store_fixture *fixture, const char *const *arguments, char *output, size_t size);

void store_fixture_signal(const struct store_fixture *fixture, int number);

/* Kill it at once. */
void store_fixture_kill(struct store_fixture *fixture);

/* SIGTERM; true when it ended with 0 and left no socket. */
bool store_fixture_stop(struct store_fixture *fixture);

/* Wait for the end that a SIGTERM asked for; true as above. */
bool store_fixture_ended(struct store_fixture *fixture);

/* Stop what runs, print the log when `failed`, remove the directory. True when nothing is left of
 * the store in /dev/shm. */
bool store_fixture_deinit(struct store_fixture *fixture, bool failed);

/* How many lines of the log say so. */
unsigned store_fixture_logged(const struct store_fixture *fixture, const char *words);

/* Send one line to the stats socket and read its answer (to END, EOF or the line's end). */
bool store_fixture_ask(
    const struct store_fixture *fixture, const char *command, char *answer, size_t size);

/* One number of `stats`; -1 when it is not there. */
double store_fixture_stat(const struct store_fixture *fixture, const char *name);

/* Wait until that number is `value`, for at most `wait_ms`. False after printing what it is. */
bool store_fixture_wait_stat(
    const struct store_fixture *fixture, const char *name, double value, unsigned wait_ms);

void store_fixture_sleep(unsigned milliseconds);
uint64_t store_fixture_now(void);

#ifdef __cplusplus
}
#endif
#endif
