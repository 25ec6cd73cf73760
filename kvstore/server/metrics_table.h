/* The store's own metrics, each declared once. */
#ifndef KVS_SERVER_METRICS_TABLE_H
#define KVS_SERVER_METRICS_TABLE_H

#include "common/runtime/metrics.h"

/* clang-format off */
#define KVS_METRICS(X) \
	X(KVS_UPTIME, "uptime", REAL_GAUGE, "", "seconds", "Time since the store started.") \
	X(KVS_DRAINING, "draining", GAUGE, "", "", "1 while no new worker or sequence is taken in.") \
	X(KVS_ARENA_LIMIT, "arena_limit", GAUGE, "", "bytes", "Most memory that the arena may take.") \
	X(KVS_ARENA_FREE, "arena", GAUGE, "state=\"free\"", "bytes", "Memory of the arena's regions by use.") \
	X(KVS_ARENA_RESERVED, "arena", GAUGE, "state=\"reserved\"", "bytes", "") \
	X(KVS_ARENA_LEASED, "arena", GAUGE, "state=\"leased\"", "bytes", "") \
	X(KVS_ARENA_CACHED, "arena", GAUGE, "state=\"cached\"", "bytes", "") \
	X(KVS_ARENA_QUARANTINED, "arena", GAUGE, "state=\"quarantined\"", "bytes", "") \
	X(KVS_REGIONS_BYTES, "regions", GAUGE, "", "bytes", "Memory that the arena has taken so far.") \
	X(KVS_REGIONS, "regions", GAUGE, "", "", "Pieces of memory that the arena consists of.") \
	X(KVS_LARGEST_FREE, "arena_largest_free", GAUGE, "", "bytes", "Largest run of free memory inside the regions.") \
	X(KVS_MODELS, "models", GAUGE, "", "", "Models that segments are kept of.") \
	X(KVS_WORKERS, "workers", GAUGE, "state=\"connected\"", "", "Workers by state.") \
	X(KVS_WORKERS_LAPSED, "workers", GAUGE, "state=\"lapsed\"", "", "") \
	X(KVS_SEQUENCES, "sequences", GAUGE, "state=\"active\"", "", "Sequences by state.") \
	X(KVS_SEQUENCES_ORPHANED, "sequences", GAUGE, "state=\"orphaned\"", "", "") \
	X(KVS_SEGMENTS, "segments", GAUGE, "state=\"committed\"", "", "Segments by state.") \
	X(KVS_SEGMENTS_RESERVED, "segments", GAUGE, "state=\"reserved\"", "", "") \
	X(KVS_SEGMENTS_QUARANTINED, "segments", GAUGE, "state=\"quarantined\"", "", "") \
	X(KVS_CLUSTERS, "clusters", GAUGE, "", "", "Clusters of committed segments, all layers, one KV head.") \
	X(KVS_TOKENS, "tokens", GAUGE, "", "", "Tokens of committed segments.") \
	X(KVS_REFERENCES, "segment_references", GAUGE, "", "", "References of sequences to segments.") \
	X(KVS_SEQUENCES_OPENED, "sequences_opened", COUNTER, "", "", "Sequences opened.") \
	X(KVS_SEQUENCES_RESUMED, "sequences_resumed", COUNTER, "", "", "Sequences resumed.") \
	X(KVS_SEQUENCES_EXPIRED, "sequences_expired", COUNTER, "", "", "Orphaned sequences that expired or made room.") \
	X(KVS_PUSHES, "pushes", COUNTER, "", "", "Messages with decoded tokens.") \
	X(KVS_COMMITS, "commits", COUNTER, "result=\"ok\"", "", "Commits by result.") \
	X(KVS_COMMITS_REPEATED, "commits", COUNTER, "result=\"repeated\"", "", "") \
	X(KVS_COMMITS_CORRUPT, "commits", COUNTER, "result=\"corrupt\"", "", "") \
	X(KVS_COMMITS_STALE, "commits", COUNTER, "result=\"stale\"", "", "") \
	X(KVS_COMMITS_REFUSED, "commits", COUNTER, "result=\"refused\"", "", "") \
	X(KVS_DUPLICATES, "segments_duplicate", COUNTER, "", "", "Committed segments that were stored already.") \
	X(KVS_CHECKSUM_MISMATCHES, "checksum_mismatches", COUNTER, "", "", "Units whose bytes were not what the worker had written.") \
	X(KVS_VERIFIED, "verified", COUNTER, "", "bytes", "Bytes checksummed at commit.") \
	X(KVS_PUT, "put", COUNTER, "", "bytes", "Bytes copied from staging memory, or from messages of remote workers.") \
	X(KVS_FETCHED, "fetched", COUNTER, "", "bytes", "Bytes sent to remote workers.") \
	X(KVS_FETCHED_UCX, "fetched_ucx", COUNTER, "", "bytes", "Of them: by UCX, over the trusted network.") \
	X(KVS_RESERVES, "reserves", COUNTER, "", "", "Reservations asked for, refused ones included.") \
	X(KVS_RESERVE_FAILURES, "reserve_failures", COUNTER, "", "", "Reservations refused.") \
	X(KVS_EVICTIONS, "evictions", COUNTER, "", "", "Segments evicted.") \
	X(KVS_EVICTED, "evicted", COUNTER, "", "bytes", "Bytes evicted.") \
	X(KVS_EVICTED_QUOTA, "evictions_for_quota", COUNTER, "", "", "Of the evictions: of a tenant's own segments, at its quota.") \
	X(KVS_EVICTED_AHEAD, "evicted_ahead", COUNTER, "", "bytes", "Of the bytes evicted: above the high watermark.") \
	X(KVS_QUOTA_REFUSALS, "quota_refusals", COUNTER, "", "", "Of the reservations refused: for a tenant's quota.") \
	X(KVS_RELEASED, "released", COUNTER, "", "bytes", "Memory given back to the system, because it held nothing.") \
	X(KVS_ZOMBIES, "zombie_reservations", COUNTER, "", "", "Reservations quarantined, because their worker fell silent.") \
	X(KVS_LEASE_EXPIRIES, "lease_expiries", COUNTER, "", "", "Leases that lapsed.") \
	X(KVS_PREFIX_LOOKUP, "prefix_lookup_tokens", COUNTER, "", "", "Prompt tokens looked up.") \
	X(KVS_PREFIX_SHARED, "prefix_hit_tokens", COUNTER, "how=\"shared\"", "", "Prompt tokens found stored.") \
	X(KVS_PREFIX_COPIED, "prefix_hit_tokens", COUNTER, "how=\"copied\"", "", "") \
	X(KVS_CONNECTIONS, "connections", COUNTER, "", "", "Connections accepted on the control socket.") \
	X(KVS_REMOTE_CONNECTIONS, "remote_connections", COUNTER, "", "", "Connections accepted at the TCP address.") \
	X(KVS_RESTORED, "restored_segments", COUNTER, "", "", "Segments taken over from the run before.") \
	X(KVS_RESTORE_CORRUPT, "restore_dropped_segments", COUNTER, "reason=\"checksum\"", "", "Segments of the run before that were dropped.") \
	X(KVS_RESTORE_OTHER, "restore_dropped_segments", COUNTER, "reason=\"other\"", "", "") \
	X(KVS_RESTORE_REFUSED, "restore_refused", COUNTER, "", "", "Indices of the run before that were refused.") \
	X(KVS_DISK_BYTES, "disk", GAUGE, "", "bytes", "Bytes of the disk tier's files.") \
	X(KVS_DISK_LIMIT, "disk_limit", GAUGE, "", "bytes", "Most bytes that the disk tier's files may have.") \
	X(KVS_DISK_SEGMENTS, "disk_segments", GAUGE, "", "", "Segments in files.") \
	X(KVS_DISK_WRITES, "disk_writes", COUNTER, "", "", "Segments written to files.") \
	X(KVS_DISK_WRITTEN, "disk_written", COUNTER, "", "bytes", "Bytes written to files.") \
	X(KVS_DISK_PROMOTED, "disk_promoted_segments", COUNTER, "", "", "Segments read from files into memory, because a prompt wanted them.") \
	X(KVS_DISK_PROMOTED_TOKENS, "disk_promoted_tokens", COUNTER, "", "", "Tokens of these segments.") \
	X(KVS_DISK_READ, "disk_read", COUNTER, "", "bytes", "Bytes read from files.") \
	X(KVS_DISK_ERRORS, "disk_errors", COUNTER, "", "", "Failures of the disk tier, a full disk among them.") \
	X(KVS_DISK_SET_ASIDE, "disk_set_aside", COUNTER, "", "", "Files that were not what they should be and were set aside.") \
	X(KVS_DISK_EVICTIONS, "disk_evictions", COUNTER, "", "", "Files that went to make room for others.") \
	X(KVS_DISK_NOT_WRITTEN, "disk_not_written", COUNTER, "", "", "Segments that got no file: evicted before their turn, too large, or too many waiting.") \
	X(KVS_REFUSED_LIMIT, "connections_refused", COUNTER, "reason=\"limit\"", "", "Connections refused by reason.") \
	X(KVS_REFUSED_USER, "connections_refused", COUNTER, "reason=\"user\"", "", "") \
	X(KVS_REFUSED_SECRET, "connections_refused", COUNTER, "reason=\"secret\"", "", "") \
	X(KVS_REFUSED_HANDSHAKE, "connections_refused", COUNTER, "reason=\"handshake\"", "", "") \
	X(KVS_REFUSED_VERSION, "connections_refused", COUNTER, "reason=\"version\"", "", "") \
	X(KVS_REFUSED_HELLO, "connections_refused", COUNTER, "reason=\"hello\"", "", "") \
	X(KVS_LOST_CLOSED, "worker_disconnects", COUNTER, "reason=\"closed\"", "", "Ended connections of workers by reason.") \
	X(KVS_LOST_DIED, "worker_disconnects", COUNTER, "reason=\"died\"", "", "") \
	X(KVS_LOST_PROTOCOL, "worker_disconnects", COUNTER, "reason=\"protocol\"", "", "") \
	X(KVS_LOST_TIMEOUT, "worker_disconnects", COUNTER, "reason=\"timeout\"", "", "") \
	X(KVS_REQUESTS, "requests", COUNTER, "", "", "Control messages served.") \
	X(KVS_REQUESTS_FAILED, "requests_failed", COUNTER, "", "", "Control messages answered with an error.") \
	X(KVS_STATS_REQUESTS, "stats_requests", COUNTER, "", "", "Commands on the stats socket.") \
	X(KVS_STATS_DROPPED, "stats_dropped", COUNTER, "", "", "Readers of the stats socket dropped for being slow or malformed.") \
	X(KVS_LOOP_LAG, "loop_lag", HISTOGRAM, "", "seconds", "How late the loop's timer came.")
/* clang-format on */

enum kvs_metric { KVS_METRICS(KV_METRIC_ENUM) KVS_METRIC_COUNT };

#endif
