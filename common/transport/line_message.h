/* What a program and its line's process (line.h) say to each other, and to the one of the other
 * host: fixed sizes, for both are of one build. Private to line.c and kvline. */
#ifndef KV_COMMON_TRANSPORT_LINE_MESSAGE_H
#define KV_COMMON_TRANSPORT_LINE_MESSAGE_H

#include <stdint.h>

#include "common/transport/line.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KV_LINE_SOCKET = 3, /* the descriptors that its process starts with */
	KV_LINE_MEMORY = 4,
	KV_LINE_PIECE = 32 << 10, /* bytes of one message of UCX: one packet of its TCP, not gathered */
	KV_LINE_PIECES = KV_LINE_SLOT_BYTES / KV_LINE_PIECE,
	KV_LINE_HANDLER = 7
};

/* Before the bytes of a piece. Number 0: nothing follows, it tells that the way is open. */
struct kv_line_header {
	uint64_t number, offset;
};

#ifdef __cplusplus
}
#endif
#endif
