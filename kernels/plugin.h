/* Backends that are not part of the program: shared objects libclusterkv_NAME.so, each with one
 * symbol, KN_BACKEND_ENTRY_SYMBOL.
 *
 * A plug-in runs with all rights of the process, so where it comes from is not left to the loader's
 * search paths: it is opened by an absolute path, from `folder` alone where that is given, else
 * from lib/clusterkv beside the program's bin, then from the installation's. It must belong to root
 * or to the user who runs the program, and nobody else may be allowed to write it. It stays open
 * until the process ends: the libraries below it cannot be closed.
 */
#ifndef KN_PLUGIN_H
#define KN_PLUGIN_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Find, open, check and probe; `folder`: NULL or an absolute path. KV_NOT_FOUND: there is no such
 * file. KV_INVALID: the folder is not an absolute path. Any other status: it is there and cannot be
 * used, because it belongs to somebody else, was built for another interface, lacks a library, or
 * there is no device. Each with the reason. */
enum kv_status kn_plugin_open(
    const char *name, const char *folder, const struct kn_backend_entry **entry);

/* KV_OK when the table has everything, and the interface number of this program. */
enum kv_status kn_backend_check_table(const struct kn_backend_ops *ops);

#ifdef __cplusplus
}
#endif
#endif
