/* A client of plain sockets that keeps no rule of HTTP, and what its victim holds. */
#ifndef TESTS_LIB_RAW_HTTP_H
#define TESTS_LIB_RAW_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "tests/lib/serve_fixture.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Connect from a loopback address (NULL: 127.0.0.1), with so many bytes of receive buffer (0: as
 * usual). -1 when that did not work. */
int raw_connect(const struct serve_fixture *fixture, const char *from, int buffer);
/* Whether all was taken. */
bool raw_send(int fd, const char *bytes, size_t length);
bool raw_put(int fd, const char *text);
/* Read until `word` has come or, with NULL, to the end; for at most 20 s. What came is terminated.
 * False without the word or the end. */
bool raw_read(int fd, const char *word, char *out, size_t capacity);
/* Whether the other side has ended it; what it said is thrown away. Does not wait. */
bool raw_ended(int fd);
/* Send `text` on a new connection, and read to the end. The status code, 0 without one, -1 when
 * the connection was not ended. */
int raw_ask(const struct serve_fixture *fixture, const char *text, char *out, size_t capacity);

void raw_pause(long ms);

/* Of a process: resident KiB, open descriptors, CPU time used. */
long process_resident_kib(pid_t pid);
int process_descriptors(pid_t pid);
long process_cpu_ms(pid_t pid);

#ifdef __cplusplus
}
#endif
#endif
