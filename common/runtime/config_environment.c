/* Variables of the environment that look like options and are none. They cannot be refused: the
 * programs of one host share an environment, and scripts have variables of their own. */
#include <string.h>

#include "common/base/log.h"
#include "common/runtime/config_internal.h"

static const char PREFIX[] = "CLUSTERKV_";

extern char **environ;

/* The name that an option of this variable would have; false when none can be that long. */
static bool option_name(const char *variable, size_t length, char name[KV_CONFIG_NAME_SIZE])
{
	if (length >= KV_CONFIG_NAME_SIZE) return false;
	for (size_t i = 0; i < length; i++) {
		name[i] = variable[i] == '_' ? '-' : variable[i];
		if (name[i] >= 'A' && name[i] <= 'Z') name[i] = (char)(name[i] - 'A' + 'a');
	}
	name[length] = '\0';
	return true;
}

static void judge(const struct kv_program *program, const char *variable, size_t length)
{
	char name[KV_CONFIG_NAME_SIZE], right[KV_CONFIG_NAME_SIZE + 16];
	const char *rest = variable + sizeof PREFIX - 1, *meant;
	const struct kv_option *option;

	if (!option_name(rest, length - (sizeof PREFIX - 1), name)) return;
	option = kv_config_find(program, name, strlen(name));
	if (option && (option->kind == KV_OPTION_FLAG || (option->flags & KV_OPTION_POSITIONAL))) {
		kv_warning(program->name, "%.*s has no effect: %s is for the command line only",
		    (int)length, variable, name);
		return;
	}
	meant = option ? name : kv_config_nearest(program, NULL, name, strlen(name));
	if (!meant) return;
	kv_option_variable(meant, right);
	/* Names in small letters are not read either. */
	if (strlen(right) == length && memcmp(right, variable, length) == 0) return;
	kv_warning(program->name,
	    "%.*s has no effect: there is no option of that name; did you mean %s?",
	    (int)length, variable, right);
}

void kv_config_warn_environment(const struct kv_program *program)
{
	for (char **at = environ; at && *at; at++) {
		const char *equals = strchr(*at, '=');

		if (strncmp(*at, PREFIX, sizeof PREFIX - 1) != 0 || !equals || !equals[1]) continue;
		judge(program, *at, (size_t)(equals - *at));
	}
}
