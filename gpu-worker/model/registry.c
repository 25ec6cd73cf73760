#include <stdio.h>
#include <string.h>

#include "gpu-worker/model/arch.h"

static const struct gw_architecture *const architectures[] = {&gw_arch_llama, &gw_arch_qwen2};

enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

enum kv_status gw_architecture_of(
    const struct gw_gguf *file, const struct gw_architecture **architecture)
{
	struct gw_gguf_string name;
	char known[128] = "", text[GW_GGUF_PRINTABLE];

	if (gw_gguf_string(file, "general.architecture", &name) != KV_OK) {
		return kv_fail(
		    KV_CORRUPT, "%s: general.architecture is missing or not a string", gw_gguf_path(file));
	}
	for (size_t i = 0; i < ARCHITECTURES; i++) {
		const char *candidate = architectures[i]->name;
		size_t used = strlen(known);

		if (name.length == strlen(candidate) && memcmp(name.bytes, candidate, name.length) == 0) {
			*architecture = architectures[i];
			return KV_OK;
		}
		snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", candidate);
	}
	return kv_fail(KV_UNSUPPORTED, "%s: architecture %s is not supported; there are: %s",
	    gw_gguf_path(file), gw_gguf_printable(name, text), known);
}
