/* Decoding metadata values on request. Positions and lengths were checked when the file was parsed.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "gpu-worker/model/gguf_internal.h"

uint32_t gw_gguf_scalar_bytes(uint32_t type)
{
	switch (type) {
	case GW_GGUF_U8:
	case GW_GGUF_I8:
	case GW_GGUF_BOOL:
		return 1;
	case GW_GGUF_U16:
	case GW_GGUF_I16:
		return 2;
	case GW_GGUF_U32:
	case GW_GGUF_I32:
	case GW_GGUF_F32:
		return 4;
	case GW_GGUF_U64:
	case GW_GGUF_I64:
	case GW_GGUF_F64:
		return 8;
	default:
		return 0;
	}
}

uint64_t gw_gguf_load(const uint8_t *data, uint32_t bytes)
{
	uint64_t value = 0;

	for (uint32_t i = bytes; i-- > 0;)
		value = value << 8 | data[i];
	return value;
}

int gw_gguf_compare(struct gw_gguf_string a, struct gw_gguf_string b)
{
	uint64_t shared = a.length < b.length ? a.length : b.length;
	int order = shared ? memcmp(a.bytes, b.bytes, (size_t)shared) : 0;

	if (order != 0) return order;
	return a.length < b.length ? -1 : a.length > b.length;
}

const char *gw_gguf_printable(struct gw_gguf_string name, char text[GW_GGUF_PRINTABLE])
{
	uint64_t length = 0;

	while (length < name.length && length < GW_GGUF_PRINTABLE - 1) {
		unsigned char byte = (unsigned char)name.bytes[length];

		text[length++] = byte >= 0x20 && byte < 0x7f ? (char)byte : '?';
	}
	text[length] = '\0';
	return text;
}

const struct gw_gguf_value *gw_gguf_find(const struct gw_gguf *file, const char *key)
{
	struct gw_gguf_string wanted = {key, strlen(key)};
	uint64_t low = 0, high = file->value_count;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		int order = gw_gguf_compare(file->values[middle].key, wanted);

		if (order == 0) return &file->values[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

static enum kv_status find(
    const struct gw_gguf *file, const char *key, const struct gw_gguf_value **value)
{
	*value = gw_gguf_find(file, key);
	if (!*value) return kv_fail(KV_NOT_FOUND, "%s: no metadata key %s", file->path, key);
	return KV_OK;
}

static enum kv_status wrong_type(const struct gw_gguf *file, const char *key, const char *wanted)
{
	return kv_fail(KV_CORRUPT, "%s: metadata key %s is not %s", file->path, key, wanted);
}

/* An integer of any width as sign and magnitude, so that the whole range of both kinds compares. */
static int load_integer(uint32_t type, const uint8_t *data, int *negative, uint64_t *magnitude)
{
	uint32_t bytes = gw_gguf_scalar_bytes(type);
	uint64_t value;

	switch (type) {
	case GW_GGUF_U8:
	case GW_GGUF_U16:
	case GW_GGUF_U32:
	case GW_GGUF_U64:
		*negative = 0;
		*magnitude = gw_gguf_load(data, bytes);
		return 1;
	case GW_GGUF_I8:
	case GW_GGUF_I16:
	case GW_GGUF_I32:
	case GW_GGUF_I64:
		value = gw_gguf_load(data, bytes);
		*negative = (int)(value >> (bytes * 8 - 1));
		if (*negative && bytes < 8) value |= UINT64_MAX << (bytes * 8);
		*magnitude = *negative ? 0 - value : value;
		return 1;
	default:
		return 0;
	}
}

static int load_float(uint32_t type, const uint8_t *data, double *value)
{
	uint64_t bits = gw_gguf_load(data, gw_gguf_scalar_bytes(type));
	uint32_t short_bits = (uint32_t)bits;
	float single;

	if (type == GW_GGUF_F64) {
		memcpy(value, &bits, sizeof *value);
		return 1;
	}
	if (type == GW_GGUF_F32) {
		memcpy(&single, &short_bits, sizeof single);
		*value = (double)single;
		return 1;
	}
	return 0;
}

enum kv_status gw_gguf_u32(const struct gw_gguf *file, const char *key, uint32_t *value)
{
	const struct gw_gguf_value *found;
	uint64_t magnitude;
	int negative;

	KV_TRY(find(file, key, &found));
	if (!load_integer(found->type, found->data, &negative, &magnitude))
		return wrong_type(file, key, "an integer");
	if (negative || magnitude > UINT32_MAX) {
		return kv_fail(KV_CORRUPT, "%s: metadata key %s is %s%" PRIu64 ", outside 0 to 2^32 - 1",
		    file->path, key, negative ? "-" : "", magnitude);
	}
	*value = (uint32_t)magnitude;
	return KV_OK;
}

enum kv_status gw_gguf_f64(const struct gw_gguf *file, const char *key, double *value)
{
	const struct gw_gguf_value *found;
	double loaded;

	KV_TRY(find(file, key, &found));
	if (!load_float(found->type, found->data, &loaded))
		return wrong_type(file, key, "a floating-point number");
	if (!isfinite(loaded))
		return kv_fail(KV_CORRUPT, "%s: metadata key %s is not finite", file->path, key);
	*value = loaded;
	return KV_OK;
}

enum kv_status gw_gguf_bool(const struct gw_gguf *file, const char *key, int *value)
{
	const struct gw_gguf_value *found;

	KV_TRY(find(file, key, &found));
	if (found->type != GW_GGUF_BOOL) return wrong_type(file, key, "a boolean");
	if (found->data[0] > 1) {
		return kv_fail(KV_CORRUPT, "%s: metadata key %s is %d, neither true nor false", file->path,
		    key, found->data[0]);
	}
	*value = found->data[0];
	return KV_OK;
}

enum kv_status gw_gguf_string(
    const struct gw_gguf *file, const char *key, struct gw_gguf_string *value)
{
	const struct gw_gguf_value *found;

	KV_TRY(find(file, key, &found));
	if (found->type != GW_GGUF_STRING) return wrong_type(file, key, "a string");
	value->length = gw_gguf_load(found->data, 8);
	value->bytes = (const char *)found->data + 8;
	return KV_OK;
}

static enum kv_status find_array(
    const struct gw_gguf *file, const char *key, uint64_t count, const struct gw_gguf_value **value)
{
	KV_TRY(find(file, key, value));
	if ((*value)->type != GW_GGUF_ARRAY) return wrong_type(file, key, "an array");
	if (count > (*value)->count) {
		return kv_fail(KV_INVALID,
		    "%s: metadata key %s has %" PRIu64 " elements, %" PRIu64 " were asked for", file->path,
		    key, (*value)->count, count);
	}
	return KV_OK;
}

enum kv_status gw_gguf_array_count(const struct gw_gguf *file, const char *key, uint64_t *count)
{
	const struct gw_gguf_value *found;

	KV_TRY(find_array(file, key, 0, &found));
	*count = found->count;
	return KV_OK;
}

enum kv_status gw_gguf_array_strings(
    const struct gw_gguf *file, const char *key, struct gw_gguf_string *out, uint64_t count)
{
	const struct gw_gguf_value *found;
	const uint8_t *at;

	KV_TRY(find_array(file, key, count, &found));
	if (found->element_type != GW_GGUF_STRING) return wrong_type(file, key, "an array of strings");
	at = found->data;
	for (uint64_t i = 0; i < count; i++) {
		out[i].length = gw_gguf_load(at, 8);
		out[i].bytes = (const char *)at + 8;
		at += 8 + out[i].length;
	}
	return KV_OK;
}

enum kv_status gw_gguf_array_i32(
    const struct gw_gguf *file, const char *key, int32_t *out, uint64_t count)
{
	const struct gw_gguf_value *found;
	uint64_t magnitude;
	int negative;

	KV_TRY(find_array(file, key, count, &found));
	/* Two passes, because outputs of a failed call stay unchanged. */
	for (uint64_t i = 0; i < count; i++) {
		const uint8_t *at = found->data + i * gw_gguf_scalar_bytes(found->element_type);

		if (!load_integer(found->element_type, at, &negative, &magnitude))
			return wrong_type(file, key, "an array of integers");
		if (magnitude > (uint64_t)INT32_MAX + (uint64_t)negative) {
			return kv_fail(KV_CORRUPT, "%s: element %" PRIu64 " of %s does not fit in 32 bits",
			    file->path, i, key);
		}
	}
	for (uint64_t i = 0; i < count; i++) {
		const uint8_t *at = found->data + i * gw_gguf_scalar_bytes(found->element_type);

		load_integer(found->element_type, at, &negative, &magnitude);
		out[i] = (int32_t)(negative ? -(int64_t)magnitude : (int64_t)magnitude);
	}
	return KV_OK;
}

enum kv_status gw_gguf_array_f32(
    const struct gw_gguf *file, const char *key, float *out, uint64_t count)
{
	const struct gw_gguf_value *found;
	double value;

	KV_TRY(find_array(file, key, count, &found));
	for (uint64_t i = 0; i < count; i++) {
		const uint8_t *at = found->data + i * gw_gguf_scalar_bytes(found->element_type);

		if (!load_float(found->element_type, at, &value))
			return wrong_type(file, key, "an array of floating-point numbers");
		if (!isfinite(value) || fabs(value) > (double)FLT_MAX) {
			return kv_fail(KV_CORRUPT, "%s: element %" PRIu64 " of %s is not a finite float",
			    file->path, i, key);
		}
	}
	for (uint64_t i = 0; i < count; i++) {
		load_float(found->element_type, found->data + i * gw_gguf_scalar_bytes(found->element_type),
		    &value);
		out[i] = (float)value;
	}
	return KV_OK;
}
