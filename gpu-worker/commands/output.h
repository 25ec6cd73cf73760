/* What commands print. */
#ifndef GW_COMMANDS_OUTPUT_H
#define GW_COMMANDS_OUTPUT_H

#include <jansson.h>
#include <stdio.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One object on one line of standard output; takes the reference. NULL is KV_NO_MEMORY. KV_IO when
 * standard output cannot be written. */
enum kv_status gw_print_json(json_t *object);

/* A report for people: two or three lines. */
void gw_print_report(FILE *file, const json_t *report);

#ifdef __cplusplus
}
#endif
#endif
