/* One cell of the kill matrix: a store and workers, one of which is killed, stopped or ended at a
 * certain moment of a request, and what must hold after it. */
#ifndef TESTS_FAULT_KILL_CELL_H
#define TESTS_FAULT_KILL_CELL_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kill_victim { VICTIM_WORKER, VICTIM_STORE, VICTIMS };

enum kill_signal {
	KILL_AT_ONCE,  /* SIGKILL */
	STOP_AND_WAKE, /* SIGSTOP, longer than a lease, then SIGCONT */
	END,           /* SIGTERM */
	SIGNALS
};

enum kill_phase { CONNECT, RESERVE, WRITING, COMMIT, READING, EVICTING, IDLE, PHASES };

struct kill_cell {
	enum kill_victim victim;
	enum kill_signal signal;
	enum kill_phase phase;
	bool restarted;
	const char *transport;
};

/* What prompts there are, and their answers by an undisturbed store. */
enum { KILL_PROMPTS = 6 };

/* "worker-kill-reserve-restarted-map" */
void kill_cell_name(const struct kill_cell *cell, char *name, size_t size);
/* False when it names none. */
bool kill_cell_parse(const char *name, struct kill_cell *cell);

extern const char *const kill_victims[VICTIMS], *const kill_signals[SIGNALS],
                                                    *const kill_phases[PHASES];

/* Ask an undisturbed store and worker for all answers, first cold, then with the prefix attached,
 * and write them to a file. False after printing why. */
bool kill_answers_write(const char *path);

/* Run one cell: the exit code of a test program. */
int kill_cell_run(const struct kill_cell *cell, const char *answers);

#ifdef __cplusplus
}
#endif
#endif
