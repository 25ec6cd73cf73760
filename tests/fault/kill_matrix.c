/* The kill matrix: worker or store, killed, stopped or ended, at each phase of a request, started
 * again or not. Runs the cells beside each other, each in a process of its own, and prints a table.
 *
 *     kill_matrix [--transport map|ucx] [--jobs N] [--every N] [--limit SECONDS] [--cell NAME]
 *
 * When its time is over, or SIGTERM or SIGINT comes, it prints the table so far, and fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fault/kill_cell.h"
#include "tests/lib/store_fixture.h"

enum {
	TRANSPORTS = 2,
	CELLS = VICTIMS * SIGNALS * PHASES * 2,
	MAX_JOBS = 32,
	USUAL_JOBS = 6,
	CELL_LIMIT_MS = 150000
};

enum outcome { NOT_RUN, PASSED, FAILED, CUT_SHORT };

struct run {
	struct kill_cell cell;
	char name[96];
	pid_t pid;
	uint64_t started, took;
	enum outcome outcome;
};

struct matrix {
	const char *program;
	const char *transports[TRANSPORTS];
	unsigned transport_count, jobs, every;
	char directory[96], answers[128];
	struct run runs[CELLS * TRANSPORTS];
	unsigned count, failed;
	uint64_t limit_ms; /* for all cells together; 0: none */
};

static struct matrix matrix;
static volatile sig_atomic_t told_to_end; /* the signal's number */

static void note_signal(int number)
{
	told_to_end = number;
}

static void list_cells(void)
{
	for (unsigned t = 0; t < matrix.transport_count; t++)
		for (unsigned i = 0; i < CELLS; i++) {
			struct run *run = &matrix.runs[matrix.count++];

			run->cell = (struct kill_cell){.victim = (enum kill_victim)(i / (CELLS / VICTIMS)),
			    .phase = (enum kill_phase)(i / (SIGNALS * 2) % PHASES),
			    .signal = (enum kill_signal)(i / 2 % SIGNALS),
			    .restarted = i % 2 == 1,
			    .transport = matrix.transports[t]};
			kill_cell_name(&run->cell, run->name, sizeof run->name);
		}
}

static void log_path(const struct run *run, char *path, size_t size)
{
	snprintf(path, size, "%s/%s.log", matrix.directory, run->name);
}

static void start(struct run *run)
{
	char path[256];
	pid_t parent = getpid();
	int log;

	log_path(run, path, sizeof path);
	fflush(stdout);
	run->started = store_fixture_now();
	run->pid = fork();
	if (run->pid != 0) return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) _exit(126);
	log = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (log >= 0) {
		dup2(log, 1);
		dup2(log, 2);
	}
	execl(matrix.program, matrix.program, "--cell", run->name, "--answers", matrix.answers,
	    (char *)NULL);
	_exit(127);
}

static void print_file(const char *path)
{
	char bytes[4096];
	FILE *file = fopen(path, "r");
	size_t n;

	while (file && (n = fread(bytes, 1, sizeof bytes, file)) > 0)
		fwrite(bytes, 1, n, stdout);
	if (file) fclose(file);
}

static void finish(struct run *run, int status)
{
	char path[256];

	run->pid = 0;
	run->took = store_fixture_now() - run->started;
	run->outcome = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? PASSED : FAILED;
	log_path(run, path, sizeof path);
	if (run->outcome == FAILED) {
		matrix.failed++;
		printf("==== %s failed (status 0x%x):\n", run->name, (unsigned)status);
		print_file(path);
		printf("====\n");
	}
	unlink(path);
}

/* How many still run. */
static unsigned reap(void)
{
	unsigned running = 0;

	for (unsigned i = 0; i < matrix.count; i++) {
		struct run *run = &matrix.runs[i];
		int status;

		if (run->pid <= 0) continue;
		if (waitpid(run->pid, &status, WNOHANG) == run->pid)
			finish(run, status);
		else
			running++;
		if (run->pid > 0 && store_fixture_now() - run->started > CELL_LIMIT_MS)
			kill(run->pid, SIGKILL);
	}
	return running;
}

/* Cells that still run are ended, with their stores and workers: these die with their parent. */
static void cut_short(void)
{
	for (unsigned i = 0; i < matrix.count; i++) {
		struct run *run = &matrix.runs[i];
		char path[256];

		if (run->pid <= 0) continue;
		kill(run->pid, SIGKILL);
		waitpid(run->pid, NULL, 0);
		run->pid = 0;
		run->outcome = CUT_SHORT;
		log_path(run, path, sizeof path);
		printf("==== %s ran for %llu ms when the matrix was cut short:\n", run->name,
		    (unsigned long long)(store_fixture_now() - run->started));
		print_file(path);
		printf("====\n");
		unlink(path);
	}
}

/* False when there was no time for all cells. */
static bool run_all(uint64_t started)
{
	unsigned next = 0, running = 0;

	while (next < matrix.count || running > 0) {
		if (told_to_end || (matrix.limit_ms && store_fixture_now() - started > matrix.limit_ms)) {
			cut_short();
			return false;
		}
		/* Those that mostly wait are beside those that mostly work. */
		while (running < matrix.jobs && next < matrix.count) {
			if (next % matrix.every == 0) {
				start(&matrix.runs[next]);
				running++;
			}
			next++;
		}
		store_fixture_sleep(5);
		running = reap();
	}
	return true;
}

static const struct run *find(const struct kill_cell *cell)
{
	char name[96];

	kill_cell_name(cell, name, sizeof name);
	for (unsigned i = 0; i < matrix.count; i++)
		if (strcmp(matrix.runs[i].name, name) == 0) return &matrix.runs[i];
	return NULL;
}

static void print_cell(const struct run *run)
{
	char text[24] = "-";

	if (run && run->outcome == PASSED)
		snprintf(text, sizeof text, "ok %.1f s", (double)run->took / 1000);
	if (run && run->outcome == FAILED) snprintf(text, sizeof text, "FAILED");
	if (run && run->outcome == CUT_SHORT) snprintf(text, sizeof text, "cut short");
	printf(" %-12s", text);
}

static void print_table(const char *transport)
{
	printf("\ntransport %s\n%-16s", transport, "");
	for (int signal = 0; signal < SIGNALS; signal++)
		printf(" %-12s %-12s", kill_signals[signal], "+ restart");
	printf("\n");
	for (int row = 0; row < VICTIMS * PHASES; row++) {
		struct kill_cell cell = {.victim = (enum kill_victim)(row / PHASES),
		    .phase = (enum kill_phase)(row % PHASES),
		    .transport = transport};

		printf("%-6s %-9s", kill_victims[cell.victim], kill_phases[cell.phase]);
		for (int column = 0; column < SIGNALS * 2; column++) {
			cell.signal = (enum kill_signal)(column / 2);
			cell.restarted = column % 2 == 1;
			print_cell(find(&cell));
		}
		printf("\n");
	}
}

static int report(uint64_t started, bool whole)
{
	unsigned passed = 0;

	for (unsigned i = 0; i < matrix.count; i++)
		passed += matrix.runs[i].outcome == PASSED;
	for (unsigned t = 0; t < matrix.transport_count; t++)
		print_table(matrix.transports[t]);
	printf("\nkill: SIGKILL; stop: SIGSTOP for longer than a lease, then SIGCONT; term: SIGTERM\n"
	       "kill matrix: %u cells passed, %u failed, %.0f s\n",
	    passed, matrix.failed, (double)(store_fixture_now() - started) / 1000);
	if (!whole)
		printf("kill matrix: not all cells ran: %s\n",
		    told_to_end ? "it was told to end" : "its time is over");
	fflush(stdout);
	return matrix.failed || !passed || !whole ? 1 : 0;
}

static void take_signals(void)
{
	struct sigaction action = {.sa_handler = note_signal};

	sigemptyset(&action.sa_mask);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
}

static int run_matrix(void)
{
	const char *base = getenv("TMPDIR");
	uint64_t started = store_fixture_now();
	int code = 1;

	snprintf(matrix.directory, sizeof matrix.directory, "%s/clusterkv-matrix-XXXXXX",
	    base && strlen(base) < 60 ? base : "/tmp");
	if (!mkdtemp(matrix.directory)) {
		fprintf(stderr, "cannot make %s: %s\n", matrix.directory, strerror(errno));
		return 1;
	}
	snprintf(matrix.answers, sizeof matrix.answers, "%s/answers", matrix.directory);
	list_cells();
	if (kill_answers_write(matrix.answers)) {
		take_signals();
		code = report(started, run_all(started));
	}
	unlink(matrix.answers);
	rmdir(matrix.directory);
	return code;
}

static int usage(const char *program)
{
	fprintf(stderr,
	    "usage: %s [--transport map|ucx] [--jobs N] [--every N] [--limit SECONDS] [--cell NAME]\n"
	    "  --transport  only this one; default: both\n"
	    "  --jobs       cells beside each other, at most %d; default: %d\n"
	    "  --every      only each Nth cell\n"
	    "  --limit      print what there is and fail when all took longer; default: none\n"
	    "  --cell       only this one, with its logs: worker-kill-reserve-restarted-map\n",
	    program, (int)MAX_JOBS, (int)USUAL_JOBS);
	return 2;
}

static int run_one(const char *name, const char *answers)
{
	char path[] = "/tmp/clusterkv-answers-XXXXXX";
	struct kill_cell cell;
	int descriptor, code = 1;

	if (!kill_cell_parse(name, &cell)) {
		fprintf(stderr, "there is no cell %s\n", name);
		return 2;
	}
	if (answers) return kill_cell_run(&cell, answers);
	descriptor = mkstemp(path);
	if (descriptor < 0) return 1;
	close(descriptor);
	if (kill_answers_write(path)) code = kill_cell_run(&cell, path);
	unlink(path);
	return code;
}

int main(int argc, char **argv)
{
	const char *cell = NULL, *answers = NULL;

	signal(SIGPIPE, SIG_IGN);
	matrix.program = argv[0];
	matrix.jobs = USUAL_JOBS;
	matrix.every = 1;
	matrix.transports[0] = "map";
	matrix.transports[1] = "ucx";
	matrix.transport_count = TRANSPORTS;
	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;
		unsigned number = value ? (unsigned)strtoul(value, NULL, 10) : 0;

		if (!value) return usage(argv[0]);
		if (strcmp(argv[i], "--cell") == 0) {
			cell = value;
		} else if (strcmp(argv[i], "--answers") == 0) {
			answers = value;
		} else if (strcmp(argv[i], "--transport") == 0) {
			matrix.transports[0] = value;
			matrix.transport_count = 1;
		} else if (strcmp(argv[i], "--jobs") == 0 && number >= 1 && number <= MAX_JOBS) {
			matrix.jobs = number;
		} else if (strcmp(argv[i], "--every") == 0 && number >= 1) {
			matrix.every = number;
		} else if (strcmp(argv[i], "--limit") == 0 && number >= 1) {
			matrix.limit_ms = UINT64_C(1000) * number;
		} else {
			return usage(argv[0]);
		}
	}
	return cell ? run_one(cell, answers) : run_matrix();
}
