#include "common/runtime/state_machine.h"

#include "common/base/check.h"

void kv_state_init(
    struct kv_state_machine *machine, const struct kv_state_table *table, unsigned initial)
{
	KV_CHECK(table->state_count <= 32 && initial < table->state_count);
	machine->table = table;
	machine->state = initial;
}

bool kv_state_allowed(const struct kv_state_machine *machine, unsigned to)
{
	return to < machine->table->state_count &&
	       (machine->table->allowed[machine->state] & KV_STATE_BIT(to)) != 0;
}

static const char *name_of(const struct kv_state_table *table, unsigned state)
{
	return state < table->state_count ? table->state_names[state] : "?";
}

enum kv_status kv_state_move(struct kv_state_machine *machine, unsigned to, const void *object)
{
	const struct kv_state_table *table = machine->table;
	const char *wrong;

	if (!kv_state_allowed(machine, to))
		return kv_fail(KV_INTERNAL, "%s: no way from state %s to %s", table->name,
		    name_of(table, machine->state), name_of(table, to));
	machine->state = to;
	wrong = table->invariant ? table->invariant(object, to) : NULL;
	if (wrong)
		return kv_fail(KV_INTERNAL, "%s: in state %s: %s", table->name, name_of(table, to), wrong);
	return KV_OK;
}

const char *kv_state_name(const struct kv_state_machine *machine)
{
	return name_of(machine->table, machine->state);
}

bool kv_state_final(const struct kv_state_machine *machine)
{
	return machine->table->allowed[machine->state] == 0;
}
