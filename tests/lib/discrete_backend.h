/* The cpu backend as if it were a device of its own, for tests: device memory that the host cannot
 * touch, and operations that run no sooner than when the host waits for them.
 *
 * KN_DEVICE memory is inaccessible but while the queue runs, so a touch by the host ends the
 * process; new memory of both kinds is full of NaN. Descriptors are copied when an operation is
 * queued, everything else is read when it runs: a missing stream_wait, memory that was reused too
 * early or freed gives other results. So does a missing stream_order: a stream's queue runs when
 * the host waits for it, or for another that was ordered after it, and not before. Every pointer
 * that an operation gets must be memory of the backend, or registered; memory that goes while
 * something is queued that uses it ends the process. For one thread. */
#ifndef TESTS_LIB_DISCRETE_BACKEND_H
#define TESTS_LIB_DISCRETE_BACKEND_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct kn_backend_ops kvt_discrete_ops;

/* Memory of the backend that a test wants to look at can be touched until kvt_discrete_hide. Does
 * nothing on other backends. */
void kvt_discrete_show(const struct kn_backend_ops *ops, struct kn_backend *backend);
void kvt_discrete_hide(const struct kn_backend_ops *ops, struct kn_backend *backend);

/* A planted bug: stream_order does nothing. */
void kvt_discrete_forget_orders(int forget);

#ifdef __cplusplus
}
#endif
#endif
