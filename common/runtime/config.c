#include "common/runtime/config_internal.h"

#include "common/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRING_CHUNK = 2048 };

bool kv_config_active(const struct kv_option *option, const struct kv_command *command)
{
	return option->commands == 0 || !command || (option->commands & command->bit);
}

const struct kv_option *kv_config_find(
    const struct kv_program *program, const char *name, size_t length)
{
	for (size_t i = 0; i < program->option_count; i++) {
		const char *known = program->options[i].name;

		if (strlen(known) == length && memcmp(known, name, length) == 0)
			return &program->options[i];
	}
	return NULL;
}

/* A suggestion helps while it is a slip of a finger or two, not when it is another word. */
static bool near_enough(unsigned distance, size_t length)
{
	return distance <= (length > 8 ? 3U : length > 3 ? 2U : 1U);
}

static const char *const built_in[] = {"config", "help", "version", "check", "print-config"};

enum { BUILT_IN = sizeof built_in / sizeof built_in[0] };

bool kv_config_built_in(const char *name)
{
	for (size_t i = 0; i < BUILT_IN; i++)
		if (strcmp(name, built_in[i]) == 0) return true;
	return false;
}

const char *kv_config_nearest(const struct kv_program *program, const struct kv_command *command,
    const char *name, size_t length)
{
	const char *nearest = NULL;
	unsigned best = KV_CONFIG_NAME_SIZE;

	for (size_t i = 0; i < program->option_count + BUILT_IN; i++) {
		bool own = i < program->option_count;
		const char *known = own ? program->options[i].name : built_in[i - program->option_count];
		unsigned distance = kv_config_distance(name, length, known);

		if (own && !kv_config_active(&program->options[i], command)) continue;
		if (distance < best) {
			best = distance;
			nearest = known;
		}
	}
	return near_enough(best, length) ? nearest : NULL;
}

enum kv_status kv_config_unknown(const struct kv_program *program, const struct kv_command *command,
    const char *name, size_t length, const char *where)
{
	const char *nearest = kv_config_nearest(program, command, name, length);
	int shown = length < KV_CONFIG_NAME_SIZE ? (int)length : KV_CONFIG_NAME_SIZE - 1;

	if (nearest)
		return kv_fail(KV_INVALID, "%s: there is no option '%.*s'; did you mean '%s'?", where,
		    shown, name, nearest);
	return kv_fail(
	    KV_INVALID, "%s: there is no option '%.*s'; --help lists all", where, shown, name);
}

enum kv_status kv_config_store(struct kv_config_pass *pass, const struct kv_option *option,
    const char *value, const char *origin, int line)
{
	struct kv_config_origin *place = &pass->origins[option - pass->program->options];
	enum kv_status status = kv_option_parse(option, value, pass->settings, pass->arena);

	if (status != KV_OK) return kv_fail_prefix(status, "%s: option %s", origin, option->name);
	place->text = kv_arena_strdup(pass->arena, origin);
	place->line = line;
	return place->text ? KV_OK : KV_NO_MEMORY;
}

static enum kv_status apply_defaults(struct kv_config_pass *pass)
{
	const struct kv_program *program = pass->program;

	for (size_t i = 0; i < program->option_count; i++) {
		const struct kv_option *option = &program->options[i];

		if (option->default_text)
			KV_TRY(kv_config_store(pass, option, option->default_text, "default", 0));
		pass->origins[i].text = "default";
	}
	return KV_OK;
}

static enum kv_status apply_environment(struct kv_config_pass *pass)
{
	char variable[KV_CONFIG_NAME_SIZE + 16];

	for (size_t i = 0; i < pass->program->option_count; i++) {
		const struct kv_option *option = &pass->program->options[i];
		const char *value;

		if (option->kind == KV_OPTION_FLAG || (option->flags & KV_OPTION_POSITIONAL) ||
		    !kv_config_active(option, pass->command))
			continue;
		kv_option_variable(option->name, variable);
		value = getenv(variable);
		/* An empty variable is how shells and unit files unset one. */
		if (value && value[0]) KV_TRY(kv_config_store(pass, option, value, variable, 0));
	}
	return KV_OK;
}

/* The words of the command line, as the walk over them sees them. */
struct arguments {
	int count;
	char *const *words;
	int next;
	size_t positional; /* options given by position so far */
	bool only_positional;
};

/* Where the value of "--name=value" begins, or the next word, NULL when neither is there. */
static const char *value_of(struct arguments *arguments, const char *equals)
{
	const char *word;

	if (equals) return equals + 1;
	if (arguments->next >= arguments->count) return NULL;
	word = arguments->words[arguments->next];
	if (strncmp(word, "--", 2) == 0 || strcmp(word, "-h") == 0) return NULL;
	arguments->next++;
	return word;
}

static enum kv_status missing_value(const char *name, size_t length)
{
	return kv_fail(KV_INVALID,
	    "command line: option %.*s needs a value; write --%.*s=VALUE (this form also for values "
	    "that "
	    "begin with --)",
	    (int)length, name, (int)length, name);
}

static enum kv_status apply_positional(
    struct kv_config_pass *pass, struct arguments *arguments, const char *word)
{
	size_t seen = 0;

	for (size_t i = 0; i < pass->program->option_count; i++) {
		const struct kv_option *option = &pass->program->options[i];

		if (!(option->flags & KV_OPTION_POSITIONAL) || !kv_config_active(option, pass->command))
			continue;
		if (seen++ < arguments->positional) continue;
		arguments->positional++;
		return kv_config_store(pass, option, word, "command line", 0);
	}
	return kv_fail(
	    KV_INVALID, "command line: '%s' is one argument too many; options begin with --", word);
}

/* --config is read before all else, the other built-in options say what to do. */
static bool apply_built_in(struct kv_config_pass *pass, struct arguments *arguments,
    const char *name, size_t length, const char *equals, enum kv_status *status)
{
	static const struct {
		const char *name;
		enum kv_config_action action;
	} actions[] = {{"help", KV_CONFIG_HELP}, {"version", KV_CONFIG_VERSION},
	    {"check", KV_CONFIG_CHECK}, {"print-config", KV_CONFIG_PRINT}};

	*status = KV_OK;
	if (length == 6 && memcmp(name, "config", 6) == 0) {
		if (!value_of(arguments, equals)) *status = missing_value(name, length);
		return true;
	}
	for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
		if (strlen(actions[i].name) != length || memcmp(actions[i].name, name, length) != 0)
			continue;
		if (equals)
			*status =
			    kv_fail(KV_INVALID, "command line: option %s takes no value", actions[i].name);
		else
			pass->action = actions[i].action;
		return true;
	}
	return false;
}

static enum kv_status refuse_inactive(
    const struct kv_config_pass *pass, const struct kv_option *option)
{
	char commands[128] = "";
	size_t length = 0;

	for (size_t i = 0; i < pass->program->command_count; i++) {
		const struct kv_command *command = &pass->program->commands[i];
		int added;

		if (!(option->commands & command->bit) || length >= sizeof commands) continue;
		added = snprintf(
		    commands + length, sizeof commands - length, "%s%s", length ? ", " : "", command->name);
		if (added > 0) length += (size_t)added;
	}
	return kv_fail(KV_INVALID, "command line: option %s belongs to %s, not to %s", option->name,
	    commands, pass->command->name);
}

static enum kv_status apply_named(
    struct kv_config_pass *pass, struct arguments *arguments, const char *name)
{
	const char *equals = strchr(name, '=');
	size_t length = equals ? (size_t)(equals - name) : strlen(name);
	const struct kv_option *option;
	const char *value;
	enum kv_status status;

	if (apply_built_in(pass, arguments, name, length, equals, &status)) return status;
	option = kv_config_find(pass->program, name, length);
	if (!option && length > 3 && memcmp(name, "no-", 3) == 0) {
		option = kv_config_find(pass->program, name + 3, length - 3);
		if (option && option->kind != KV_OPTION_BOOL)
			return kv_fail(
			    KV_INVALID, "command line: option %s cannot be negated by --no-", option->name);
		if (option && equals)
			return kv_fail(
			    KV_INVALID, "command line: option %.*s takes no value", (int)length, name);
		value = "no";
	} else {
		value = "yes";
	}
	if (!option || (option->flags & KV_OPTION_POSITIONAL))
		return kv_config_unknown(pass->program, pass->command, name, length, "command line");
	if (!kv_config_active(option, pass->command)) return refuse_inactive(pass, option);
	if (option->kind == KV_OPTION_FLAG && equals)
		return kv_fail(KV_INVALID, "command line: option %s takes no value", option->name);
	if (option->kind == KV_OPTION_BOOL) {
		if (equals) value = equals + 1;
	} else if (option->kind != KV_OPTION_FLAG) {
		value = value_of(arguments, equals);
		if (!value) return missing_value(name, length);
	}
	return kv_config_store(pass, option, value, "command line", 0);
}

static enum kv_status apply_arguments(struct kv_config_pass *pass, int count, char *const *words)
{
	struct arguments arguments = {.count = count, .words = words};

	while (arguments.next < count) {
		const char *word = words[arguments.next++];

		if (arguments.only_positional || word[0] != '-' || word[1] == '\0') {
			KV_TRY(apply_positional(pass, &arguments, word));
		} else if (strcmp(word, "--") == 0) {
			arguments.only_positional = true;
		} else if (word[1] == '-') {
			KV_TRY(apply_named(pass, &arguments, word + 2));
		} else {
			return kv_fail(KV_INVALID,
			    "command line: '%s' is not an option; options begin with --, and -- ends them",
			    word);
		}
	}
	return KV_OK;
}

static enum kv_status check_required(const struct kv_config_pass *pass)
{
	char variable[KV_CONFIG_NAME_SIZE + 16];

	for (size_t i = 0; i < pass->program->option_count; i++) {
		const struct kv_option *option = &pass->program->options[i];

		if (!(option->flags & KV_OPTION_REQUIRED) || !kv_config_active(option, pass->command) ||
		    strcmp(pass->origins[i].text, "default") != 0)
			continue;
		if (option->flags & KV_OPTION_POSITIONAL)
			return kv_fail(KV_INVALID, "command line: the argument %s is missing",
			    option->unit ? option->unit : option->name);
		kv_option_variable(option->name, variable);
		return kv_fail(KV_INVALID,
		    "option %s is required; give --%s=VALUE, %s, or %s = VALUE in the configuration file",
		    option->name, option->name, variable, option->name);
	}
	return KV_OK;
}

/* Options that are looked for before all sources: --help and --version must work when a file is
 * wrong, and --config says which file. */
static const char *scan_arguments(int count, char *const *words, enum kv_config_action *action)
{
	const char *path = NULL;

	for (int i = 0; i < count && strcmp(words[i], "--") != 0; i++) {
		if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0)
			*action = KV_CONFIG_HELP;
		else if (strcmp(words[i], "--version") == 0)
			*action = KV_CONFIG_VERSION;
		else if (strncmp(words[i], "--config=", 9) == 0)
			path = words[i] + 9;
		else if (strcmp(words[i], "--config") == 0 && i + 1 < count)
			path = words[i + 1];
	}
	return path;
}

static enum kv_status apply_file(struct kv_config_pass *pass, const char *path)
{
	enum kv_status status;

	if (!path) path = getenv("CLUSTERKV_CONFIG");
	if (path && path[0]) return kv_config_read_file(pass, path);
	/* An empty --config= means: no file, not even the default one. */
	if (path || !pass->program->default_config) return KV_OK;
	status = kv_config_read_file(pass, pass->program->default_config);
	return status == KV_NOT_FOUND ? KV_OK : status;
}

static enum kv_status run_pass(struct kv_config_pass *pass, int count, char *const *words)
{
	const char *path = scan_arguments(count, words, &pass->action);

	if (pass->action != KV_CONFIG_RUN) return KV_OK;
	KV_TRY(apply_defaults(pass));
	KV_TRY(apply_file(pass, path));
	KV_TRY(apply_environment(pass));
	KV_TRY(apply_arguments(pass, count, words));
	KV_TRY(check_required(pass));
	if (!pass->program->validate) return KV_OK;
	return pass->program->validate(pass->command, pass->settings);
}

enum kv_status kv_config_load(const struct kv_program *program, const struct kv_command *command,
    int argument_count, char *const *arguments, struct kv_allocator *allocator, void *settings,
    struct kv_config **config)
{
	struct kv_config_pass pass = {.program = program, .command = command, .allocator = allocator};
	struct kv_config *made = kv_alloc_zero(allocator, sizeof *made);
	enum kv_status status = KV_NO_MEMORY;

	if (!made) return KV_NO_MEMORY;
	pass.settings = kv_alloc_zero(allocator, program->settings_size);
	pass.origins = kv_alloc_array_zero(allocator, program->option_count, sizeof *pass.origins);
	if (!pass.settings || !pass.origins) goto free_parts;
	KV_TRY_GOTO(status, kv_arena_create(allocator, STRING_CHUNK, &pass.arena), free_parts);
	KV_TRY_GOTO(status, run_pass(&pass, argument_count, arguments), free_parts);
	made->program = program;
	made->command = command;
	made->allocator = allocator;
	made->arena = pass.arena;
	made->origins = pass.origins;
	made->argument_count = argument_count;
	made->arguments = arguments;
	made->action = pass.action;
	memcpy(settings, pass.settings, program->settings_size);
	kv_free(allocator, pass.settings);
	*config = made;
	return KV_OK;

free_parts:
	kv_arena_destroy(pass.arena);
	kv_free(allocator, pass.origins);
	kv_free(allocator, pass.settings);
	kv_free(allocator, made);
	return status;
}

void kv_config_destroy(struct kv_config *config)
{
	if (!config) return;
	kv_arena_destroy(config->arena);
	kv_free(config->allocator, config->origins);
	kv_free(config->allocator, config);
}

enum kv_config_action kv_config_action(const struct kv_config *config)
{
	return config->action;
}

/* Copy what may change from the fresh pass to `merged`, its strings and origins into the config's
 * arena (`origins` is a copy that replaces the config's on success). */
static enum kv_status merge(struct kv_config *config, const struct kv_config_pass *fresh,
    void *merged, struct kv_config_origin *origins, size_t *changed)
{
	const struct kv_program *program = config->program;

	for (size_t i = 0; i < program->option_count; i++) {
		const struct kv_option *option = &program->options[i];
		const char *origin;
		char *from = (char *)fresh->settings + option->offset;
		char *to = (char *)merged + option->offset;

		if (!kv_config_active(option, config->command) ||
		    kv_option_equal(option, fresh->settings, merged))
			continue;
		if (!(option->flags & KV_OPTION_RELOADABLE)) {
			kv_warning("config", "option %s has changed (%s) and takes effect at the next restart",
			    option->name, fresh->origins[i].text);
			continue;
		}
		origin = kv_arena_strdup(config->arena, fresh->origins[i].text);
		if (!origin) return KV_NO_MEMORY;
		memcpy(to, from, kv_option_field_size(option));
		if (option->kind == KV_OPTION_STRING) {
			const char *string;

			memcpy(&string, from, sizeof string);
			if (string && !(string = kv_arena_strdup(config->arena, string))) return KV_NO_MEMORY;
			memcpy(to, &string, sizeof string);
		}
		origins[i].text = origin;
		origins[i].line = fresh->origins[i].line;
		(*changed)++;
	}
	return program->validate ? program->validate(config->command, merged) : KV_OK;
}

enum kv_status kv_config_reload(struct kv_config *config, void *settings, size_t *changed)
{
	const struct kv_program *program = config->program;
	struct kv_allocator *allocator = config->allocator;
	size_t origins_size = program->option_count * sizeof(struct kv_config_origin);
	struct kv_config_pass fresh = {
	    .program = program, .command = config->command, .allocator = allocator};
	void *merged = kv_alloc(allocator, program->settings_size);
	struct kv_config_origin *origins = kv_alloc(allocator, origins_size);
	enum kv_status status = KV_NO_MEMORY;
	size_t count = 0;

	fresh.settings = kv_alloc_zero(allocator, program->settings_size);
	fresh.origins = kv_alloc_zero(allocator, origins_size);
	if (!merged || !origins || !fresh.settings || !fresh.origins) goto free_parts;
	KV_TRY_GOTO(status, kv_arena_create(allocator, STRING_CHUNK, &fresh.arena), free_parts);
	KV_TRY_GOTO(status, run_pass(&fresh, config->argument_count, config->arguments), free_parts);
	memcpy(merged, settings, program->settings_size);
	memcpy(origins, config->origins, origins_size);
	KV_TRY_GOTO(status, merge(config, &fresh, merged, origins, &count), free_parts);
	memcpy(settings, merged, program->settings_size);
	memcpy(config->origins, origins, origins_size);
	if (changed) *changed = count;

free_parts:
	kv_arena_destroy(fresh.arena);
	kv_free(allocator, fresh.origins);
	kv_free(allocator, fresh.settings);
	kv_free(allocator, origins);
	kv_free(allocator, merged);
	return status;
}

const char *kv_config_source(const struct kv_config *config, const char *name)
{
	const struct kv_option *option = kv_config_find(config->program, name, strlen(name));

	return option ? config->origins[option - config->program->options].text : NULL;
}

bool kv_config_given(const struct kv_config *config, const char *name)
{
	const char *source = kv_config_source(config, name);

	return source && strcmp(source, "default") != 0;
}

void kv_config_warn_ignored(
    const struct kv_config *config, const char *const *names, const char *why)
{
	char list[512] = "";
	size_t length = 0;

	for (size_t i = 0; names[i] && length < sizeof list; i++) {
		int added;

		if (!kv_config_given(config, names[i])) continue;
		added =
		    snprintf(list + length, sizeof list - length, "%s--%s", length ? ", " : "", names[i]);
		if (added > 0) length += (size_t)added;
	}
	if (length > 0)
		kv_warning(config->program->name, "%s: given, and without effect with %s", list, why);
}
