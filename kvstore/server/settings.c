#include "kvstore/server/settings.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/process.h"
#include "common/runtime/sd_notify.h"
#include "common/transport/machine_memory.h"
#include "common/transport/secret.h"
#include "common/transport/tcp_socket.h"
#include "common/transport/trusted_network.h"
#include "common/transport/unix_socket.h"
#include "kvstore/disk/disk_folder.h"
#include "kvstore/server/http_listen.h"
#include "kvstore/server/quota.h"
#include "kvstore/server/server_internal.h"
#include "proto/wire_layout.h"

#define DEFAULT_MEMORY       (UINT64_C(4) << 30)
#define LEAST_MEMORY         (UINT64_C(1) << 20)
#define OWN_MEMORY           (UINT64_C(16) << 20)
#define LEAST_DISK           (UINT64_C(1) << 20)
#define MIB_MASK             ((UINT64_C(1) << 20) - 1)
#define DEFAULT_SOCKET       "/run/clusterkv/kvstored.sock"
#define DEFAULT_STATS_SOCKET "/run/clusterkv/stats.sock"

/* Besides workers and the arena: readers of statistics (32, and as many over TCP), TCP connections
 * that have not shown the secret (32), files of the disk tier, the transport, the loop, spare. */
enum { OTHER_DESCRIPTORS = 256 };

/* A region keeps the loop while it is made: 10 ms a MiB were seen on a busy machine, and a worker
 * that hears nothing for --lease takes the store for lost. So they are small, but no more of them
 * than one response tells of, as long as that keeps them below the largest. */
#define LEAST_USUAL_REGION (UINT64_C(64) << 20)
#define MOST_USUAL_REGION  (UINT64_C(256) << 20)
/* With isolation every tenant has regions of its own. */
enum { USUAL_PARTS = 4, ISOLATED_PARTS = 32, USUAL_COUNT = 250 };

static const char *const transport_words[] = {"auto", "ucx", "map", NULL};
static const char *const verify_words[] = {"off", "commit", "fetch", NULL};
static const char *const eviction_words[] = {"lru", "s3fifo", NULL};
static const char *const level_words[] = {"error", "warning", "info", "debug", NULL};

#define FIELD(name) offsetof(struct kvs_settings, name)

static enum kv_status check_stats_socket(const char *path)
{
	return *path ? kv_unix_path_check(path) : KV_OK;
}

static enum kv_status check_listen(const char *address)
{
	return *address ? kv_tcp_address_check(address, 1) : KV_OK;
}

static const struct kv_option options[] = {
    {.name = "socket",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(socket),
        .default_text = DEFAULT_SOCKET,
        .unit = "PATH",
        .group = "Sockets",
        .help = "Unix socket that workers connect to.",
        .check = kv_unix_path_check},
    {.name = "stats-socket",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(stats_socket),
        .default_text = DEFAULT_STATS_SOCKET,
        .unit = "PATH",
        .help = "Unix socket that answers stats, health and version. Empty for none.",
        .check = check_stats_socket},
    {.name = "http-listen",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(http_listen),
        .default_text = "",
        .unit = "HOST:PORT",
        .help =
            "TCP address that answers what the stats socket answers by HTTP, to whoever reaches "
            "it. Empty for none.",
        .check = kvs_http_address_check},
    {.name = "listen",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(listen),
        .default_text = "",
        .unit = "HOST:PORT",
        .help = "TCP address for workers on other hosts, who must have the secret of secret-file; "
                "all that passes is encrypted. Port 0: a free one. Empty for none.",
        .check = check_listen},
    {.name = "secret-file",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(secret_file),
        .default_text = "",
        .unit = "FILE",
        .help = "A line of 64 hexadecimal digits, as kvctl secret prints it, that nobody else may "
                "read."},
    {.name = "trusted-network",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(trusted_network),
        .default_text = "",
        .unit = "NETWORK",
        .help = "With listen: an interface (eth1), an IPv4 address or a network (10.0.0.0/24) of "
                "this host over which workers on other hosts may fetch by UCX (transport=ucx). "
                "What they fetch goes over it NEITHER ENCRYPTED NOR AUTHENTICATED: name a network "
                "only when everybody on it may read and change it. Empty for none.",
        .check = kv_trusted_network_check},
    {.name = "max-workers",
        .kind = KV_OPTION_U32,
        .offset = FIELD(max_workers),
        .default_text = "64",
        .help = "Workers that may be connected at a time.",
        .minimum = 1,
        .maximum = KVW_CONTROL_SLOTS},
    {.name = "memory",
        .kind = KV_OPTION_SIZE,
        .offset = FIELD(memory),
        .group = "Memory",
        .help =
            "Limit of the arena. Default: 4GiB, or a quarter of the memory that is available to "
            "this service if that is less. It is taken as it is needed."},
    {.name = "region",
        .kind = KV_OPTION_SIZE,
        .offset = FIELD(region),
        .help = "Memory that the arena takes at a time.",
        .maximum = UINT64_C(1) << 40,
        .flags = KV_OPTION_HIDDEN},
    {.name = "eviction",
        .kind = KV_OPTION_WORD,
        .offset = FIELD(eviction),
        .words = eviction_words,
        .default_text = "lru",
        .help = "What goes first at the limit: lru, the longest unused; s3fifo, what was not found "
                "again soon after it was stored, so that a long scan drops nothing that is used."},
    {.name = "high-watermark",
        .kind = KV_OPTION_U32,
        .offset = FIELD(high_watermark),
        .default_text = "0",
        .help = "When more than this percentage of --memory is in use, segments are evicted ahead "
                "of need. 0: only when memory is asked for.",
        .maximum = 100},
    {.name = "low-watermark",
        .kind = KV_OPTION_U32,
        .offset = FIELD(low_watermark),
        .default_text = "80",
        .help = "The percentage of --memory that this eviction leaves in use.",
        .maximum = 100},
    {.name = "evict-unused",
        .kind = KV_OPTION_DURATION,
        .offset = FIELD(evict_unused_ms),
        .default_text = "0",
        .help = "Segments that nobody has used for this long are evicted. 0: they stay until their "
                "memory is needed.",
        .maximum = UINT64_C(31536000000)},
    {.name = "release-idle",
        .kind = KV_OPTION_DURATION,
        .offset = FIELD(release_idle_ms),
        .default_text = "60s",
        .help = "Memory of the arena that has held nothing for this long goes back to the system. "
                "0: never.",
        .maximum = UINT64_C(31536000000)},
    {.name = "transport",
        .kind = KV_OPTION_WORD,
        .offset = FIELD(transport),
        .words = transport_words,
        .help = "How workers reach the arena: ucx for trusted workers of the same user, map for "
                "others too. auto: ucx where it works and /dev/shm has room."},
    {.name = "verify",
        .kind = KV_OPTION_WORD,
        .offset = FIELD(verify),
        .default_text = "commit",
        .words = verify_words,
        .help = "When checksums of segments are verified: never, by the store at commit, or also "
                "by the worker each time it reads (slow, for tests)."},
    {.name = "max-sequences",
        .kind = KV_OPTION_U32,
        .offset = FIELD(max_sequences),
        .default_text = "4096",
        .help = "Sequences that are remembered, orphans included.",
        .minimum = 1,
        .maximum = 1 << 20},
    {.name = "warm-restart",
        .kind = KV_OPTION_BOOL,
        .offset = FIELD(warm_restart),
        .default_text = "yes",
        .help = "Hand the arena to the service manager at the end and take it from there at the "
                "start: with transport map, where the manager keeps descriptors."},
    {.name = "disk",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(disk),
        .unit = "PATH",
        .group = "Disk",
        .help = "Folder for segments as files, which are found again after they were evicted from "
                "memory, and after a restart. It is made when it is not there, and belongs to this "
                "store alone. Empty for none."},
    {.name = "disk-size",
        .kind = KV_OPTION_SIZE,
        .offset = FIELD(disk_size),
        .help = "The most that these files may take together; the longest unused goes first."},
    {.name = "disk-wait",
        .kind = KV_OPTION_DURATION,
        .offset = FIELD(disk_wait_ms),
        .default_text = "2s",
        .help = "How long a prompt waits for its segments from files; then the rest of it is "
                "computed. Less than a worker waits for an answer.",
        .minimum = 1,
        .maximum = 4000},
    {.name = "isolation",
        .kind = KV_OPTION_BOOL,
        .offset = FIELD(isolation),
        .group = "Users",
        .help = "Keep users apart: transport map only (UCX is not opened), regions of memory and a "
                "control page for each user, and nobody connects who is not in allow-uid."},
    {.name = "allow-uid",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(allow_uid),
        .unit = "USERS",
        .help = "With isolation: users that may connect besides the store's own, names or numbers, "
                "separated by commas. * is everybody.",
        .check = kvs_allow_check},
    {.name = "tenants",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(tenants),
        .unit = "UID=NAME,...",
        .help = "Names of users, who are tenants uid-N else; users of one name share what they "
                "store. * is everybody who is not listed.",
        .check = kvs_quotas_check_tenants},
    {.name = "remote-tenant",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(remote_tenant),
        .default_text = "remote",
        .unit = "NAME",
        .help = "The tenant that all workers on other hosts are.",
        .check = kvs_quotas_check_chosen},
    {.name = "tenant-quota",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(tenant_quota),
        .unit = "LIMIT,NAME=LIMIT,...",
        .help = "The most that each tenant's segments may take, or one's by its name: bytes (2GiB) "
                "or a part of --memory (25%). A tenant at its limit evicts its own segments only.",
        .check = kvs_quotas_check_limits},
    {.name = "user-connections",
        .kind = KV_OPTION_U32,
        .offset = FIELD(user_connections),
        .help = "Connections that one user may have. 0: a quarter of max-workers, at least 4, with "
                "isolation; else any number."},
    {.name = "frame-memory",
        .kind = KV_OPTION_SIZE,
        .offset = FIELD(frame_memory),
        .default_text = "256MiB",
        .help = "Memory for messages on their way in and out, of all connections together. With "
                "isolation each user has a share.",
        .minimum = KVS_LEAST_FRAMES},
    {.name = "lease",
        .kind = KV_OPTION_DURATION,
        .offset = FIELD(lease_ms),
        .default_text = "3s",
        .group = "Time",
        .help = "After this long without a sign of life, a worker loses its leases.",
        .minimum = 200,
        .maximum = 3600000},
    {.name = "heartbeat",
        .kind = KV_OPTION_DURATION,
        .offset = FIELD(heartbeat_ms),
        .default_text = "500ms",
        .help = "How often workers give a sign of life.",
        .minimum = 20,
        .maximum = 600000},
    {.name = "orphan-timeout",
        .kind = KV_OPTION_DURATION,
        .offset = FIELD(orphan_ms),
        .default_text = "600s",
        .help = "How long a sequence without a worker can be resumed.",
        .minimum = 1,
        .maximum = 604800000},
    {.name = "log-level",
        .kind = KV_OPTION_WORD,
        .offset = FIELD(log_level),
        .default_text = "info",
        .words = level_words,
        .group = "Log",
        .help = "The least important lines that are logged.",
        .flags = KV_OPTION_RELOADABLE},
    {.name = "end-wait",
        .kind = KV_OPTION_DURATION,
        .offset = FIELD(end_wait_ms),
        .default_text = "10s",
        .help = "How long the end waits for reads and writes of the disk tier; half of it for what "
                "is still to be written.",
        .minimum = 2,
        .maximum = 60000,
        .flags = KV_OPTION_HIDDEN},
    {.name = "faults",
        .kind = KV_OPTION_STRING,
        .offset = FIELD(faults),
        .default_text = "",
        .help = "Where the store stops itself, as name=count@skip.",
        .flags = KV_OPTION_HIDDEN},
};

static bool trusts(const struct kvs_settings *settings)
{
	return settings->trusted_network && *settings->trusted_network;
}

/* Each text is right by itself; together they must name the same tenants. */
static enum kv_status check_quotas(const struct kvs_settings *settings)
{
	struct kvs_quotas quotas;

	KV_TRY(kvs_quotas_parse(settings->tenants, settings->tenant_quota, UINT64_C(1) << 40, &quotas));
	return kvs_quotas_check_known(
	    &quotas, settings->listen && *settings->listen ? settings->remote_tenant : NULL);
}

static enum kv_status validate(const struct kv_command *command, const void *untyped)
{
	const struct kvs_settings *settings = untyped;

	(void)command;
	KV_TRY(check_quotas(settings));
	if (settings->stats_socket && strcmp(settings->socket, settings->stats_socket) == 0)
		return kv_fail(KV_INVALID, "socket and stats-socket are both \"%s\": they must differ",
		    settings->socket);
	if (settings->http_listen && *settings->http_listen &&
	    !(settings->stats_socket && *settings->stats_socket))
		return kv_fail(
		    KV_INVALID, "http-listen is given without a stats-socket, which it serves: name one");
	if ((settings->listen && *settings->listen) !=
	    (settings->secret_file && *settings->secret_file))
		return kv_fail(KV_INVALID,
		    "listen and secret-file go together: without a secret everybody who reaches the "
		    "address could use the store");
	if (trusts(settings) && !(settings->listen && *settings->listen))
		return kv_fail(KV_INVALID,
		    "trusted-network is given without listen: it is for workers on other hosts");
	if (trusts(settings) && settings->isolation)
		return kv_fail(KV_INVALID,
		    "isolation=yes and trusted-network=%s: what goes over it is neither encrypted nor "
		    "authenticated, leave one of them out",
		    settings->trusted_network);
	if (settings->isolation && settings->transport == KVS_TRANSPORT_UCX)
		return kv_fail(KV_INVALID,
		    "isolation=yes and transport=ucx: UCX is no boundary between users, use "
		    "transport=map");
	if (!settings->isolation && settings->allow_uid && *settings->allow_uid)
		return kv_fail(KV_INVALID, "allow-uid is given without isolation: add isolation=yes");
	if (settings->memory && settings->memory < LEAST_MEMORY)
		return kv_fail(KV_INVALID, "memory is %llu bytes: at least 1MiB is of use",
		    (unsigned long long)settings->memory);
	if (settings->disk && *settings->disk && settings->disk_size < LEAST_DISK)
		return kv_fail(KV_INVALID,
		    "disk is given with a disk-size of %llu bytes: at least 1MiB is of use",
		    (unsigned long long)settings->disk_size);
	if (settings->disk_size && !(settings->disk && *settings->disk))
		return kv_fail(KV_INVALID, "disk-size is given without disk: name a folder");
	if (settings->high_watermark && settings->low_watermark > settings->high_watermark)
		return kv_fail(KV_INVALID, "low-watermark is %u and high-watermark %u: it must be less",
		    settings->low_watermark, settings->high_watermark);
	if (settings->heartbeat_ms * 2 > settings->lease_ms)
		return kv_fail(KV_INVALID,
		    "heartbeat is %llu ms and lease %llu ms: a lease must outlast two heartbeats",
		    (unsigned long long)settings->heartbeat_ms, (unsigned long long)settings->lease_ms);
	return KV_OK;
}

/* The folder of the default path is made by the service manager at each start. */
static enum kv_status look_at_socket(const char *path, const char *by_default)
{
	if (!path || !*path || strcmp(path, by_default) == 0) return KV_OK;
	return kv_unix_listen_check(path);
}

/* A store serves without this address, too. */
static void look_at_http(const char *address)
{
	if (address && *address && kv_tcp_listen_check(address) != KV_OK)
		kv_warning("kvstored", "http-listen: %s", kv_error_message());
}

/* --check: what the settings name, and what a start would take. */
static enum kv_status look(const struct kv_command *command, const void *untyped)
{
	const struct kvs_settings *settings = untyped;
	struct kv_machine_memory machine;
	struct kv_trusted_network network;
	uint8_t secret[KV_SECRET_BYTES];
	enum kv_status status;

	(void)command;
	KV_TRY(kv_machine_memory_read("", &machine));
	KV_TRY(kvs_settings_memory(settings, &machine));
	KV_TRY(kvs_settings_descriptors(settings));
	KV_TRY(look_at_socket(settings->socket, DEFAULT_SOCKET));
	KV_TRY(look_at_socket(settings->stats_socket, DEFAULT_STATS_SOCKET));
	if (settings->disk && *settings->disk) KV_TRY(kvs_disk_check(settings->disk));
	look_at_http(settings->http_listen);
	if (!settings->listen || !*settings->listen) return KV_OK;
	status = kv_tcp_listen_check(settings->listen);
	if (status != KV_OK) return kv_fail_prefix(status, "listen");
	status = kv_secret_read(settings->secret_file, secret);
	kv_secret_wipe(secret);
	if (status == KV_OK && trusts(settings))
		status = kv_trusted_network_find(settings->trusted_network, &network);
	return status;
}

/* What was given and has no effect beside others. */
static void warn(
    const struct kv_config *config, const struct kv_command *command, const void *untyped)
{
	const struct kvs_settings *settings = untyped;
	static const char *const of_disk[] = {"disk-wait", NULL};
	static const char *const of_listen[] = {"remote-tenant", NULL};
	static const char *const of_watermark[] = {"low-watermark", NULL};
	static const char *const of_map[] = {"warm-restart", NULL};

	(void)command;
	kv_log_set_level((enum kv_log_level)settings->log_level);
	if (!settings->disk || !*settings->disk)
		kv_config_warn_ignored(config, of_disk, "a store without disk");
	if (!settings->listen || !*settings->listen)
		kv_config_warn_ignored(config, of_listen, "a store without listen");
	if (!settings->high_watermark) kv_config_warn_ignored(config, of_watermark, "high-watermark 0");
	if (settings->warm_restart && settings->transport == KVS_TRANSPORT_UCX)
		kv_config_warn_ignored(config, of_map, "transport ucx");
}

static const char *const other_sections[] = {"gpu-worker", "kvctl", NULL};

const struct kv_program kvs_program = {
    .name = "kvstored",
    .summary = "Keeps the key/values of gpu-workers in host memory, by cluster, and outlives them.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .settings_size = sizeof(struct kvs_settings),
    .default_config = "/etc/clusterkv/kvstored.conf",
    .other_sections = other_sections,
    .validate = validate,
    .warn = warn,
    .check = look,
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Beside the arena the store needs some memory itself; at the cgroup's limit the kernel kills. */
static enum kv_status check_cgroup(
    const struct kvs_settings *settings, uint64_t room, const char *leaves)
{
	const uint64_t own = OWN_MEMORY + settings->memory / 64;
	char asked[KV_PARSE_TEXT_SIZE], needed[KV_PARSE_TEXT_SIZE], there[KV_PARSE_TEXT_SIZE];

	if (settings->memory <= room && own <= room - settings->memory) return KV_OK;
	return kv_fail(KV_LIMIT,
	    "memory=%s and %s for the store itself are more than the cgroup's limit%s (%s): lower "
	    "--memory or raise MemoryMax",
	    kv_format_size(settings->memory, asked), kv_format_size(own, needed), leaves,
	    kv_format_size(room & ~MIB_MASK, there));
}

enum kv_status kvs_settings_memory(
    const struct kvs_settings *settings, const struct kv_machine_memory *machine)
{
	char asked[KV_PARSE_TEXT_SIZE], there[KV_PARSE_TEXT_SIZE];

	if (!settings->memory) return KV_OK;
	if (settings->memory > machine->total)
		return kv_fail(KV_LIMIT, "memory=%s is more than this machine has (%s): lower --memory",
		    kv_format_size(settings->memory, asked),
		    kv_format_size(machine->total & ~MIB_MASK, there));
	return check_cgroup(settings, machine->cgroup_limit, "");
}

enum kv_status kvs_settings_complete(struct kvs_settings *settings)
{
	struct kv_machine_memory machine;
	char asked[KV_PARSE_TEXT_SIZE];
	char there[KV_PARSE_TEXT_SIZE];
	uint64_t kept = kv_sd_passed_bytes();

	KV_TRY(kv_machine_memory_read("", &machine));
	/* An arena that was kept over a restart is ours already, and counts as used. */
	machine.available += kept;
	machine.cgroup_room =
	    machine.cgroup_room > UINT64_MAX - kept ? UINT64_MAX : machine.cgroup_room + kept;
	if (!settings->memory) {
		settings->memory =
		    least(DEFAULT_MEMORY, least(machine.available, machine.cgroup_limit) / 4);
		settings->memory &= ~MIB_MASK;
		if (settings->memory < LEAST_MEMORY) settings->memory = LEAST_MEMORY;
	}
	if (settings->memory > machine.available)
		return kv_fail(KV_LIMIT,
		    "memory=%s is more than this machine has available (%s): lower --memory",
		    kv_format_size(settings->memory, asked),
		    kv_format_size(machine.available & ~MIB_MASK, there));
	return check_cgroup(settings, machine.cgroup_room, " leaves");
}

uint64_t kvs_settings_region(const struct kvs_settings *settings)
{
	uint64_t part = settings->memory / (settings->isolation ? ISOLATED_PARTS : USUAL_PARTS);
	uint64_t most = settings->memory / USUAL_COUNT;

	if (most < LEAST_USUAL_REGION) most = LEAST_USUAL_REGION;
	if (most > MOST_USUAL_REGION) most = MOST_USUAL_REGION;
	if (part > most) part = most;
	if (settings->region) part = settings->region;
	/* As the engine rounds it, which then asks for exactly what was made ahead. */
	return part & ~(uint64_t)(KVW_ALIGNMENT - 1);
}

/* Each connection has a socket, a process and staging memory, with UCX between hosts also its line
 * with memory of its own; each region of the arena has one. */
enum kv_status kvs_settings_descriptors(const struct kvs_settings *settings)
{
	const uint64_t each = trusts(settings) ? 5 : 3;
	struct kvs_settings assumed = *settings;
	uint64_t needed, region, regions;
	char user[128], memory[KV_PARSE_TEXT_SIZE], part[KV_PARSE_TEXT_SIZE];

	if (!assumed.memory) assumed.memory = DEFAULT_MEMORY;
	region = kvs_settings_region(&assumed);
	regions = region ? assumed.memory / region : 0;
	needed = ((uint64_t)assumed.max_workers + KVS_EXTRA_PEERS) * each;
	if (regions > needed)
		snprintf(user, sizeof user, "memory: %s in regions of %s, and %u workers, need",
		    kv_format_size(assumed.memory, memory), kv_format_size(region, part),
		    assumed.max_workers);
	else
		snprintf(
		    user, sizeof user, "max-workers: %u workers and the arena need", assumed.max_workers);
	return kv_process_descriptors(needed + regions + OTHER_DESCRIPTORS, user,
	    regions > needed ? "--memory" : "--max-workers");
}
