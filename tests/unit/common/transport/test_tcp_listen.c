/* Listening at a name that has several addresses, which a getaddrinfo of this program's own gives
 * it: what kv_tcp_listen does with them, kv_tcp_listen_check says. */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/transport/tcp_socket.h"

static const char *addresses[2];

int getaddrinfo(
    const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
	static struct sockaddr_in sockets[2];
	static struct addrinfo infos[2];

	(void)node;
	for (int i = 0; i < 2; i++) {
		sockets[i].sin_family = AF_INET;
		sockets[i].sin_port = htons((uint16_t)atoi(service));
		assert_int_equal(inet_pton(AF_INET, addresses[i], &sockets[i].sin_addr), 1);
		infos[i] = (struct addrinfo){.ai_family = AF_INET,
		    .ai_socktype = hints->ai_socktype,
		    .ai_addr = (struct sockaddr *)&sockets[i],
		    .ai_addrlen = sizeof sockets[i],
		    .ai_next = i == 0 ? &infos[1] : NULL};
	}
	*list = infos;
	return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
	(void)list;
}

/* Nobody's: kept for documents. */
#define FOREIGN "192.0.2.1"

static void the_first_of_this_machine_is_taken(void **state)
{
	char where[KV_TCP_TEXT];
	int listener = -1;

	(void)state;
	addresses[0] = FOREIGN;
	addresses[1] = "127.0.0.1";
	assert_int_equal(kv_tcp_listen_check("two.test:0"), KV_OK);
	assert_int_equal(kv_tcp_listen("two.test:0", 8, &listener, where), KV_OK);
	assert_int_equal(strncmp(where, "127.0.0.1:", 10), 0);
	close(listener);
}

/* Beside one that is in use nobody would be found. */
static void one_in_use_is_not_passed_over(void **state)
{
	char where[KV_TCP_TEXT], name[32];
	int listener = -1, other = -1;

	(void)state;
	addresses[0] = "127.0.0.1";
	addresses[1] = "127.0.0.2";
	assert_int_equal(kv_tcp_listen("two.test:0", 8, &listener, where), KV_OK);
	snprintf(name, sizeof name, "two.test%s", strchr(where, ':'));
	assert_int_equal(kv_tcp_listen_check(name), KV_OK);
	assert_int_equal(kv_tcp_listen(name, 8, &other, where), KV_EXISTS);
	assert_int_equal(other, -1);
	close(listener);
}

static void a_name_of_others_is_refused(void **state)
{
	char where[KV_TCP_TEXT];
	int listener = -1;

	(void)state;
	addresses[0] = addresses[1] = FOREIGN;
	assert_int_equal(kv_tcp_listen_check("two.test:0"), KV_IO);
	assert_int_equal(kv_tcp_listen("two.test:0", 8, &listener, where), KV_IO);
	assert_non_null(strstr(kv_error_message(), "two.test:0"));
	assert_int_equal(listener, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_first_of_this_machine_is_taken),
	    cmocka_unit_test(one_in_use_is_not_passed_over),
	    cmocka_unit_test(a_name_of_others_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
