#include "common/base/check.h"

#include "common/base/log.h"

#include <stdlib.h>

void kv_check_failed(const char *what, const char *file, int line)
{
	kv_error("check", "programming error: %s does not hold at %s:%d", what, file, line);
#ifdef KV_ABORT_ON_CHECK
	abort();
#endif
}
