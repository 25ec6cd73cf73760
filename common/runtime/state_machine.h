/* States with allowed transitions, and an invariant that is checked at every move.
 *
 * A long-lived thing (a peer, a sequence, a fetch) holds a struct kv_state_machine and changes its
 * state through kv_state_move only; the table says at a glance what can follow what.
 */
#ifndef KV_COMMON_RUNTIME_STATE_MACHINE_H
#define KV_COMMON_RUNTIME_STATE_MACHINE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KV_STATE_BIT(state) (UINT32_C(1) << (state))

/* Does the object look as `state` promises? NULL, or what is wrong with it. */
typedef const char *(*kv_state_invariant)(const void *object, unsigned state);

struct kv_state_table {
	const char *name;               /* of the thing, for messages: "peer" */
	const char *const *state_names; /* state_count of them */
	const uint32_t *allowed;        /* allowed[from] = KV_STATE_BIT(to) | … */
	unsigned state_count;           /* at most 32 */
	kv_state_invariant invariant;   /* may be NULL */
};

struct kv_state_machine {
	const struct kv_state_table *table;
	unsigned state;
};

void kv_state_init(
    struct kv_state_machine *machine, const struct kv_state_table *table, unsigned initial);

/* Go to `to`, then check the invariant of `object` there. KV_INTERNAL, with a text that names both
 * states, when the move is not in the table (the state is unchanged) or the invariant does not hold
 * (the state is `to`). A move to the same state must be in the table too. */
enum kv_status kv_state_move(struct kv_state_machine *machine, unsigned to, const void *object);

bool kv_state_allowed(const struct kv_state_machine *machine, unsigned to);
const char *kv_state_name(const struct kv_state_machine *machine);

/* A state that nothing follows. */
bool kv_state_final(const struct kv_state_machine *machine);

#ifdef __cplusplus
}
#endif
#endif
