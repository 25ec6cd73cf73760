/* Which of several open prompts is computed next, and which had better wait to be opened.
 *
 * The one with the least left goes first, so that a short prompt does not wait for the end of a
 * long one; the one that was opened first has a quarter of the time whatever comes, so that it
 * ends.
 * A prompt is begun beside others only if it has at most half as much left as each of them: memory
 * of all that are begun stays below twice that of the longest, and the oldest's.
 */
#ifndef GW_SERVER_PREFILL_ORDER_H
#define GW_SERVER_PREFILL_ORDER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gw_open_prompt {
	const int32_t *tokens; /* [count]; NULL: not known, as of a sequence that is resumed */
	uint32_t count;
	uint32_t found; /* its first tokens that were stored when it was opened */
	uint32_t left;  /* tokens that are to be computed */
	int begun;
};

/* The index of the one that gets the next unit. `prompts` are in the order in which they were
 * opened, at least one. owed_ns: what gw_prefill_account says. */
uint32_t gw_prefill_next(const struct gw_open_prompt *prompts, uint32_t count, int64_t owed_ns);

/* A unit of prompt `index` took so long: time that the oldest one is owed, from now on. */
int64_t gw_prefill_account(int64_t owed_ns, uint32_t index, uint64_t took_ns);

/* Is what one of the open prompts will store at least half of what this one lacks, and of what is
 * left to compute of that one? Then it waits until that is stored, and finds it, instead of
 * computing the same beside it. */
int gw_prefill_will_find(
    const struct gw_open_prompt *prompts, uint32_t count, const int32_t *tokens, uint32_t length);

#ifdef __cplusplus
}
#endif
#endif
