/* The few functions of common that a plug-in's code uses, by way of the program that opened it
 * (struct kn_host_services): kv_fail, kv_log, kv_alloc and their like. A plug-in links
 * plugin_services.c in place of the libraries, so that a failure described in it is read in the
 * program, and memory is the program's to count. */
#ifndef KN_PLUGIN_SERVICES_H
#define KN_PLUGIN_SERVICES_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Before any of them is called: what the plug-in's probe was given. */
void kn_plugin_services_set(const struct kn_host_services *services);

#ifdef __cplusplus
}
#endif
#endif
