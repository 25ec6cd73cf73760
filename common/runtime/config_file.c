#include "common/runtime/config_internal.h"

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

enum { FILE_LIMIT = 1024 * 1024 };

/* libinih asks for lines; the file is in memory, so that its size, NUL bytes and long lines are
 * judged here and the number of the current line is known to the handler. */
struct reading {
	struct kv_config_pass *pass;
	const char *path;
	const char *next; /* ended by a NUL */
	int line;
	int long_line; /* the first that did not fit, 0 for none */
	size_t line_limit;
	enum kv_status status;
};

static char *read_line(char *line, int size, void *stream)
{
	struct reading *reading = stream;
	const char *end;
	size_t length;

	if (*reading->next == '\0' || reading->status != KV_OK || size < 2) return NULL;
	end = strchr(reading->next, '\n');
	length = end ? (size_t)(end - reading->next) + 1 : strlen(reading->next);
	reading->line++;
	if (length > (size_t)size - 1) {
		reading->long_line = reading->line;
		reading->line_limit = (size_t)size - 2;
		reading->next += length;
		return NULL;
	}
	memcpy(line, reading->next, length);
	line[length] = '\0';
	reading->next += length;
	return line;
}

static enum kv_status check_section(const struct reading *reading, const char *section)
{
	const struct kv_program *program = reading->pass->program;
	const char *own = program->section ? program->section : program->name;

	if (section[0] == '\0' || strcmp(section, own) == 0) return KV_OK;
	for (const char *const *other = program->other_sections; other && *other; other++) {
		if (strcmp(section, *other) == 0) return KV_NOT_FOUND;
	}
	return kv_fail(KV_INVALID, "%s:%d: section [%s] is not known; %s reads [%s]", reading->path,
	    reading->line, section, program->name, own);
}

static enum kv_status take_value(struct reading *reading, const char *written, const char *value)
{
	struct kv_config_pass *pass = reading->pass;
	const struct kv_program *program = pass->program;
	const struct kv_option *option;
	char name[KV_CONFIG_NAME_SIZE];
	char origin[512];
	size_t length = strlen(written);

	snprintf(origin, sizeof origin, "%s:%d", reading->path, reading->line);
	for (size_t i = 0; i < sizeof name; i++) {
		name[i] = written[i] == '_' ? '-' : written[i];
		if (!written[i]) break;
	}
	option = length < sizeof name ? kv_config_find(program, name, length) : NULL;
	if (length < sizeof name && kv_config_built_in(name))
		return kv_fail(KV_INVALID, "%s: %s cannot be set in a file", origin, name);
	if (!option) return kv_config_unknown(program, pass->command, name, length, origin);
	if (option->kind == KV_OPTION_FLAG || (option->flags & KV_OPTION_POSITIONAL))
		return kv_fail(KV_INVALID, "%s: %s is for the command line only", origin, name);
	/* One file serves all commands of a program. */
	if (!kv_config_active(option, pass->command)) return KV_OK;
	if (pass->origins[option - program->options].line)
		return kv_fail(KV_INVALID,
		    "%s: %s is given again after line %d; remove one of them, and do not indent lines",
		    origin, name, pass->origins[option - program->options].line);
	return kv_config_store(pass, option, value, origin, reading->line);
}

static int on_value(void *user, const char *section, const char *name, const char *value)
{
	struct reading *reading = user;
	enum kv_status status;

	if (reading->status != KV_OK) return 0;
	status = check_section(reading, section);
	if (status == KV_NOT_FOUND) return 1;
	if (status == KV_OK) status = take_value(reading, name, value ? value : "");
	reading->status = status;
	return status == KV_OK;
}

static enum kv_status load_text(struct kv_allocator *allocator, const char *path, char **text)
{
	FILE *file = fopen(path, "rbe");
	char *bytes;
	size_t length;

	if (!file)
		return kv_fail(errno == ENOENT ? KV_NOT_FOUND : KV_IO,
		    "configuration file %s cannot be read: %s", path, strerror(errno));
	bytes = kv_alloc(allocator, FILE_LIMIT + 1);
	if (!bytes) {
		fclose(file);
		return KV_NO_MEMORY;
	}
	length = fread(bytes, 1, FILE_LIMIT + 1, file);
	bool failed = ferror(file);

	fclose(file);
	if (failed || length > FILE_LIMIT || memchr(bytes, '\0', length)) {
		kv_free(allocator, bytes);
		return kv_fail(KV_INVALID, "configuration file %s is not a text of at most %d bytes", path,
		    (int)FILE_LIMIT);
	}
	bytes[length] = '\0';
	*text = bytes;
	return KV_OK;
}

enum kv_status kv_config_read_file(struct kv_config_pass *pass, const char *path)
{
	struct reading reading = {.pass = pass, .path = path};
	char *text = NULL;
	int wrong_line;

	KV_TRY(load_text(pass->allocator, path, &text));
	reading.next = text;
	wrong_line = ini_parse_stream(read_line, &reading, on_value, &reading);
	kv_free(pass->allocator, text);
	if (reading.status != KV_OK) return reading.status;
	if (reading.long_line)
		return kv_fail(KV_INVALID, "%s:%d: the line is longer than %zu bytes", path,
		    reading.long_line, reading.line_limit);
	if (wrong_line < 0) return kv_fail(KV_NO_MEMORY, "%s: no memory to read it", path);
	if (wrong_line > 0)
		return kv_fail(KV_INVALID,
		    "%s:%d: the line is neither 'name = value', nor '[section]', nor a comment", path,
		    wrong_line);
	return KV_OK;
}
