#include "common/runtime/config_internal.h"

#include "common/base/log.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 100, HELP_COLUMN = 34, HELP_LIMIT = 256 * 1024 };

/* Write `words` from `column` on, breaking lines at COLUMNS and indenting them to HELP_COLUMN. */
static void put_wrapped(struct kv_text_buffer *text, const char *words, size_t indent)
{
	size_t column = indent;

	while (*words) {
		size_t length = strcspn(words, " ");

		if (column + length > COLUMNS && column > indent) {
			kv_text_put(text, "\n");
			kv_text_repeat(text, ' ', indent);
			column = indent;
		} else if (column > indent) {
			kv_text_put(text, " ");
		}
		kv_text_append(text, words, length);
		column += length + 1;
		words += length;
		words += strspn(words, " ");
	}
	kv_text_put(text, "\n");
}

static void put_words(
    const struct kv_option *option, const char *between, struct kv_text_buffer *text)
{
	for (size_t i = 0; option->words[i]; i++)
		kv_text_printf(text, "%s%s", i ? between : "", option->words[i]);
}

static void put_placeholder(const struct kv_option *option, struct kv_text_buffer *text)
{
	switch (option->kind) {
	case KV_OPTION_STRING:
		kv_text_put(text, option->unit ? option->unit : option->words ? "WORD" : "TEXT");
		break;
	case KV_OPTION_U32:
	case KV_OPTION_U64:
		kv_text_put(text, "N");
		break;
	case KV_OPTION_SIZE:
		kv_text_put(text, "SIZE");
		break;
	case KV_OPTION_DOUBLE:
		kv_text_put(text, "X");
		break;
	case KV_OPTION_DURATION:
		kv_text_put(text, "TIME");
		break;
	case KV_OPTION_WORD:
		kv_text_put(text, "WORD");
		break;
	case KV_OPTION_BOOL:
	case KV_OPTION_FLAG:
		break;
	}
}

static void put_left(const struct kv_option *option, struct kv_text_buffer *text)
{
	if (option->flags & KV_OPTION_POSITIONAL) {
		kv_text_put(text, "  ");
		kv_text_put(text, option->unit ? option->unit : option->name);
	} else if (option->kind == KV_OPTION_BOOL) {
		kv_text_printf(text, "  --[no-]%s", option->name);
	} else if (option->kind == KV_OPTION_FLAG) {
		kv_text_printf(text, "  --%s", option->name);
	} else {
		kv_text_printf(text, "  --%s=", option->name);
		put_placeholder(option, text);
	}
}

/* "default 4096 tokens; 16 to 65536; reloadable", or nothing. */
static void put_facts(const struct kv_option *option, struct kv_text_buffer *facts)
{
	bool number = option->kind == KV_OPTION_U32 || option->kind == KV_OPTION_U64 ||
	              option->kind == KV_OPTION_DOUBLE;
	struct kv_text_buffer range;

	if (option->flags & KV_OPTION_REQUIRED)
		kv_text_put(facts, "required");
	else if (option->default_text && option->default_text[0] && option->kind != KV_OPTION_FLAG)
		kv_text_printf(facts, "default %s", option->default_text);
	if (number && option->unit)
		kv_text_printf(facts, "%s%s", facts->length ? " " : "", option->unit);
	kv_text_init(&range, facts->allocator, 256);
	kv_option_put_range(option, &range);
	if (range.length) kv_text_printf(facts, "%s%s", facts->length ? "; " : "", kv_text(&range));
	kv_text_deinit(&range);
	if (option->words) {
		kv_text_put(facts, facts->length ? "; one of " : "one of ");
		put_words(option, ", ", facts);
	}
	if (option->flags & KV_OPTION_RELOADABLE)
		kv_text_put(facts, facts->length ? "; reloadable" : "reloadable");
}

static void put_option(const struct kv_option *option, struct kv_text_buffer *text)
{
	struct kv_text_buffer words;
	struct kv_text_buffer facts;
	size_t start = text->length;
	size_t left;

	put_left(option, text);
	left = text->length - start;
	if (left + 2 > HELP_COLUMN) {
		kv_text_put(text, "\n");
		kv_text_repeat(text, ' ', HELP_COLUMN);
	} else {
		kv_text_repeat(text, ' ', HELP_COLUMN - left);
	}
	kv_text_init(&words, text->allocator, 4096);
	kv_text_init(&facts, text->allocator, 4096);
	put_facts(option, &facts);
	kv_text_put(&words, option->help ? option->help : "");
	if (facts.length) kv_text_printf(&words, " (%s)", kv_text(&facts));
	if (facts.status != KV_OK) words.status = facts.status;
	if (words.status != KV_OK && text->status == KV_OK) text->status = words.status;
	put_wrapped(text, kv_text(&words), HELP_COLUMN);
	kv_text_deinit(&facts);
	kv_text_deinit(&words);
}

static bool shown(const struct kv_option *option, const struct kv_command *command, bool positional)
{
	return !(option->flags & KV_OPTION_HIDDEN) && kv_config_active(option, command) &&
	       positional == ((option->flags & KV_OPTION_POSITIONAL) != 0);
}

static const char *group_of(const struct kv_program *program, size_t index)
{
	while (!program->options[index].group && index > 0)
		index--;
	return program->options[index].group ? program->options[index].group : "Options";
}

static void put_group(const struct kv_program *program, const struct kv_command *command,
    const char *group, struct kv_text_buffer *text)
{
	bool headed = false;

	for (size_t i = 0; i < program->option_count; i++) {
		if (!shown(&program->options[i], command, false) ||
		    strcmp(group_of(program, i), group) != 0)
			continue;
		if (!headed) kv_text_printf(text, "\n%s:\n", group);
		headed = true;
		put_option(&program->options[i], text);
	}
}

/* Is this the first option of its group in the table? Groups appear in that order. */
static bool opens_group(const struct kv_program *program, size_t index)
{
	for (size_t i = 0; i < index; i++) {
		if (strcmp(group_of(program, i), group_of(program, index)) == 0) return false;
	}
	return true;
}

static void put_usage(
    const struct kv_program *program, const struct kv_command *command, struct kv_text_buffer *text)
{
	kv_text_printf(text, "Usage: %s", program->name);
	if (command) kv_text_printf(text, " %s", command->name);
	if (program->command_count && !command) kv_text_put(text, " COMMAND");
	kv_text_put(text, " [OPTION]...");
	if (command || !program->command_count) {
		for (size_t i = 0; i < program->option_count; i++) {
			const struct kv_option *option = &program->options[i];
			bool required = (option->flags & KV_OPTION_REQUIRED) != 0;

			if (!shown(option, command, true)) continue;
			kv_text_printf(
			    text, required ? " %s" : " [%s]", option->unit ? option->unit : option->name);
		}
	}
	kv_text_printf(text, "\n\n%s\n", command ? command->summary : program->summary);
}

static void put_commands(const struct kv_program *program, struct kv_text_buffer *text)
{
	kv_text_put(text, "\nCommands:\n");
	for (size_t i = 0; i < program->command_count; i++) {
		const struct kv_command *command = &program->commands[i];

		kv_text_printf(text, "  %-16s", command->name);
		put_wrapped(text, command->summary, 18);
	}
	kv_text_printf(text, "\n'%s COMMAND --help' lists the options of a command.\n", program->name);
}

static void put_built_in(const struct kv_program *program, struct kv_text_buffer *text)
{
	static const struct kv_option options[] = {
	    {.name = "check", .kind = KV_OPTION_FLAG, .help = "Check the configuration and exit."},
	    {.name = "print-config",
	        .kind = KV_OPTION_FLAG,
	        .help = "Print the effective configuration as an INI file and exit."},
	    {.name = "help", .kind = KV_OPTION_FLAG, .help = "Print this and exit."},
	    {.name = "version", .kind = KV_OPTION_FLAG, .help = "Print the version and exit."},
	};
	struct kv_option config = {.name = "config",
	    .kind = KV_OPTION_STRING,
	    .unit = "FILE",
	    .default_text = program->default_config,
	    .help = "INI file that options are read from; an empty name means none."};

	kv_text_put(text, "\nGeneral:\n");
	put_option(&config, text);
	for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
		put_option(&options[i], text);
	kv_text_printf(text,
	    "\nEach option can also be set in section [%s] of the file (name = value), or by the\n"
	    "environment (CLUSTERKV_NAME, with _ for -). The command line wins, then the "
	    "environment.\n",
	    program->section ? program->section : program->name);
}

void kv_config_help(
    const struct kv_program *program, const struct kv_command *command, struct kv_text_buffer *text)
{
	bool headed = false;

	put_usage(program, command, text);
	if (program->command_count && !command) {
		put_commands(program, text);
		return;
	}
	for (size_t i = 0; i < program->option_count; i++) {
		if (!shown(&program->options[i], command, true)) continue;
		if (!headed) kv_text_put(text, "\nArguments:\n");
		headed = true;
		put_option(&program->options[i], text);
	}
	for (size_t i = 0; i < program->option_count; i++) {
		if (opens_group(program, i)) put_group(program, command, group_of(program, i), text);
	}
	put_built_in(program, text);
}

/* Would the INI reader give this text back as it is? */
static bool survives_file(const char *value)
{
	size_t length = strlen(value);

	if (length == 0) return true;
	if (value[0] == ' ' || value[0] == ';' || value[length - 1] == ' ') return false;
	return !strpbrk(value, "\r\n\t") && !strstr(value, " ;");
}

static void print_option(
    const struct kv_config *config, size_t index, const void *settings, struct kv_text_buffer *text)
{
	const struct kv_option *option = &config->program->options[index];
	const char *origin = config->origins[index].text;
	struct kv_text_buffer value;
	bool set;

	kv_text_init(&value, text->allocator, 64 * 1024);
	set = kv_option_format(option, settings, &value);
	if (value.status != KV_OK && text->status == KV_OK) text->status = value.status;
	if (strcmp(origin, "default") != 0) kv_text_printf(text, "# from %s\n", origin);
	if (!set)
		kv_text_printf(text, "# %s =\n", option->name);
	else if (option->flags & KV_OPTION_SECRET)
		kv_text_printf(text, "# %s is set and not shown\n", option->name);
	else if (!survives_file(kv_text(&value)))
		kv_text_printf(text, "# %s is set to a text that a file cannot hold\n", option->name);
	else
		kv_text_printf(text, "%s = %s\n", option->name, kv_text(&value));
	kv_text_deinit(&value);
}

void kv_config_print(
    const struct kv_config *config, const void *settings, struct kv_text_buffer *text)
{
	const struct kv_program *program = config->program;
	const char *group = NULL;

	kv_text_printf(text, "# %s %s\n[%s]\n", program->name, KV_VERSION,
	    program->section ? program->section : program->name);
	for (size_t i = 0; i < program->option_count; i++) {
		const struct kv_option *option = &program->options[i];

		bool positional = (option->flags & KV_OPTION_POSITIONAL) != 0;
		bool given = strcmp(config->origins[i].text, "default") != 0;

		/* As --help, and what only tests set where they do. */
		if (!kv_config_active(option, config->command)) continue;
		if ((option->flags & KV_OPTION_HIDDEN) && !given) continue;
		if (group_of(program, i) != group) {
			group = group_of(program, i);
			kv_text_printf(text, "\n# %s\n", group);
		}
		if (positional || option->kind == KV_OPTION_FLAG)
			kv_text_printf(text, "# %s is for the command line only, and %s\n", option->name,
			    given ? "given" : "not given");
		else
			print_option(config, i, settings, text);
	}
}

enum kv_status kv_config_find_command(
    const struct kv_program *program, const char *word, const struct kv_command **command)
{
	const char *nearest = NULL;
	unsigned best = 3;

	for (size_t i = 0; i < program->command_count; i++) {
		unsigned distance = kv_config_distance(word, strlen(word), program->commands[i].name);

		if (distance == 0) {
			*command = &program->commands[i];
			return KV_OK;
		}
		if (distance < best) {
			best = distance;
			nearest = program->commands[i].name;
		}
	}
	if (nearest)
		return kv_fail(KV_NOT_FOUND, "there is no command '%s'; did you mean '%s'?", word, nearest);
	return kv_fail(KV_NOT_FOUND, "there is no command '%s'; --help lists all", word);
}

static int print_text(struct kv_text_buffer *text, FILE *stream)
{
	int failed =
	    kv_text_status(text) != KV_OK || fputs(kv_text(text), stream) < 0 || fflush(stream) != 0;

	kv_text_deinit(text);
	return failed ? KV_EXIT_FAILED : KV_EXIT_OK;
}

static int print_help(const struct kv_program *program, const struct kv_command *command,
    struct kv_allocator *allocator, FILE *stream)
{
	struct kv_text_buffer text;

	kv_text_init(&text, allocator, HELP_LIMIT);
	kv_config_help(program, command, &text);
	return print_text(&text, stream);
}

static int usage_error(const struct kv_program *program, const struct kv_command *command)
{
	fprintf(stderr, "%s: %s\nTry '%s%s%s --help'.\n", program->name, kv_error_message(),
	    program->name, command ? " " : "", command ? command->name : "");
	return KV_EXIT_USAGE;
}

static int print_version(const struct kv_program *program)
{
	return printf("%s %s\n", program->name, KV_VERSION) < 0 || fflush(stdout) ? KV_EXIT_FAILED
	                                                                          : KV_EXIT_OK;
}

/* What is asked for instead of a run; the exit code. */
static int serve_action(
    const struct kv_config *config, const void *settings, struct kv_allocator *allocator)
{
	struct kv_text_buffer text;

	switch (kv_config_action(config)) {
	case KV_CONFIG_HELP:
		return print_help(config->program, config->command, allocator, stdout);
	case KV_CONFIG_VERSION:
		return print_version(config->program);
	case KV_CONFIG_PRINT:
		kv_text_init(&text, allocator, HELP_LIMIT);
		kv_config_print(config, settings, &text);
		return print_text(&text, stdout);
	case KV_CONFIG_CHECK:
		if (config->program->check) {
			enum kv_status status = config->program->check(config->command, settings);

			if (status != KV_OK) return kv_exit_code(config->program, status);
		}
		printf("%s: the configuration is valid\n", config->program->name);
		return KV_EXIT_OK;
	case KV_CONFIG_RUN:
		break;
	}
	return KV_EXIT_OK;
}

/* The command in argv[1]; false when the start ends here with *exit_code. */
static bool choose_command(const struct kv_program *program, int argc, char *const *argv,
    struct kv_allocator *allocator, const struct kv_command **command, int *exit_code)
{
	const char *word = argc > 1 ? argv[1] : NULL;

	if (!word || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 ||
	    strcmp(word, "help") == 0) {
		*exit_code = print_help(program, NULL, allocator, word ? stdout : stderr);
		if (!word) *exit_code = KV_EXIT_USAGE;
		return false;
	}
	if (strcmp(word, "--version") == 0) {
		*exit_code = print_version(program);
		return false;
	}
	if (kv_config_find_command(program, word, command) != KV_OK) {
		*exit_code = usage_error(program, NULL);
		return false;
	}
	return true;
}

bool kv_config_start(const struct kv_program *program, int argc, char *const *argv,
    struct kv_allocator *allocator, void *settings, struct kv_config **config,
    const struct kv_command **command, int *exit_code)
{
	const struct kv_command *chosen = NULL;
	struct kv_config *loaded;
	int skipped = 1;
	enum kv_status status;

	kv_log_set_program(program->name);
	if (program->command_count) {
		if (!choose_command(program, argc, argv, allocator, &chosen, exit_code)) return false;
		skipped = 2;
	}
	status = kv_config_load(program, chosen, argc > skipped ? argc - skipped : 0,
	    argc > skipped ? argv + skipped : argv, allocator, settings, &loaded);
	if (status != KV_OK) {
		*exit_code = usage_error(program, chosen);
		return false;
	}
	if (kv_config_action(loaded) == KV_CONFIG_RUN || kv_config_action(loaded) == KV_CONFIG_CHECK) {
		kv_config_warn_environment(program);
		if (program->warn) program->warn(loaded, chosen, settings);
	}
	if (kv_config_action(loaded) != KV_CONFIG_RUN) {
		*exit_code = serve_action(loaded, settings, allocator);
		kv_config_destroy(loaded);
		return false;
	}
	*config = loaded;
	if (command) *command = chosen;
	return true;
}

int kv_exit_code(const struct kv_program *program, enum kv_status status)
{
	if (status == KV_OK) return KV_EXIT_OK;
	kv_error(
	    program->name, "%s", kv_error_message()[0] ? kv_error_message() : kv_status_text(status));
	return status == KV_USAGE ? KV_EXIT_USAGE : KV_EXIT_FAILED;
}
