/* A small stand-in for the service manager: starts kvstored with a notify socket, keeps the
 * descriptors that it stores, and passes them to the next start. */
#ifndef TESTS_LIB_SERVICE_MANAGER_H
#define TESTS_LIB_SERVICE_MANAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/store_fixture.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MANAGER_DESCRIPTORS = 64 };

struct service_manager {
	char path[160];
	int socket;
	struct {
		char name[64];
		int descriptor;
	} kept[MANAGER_DESCRIPTORS];
	uint32_t count;
	uint32_t ready, stopping; /* messages */
};

/* Listen in the fixture's directory. False after printing why. */
bool service_manager_init(struct service_manager *manager, const struct store_fixture *fixture);
/* Forget everything. */
void service_manager_deinit(struct service_manager *manager);

/* Start kvstored as store_fixture_start does, with what is kept. Waits for READY. */
bool service_manager_start(
    struct service_manager *manager, struct store_fixture *fixture, const char *const *arguments);
/* SIGTERM, and keep what it stores until it ends. True when it ended with 0. */
bool service_manager_stop(struct service_manager *manager, struct store_fixture *fixture);

/* The kept descriptor whose name begins so, -1 when there is none. */
int service_manager_find(const struct service_manager *manager, const char *name);
/* Put another in its place; takes it. */
void service_manager_replace(struct service_manager *manager, const char *name, int descriptor);

/* Put a copy of a kept region, under the same seals and with one bit flipped at `at`, in its place.
 */
bool service_manager_damage(struct service_manager *manager, const char *name, size_t at);

#ifdef __cplusplus
}
#endif
#endif
