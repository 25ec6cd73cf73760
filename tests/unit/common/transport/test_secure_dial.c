/* Dialling a name: a slow look-up takes none of the time, and all of its addresses are tried. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/secure_dial.h"
#include "common/transport/tcp_socket.h"

enum { TIMEOUT_MS = 5000, PATIENCE_MS = 20000 };

static const uint8_t secret[KV_SECRET_BYTES] = {1, 2, 3};

/* ---- the system's resolver ---- */

struct answer {
	struct addrinfo info;
	struct sockaddr_in address;
};

static const char *resolved[4]; /* NULL ends them */
static _Atomic unsigned resolving_ms;
static _Atomic uint64_t resolved_ms;

int getaddrinfo(
    const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list)
{
	const char *const itself[2] = {host, NULL};
	const char *const *texts = strcmp(host, "store.test") == 0 ? resolved : itself;
	struct addrinfo **end = list;

	(void)hints;
	if (strcmp(host, "nobody.test") == 0) return EAI_NONAME;
	if (texts == resolved) poll(NULL, 0, (int)resolving_ms);
	for (; *texts; texts++) {
		struct answer *answer = calloc(1, sizeof *answer);

		answer->address.sin_family = AF_INET;
		answer->address.sin_port = htons((uint16_t)atoi(port));
		inet_pton(AF_INET, *texts, &answer->address.sin_addr);
		answer->info.ai_family = AF_INET;
		answer->info.ai_socktype = SOCK_STREAM;
		answer->info.ai_addr = (struct sockaddr *)&answer->address;
		answer->info.ai_addrlen = sizeof answer->address;
		*end = &answer->info;
		end = &answer->info.ai_next;
	}
	resolved_ms = kv_now_ms();
	return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
	while (list) {
		struct addrinfo *next = list->ai_next;

		free(list);
		list = next;
	}
}

/* ---- a store on 127.0.0.1 only, that shakes one hand ---- */

static int listener;

static void *serve(void *context)
{
	enum kv_secure_event event = KV_SECURE_READS;
	struct pollfd one = {.fd = listener, .events = POLLIN};
	struct kv_secure *secure = NULL;
	char from[KV_TCP_TEXT];
	int taken = -1;

	(void)context;
	if (poll(&one, 1, PATIENCE_MS) != 1) return NULL;
	if (kv_tcp_accept(listener, PATIENCE_MS, &taken, from) != KV_OK || taken < 0) return NULL;
	one.fd = taken;
	if (kv_secure_create(kv_heap(), KV_SECURE_STORE, secret, &secure) == KV_OK)
		while (kv_secure_handshake(secure, taken, &event) == KV_OK && event != KV_SECURE_DONE)
			if (poll(&one, 1, PATIENCE_MS) != 1) break;
	kv_secure_destroy(secure);
	close(taken);
	return NULL;
}

static void note_deadline(void *context, uint64_t deadline_ms)
{
	*(uint64_t *)context = deadline_ms;
}

static enum kv_status dial_store(uint32_t attempt, uint32_t timeout_ms, uint64_t *deadline_ms)
{
	char where[KV_TCP_TEXT], address[KV_TCP_TEXT];
	struct kv_secure_dial dial = {.allocator = kv_heap(),
	    .address = address,
	    .secret = secret,
	    .timeout_ms = timeout_ms,
	    .silence_ms = PATIENCE_MS,
	    .attempt = attempt,
	    .found = note_deadline,
	    .context = deadline_ms};
	struct kv_secure *secure = NULL;
	enum kv_status status;
	pthread_t store;
	int made = -1;

	assert_int_equal(kv_tcp_listen("127.0.0.1:0", 8, &listener, where), KV_OK);
	snprintf(address, sizeof address, "store.test%s", strchr(where, ':'));
	assert_int_equal(pthread_create(&store, NULL, serve, NULL), 0);
	status = kv_secure_dial(&dial, &made, &secure);
	if (status == KV_OK) {
		kv_secure_destroy(secure);
		close(made);
		pthread_join(store, NULL);
	} else {
		pthread_cancel(store);
		pthread_join(store, NULL);
	}
	close(listener);
	return status;
}

static void resolve_to(const char *first, const char *second, const char *third)
{
	resolved[0] = first;
	resolved[1] = second;
	resolved[2] = third;
}

static void a_slow_look_up_takes_none_of_the_time(void **state)
{
	uint64_t deadline = 0;

	(void)state;
	resolve_to("127.0.0.1", NULL, NULL);
	resolving_ms = 200;
	assert_int_equal(dial_store(0, TIMEOUT_MS, &deadline), KV_OK);
	resolving_ms = 0;
	assert_true(deadline >= resolved_ms + TIMEOUT_MS);
}

static void every_address_is_tried(void **state)
{
	uint64_t deadline = 0;

	(void)state;
	resolve_to("127.0.0.2", "127.0.0.3", "127.0.0.1");
	for (uint32_t attempt = 0; attempt < 4; attempt++)
		assert_int_equal(dial_store(attempt, TIMEOUT_MS, &deadline), KV_OK);
	assert_int_equal(dial_store(UINT32_MAX, TIMEOUT_MS, &deadline), KV_OK);
	resolve_to("127.0.0.2", "127.0.0.3", NULL);
	assert_int_equal(dial_store(0, TIMEOUT_MS, &deadline), KV_DISCONNECTED);
}

static bool give_up(void *context)
{
	return kv_now_ms() >= *(const uint64_t *)context;
}

/* Whoever gives up is not held by the resolver, which may take minutes. */
static void a_look_up_is_given_up(void **state)
{
	const uint64_t start = kv_now_ms();
	uint64_t until = start + 200;
	const struct kv_secure_dial dial = {.allocator = kv_heap(),
	    .address = "store.test:1",
	    .secret = secret,
	    .timeout_ms = TIMEOUT_MS,
	    .silence_ms = PATIENCE_MS,
	    .cancelled = give_up,
	    .context = &until};
	struct kv_secure *secure = NULL;
	int made = -1;

	(void)state;
	resolve_to("127.0.0.1", NULL, NULL);
	resolving_ms = 2000;
	resolved_ms = 0;
	assert_int_equal(kv_secure_dial(&dial, &made, &secure), KV_CANCELLED);
	assert_true(kv_now_ms() < start + 1500);
	/* It ends by itself. */
	while (kv_now_ms() < start + 2500)
		poll(NULL, 0, 20);
	resolving_ms = 0;
}

/* The same way, to its end. */
static void a_name_that_nobody_has_is_refused(void **state)
{
	uint64_t until = kv_now_ms() + PATIENCE_MS;
	const struct kv_secure_dial dial = {.allocator = kv_heap(),
	    .address = "nobody.test:1",
	    .secret = secret,
	    .timeout_ms = TIMEOUT_MS,
	    .silence_ms = PATIENCE_MS,
	    .cancelled = give_up,
	    .context = &until};
	struct kv_secure *secure = NULL;
	int made = -1;

	(void)state;
	assert_int_equal(kv_secure_dial(&dial, &made, &secure), KV_DISCONNECTED);
	assert_non_null(strstr(kv_error_message(), "cannot find host \"nobody.test\""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_slow_look_up_takes_none_of_the_time),
	    cmocka_unit_test(every_address_is_tried),
	    cmocka_unit_test(a_look_up_is_given_up),
	    cmocka_unit_test(a_name_that_nobody_has_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
