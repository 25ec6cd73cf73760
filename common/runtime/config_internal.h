/* What the parts of the option table share: config.c (load), config_file.c (INI), config_option.c
 * (one value), config_text.c (help, print). Not for others. */
#ifndef KV_COMMON_RUNTIME_CONFIG_INTERNAL_H
#define KV_COMMON_RUNTIME_CONFIG_INTERNAL_H

#include "common/memory/arena.h"
#include "common/runtime/config.h"

enum { KV_CONFIG_NAME_SIZE = 64 };

struct kv_config_origin {
	const char *text; /* "default", "file:line", …; lives in the arena */
	int line;         /* of the file, 0 for other sources */
};

struct kv_config {
	const struct kv_program *program;
	const struct kv_command *command;
	struct kv_allocator *allocator;
	struct kv_arena *arena; /* strings of settings and origins */
	struct kv_config_origin *origins;
	int argument_count;
	char *const *arguments;
	enum kv_config_action action;
};

/* One pass over the sources, into a settings struct that nobody sees yet. */
struct kv_config_pass {
	const struct kv_program *program;
	const struct kv_command *command;
	struct kv_allocator *allocator;
	struct kv_arena *arena;
	void *settings;
	struct kv_config_origin *origins;
	enum kv_config_action action;
};

bool kv_config_active(const struct kv_option *option, const struct kv_command *command);

/* The option of this name in the whole table, NULL when there is none. */
const struct kv_option *kv_config_find(
    const struct kv_program *program, const char *name, size_t length);

/* True for what every program takes and no table holds, such as help; none is set in files. */
bool kv_config_built_in(const char *name);

/* The active option whose name is so near to one that is in no table that a slip of a finger is
 * likely; NULL when none is. */
const char *kv_config_nearest(const struct kv_program *program, const struct kv_command *command,
    const char *name, size_t length);

/* Of config_environment.c: a line of warning for each variable CLUSTERKV_NAME that sets nothing
 * and is likely to have been meant to. */
void kv_config_warn_environment(const struct kv_program *program);

/* Fail for a name that is in no table, with the nearest active one. */
enum kv_status kv_config_unknown(const struct kv_program *program, const struct kv_command *command,
    const char *name, size_t length, const char *where);

/* Parse and store; the failure names option, value and `origin`. */
enum kv_status kv_config_store(struct kv_config_pass *pass, const struct kv_option *option,
    const char *value, const char *origin, int line);

/* Of config_option.c: a value without its origin. */
enum kv_status kv_option_parse(
    const struct kv_option *option, const char *value, void *settings, struct kv_arena *arena);
bool kv_option_equal(const struct kv_option *option, const void *left, const void *right);
size_t kv_option_field_size(const struct kv_option *option);
/* False when the value is an unset string. */
bool kv_option_format(
    const struct kv_option *option, const void *settings, struct kv_text_buffer *text);
/* "1MiB to 1TiB", "at least 1", …; nothing when the option has no limits. */
void kv_option_put_range(const struct kv_option *option, struct kv_text_buffer *text);
/* CLUSTERKV_NAME; `variable` has room for KV_CONFIG_NAME_SIZE + 16 bytes. */
void kv_option_variable(const char *name, char *variable);

/* Distance of two words in edits; used for suggestions only. */
unsigned kv_config_distance(const char *left, size_t left_length, const char *right);

/* Of config_file.c. A file that is not there is KV_NOT_FOUND. */
enum kv_status kv_config_read_file(struct kv_config_pass *pass, const char *path);

#endif
