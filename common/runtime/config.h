/* One table of options per program, filled from four sources.
 *
 * Later sources win: the defaults of the table, an INI file, the environment (CLUSTERKV_NAME,
 * dashes become underscores), the command line (--name=value, --name value, --flag, --name and
 * --no-name for booleans). Names are the same everywhere; a file may write _ for -. An error names
 * the option, the value, where it came from (file:line, the variable, the command line) and what to
 * do; a name that is in no table is refused with the nearest one that is. A variable that sets
 * nothing and is near to one that would is a line of warning.
 *
 * Built in, in every program: --config FILE (or CLUSTERKV_CONFIG), --help, --version, --check
 * (load, validate, look at what is named, say so, exit), --print-config (the effective settings as
 * an INI file, exit).
 */
#ifndef KV_COMMON_RUNTIME_CONFIG_H
#define KV_COMMON_RUNTIME_CONFIG_H

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "common/runtime/text_buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the values came from, and the strings that settings point at. */
struct kv_config;

/* The kind says how a value is written and the type of the field at `offset`. */
enum kv_option_kind {
	KV_OPTION_STRING,   /* const char *, NULL by default; owned by the struct kv_config */
	KV_OPTION_U32,      /* uint32_t */
	KV_OPTION_U64,      /* uint64_t */
	KV_OPTION_SIZE,     /* uint64_t, bytes: 64MiB */
	KV_OPTION_DOUBLE,   /* double */
	KV_OPTION_BOOL,     /* bool: --x, --no-x, --x=yes */
	KV_OPTION_WORD,     /* int or an enum of int's size: the index of the word in `words` */
	KV_OPTION_DURATION, /* uint64_t, milliseconds: 500ms, 3s */
	KV_OPTION_FLAG      /* bool, false unless given; command line only */
};

enum kv_option_flag {
	KV_OPTION_REQUIRED = 1,
	KV_OPTION_RELOADABLE = 2, /* kv_config_reload may change it */
	KV_OPTION_POSITIONAL = 4, /* given without its name, in table order; command line only */
	KV_OPTION_SECRET = 8,     /* --print-config hides the value */
	KV_OPTION_HIDDEN = 16     /* not in --help: for tests */
};

struct kv_option {
	const char *name; /* lower-case words joined by dashes */
	enum kv_option_kind kind;
	size_t offset;            /* offsetof(struct settings, field) */
	const char *default_text; /* as a user would write it; NULL: 0, false, the first word, NULL */
	const char *unit;         /* of a plain number, or what a string is ("FILE"); may be NULL */
	const char *help;         /* one or two sentences */
	const char *group;        /* heading in --help; NULL: that of the option before */
	uint64_t minimum;         /* of u32, u64, size, duration */
	uint64_t maximum;         /* 0: no limit */
	double minimum_real;      /* of double; both 0: no limits */
	double maximum_real;
	/* NULL-terminated: of KV_OPTION_WORD its words; of a string all that it may be, NULL: any. */
	const char *const *words;
	uint32_t commands; /* KV_COMMAND bits that take this option; 0: all */
	unsigned flags;    /* enum kv_option_flag */
	/* Of a string: KV_OK, or a failure whose sentence quotes the value and says what is taken.
	 * The option's name and where the value came from are put before it. May be NULL. */
	enum kv_status (*check)(const char *value);
};

struct kv_command {
	const char *name;
	const char *summary; /* one sentence */
	uint32_t bit;        /* exactly one bit */
};

struct kv_program {
	const char *name;    /* "kvstored": for messages, and the INI section */
	const char *section; /* NULL: as name. Keys before any section are taken as in it. */
	const char *summary;
	const struct kv_option *options;
	size_t option_count;
	size_t settings_size;              /* sizeof(struct settings) */
	const struct kv_command *commands; /* NULL for a program without subcommands */
	size_t command_count;
	const char *default_config; /* read when it exists and no --config is given; may be NULL */
	const char *const *other_sections; /* of other programs, skipped; NULL-terminated or NULL */
	/* Judge what concerns several options; `settings` is complete. `command` is the one that was
	 * called, NULL for a program without subcommands. May be NULL. */
	enum kv_status (*validate)(const struct kv_command *command, const void *settings);
	/* Say, by warnings, what was given and has no effect: at a start and with --check, before the
	 * settings are used. Where they have a log level it sets that first. May be NULL. */
	void (*warn)(const struct kv_config *config, const struct kv_command *command,
	    const void *settings);
	/* With --check: look at what the settings name, such as files. May be NULL. */
	enum kv_status (*check)(const struct kv_command *command, const void *settings);
};

enum kv_config_action {
	KV_CONFIG_RUN,
	KV_CONFIG_HELP,
	KV_CONFIG_VERSION,
	KV_CONFIG_CHECK,
	KV_CONFIG_PRINT
};

enum kv_exit { KV_EXIT_OK = 0, KV_EXIT_FAILED = 1, KV_EXIT_USAGE = 2 };

/* Fill `settings` (program->settings_size bytes, set only on success). `arguments` are those after
 * the program's and the command's name, borrowed until kv_config_destroy (for reloads). `command`
 * is NULL for a program without subcommands. With --help or --version nothing else is looked at and
 * `settings` holds zeros. */
enum kv_status kv_config_load(const struct kv_program *program, const struct kv_command *command,
    int argument_count, char *const *arguments, struct kv_allocator *allocator, void *settings,
    struct kv_config **config);
void kv_config_destroy(struct kv_config *config); /* NULL is allowed */

/* The whole start of a program's main(): find the command in argv[1] (where there are commands),
 * load, and serve --help, --version, --check, --print-config and errors. True: go on with
 * `settings` and the owned `config`, and `command` (may be NULL) is set. False: return *exit_code.
 */
bool kv_config_start(const struct kv_program *program, int argc, char *const *argv,
    struct kv_allocator *allocator, void *settings, struct kv_config **config,
    const struct kv_command **command, int *exit_code);

/* KV_EXIT_OK, or, after logging this thread's error text as the program's, KV_EXIT_FAILED; for
 * KV_USAGE KV_EXIT_USAGE: an option's value turned out to be wrong after all sources were read. */
int kv_exit_code(const struct kv_program *program, enum kv_status status);

enum kv_config_action kv_config_action(const struct kv_config *config);

/* Read all sources again. Changed options that are RELOADABLE are stored to `settings`; changed
 * ones that are not are logged as needing a restart. On failure nothing changes. The number of
 * stored options goes to `changed` (may be NULL). Strings replaced here stay valid until destroy.
 */
enum kv_status kv_config_reload(struct kv_config *config, void *settings, size_t *changed);

/* Was the option given by any source other than the defaults? */
bool kv_config_given(const struct kv_config *config, const char *name);

/* Warn, in one line, of those of `names` (NULL-terminated) that were given: they have no effect
 * because of `why` ("policy full"). Silent when none was. */
void kv_config_warn_ignored(
    const struct kv_config *config, const char *const *names, const char *why);

/* "default", "/etc/x.conf:12", "CLUSTERKV_X", "command line"; NULL for an unknown name. Borrowed.
 */
const char *kv_config_source(const struct kv_config *config, const char *name);

/* Renderers, of at most 100 columns. `command` NULL: for the program as a whole. */
void kv_config_help(const struct kv_program *program, const struct kv_command *command,
    struct kv_text_buffer *text);
void kv_config_print(
    const struct kv_config *config, const void *settings, struct kv_text_buffer *text);

/* The command of a word; KV_NOT_FOUND names the nearest one. */
enum kv_status kv_config_find_command(
    const struct kv_program *program, const char *word, const struct kv_command **command);

#ifdef __cplusplus
}
#endif
#endif
