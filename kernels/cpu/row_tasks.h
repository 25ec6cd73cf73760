/* Rows of a batch as pool tasks, for the ops that treat each row alone. */
#ifndef KN_CPU_ROW_TASKS_H
#define KN_CPU_ROW_TASKS_H

#include <stdint.h>

#include "kernels/cpu/pool.h"

/* Work on rows [first, first + count). */
typedef void kn_row_work(const void *arguments, uint32_t first, uint32_t count);

struct kn_row_run {
	kn_row_work *work;
	const void *arguments;
	uint32_t rows, rows_of_task;
};

static inline void kn_row_task(void *context, uint32_t task, uint32_t thread)
{
	const struct kn_row_run *run = (const struct kn_row_run *)context;
	uint32_t first = task * run->rows_of_task, left = run->rows - first;

	(void)thread;
	run->work(run->arguments, first, left < run->rows_of_task ? left : run->rows_of_task);
}

/* Run `work` over all rows, `elements` floats each: at once here when that is little work, in tasks
 * of about 8,192 floats otherwise. */
static inline void kn_run_rows(struct kn_pool *pool, kn_row_work *work, const void *arguments,
    uint32_t rows, uint32_t elements)
{
	enum { TASK_ELEMENTS = 1 << 13 };
	uint32_t rows_of_task = elements >= TASK_ELEMENTS ? 1 : TASK_ELEMENTS / (elements + 1) + 1;
	struct kn_row_run run = {work, arguments, rows, rows_of_task};

	if (rows <= rows_of_task)
		work(arguments, 0, rows);
	else
		kn_pool_run(pool, kn_row_task, &run, (rows + rows_of_task - 1) / rows_of_task);
}

#endif
