#include "common/runtime/fault_point.h"

#include "common/base/parse.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct fault {
	char name[KV_FAULT_NAME_SIZE];
	uint64_t skip;
	uint64_t count;
};

struct fault_state {
	atomic_uint_fast64_t passes;
	atomic_uint_fast64_t fired;
};

/* The process's faults: written by kv_fault_configure before threads start, counted by all. */
static struct fault faults[KV_FAULT_LIMIT];
static struct fault_state states[KV_FAULT_LIMIT];
static atomic_size_t fault_count;

static enum kv_status check_known(const char *name, const char *const *known)
{
	if (!known) return KV_OK;
	for (size_t i = 0; known[i]; i++) {
		if (strcmp(known[i], name) == 0) return KV_OK;
	}
	return kv_fail(KV_INVALID, "there is no fault point '%s' in this program", name);
}

/* name[=count|=always][@skip], in place. */
static enum kv_status parse_fault(char *item, const char *const *known, struct fault *fault)
{
	char *skip = strchr(item, '@');
	char *count;

	if (skip) *skip++ = '\0';
	count = strchr(item, '=');
	if (count) *count++ = '\0';
	if (item[0] == '\0' || strlen(item) >= sizeof fault->name)
		return kv_fail(KV_INVALID,
		    "'%s' is not the name of a fault point; write name=count@skip, separated by commas",
		    item);
	KV_TRY(check_known(item, known));
	fault->count = 1;
	fault->skip = 0;
	if (count && strcmp(count, "always") == 0)
		fault->count = UINT64_MAX;
	else if (count)
		KV_TRY(kv_parse_u64(count, &fault->count));
	if (skip) KV_TRY(kv_parse_u64(skip, &fault->skip));
	memcpy(fault->name, item, strlen(item) + 1);
	return KV_OK;
}

enum kv_status kv_fault_configure(const char *text, const char *const *known)
{
	struct fault parsed[KV_FAULT_LIMIT];
	size_t count = 0;
	char item[2 * KV_FAULT_NAME_SIZE];

	while (text && *text) {
		size_t length = strcspn(text, ",");

		if (length >= sizeof item || count == KV_FAULT_LIMIT)
			return kv_fail(KV_INVALID, "'%s' is too long, or there are more than %d fault points",
			    text, (int)KV_FAULT_LIMIT);
		memcpy(item, text, length);
		item[length] = '\0';
		KV_TRY(parse_fault(item, known, &parsed[count]));
		count++;
		text += length;
		text += *text == ',';
	}
	atomic_store(&fault_count, 0);
	for (size_t i = 0; i < count; i++) {
		faults[i] = parsed[i];
		atomic_store(&states[i].passes, 0);
		atomic_store(&states[i].fired, 0);
	}
	atomic_store(&fault_count, count);
	return KV_OK;
}

static size_t find(const char *name, size_t count)
{
	size_t at = 0;

	while (at < count && strcmp(faults[at].name, name) != 0)
		at++;
	return at;
}

bool kv_fault_fires(const char *name)
{
	size_t count = atomic_load_explicit(&fault_count, memory_order_relaxed);
	uint64_t pass;
	size_t at;

	if (count == 0) return false;
	at = find(name, count);
	if (at == count) return false;
	pass = atomic_fetch_add(&states[at].passes, 1);
	if (pass < faults[at].skip || pass - faults[at].skip >= faults[at].count) return false;
	atomic_fetch_add(&states[at].fired, 1);
	return true;
}

void kv_fault_stop(const char *name)
{
	/* Of this thread, so that it does not run on until the rest has stopped. */
	if (kv_fault_fires(name)) raise(SIGSTOP);
}

uint64_t kv_fault_fired(const char *name)
{
	size_t count = atomic_load(&fault_count);
	size_t at = find(name, count);

	return at < count ? atomic_load(&states[at].fired) : 0;
}
