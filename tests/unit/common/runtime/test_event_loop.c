#include "common/runtime/event_loop.h"

#include "common/base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

struct fixture {
	struct kv_allocator *allocator;
	struct kv_loop *loop;
	struct kv_timer *timer;
	struct kv_watch *watch;
	struct kv_waker *waker;
	int sockets[2];
	int calls;
	int stop_after;
	unsigned seen;
};

static int setup(void **state)
{
	struct fixture *fixture = calloc(1, sizeof *fixture);

	fixture->allocator = kv_allocator_create("test", 0);
	assert_int_equal(kv_loop_create(fixture->allocator, &fixture->loop), KV_OK);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fixture->sockets), 0);
	*state = fixture;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *fixture = *state;

	kv_loop_destroy(fixture->loop);
	close(fixture->sockets[0]);
	if (fixture->sockets[1] >= 0) close(fixture->sockets[1]);
	assert_int_equal(kv_allocator_stats(fixture->allocator).blocks, 0);
	kv_allocator_destroy(fixture->allocator);
	free(fixture);
	return 0;
}

static void count(void *context)
{
	struct fixture *fixture = context;

	if (++fixture->calls == fixture->stop_after) kv_loop_stop(fixture->loop);
}

static void timers_repeat_until_stopped(void **state)
{
	struct fixture *fixture = *state;
	uint64_t start = kv_now_ms();

	fixture->stop_after = 3;
	assert_int_equal(kv_loop_timer(fixture->loop, 2, 2, count, fixture, &fixture->timer), KV_OK);
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	assert_int_equal(fixture->calls, 3);
	assert_true(kv_now_ms() - start >= 5);
	kv_timer_stop(fixture->timer);
	/* Nothing is active: the loop ends by itself. */
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	assert_int_equal(fixture->calls, 3);
	assert_int_equal(kv_timer_start(fixture->timer, 0, 0), KV_OK);
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	assert_int_equal(fixture->calls, 4);
	kv_timer_close(fixture->timer);
	kv_timer_close(NULL);
}

static void close_own_timer(void *context)
{
	struct fixture *fixture = context;

	fixture->calls++;
	kv_timer_close(fixture->timer);
	kv_timer_close(fixture->timer);
	assert_int_equal(kv_timer_start(fixture->timer, 0, 1), KV_INVALID);
}

static void a_timer_may_close_itself(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(
	    kv_loop_timer(fixture->loop, 0, 1, close_own_timer, fixture, &fixture->timer), KV_OK);
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	assert_int_equal(fixture->calls, 1);
}

static void on_socket(void *context, struct kv_watch *watch, unsigned events)
{
	struct fixture *fixture = context;
	char byte;

	fixture->seen = events;
	fixture->calls++;
	if ((events & KV_LOOP_READABLE) && read(fixture->sockets[0], &byte, 1) == 0)
		kv_watch_close(watch);
}

static void a_watch_reports_what_it_is_asked_for(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(kv_loop_watch_fd(fixture->loop, fixture->sockets[0], KV_LOOP_READABLE,
	                     on_socket, fixture, &fixture->watch),
	    KV_OK);
	kv_loop_run_for(fixture->loop, 0);
	assert_int_equal(fixture->calls, 0);
	assert_int_equal(write(fixture->sockets[1], "ab", 2), 2);
	/* Level-triggered: two bytes, read one by one, are two events. */
	kv_loop_run_for(fixture->loop, 1000);
	kv_loop_run_for(fixture->loop, 1000);
	assert_int_equal(fixture->calls, 2);
	assert_int_equal(fixture->seen, KV_LOOP_READABLE);
	assert_int_equal(kv_watch_update(fixture->watch, KV_LOOP_WRITABLE), KV_OK);
	kv_loop_run_for(fixture->loop, 1000);
	assert_int_equal(fixture->seen, KV_LOOP_WRITABLE);
	assert_int_equal(kv_watch_update(fixture->watch, 0), KV_OK);
	assert_int_equal(write(fixture->sockets[1], "c", 1), 1);
	fixture->calls = 0;
	kv_loop_run_for(fixture->loop, 2);
	assert_int_equal(fixture->calls, 0);
	close(fixture->sockets[1]);
	fixture->sockets[1] = -1;
	assert_int_equal(kv_watch_update(fixture->watch, KV_LOOP_HANGUP), KV_OK);
	kv_loop_run_for(fixture->loop, 1000);
	assert_int_equal(fixture->calls, 1);
	assert_true(fixture->seen & KV_LOOP_HANGUP);
	/* To the end of the stream, where the callback closes the watch and so ends the loop. */
	assert_int_equal(kv_watch_update(fixture->watch, KV_LOOP_READABLE), KV_OK);
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	assert_int_equal(fixture->calls, 3);
}

static void wrong_descriptors_are_refused(void **state)
{
	struct fixture *fixture = *state;
	struct kv_watch *watch = NULL;
	int file = open("/proc/self/exe", O_RDONLY);

	assert_int_equal(
	    kv_loop_watch_fd(fixture->loop, -1, KV_LOOP_READABLE, on_socket, fixture, &watch),
	    KV_INVALID);
	assert_int_equal(
	    kv_loop_watch_fd(fixture->loop, file, KV_LOOP_READABLE, on_socket, fixture, &watch),
	    KV_INVALID);
	assert_null(watch);
	close(file);
}

static void a_descriptor_can_be_watched_again(void **state)
{
	struct fixture *fixture = *state;
	struct kv_watch *second = NULL;

	assert_int_equal(kv_loop_watch_fd(fixture->loop, fixture->sockets[0], KV_LOOP_READABLE,
	                     on_socket, fixture, &fixture->watch),
	    KV_OK);
	assert_int_equal(kv_loop_watch_fd(fixture->loop, fixture->sockets[0], KV_LOOP_READABLE,
	                     on_socket, fixture, &second),
	    KV_INVALID);
	kv_watch_close(fixture->watch);
	assert_int_equal(kv_loop_watch_fd(fixture->loop, fixture->sockets[0], KV_LOOP_READABLE,
	                     on_socket, fixture, &second),
	    KV_OK);
	assert_int_equal(write(fixture->sockets[1], "a", 1), 1);
	kv_loop_run_for(fixture->loop, 1000);
	assert_int_equal(fixture->calls, 1);
}

struct exchange {
	struct fixture fixture; /* the loop's side */
	int number;             /* plain: ordered by the waker alone */
	int received;
};

static void on_wake(void *context)
{
	struct exchange *exchange = context;

	exchange->received = exchange->number;
	kv_loop_stop(exchange->fixture.loop);
}

static void *wake_from_thread(void *context)
{
	struct exchange *exchange = context;

	exchange->number = 42;
	kv_waker_wake(exchange->fixture.waker);
	return NULL;
}

static void a_waker_carries_memory_across_threads(void **state)
{
	struct fixture *fixture = *state;
	struct exchange exchange = {.fixture = *fixture};
	pthread_t thread;

	assert_int_equal(
	    kv_loop_waker(fixture->loop, on_wake, &exchange, &exchange.fixture.waker), KV_OK);
	assert_int_equal(pthread_create(&thread, NULL, wake_from_thread, &exchange), 0);
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	assert_int_equal(exchange.received, 42);
	pthread_join(thread, NULL);
	kv_waker_close(exchange.fixture.waker);
	kv_waker_close(NULL);
}

struct progress {
	int asked;
	int pending; /* rounds in which more is ready */
};

static bool before_block(void *context)
{
	struct progress *progress = context;

	progress->asked++;
	if (progress->pending == 0) return false;
	progress->pending--;
	return true;
}

static void the_loop_does_not_block_while_more_is_ready(void **state)
{
	struct fixture *fixture = *state;
	struct progress progress = {0, 50};

	fixture->stop_after = 1;
	assert_int_equal(kv_loop_before_block(fixture->loop, before_block, &progress), KV_OK);
	assert_int_equal(
	    kv_loop_timer(fixture->loop, 60000, 0, count, fixture, &fixture->timer), KV_OK);
	/* If the first true let it block, the next round would come after a minute. */
	for (int i = 0; i < 50; i++)
		kv_loop_run_for(fixture->loop, 60000);
	assert_int_equal(progress.pending, 0);
	assert_true(progress.asked >= 50);
	assert_int_equal(kv_loop_before_block(fixture->loop, NULL, NULL), KV_OK);
	progress.asked = 0;
	kv_loop_run_for(fixture->loop, 1);
	assert_int_equal(progress.asked, 0);
	assert_int_equal(fixture->calls, 0);
}

struct job {
	struct kv_loop *loop;
	pthread_t worked_on;
	int worked;
	int done;
	int *all_done;
	int all;
};

static void work(void *context)
{
	struct job *job = context;

	job->worked_on = pthread_self();
	job->worked++;
}

static void work_done(void *context)
{
	struct job *job = context;

	job->done++;
	assert_int_equal(job->worked, job->done);
	if (++*job->all_done == job->all) kv_loop_stop(job->loop);
}

static void work_runs_elsewhere_once(void **state)
{
	struct fixture *fixture = *state;
	static struct job jobs[KV_LOOP_WORK_LIMIT + 1];
	int all_done = 0;

	for (int i = 0; i <= KV_LOOP_WORK_LIMIT; i++) {
		enum kv_status status;

		jobs[i] =
		    (struct job){.loop = fixture->loop, .all_done = &all_done, .all = KV_LOOP_WORK_LIMIT};
		status = kv_loop_work(fixture->loop, work, work_done, &jobs[i]);
		assert_int_equal(status, i < KV_LOOP_WORK_LIMIT ? KV_OK : KV_BUSY);
	}
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	for (int i = 0; i < KV_LOOP_WORK_LIMIT; i++) {
		assert_int_equal(jobs[i].done, 1);
		assert_false(pthread_equal(jobs[i].worked_on, pthread_self()));
	}
	assert_int_equal(jobs[KV_LOOP_WORK_LIMIT].worked, 0);
	/* Given back: another one fits, and destroy waits for it. */
	all_done = -1000;
	assert_int_equal(
	    kv_loop_work(fixture->loop, work, work_done, &jobs[KV_LOOP_WORK_LIMIT]), KV_OK);
	kv_loop_destroy(fixture->loop);
	assert_int_equal(jobs[KV_LOOP_WORK_LIMIT].done, 1);
	fixture->loop = NULL;
}

static void on_signal(void *context, int number)
{
	struct fixture *fixture = context;

	fixture->seen = fixture->seen * 100 + (unsigned)number;
	if (++fixture->calls == 3) kv_loop_stop(fixture->loop);
}

static void raise_next(void *context)
{
	static const int order[] = {SIGHUP, SIGINT, SIGTERM};
	struct fixture *fixture = context;

	/* What means nothing is no callback, and no end. */
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR2);
	if (fixture->calls < 3) kill(getpid(), order[fixture->calls]);
}

static void signals_become_callbacks(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(kv_loop_signals(fixture->loop, on_signal, fixture), KV_OK);
	/* They do not keep the loop. */
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	assert_int_equal(
	    kv_loop_timer(fixture->loop, 1, 2, raise_next, fixture, &fixture->timer), KV_OK);
	assert_int_equal(kv_loop_run(fixture->loop), KV_OK);
	assert_int_equal(fixture->calls, 3);
	assert_int_equal(fixture->seen, SIGHUP * 10000 + SIGINT * 100 + SIGTERM);
	/* Ignored from here on: the write below reports EPIPE instead of ending the test. */
	close(fixture->sockets[1]);
	fixture->sockets[1] = -1;
	assert_int_equal(write(fixture->sockets[0], "x", 1), -1);
}

/* Signals that come while a process ends do not end it in another way. */
static void signals_after_the_loop_are_ignored(void **state)
{
	struct fixture *fixture = *state;
	int status = -1;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		if (kv_loop_signals(fixture->loop, on_signal, fixture) != KV_OK) _exit(1);
		kv_loop_destroy(fixture->loop);
		raise(SIGTERM);
		raise(SIGINT);
		raise(SIGHUP);
		raise(SIGUSR1);
		raise(SIGUSR2);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void every_failure_is_survived(void **state)
{
	struct fixture *fixture = *state;
	struct kv_loop *loop = NULL;
	struct kv_timer *timer = NULL;
	struct kv_watch *watch = NULL;
	struct kv_waker *waker = NULL;

	kv_allocator_fail_at(fixture->allocator, 1);
	assert_int_equal(kv_loop_create(fixture->allocator, &loop), KV_NO_MEMORY);
	kv_allocator_fail_at(fixture->allocator, 1);
	assert_int_equal(kv_loop_timer(fixture->loop, 1, 0, count, fixture, &timer), KV_NO_MEMORY);
	kv_allocator_fail_at(fixture->allocator, 1);
	assert_int_equal(kv_loop_watch_fd(fixture->loop, fixture->sockets[0], KV_LOOP_READABLE,
	                     on_socket, fixture, &watch),
	    KV_NO_MEMORY);
	kv_allocator_fail_at(fixture->allocator, 1);
	assert_int_equal(kv_loop_waker(fixture->loop, count, fixture, &waker), KV_NO_MEMORY);
	assert_null(loop);
	assert_null(timer);
	assert_null(watch);
	assert_null(waker);
}

static void destroy_closes_what_is_open(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(kv_loop_timer(fixture->loop, 0, 1, count, fixture, &fixture->timer), KV_OK);
	assert_int_equal(kv_loop_watch_fd(fixture->loop, fixture->sockets[0], KV_LOOP_WRITABLE,
	                     on_socket, fixture, &fixture->watch),
	    KV_OK);
	assert_int_equal(kv_loop_waker(fixture->loop, count, fixture, &fixture->waker), KV_OK);
	kv_waker_wake(fixture->waker);
	kv_loop_stop(fixture->loop);
	kv_loop_destroy(fixture->loop);
	kv_loop_destroy(NULL);
	fixture->loop = NULL;
	/* All of them were ready, and none was called on the way out. */
	assert_int_equal(fixture->calls, 0);
}

int main(void)
{
#define LOOP_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    LOOP_TEST(timers_repeat_until_stopped),
	    LOOP_TEST(a_timer_may_close_itself),
	    LOOP_TEST(a_watch_reports_what_it_is_asked_for),
	    LOOP_TEST(wrong_descriptors_are_refused),
	    LOOP_TEST(a_descriptor_can_be_watched_again),
	    LOOP_TEST(a_waker_carries_memory_across_threads),
	    LOOP_TEST(the_loop_does_not_block_while_more_is_ready),
	    LOOP_TEST(work_runs_elsewhere_once),
	    LOOP_TEST(signals_after_the_loop_are_ignored),
	    LOOP_TEST(signals_become_callbacks),
	    LOOP_TEST(every_failure_is_survived),
	    LOOP_TEST(destroy_closes_what_is_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
