#include "common/runtime/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum mode { MODE_FAST, MODE_SAFE };

struct settings {
	const char *model;
	const char *listen;
	uint32_t workers;
	uint64_t seed;
	uint64_t memory;
	uint64_t timeout_ms;
	double share;
	bool verify;
	bool dry_run;
	enum mode mode;
	const char *input;
	const char *output;
	const char *secret;
	const char *backend;
	const char *store;
};

enum { RUN = 1, CONVERT = 2 };

static const char *const mode_words[] = {"fast", "safe", NULL};
static const char *const backend_words[] = {"auto", "cpu", NULL};

static enum kv_status check_store(const char *value)
{
	if (strncmp(value, "unix:", 5) == 0 || strcmp(value, "none") == 0) return KV_OK;
	return kv_fail(KV_INVALID, "'%s' is not unix:PATH or none", value);
}

#define FIELD(name) .offset = offsetof(struct settings, name)

static const struct kv_option options[] = {
    {.name = "model",
        .kind = KV_OPTION_STRING,
        FIELD(model),
        .unit = "FILE",
        .help = "The model.",
        .group = "Model",
        .flags = KV_OPTION_REQUIRED,
        .commands = RUN},
    {.name = "listen",
        .kind = KV_OPTION_STRING,
        FIELD(listen),
        .default_text = "127.0.0.1:8080",
        .help = "Where to listen.",
        .group = "Network",
        .flags = KV_OPTION_RELOADABLE,
        .commands = RUN},
    {.name = "workers",
        .kind = KV_OPTION_U32,
        FIELD(workers),
        .default_text = "2",
        .minimum = 1,
        .maximum = 64,
        .unit = "threads",
        .help = "How many.",
        .group = "Limits"},
    {.name = "seed", .kind = KV_OPTION_U64, FIELD(seed), .help = "Of the sampler."},
    {.name = "store-memory",
        .kind = KV_OPTION_SIZE,
        FIELD(memory),
        .default_text = "64MiB",
        .minimum = 1 << 20,
        .help = "Memory of the store.",
        .flags = KV_OPTION_RELOADABLE},
    {.name = "timeout",
        .kind = KV_OPTION_DURATION,
        FIELD(timeout_ms),
        .default_text = "3s",
        .maximum = 60000,
        .help = "How long to wait before an answer that is on its way is given up "
                "and the request is tried again with another peer."},
    {.name = "share",
        .kind = KV_OPTION_DOUBLE,
        FIELD(share),
        .default_text = "0.5",
        .minimum_real = 0.0,
        .maximum_real = 1.0,
        .help = "A share."},
    {.name = "verify",
        .kind = KV_OPTION_BOOL,
        FIELD(verify),
        .default_text = "yes",
        .help = "Check sums."},
    {.name = "dry-run", .kind = KV_OPTION_FLAG, FIELD(dry_run), .help = "Do nothing."},
    {.name = "mode",
        .kind = KV_OPTION_WORD,
        FIELD(mode),
        .words = mode_words,
        .default_text = "safe",
        .help = "How."},
    {.name = "secret",
        .kind = KV_OPTION_STRING,
        FIELD(secret),
        .help = "A key.",
        .flags = KV_OPTION_SECRET | KV_OPTION_HIDDEN},
    {.name = "backend",
        .kind = KV_OPTION_STRING,
        FIELD(backend),
        .words = backend_words,
        .default_text = "auto",
        .help = "What computes."},
    {.name = "store",
        .kind = KV_OPTION_STRING,
        FIELD(store),
        .check = check_store,
        .default_text = "none",
        .help = "Where."},
    {.name = "input",
        .kind = KV_OPTION_STRING,
        FIELD(input),
        .unit = "INPUT",
        .help = "From.",
        .flags = KV_OPTION_POSITIONAL | KV_OPTION_REQUIRED,
        .commands = CONVERT},
    {.name = "output",
        .kind = KV_OPTION_STRING,
        FIELD(output),
        .unit = "OUTPUT",
        .help = "To.",
        .flags = KV_OPTION_POSITIONAL,
        .commands = CONVERT},
};

static const struct kv_command commands[] = {
    {"run", "Run the model.", RUN}, {"convert", "Convert a file.", CONVERT}};

static enum kv_status validate(const struct kv_command *command, const void *opaque)
{
	const struct settings *settings = opaque;

	assert_non_null(command);
	if (command->bit == CONVERT && settings->seed == 5)
		return kv_fail(KV_INVALID, "convert takes no seed 5");
	if (settings->workers == 13) return kv_fail(KV_INVALID, "13 workers bring bad luck");
	return KV_OK;
}

static enum kv_status look(const struct kv_command *command, const void *settings);
static void say(
    const struct kv_config *given, const struct kv_command *command, const void *settings);

static const char *const other_sections[] = {"other", NULL};

static const struct kv_program program = {.name = "tester",
    .summary = "Tests the option table.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .settings_size = sizeof(struct settings),
    .commands = commands,
    .command_count = 2,
    .other_sections = other_sections,
    .validate = validate,
    .warn = say,
    .check = look};

static struct settings settings;
static struct kv_config *config;
static char path[64];

enum { ARGUMENT_LIMIT = 16 };

static int setup(void **state)
{
	(void)state;
	memset(&settings, 0, sizeof settings);
	config = NULL;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kv_config_destroy(config);
	config = NULL;
	if (path[0]) unlink(path);
	path[0] = '\0';
	unsetenv("CLUSTERKV_STORE_MEMORY");
	unsetenv("CLUSTERKV_WORKERS");
	unsetenv("CLUSTERKV_CONFIG");
	unsetenv("CLUSTERKV_DRY_RUN");
	unsetenv("CLUSTERKV_STORE");
	return 0;
}

static void write_file(const char *text)
{
	int fd;

	if (!path[0]) {
		strcpy(path, "/tmp/kv-test-config-XXXXXX");
		fd = mkstemp(path);
		assert_true(fd >= 0);
		close(fd);
	}
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* Load with the words of `line`, split at blanks. */
static enum kv_status load_with(
    struct kv_allocator *allocator, const struct kv_command *command, const char *line)
{
	static char words[512];
	static char *arguments[ARGUMENT_LIMIT];
	int count = 0;

	snprintf(words, sizeof words, "%s", line);
	for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
		arguments[count++] = word;
	kv_config_destroy(config);
	config = NULL;
	return kv_config_load(&program, command, count, arguments, allocator, &settings, &config);
}

static enum kv_status load(const char *line)
{
	return load_with(kv_heap(), &commands[0], line);
}

/* The line is refused, the text says all of `words`, and the settings stay as they were. */
static void refused(
    const struct kv_command *command, const char *line, const char *first, const char *second)
{
	struct settings before = settings;

	kv_error_clear();
	assert_int_equal(load_with(kv_heap(), command, line), KV_INVALID);
	if (!strstr(kv_error_message(), first) || !strstr(kv_error_message(), second))
		fail_msg("'%s' does not say '%s' and '%s'", kv_error_message(), first, second);
	assert_memory_equal(&before, &settings, sizeof settings);
	assert_null(config);
}

static void defaults_come_from_the_table(void **state)
{
	(void)state;
	assert_int_equal(load("--model=m.gguf"), KV_OK);
	assert_string_equal(settings.model, "m.gguf");
	assert_string_equal(settings.listen, "127.0.0.1:8080");
	assert_int_equal(settings.workers, 2);
	assert_int_equal(settings.seed, 0);
	assert_int_equal(settings.memory, 64 << 20);
	assert_int_equal(settings.timeout_ms, 3000);
	assert_true(settings.share == 0.5);
	assert_true(settings.verify);
	assert_false(settings.dry_run);
	assert_int_equal(settings.mode, MODE_SAFE);
	assert_null(settings.secret);
	assert_false(kv_config_given(config, "workers"));
	assert_true(kv_config_given(config, "model"));
	assert_string_equal(kv_config_source(config, "workers"), "default");
	assert_null(kv_config_source(config, "nothing"));
	assert_int_equal(kv_config_action(config), KV_CONFIG_RUN);
}

static void later_sources_win(void **state)
{
	char line[128];
	char origin[128];

	(void)state;
	write_file("# a comment\nworkers = 3\n[tester]\nstore_memory = 2MiB ; inline\nmode=fast\n"
	           "timeout = 1s\n[other]\nanything = goes\n[tester]\nmodel = from-file\n");
	snprintf(line, sizeof line, "--config %s --timeout=2s", path);
	setenv("CLUSTERKV_STORE_MEMORY", "5MiB", 1);
	setenv("CLUSTERKV_WORKERS", "", 1);
	setenv("CLUSTERKV_DRY_RUN", "yes", 1);
	assert_int_equal(load(line), KV_OK);
	assert_int_equal(settings.workers, 3);
	assert_int_equal(settings.memory, 5 << 20);
	assert_int_equal(settings.mode, MODE_FAST);
	assert_int_equal(settings.timeout_ms, 2000);
	assert_string_equal(settings.model, "from-file");
	assert_false(settings.dry_run);
	snprintf(origin, sizeof origin, "%s:5", path);
	assert_string_equal(kv_config_source(config, "mode"), origin);
	assert_string_equal(kv_config_source(config, "store-memory"), "CLUSTERKV_STORE_MEMORY");
	assert_string_equal(kv_config_source(config, "timeout"), "command line");
	/* The variable names the file as well; the option wins over it, an empty name means none. */
	setenv("CLUSTERKV_CONFIG", path, 1);
	assert_int_equal(load(""), KV_OK);
	assert_int_equal(settings.mode, MODE_FAST);
	assert_int_equal(load("--config= --model=m"), KV_OK);
	assert_int_equal(settings.mode, MODE_SAFE);
}

static void all_forms_of_arguments_are_read(void **state)
{
	(void)state;
	assert_int_equal(
	    load("--model m --no-verify --dry-run --share 0.25 --seed=0x10 --mode=fast"), KV_OK);
	assert_string_equal(settings.model, "m");
	assert_false(settings.verify);
	assert_true(settings.dry_run);
	assert_true(settings.share == 0.25);
	assert_int_equal(settings.seed, 16);
	assert_int_equal(settings.mode, MODE_FAST);
	/* The last of several counts; an equals sign may be in the value; an empty text is a text. */
	assert_int_equal(load("--model=--x=1 --verify=no --verify --listen="), KV_OK);
	assert_string_equal(settings.model, "--x=1");
	assert_true(settings.verify);
	assert_string_equal(settings.listen, "");
	assert_int_equal(load_with(kv_heap(), &commands[1], "a --workers=3 -- --b"), KV_OK);
	assert_string_equal(settings.input, "a");
	assert_string_equal(settings.output, "--b");
	assert_int_equal(load_with(kv_heap(), &commands[1], "-"), KV_OK);
	assert_string_equal(settings.input, "-");
	assert_null(settings.output);
}

static void mistakes_on_the_command_line_are_explained(void **state)
{
	(void)state;
	refused(&commands[0], "", "model is required", "CLUSTERKV_MODEL");
	refused(&commands[0], "--model", "model needs a value", "--model=VALUE");
	refused(&commands[0], "--model --verify", "model needs a value", "command line");
	refused(&commands[0], "--model=m --worker=3", "no option 'worker'", "did you mean 'workers'");
	refused(&commands[0], "--model=m --store_memory=3", "no option", "did you mean 'store-memory'");
	refused(&commands[0], "--model=m --banana=3", "no option 'banana'", "--help");
	refused(&commands[0], "--model=m --no-such", "no option 'no-such'", "command line");
	refused(
	    &commands[0], "--model=m --workers=0", "workers: '0' is out of range", "1 to 64 threads");
	refused(&commands[0], "--model=m --workers=65", "command line: option workers", "1 to 64");
	refused(&commands[0], "--model=m --workers=many", "workers", "'many' is not a whole number");
	refused(&commands[0], "--model=m --workers=9999999999", "workers", "1 to 64 threads");
	refused(&commands[0], "--model=m --workers=-1", "workers", "1 to 64 threads");
	refused(&commands[0], "--model=m --seed=-1", "seed", "at most 18446744073709551615");
	refused(&commands[0], "--model=m --store-memory=1k", "at least 1MiB", "'1k'");
	refused(&commands[0], "--model=m --timeout=2min", "at most 1min", "timeout");
	refused(&commands[0], "--model=m --timeout=5", "500ms", "timeout");
	refused(&commands[0], "--model=m --share=1.5", "0 to 1", "share");
	refused(&commands[0], "--model=m --verify=maybe", "verify", "yes, no");
	refused(&commands[0], "--model=m --mode=slow", "'slow' is not one of fast, safe", "mode");
	refused(&commands[0], "--model=m --dry-run=yes", "dry-run takes no value", "");
	refused(&commands[0], "--model=m --no-verify=yes", "no-verify takes no value", "");
	refused(&commands[0], "--model=m --no-workers", "workers cannot be negated", "");
	refused(&commands[0], "--model=m -x", "'-x' is not an option", "begin with --");
	refused(&commands[0], "--model=m extra", "'extra' is one argument too many", "");
	refused(&commands[0], "--model=m --check=1", "check takes no value", "");
	refused(&commands[0], "--model=m --config", "config needs a value", "");
	refused(&commands[0], "--model=m --workers=13", "bad luck", "");
	refused(&commands[1], "", "argument INPUT is missing", "");
	refused(&commands[1], "a b c", "'c' is one argument too many", "");
	refused(&commands[1], "a --model=m", "model belongs to run, not to convert", "");
	refused(&commands[1], "--input=a", "no option 'input'", "");
}

static void refused_file(const char *text, const char *first, const char *second)
{
	char line[128];

	write_file(text);
	snprintf(line, sizeof line, "--model=m --config=%s", path);
	refused(&commands[0], line, first, second);
}

static void mistakes_in_files_name_the_line(void **state)
{
	char long_line[2000];

	(void)state;
	refused_file("\n\n[tester]\nworkers = 3x\n", ":4: option workers", "'3x'");
	refused_file("wrkers = 3\n", ":1: there is no option 'wrkers'", "did you mean 'workers'");
	refused_file("[testr]\nworkers = 3\n", ":2: section [testr]", "[tester]");
	refused_file("workers = 3\nworkers = 4\n", ":2: workers is given again", "line 1");
	refused_file("workers = 3\n  seed = 4\n", ":2: workers is given again", "do not indent");
	refused_file("workers\n", ":1: the line is neither", "");
	refused_file("[tester\n", ":1: the line is neither", "");
	refused_file("dry_run = yes\n", ":1: dry-run is for the command line only", "");
	refused_file("config = other.ini\n", ":1: config cannot be set in a file", "");
	refused_file("print_config = yes\n", ":1: print-config cannot be set in a file", "");
	refused_file("input = yes\n", "input is for the command line only", "");
	refused_file("workers = 13\n", "bad luck", "");
	memset(long_line, 'x', sizeof long_line - 2);
	memcpy(long_line, "model = ", 8);
	long_line[sizeof long_line - 2] = '\n';
	long_line[sizeof long_line - 1] = '\0';
	refused_file(long_line, ":1: the line is longer than", "");
	assert_int_equal(load("--model=m --config=/nonexistent/x.conf"), KV_NOT_FOUND);
	assert_non_null(strstr(kv_error_message(), "/nonexistent/x.conf"));
	assert_int_equal(load("--model=m --config=/proc/self"), KV_INVALID);
	setenv("CLUSTERKV_WORKERS", "x", 1);
	refused(&commands[0], "--model=m", "CLUSTERKV_WORKERS: option workers", "'x'");
}

static void a_file_serves_all_commands(void **state)
{
	char line[128];

	(void)state;
	write_file("model = m\nworkers = 5\n");
	snprintf(line, sizeof line, "a --config=%s", path);
	assert_int_equal(load_with(kv_heap(), &commands[1], line), KV_OK);
	assert_null(settings.model);
	assert_int_equal(settings.workers, 5);
}

static void help_and_version_ignore_what_is_wrong(void **state)
{
	(void)state;
	assert_int_equal(load("--workers=x --help"), KV_OK);
	assert_int_equal(kv_config_action(config), KV_CONFIG_HELP);
	assert_int_equal(load("--config=/nonexistent --version"), KV_OK);
	assert_int_equal(kv_config_action(config), KV_CONFIG_VERSION);
	assert_int_equal(load("--model=m --check"), KV_OK);
	assert_int_equal(kv_config_action(config), KV_CONFIG_CHECK);
	assert_int_equal(load("--model=m --print-config"), KV_OK);
	assert_int_equal(kv_config_action(config), KV_CONFIG_PRINT);
	assert_int_equal(load_with(kv_heap(), &commands[1], "-- --help"), KV_OK);
	assert_int_equal(kv_config_action(config), KV_CONFIG_RUN);
}

static void help_shows_the_table_in_100_columns(void **state)
{
	struct kv_text_buffer text;
	const char *out;

	(void)state;
	kv_text_init(&text, kv_heap(), 100000);
	kv_config_help(&program, &commands[0], &text);
	out = kv_text(&text);
	assert_non_null(strstr(out, "Usage: tester run [OPTION]...\n"));
	assert_non_null(strstr(out, "\nLimits:\n  --workers=N "));
	assert_non_null(strstr(out, "How many. (default 2 threads; 1 to 64)\n"));
	assert_non_null(strstr(out, "(default 64MiB; at least 1MiB; reloadable)\n"));
	assert_non_null(strstr(out, "  --[no-]verify "));
	assert_non_null(strstr(out, "  --model=FILE "));
	assert_non_null(strstr(out, "The model. (required)\n"));
	assert_non_null(strstr(out, "How. (default safe; one of fast, safe)\n"));
	assert_non_null(strstr(out, "Do nothing.\n"));
	assert_null(strstr(out, "secret"));
	assert_null(strstr(out, "INPUT"));
	for (const char *line = out; *line;) {
		size_t length = strcspn(line, "\n");

		assert_in_range(length, 0, 100);
		line += length + (line[length] == '\n');
	}
	kv_text_reset(&text);
	kv_config_help(&program, &commands[1], &text);
	assert_non_null(strstr(kv_text(&text), "Usage: tester convert [OPTION]... INPUT [OUTPUT]\n"));
	assert_non_null(strstr(kv_text(&text), "\nArguments:\n  INPUT "));
	assert_null(strstr(kv_text(&text), "--model"));
	kv_text_reset(&text);
	kv_config_help(&program, NULL, &text);
	assert_non_null(strstr(kv_text(&text), "Usage: tester COMMAND [OPTION]..."));
	assert_non_null(strstr(kv_text(&text), "  convert         Convert a file.\n"));
	kv_text_deinit(&text);
}

static void printed_configuration_is_read_back(void **state)
{
	struct kv_text_buffer text;
	struct settings first;
	char line[128];

	(void)state;
	assert_int_equal(
	    load("--model=m --workers=7 --timeout=1500ms --share=0.1 --no-verify --mode=fast "
	         "--store-memory=3MiB --secret=hush --seed=18446744073709551615"),
	    KV_OK);
	first = settings;
	kv_text_init(&text, kv_heap(), 100000);
	kv_config_print(config, &settings, &text);
	assert_non_null(strstr(kv_text(&text), "[tester]\n"));
	assert_non_null(strstr(kv_text(&text), "# from command line\nworkers = 7\n"));
	assert_null(strstr(kv_text(&text), "hush"));
	write_file(kv_text(&text));
	snprintf(line, sizeof line, "--config=%s", path);
	assert_int_equal(load(line), KV_OK);
	assert_string_equal(settings.model, "m");
	assert_int_equal(settings.workers, first.workers);
	assert_int_equal(settings.timeout_ms, first.timeout_ms);
	assert_true(settings.share == first.share);
	assert_int_equal(settings.verify, first.verify);
	assert_int_equal(settings.mode, first.mode);
	assert_int_equal(settings.memory, first.memory);
	assert_true(settings.seed == UINT64_MAX);
	kv_text_deinit(&text);
}

static void a_reload_takes_what_may_change(void **state)
{
	char line[128];
	size_t changed = 99;
	const char *old_listen;

	(void)state;
	write_file("model = m\nlisten = one\nworkers = 3\nstore-memory = 2MiB\n");
	snprintf(line, sizeof line, "--config=%s --store-memory=9MiB", path);
	assert_int_equal(load(line), KV_OK);
	old_listen = settings.listen;
	assert_int_equal(kv_config_reload(config, &settings, &changed), KV_OK);
	assert_int_equal(changed, 0);
	write_file("model = m\n\nlisten = two\nworkers = 4\nstore-memory = 3MiB\n");
	assert_int_equal(kv_config_reload(config, &settings, &changed), KV_OK);
	/* workers needs a restart, store-memory is still the command line's. */
	assert_int_equal(changed, 1);
	assert_string_equal(settings.listen, "two");
	assert_string_equal(old_listen, "one");
	assert_int_equal(settings.workers, 3);
	assert_int_equal(settings.memory, 9 << 20);
	assert_non_null(strstr(kv_config_source(config, "listen"), ":3"));
	write_file("model = m\nlisten = three\nworkers = x\n");
	assert_int_equal(kv_config_reload(config, &settings, &changed), KV_INVALID);
	assert_int_equal(changed, 1);
	assert_string_equal(settings.listen, "two");
}

static void every_failure_is_survived(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	char line[128];
	enum kv_status status;
	uint64_t n = 0;

	(void)state;
	write_file("listen = here\n");
	snprintf(line, sizeof line, "--model=m --config=%s", path);
	do {
		kv_allocator_fail_at(allocator, ++n);
		status = load_with(allocator, &commands[0], line);
		if (status != KV_OK) {
			assert_int_equal(status, KV_NO_MEMORY);
			assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		}
	} while (status != KV_OK && n < 100);
	assert_in_range(n, 5, 99);
	write_file("listen = there\n");
	n = 0;
	do {
		kv_allocator_fail_at(allocator, ++n);
		status = kv_config_reload(config, &settings, NULL);
		if (status != KV_OK) assert_string_equal(settings.listen, "here");
	} while (status != KV_OK && n < 100);
	assert_in_range(n, 5, 99);
	assert_string_equal(settings.listen, "there");
	kv_config_destroy(config);
	config = NULL;
	kv_allocator_fail_at(allocator, 0);
	kv_allocator_destroy(allocator);
}

static void commands_are_found_or_suggested(void **state)
{
	const struct kv_command *command = NULL;

	(void)state;
	assert_int_equal(kv_config_find_command(&program, "convert", &command), KV_OK);
	assert_ptr_equal(command, &commands[1]);
	assert_int_equal(kv_config_find_command(&program, "convrt", &command), KV_NOT_FOUND);
	assert_non_null(strstr(kv_error_message(), "did you mean 'convert'"));
	assert_int_equal(kv_config_find_command(&program, "explode", &command), KV_NOT_FOUND);
	assert_non_null(strstr(kv_error_message(), "--help"));
}

/* Strings of which not every text is one: refused wherever they come from. */
static void strings_are_judged(void **state)
{
	char line[128], origin[128];

	(void)state;
	assert_int_equal(load("--model=m --backend=cpu --store unix:/x"), KV_OK);
	assert_string_equal(settings.backend, "cpu");
	assert_string_equal(settings.store, "unix:/x");
	refused(&commands[0], "--model=m --backend=tpu", "command line: option backend",
	    "'tpu' is not one of auto, cpu");
	refused(&commands[0], "--model=m --backend=", "option backend", "'' is not one of auto, cpu");
	refused(&commands[0], "--model=m --store foo:bar", "command line: option store",
	    "'foo:bar' is not unix:PATH or none");
	setenv("CLUSTERKV_STORE", "tcp:x", 1);
	refused(&commands[0], "--model=m", "CLUSTERKV_STORE: option store", "'tcp:x' is not unix:PATH");
	unsetenv("CLUSTERKV_STORE");
	write_file("[tester]\nbackend = gpu\n");
	snprintf(line, sizeof line, "--model=m --config %s", path);
	snprintf(origin, sizeof origin, "%s:2: option backend", path);
	refused(&commands[0], line, origin, "'gpu' is not one of auto, cpu");
}

static void options_are_judged_together(void **state)
{
	(void)state;
	refused(&commands[0], "--model=m --workers=13", "13 workers", "bad luck");
	assert_int_equal(load("--model=m --seed=5"), KV_OK);
	refused(&commands[1], "--seed=5 in", "convert takes", "seed 5");
}

static char shown[20000];

/* kv_config_start with its outputs in `shown`; the exit code, -1 when the program would run. */
static int start(int argc, char *const *argv)
{
	const struct kv_command *command = NULL;
	FILE *file = tmpfile();
	int saved[2] = {dup(1), dup(2)};
	int code = -2;
	bool runs;

	fflush(stdout);
	dup2(fileno(file), 1);
	dup2(fileno(file), 2);
	runs = kv_config_start(&program, argc, argv, kv_heap(), &settings, &config, &command, &code);
	fflush(stdout);
	dup2(saved[0], 1);
	dup2(saved[1], 2);
	close(saved[0]);
	close(saved[1]);
	rewind(file);
	shown[fread(shown, 1, sizeof shown - 1, file)] = '\0';
	fclose(file);
	if (runs) assert_non_null(command);
	return runs ? -1 : code;
}

#define START(...)                                                                                 \
	start((int)(sizeof(char *[]){__VA_ARGS__} / sizeof(char *)), (char *[]){__VA_ARGS__, NULL})

static void main_gets_its_exit_codes(void **state)
{
	(void)state;
	assert_int_equal(START("tester"), KV_EXIT_USAGE);
	assert_non_null(strstr(shown, "Commands:"));
	assert_int_equal(START("tester", "--help"), KV_EXIT_OK);
	assert_int_equal(START("tester", "run", "--help"), KV_EXIT_OK);
	assert_non_null(strstr(shown, "--workers=N"));
	assert_int_equal(START("tester", "--version"), KV_EXIT_OK);
	assert_int_equal(strncmp(shown, "tester ", 7), 0);
	assert_int_equal(START("tester", "rum"), KV_EXIT_USAGE);
	assert_non_null(strstr(shown, "did you mean 'run'"));
	assert_int_equal(START("tester", "run", "--workers=x"), KV_EXIT_USAGE);
	assert_non_null(strstr(shown, "tester: command line: option workers"));
	assert_non_null(strstr(shown, "Try 'tester run --help'"));
	assert_int_equal(START("tester", "run", "--model=m", "--check"), KV_EXIT_OK);
	assert_int_equal(START("tester", "run", "--model=m", "--print-config"), KV_EXIT_OK);
	assert_non_null(strstr(shown, "model = m\n"));
	assert_null(config);
	assert_int_equal(START("tester", "run", "--model=m"), -1);
	assert_string_equal(settings.model, "m");
	assert_string_equal(shown, "");
	assert_int_equal(kv_exit_code(&program, KV_OK), 0);
	assert_int_equal(kv_exit_code(&program, kv_fail(KV_IO, "no disk")), KV_EXIT_FAILED);
	assert_int_equal(kv_exit_code(&program, kv_fail(KV_USAGE, "no such word")), KV_EXIT_USAGE);
}

/* What kv_config_warn_ignored says after the line was loaded; in `shown`. */
static void warn(const char *line)
{
	static const char *const names[] = {"workers", "share", "mode", NULL};
	FILE *file = tmpfile();
	int saved = dup(2);

	assert_int_equal(load(line), KV_OK);
	dup2(fileno(file), 2);
	kv_config_warn_ignored(config, names, "policy full");
	dup2(saved, 2);
	close(saved);
	rewind(file);
	shown[fread(shown, 1, sizeof shown - 1, file)] = '\0';
	fclose(file);
}

/* Of the variable CLUSTERKV_`name`; in `shown`. */
static void warn_of(const char *name, const char *value)
{
	char variable[128];

	snprintf(variable, sizeof variable, "CLUSTERKV_%s", name);
	setenv(variable, value, 1);
	assert_int_equal(START("tester", "run", "--model=m"), -1);
	unsetenv(variable);
	kv_config_destroy(config);
	config = NULL;
}

static void mistyped_variables_are_said(void **state)
{
	static const char *const silent[][2] = {{"WORKERS", "3"}, {"STORE_MEMORY", "2MiB"},
	    {"CONFIG", ""}, {"WROKERS", ""}, {"CACHE_DIR", "x"}, {"SOMETHING_ELSE", "x"}, {"", "x"},
	    {"A_NAME_THAT_IS_LONGER_THAN_THAT_OF_ANY_OPTION_THAT_HAS_EVER_BEEN_MADE", "x"}};

	(void)state;
	warn_of("WROKERS", "3");
	assert_non_null(strstr(shown, "warning"));
	assert_non_null(strstr(shown, "CLUSTERKV_WROKERS has no effect"));
	assert_non_null(strstr(shown, "did you mean CLUSTERKV_WORKERS?"));
	assert_int_equal(settings.workers, 2);
	warn_of("STORE_MEMRY", "1MiB");
	assert_non_null(strstr(shown, "did you mean CLUSTERKV_STORE_MEMORY?"));
	warn_of("workers", "3");
	assert_non_null(strstr(shown, "did you mean CLUSTERKV_WORKERS?"));
	warn_of("DRY_RUN", "yes");
	assert_non_null(strstr(shown, "dry-run is for the command line only"));
	/* An empty variable is none, and what is near to nothing is somebody else's. */
	for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
		warn_of(silent[i][0], silent[i][1]);
		assert_string_equal(shown, "");
	}
}

static enum kv_status look(const struct kv_command *command, const void *opaque)
{
	const struct settings *found = opaque;

	assert_non_null(command);
	if (strcmp(found->model, "gone") == 0) return kv_fail(KV_IO, "there is no gone");
	return KV_OK;
}

static void say(
    const struct kv_config *given, const struct kv_command *command, const void *opaque)
{
	static const char *const names[] = {"share", NULL};
	const struct settings *found = opaque;

	assert_non_null(command);
	if (found->workers == 7) kv_config_warn_ignored(given, names, "seven workers");
}

/* A check, too; who only prints it is not told. */
static void a_start_says_what_has_no_effect(void **state)
{
	static const char told[] = "--share: given, and without effect with seven workers";

	(void)state;
	assert_int_equal(
	    START("tester", "run", "--model=m", "--workers=7", "--share=0.5", "--check"), KV_EXIT_OK);
	assert_non_null(strstr(shown, told));
	assert_int_equal(
	    START("tester", "run", "--model=m", "--workers=7", "--share=0.5", "--print-config"),
	    KV_EXIT_OK);
	assert_null(strstr(shown, told));
	assert_int_equal(START("tester", "run", "--model=m", "--workers=7", "--share=0.5"), -1);
	assert_non_null(strstr(shown, told));
}

static void a_check_looks_at_what_is_named(void **state)
{
	(void)state;
	assert_int_equal(START("tester", "run", "--model=gone", "--check"), KV_EXIT_FAILED);
	assert_non_null(strstr(shown, "there is no gone"));
	assert_null(strstr(shown, "valid"));
	assert_int_equal(START("tester", "run", "--model=m", "--check"), KV_EXIT_OK);
	assert_non_null(strstr(shown, "valid"));
	/* Who runs looks for himself. */
	assert_int_equal(START("tester", "run", "--model=gone"), -1);
}

/* The names that --help shows of a command are those that --print-config does. */
static void help_and_print_show_the_same_options(void **state)
{
	static char printed[sizeof shown];

	(void)state;
	for (size_t c = 0; c < 2; c++) {
		char *const print[] = {"tester", (char *)(uintptr_t)commands[c].name, "--print-config",
		    c == 0 ? "--model=m" : "in", NULL};
		char *const help[] = {"tester", (char *)(uintptr_t)commands[c].name, "--help", NULL};

		assert_int_equal(start(4, print), KV_EXIT_OK);
		memcpy(printed, shown, sizeof shown);
		assert_int_equal(start(3, help), KV_EXIT_OK);
		assert_null(strstr(shown, "(default )"));
		for (size_t i = 0; i < program.option_count; i++) {
			const struct kv_option *option = &options[i];
			bool positional = (option->flags & KV_OPTION_POSITIONAL) != 0;
			char in_help[64], in_print[64], in_remark[64];

			snprintf(in_help, sizeof in_help,
			    positional                       ? "  %s "
			    : option->kind == KV_OPTION_BOOL ? "--[no-]%s "
			                                     : "--%s",
			    positional ? option->unit : option->name);
			snprintf(in_print, sizeof in_print, "\n%s = ", option->name);
			snprintf(in_remark, sizeof in_remark, "\n# %s ", option->name);
			if ((strstr(shown, in_help) != NULL) !=
			    (strstr(printed, in_print) != NULL || strstr(printed, in_remark) != NULL))
				fail_msg("%s is in one of --help and --print-config only", option->name);
		}
	}
}

static void what_has_no_effect_is_said(void **state)
{
	(void)state;
	warn("--model=m --mode=fast --workers 2");
	assert_non_null(strstr(shown, "warning"));
	assert_non_null(strstr(shown, "--workers, --mode: given, and without effect with policy full"));
	assert_null(strstr(shown, "share"));
	warn("--model=m --seed 3");
	assert_string_equal(shown, "");
}

int main(void)
{
#define CONFIG_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CONFIG_TEST(defaults_come_from_the_table),
	    CONFIG_TEST(later_sources_win),
	    CONFIG_TEST(all_forms_of_arguments_are_read),
	    CONFIG_TEST(mistakes_on_the_command_line_are_explained),
	    CONFIG_TEST(mistakes_in_files_name_the_line),
	    CONFIG_TEST(a_file_serves_all_commands),
	    CONFIG_TEST(help_and_version_ignore_what_is_wrong),
	    CONFIG_TEST(help_shows_the_table_in_100_columns),
	    CONFIG_TEST(printed_configuration_is_read_back),
	    CONFIG_TEST(a_reload_takes_what_may_change),
	    CONFIG_TEST(every_failure_is_survived),
	    CONFIG_TEST(commands_are_found_or_suggested),
	    CONFIG_TEST(strings_are_judged),
	    CONFIG_TEST(mistyped_variables_are_said),
	    CONFIG_TEST(a_start_says_what_has_no_effect),
	    CONFIG_TEST(a_check_looks_at_what_is_named),
	    CONFIG_TEST(help_and_print_show_the_same_options),
	    CONFIG_TEST(options_are_judged_together),
	    CONFIG_TEST(main_gets_its_exit_codes),
	    CONFIG_TEST(what_has_no_effect_is_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
