/* Memory of attend_sparse, taken when the backend opens because operations allocate nothing. */
#ifndef KN_CPU_ATTEND_SCRATCH_H
#define KN_CPU_ATTEND_SCRATCH_H

#include "common/base/status.h"

struct kn_backend;

/* After the pool exists: fills backend->attend_scratch (about 17 MiB, touched as far as it is
 * used). KV_NO_MEMORY, or KV_LIMIT when the pool's scratch memory is too small. */
enum kv_status kn_cpu_attend_scratch_create(struct kn_backend *backend);

/* A backend without scratch is allowed. */
void kn_cpu_attend_scratch_destroy(struct kn_backend *backend);

#endif
