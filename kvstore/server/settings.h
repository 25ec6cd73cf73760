/* kvstored's options: one table, and the struct that it fills. */
#ifndef KVS_SERVER_SETTINGS_H
#define KVS_SERVER_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/runtime/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum kvs_transport_choice { KVS_TRANSPORT_AUTO, KVS_TRANSPORT_UCX, KVS_TRANSPORT_MAP };
enum kvs_verify { KVS_VERIFY_OFF, KVS_VERIFY_COMMIT, KVS_VERIFY_FETCH };

struct kvs_settings {
	const char *socket, *stats_socket, *http_listen;
	const char *listen, *secret_file; /* for workers on other hosts; NULL or "": none */
	const char *remote_tenant;
	const char *trusted_network; /* NULL or "": none, no UCX between hosts */
	uint64_t memory;             /* 0: chosen by kvs_settings_complete */
	uint64_t region; /* usual size of a region; 0: a quarter of memory, at most 64 to 256 MiB */
	int transport;   /* enum kvs_transport_choice */
	int verify;      /* enum kvs_verify */
	const char *tenants, *tenant_quota;        /* as kvs_quotas_parse takes them */
	int eviction;                              /* enum kvs_eviction */
	uint32_t high_watermark, low_watermark;    /* percent of memory; high 0: none */
	uint64_t evict_unused_ms, release_idle_ms; /* 0: never */
	uint64_t lease_ms, heartbeat_ms, orphan_ms;
	uint32_t max_workers;
	uint32_t max_sequences;
	bool isolation;
	bool warm_restart;
	const char *disk; /* NULL or "": none */
	uint64_t disk_size, disk_wait_ms;
	const char *allow_uid;     /* NULL or "": only the store's own user */
	uint32_t user_connections; /* 0: chosen */
	uint64_t frame_memory;
	int log_level; /* enum kv_log_level */
	uint64_t end_wait_ms;
	const char *faults;
};

extern const struct kv_program kvs_program;

enum { KVS_MAX_ALLOWED = 65 };
#define KVS_LEAST_FRAMES (UINT64_C(32) << 20) /* of one user: a message of the largest size */

/* Users that may connect, the store's own first. */
struct kvs_allow {
	bool everybody;
	uint32_t count;
	uint32_t uids[KVS_MAX_ALLOWED];
};

/* Names, numbers and *, separated by commas; NULL and "": only the own user. KV_INVALID. */
enum kv_status kvs_allow_parse(const char *text, struct kvs_allow *allow);
enum kv_status kvs_allow_check(const char *text);

/* Choose what was left to the machine, and judge the memory asked for: KV_LIMIT with what is asked
 * and what is there. Nothing is allocated. */
enum kv_status kvs_settings_complete(struct kvs_settings *settings);

struct kv_machine_memory;

/* Judge the memory asked for by all that there is, of which a store that runs may have any part:
 * KV_LIMIT where none could ever start here. What is left to be chosen is fine. */
enum kv_status kvs_settings_memory(
    const struct kvs_settings *settings, const struct kv_machine_memory *machine);

/* The usual size of a region of complete settings. */
uint64_t kvs_settings_region(const struct kvs_settings *settings);

/* Descriptors for all that may be open at a time. KV_USAGE when the process may not have them: what
 * needs most of them, workers or the arena, is named. */
enum kv_status kvs_settings_descriptors(const struct kvs_settings *settings);

#ifdef __cplusplus
}
#endif
#endif
