#include "kernels/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where `make install` puts plug-ins; set by the build. */
#ifndef KN_PLUGIN_FOLDER
#define KN_PLUGIN_FOLDER "/usr/local/lib/clusterkv"
#endif

static enum kv_status fail_here(enum kv_status status, const char *text)
{
	return kv_fail(status, "%s", text);
}

static void log_here(enum kv_log_level level, const char *module, const char *text)
{
	kv_log(level, module, "%s", text);
}

static const struct kn_host_services services = {
    .alloc = kv_alloc,
    .free = kv_free,
    .fail = fail_here,
    .log = log_here,
};

/* lib/clusterkv beside the folder of the program; 0 when that cannot be said. */
static int beside_program(char folder[PATH_MAX])
{
	static const char below[] = "/lib/clusterkv";
	ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);

	if (length <= 0 || length >= PATH_MAX - 1 || folder[0] != '/') return 0;
	folder[length] = '\0';
	for (int up = 0; up < 2; up++) {
		char *slash = strrchr(folder, '/');

		if (slash == NULL) return 0;
		*slash = '\0';
	}
	if (strlen(folder) + sizeof below > PATH_MAX) return 0;
	strcat(folder, below);
	return 1;
}

/* The file in this folder, as a path. KV_NOT_FOUND when there is none. */
static enum kv_status look(const char *folder, const char *name, char path[PATH_MAX])
{
	struct stat file;
	int length = snprintf(path, PATH_MAX, "%s/libclusterkv_%s.so", folder, name);

	if (length < 0 || length >= PATH_MAX)
		return kv_fail(KV_INVALID, "backend %s: the path of its plug-in is too long", name);
	if (stat(path, &file) != 0) {
		if (errno == ENOENT || errno == ENOTDIR) return KV_NOT_FOUND;
		return kv_fail(KV_IO, "backend %s: %s: %s", name, path, strerror(errno));
	}
	if (!S_ISREG(file.st_mode))
		return kv_fail(KV_REFUSED, "backend %s: %s is not a file", name, path);
	if ((file.st_uid != 0 && file.st_uid != geteuid()) || (file.st_mode & (S_IWGRP | S_IWOTH)) != 0)
		return kv_fail(KV_REFUSED,
		    "backend %s: %s could be written by others; it must belong to root or to you, and "
		    "have no more than mode 755",
		    name, path);
	return KV_OK;
}

static enum kv_status find(const char *name, const char *folder, char path[PATH_MAX])
{
	char beside[PATH_MAX];
	enum kv_status status = KV_NOT_FOUND;

	if (folder != NULL && folder[0] != '/')
		return kv_fail(KV_INVALID,
		    "backend %s: the folder of its plug-in must be an absolute path, it is \"%s\"", name,
		    folder);
	if (folder != NULL) {
		status = look(folder, name, path);
		if (status != KV_NOT_FOUND) return status;
		return kv_fail(KV_NOT_FOUND, "no libclusterkv_%s.so in %s", name, folder);
	}
	beside[0] = '\0';
	if (beside_program(beside)) status = look(beside, name, path);
	if (status == KV_NOT_FOUND) status = look(KN_PLUGIN_FOLDER, name, path);
	if (status != KV_NOT_FOUND) return status;
	return kv_fail(KV_NOT_FOUND, "no libclusterkv_%s.so in %s or %s", name,
	    beside[0] != '\0' ? beside : "lib/clusterkv beside this program", KN_PLUGIN_FOLDER);
}

static enum kv_status check_entry(
    const struct kn_backend_entry *entry, const char *name, const char *path)
{
	if (entry->abi != KN_BACKEND_ABI || entry->entry_bytes != sizeof *entry)
		return kv_fail(KV_UNSUPPORTED,
		    "%s has interface %u of %u bytes, this program needs %d of %zu: install both of one "
		    "version",
		    path, entry->abi, entry->entry_bytes, KN_BACKEND_ABI, sizeof *entry);
	if (entry->name == NULL || strcmp(entry->name, name) != 0)
		return kv_fail(KV_UNSUPPORTED, "%s is backend \"%s\", not %s", path,
		    entry->name != NULL ? entry->name : "", name);
	if (entry->probe == NULL || entry->ops == NULL)
		return kv_fail(KV_UNSUPPORTED, "%s has an incomplete entry: install it again", path);
	if (kn_backend_check_table(entry->ops) != KV_OK)
		return kv_fail_prefix(KV_UNSUPPORTED, "%s", path);
	return KV_OK;
}

enum kv_status kn_plugin_open(
    const char *name, const char *folder, const struct kn_backend_entry **entry)
{
	const struct kn_backend_entry *found;
	char path[PATH_MAX];
	const char *reason;
	void *object;

	KV_TRY(find(name, folder, path));
	object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (object == NULL) {
		/* It names the file, or the library that is missing. */
		reason = dlerror();
		return kv_fail(KV_UNSUPPORTED, "%s cannot be loaded: %s", path,
		    reason != NULL ? reason : "no reason given");
	}
	found = dlsym(object, KN_BACKEND_ENTRY_SYMBOL);
	if (found == NULL)
		return kv_fail(
		    KV_UNSUPPORTED, "%s has no %s: it is no backend", path, KN_BACKEND_ENTRY_SYMBOL);
	KV_TRY(check_entry(found, name, path));
	KV_TRY(found->probe(&services));
	*entry = found;
	return KV_OK;
}
