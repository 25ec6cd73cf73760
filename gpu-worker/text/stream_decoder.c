#include "gpu-worker/text/stream_decoder.h"

#include <stdint.h>
#include <string.h>

#include "gpu-worker/text/utf8.h"

/* A stop string and how much of it the end of the text matches (Knuth, Morris and Pratt, 1977). */
struct stop {
	uint16_t length;
	uint16_t matched;
	uint16_t fallback[GW_MAX_STOP_BYTES]; /* [i]: longest proper border of the first i + 1 bytes */
	char text[GW_MAX_STOP_BYTES];
};

enum { PART_BYTES = 4, REPLACEMENT_BYTES = 3 };
static const char REPLACEMENT[] = "\xef\xbf\xbd";

struct gw_stream_decoder {
	struct kv_allocator *allocator;
	size_t capacity;
	char *shown; /* terminated */
	size_t shown_length;
	char *waiting; /* whole characters that were not shown yet */
	size_t waiting_length;
	char part[PART_BYTES]; /* the start of a character */
	size_t part_length;
	int stopped;
	unsigned stop_count;
	struct stop stops[GW_MAX_STOPS];
};

static enum kv_status add_stop(struct gw_stream_decoder *self, const char *text)
{
	size_t length = text ? strlen(text) : 0;
	if (length == 0 || length > GW_MAX_STOP_BYTES)
		return kv_fail(KV_INVALID, "a stop text of %zu bytes is not possible; use 1 to %d", length,
		    GW_MAX_STOP_BYTES);
	if (!gw_utf8_valid(text, length))
		return kv_fail(
		    KV_INVALID, "stop text %u is not valid UTF-8; send it as UTF-8", self->stop_count + 1);
	struct stop *stop = &self->stops[self->stop_count++];
	stop->length = (uint16_t)length;
	memcpy(stop->text, text, length);
	uint16_t border = 0;
	for (size_t i = 1; i < length; i++) {
		while (border > 0 && text[i] != text[border])
			border = stop->fallback[border - 1];
		if (text[i] == text[border]) border++;
		stop->fallback[i] = border;
	}
	return KV_OK;
}

enum kv_status gw_stream_decoder_create(struct kv_allocator *allocator, const char *const *stops,
    unsigned stop_count, size_t capacity, struct gw_stream_decoder **decoder)
{
	if (stop_count > GW_MAX_STOPS)
		return kv_fail(
		    KV_INVALID, "%u stop texts are too many; use at most %d", stop_count, GW_MAX_STOPS);
	if (capacity > SIZE_MAX - REPLACEMENT_BYTES - 1)
		return kv_fail(KV_INVALID, "a text of %zu bytes cannot be held", capacity);
	struct gw_stream_decoder *self = kv_alloc_zero(allocator, sizeof *self);
	if (!self) return KV_NO_MEMORY;
	self->allocator = allocator;
	self->capacity = capacity;
	enum kv_status status = KV_OK;
	for (unsigned i = 0; i < stop_count; i++)
		KV_TRY_GOTO(status, add_stop(self, stops[i]), destroy);
	/* Beyond the capacity there is room for the U+FFFD of a broken end, and for the terminator. */
	self->shown = kv_alloc(allocator, capacity + REPLACEMENT_BYTES + 1);
	self->waiting = kv_alloc(allocator, capacity + REPLACEMENT_BYTES);
	if (!self->shown || !self->waiting) {
		status = KV_NO_MEMORY;
		goto destroy;
	}
	self->shown[0] = 0;
	*decoder = self;
	return KV_OK;

destroy:
	gw_stream_decoder_destroy(self);
	return status;
}

void gw_stream_decoder_destroy(struct gw_stream_decoder *decoder)
{
	if (!decoder) return;
	kv_free(decoder->allocator, decoder->waiting);
	kv_free(decoder->allocator, decoder->shown);
	kv_free(decoder->allocator, decoder);
}

static void advance(struct stop *stop, char byte)
{
	while (stop->matched > 0 && byte != stop->text[stop->matched])
		stop->matched = stop->fallback[stop->matched - 1];
	if (byte == stop->text[stop->matched]) stop->matched++;
}

/* Append one whole character; ends the text when it completes a stop text. */
static void append(struct gw_stream_decoder *self, const char *bytes, size_t length)
{
	size_t cut = 0;
	for (size_t i = 0; i < length; i++) {
		self->waiting[self->waiting_length++] = bytes[i];
		for (unsigned s = 0; s < self->stop_count; s++) {
			struct stop *stop = &self->stops[s];
			advance(stop, bytes[i]);
			/* Of stop texts that end together the longest takes the most text away. */
			if (stop->matched < stop->length) continue;
			if (stop->length > cut) cut = stop->length;
			stop->matched = stop->fallback[stop->length - 1];
		}
		if (cut == 0) continue;
		self->waiting_length -= cut;
		self->stopped = 1;
		self->part_length = 0;
		return;
	}
}

/* The bytes that the text grows by: a broken sequence grows to the three of U+FFFD. */
static size_t growth(const struct gw_stream_decoder *self, const char *bytes, size_t length)
{
	char part[PART_BYTES];
	size_t part_length = self->part_length, total = 0;
	memcpy(part, self->part, sizeof part);
	for (size_t i = 0; i < length;) {
		size_t used;
		part[part_length] = bytes[i];
		enum gw_utf8_kind kind = gw_utf8_scan(part, part_length + 1, &used);
		if (kind == GW_UTF8_PART) {
			part_length++;
			i++;
			continue;
		}
		total += kind == GW_UTF8_WHOLE ? used : REPLACEMENT_BYTES;
		/* A byte that breaks a sequence is looked at again, as the start of the next. */
		if (used == part_length + 1) i++;
		part_length = 0;
	}
	return total;
}

enum kv_status gw_stream_decoder_push(
    struct gw_stream_decoder *decoder, const char *bytes, size_t length, int *stopped)
{
	struct gw_stream_decoder *self = decoder;
	size_t held = self->shown_length + self->waiting_length;
	size_t more = self->stopped ? 0 : growth(self, bytes, length);
	/* A finished text may hold a U+FFFD beyond its capacity. */
	if (more > 0 && held + more > self->capacity)
		return kv_fail(
		    KV_LIMIT, "the answer exceeds its %zu bytes; ask for fewer tokens", self->capacity);
	for (size_t i = 0; i < length && !self->stopped;) {
		size_t used;
		self->part[self->part_length] = bytes[i];
		enum gw_utf8_kind kind = gw_utf8_scan(self->part, self->part_length + 1, &used);
		if (kind == GW_UTF8_PART) {
			self->part_length++;
			i++;
			continue;
		}
		if (used == self->part_length + 1) i++;
		self->part_length = 0;
		if (kind == GW_UTF8_WHOLE)
			append(self, self->part, used);
		else
			append(self, REPLACEMENT, REPLACEMENT_BYTES);
	}
	*stopped = self->stopped;
	return KV_OK;
}

/* How many bytes at the end of the text may still become a stop text. */
static size_t undecided(const struct gw_stream_decoder *self)
{
	size_t most = 0;
	for (unsigned i = 0; i < self->stop_count; i++)
		if (self->stops[i].matched > most) most = self->stops[i].matched;
	return most;
}

const char *gw_stream_decoder_take(struct gw_stream_decoder *decoder, int finish, size_t *length)
{
	struct gw_stream_decoder *self = decoder;
	if (finish && self->part_length > 0) {
		memcpy(self->waiting + self->waiting_length, REPLACEMENT, REPLACEMENT_BYTES);
		self->waiting_length += REPLACEMENT_BYTES;
		self->part_length = 0;
	}
	size_t ready = self->waiting_length;
	if (!finish && !self->stopped) ready -= undecided(self);
	char *start = self->shown + self->shown_length;
	memcpy(start, self->waiting, ready);
	start[ready] = 0;
	self->shown_length += ready;
	self->waiting_length -= ready;
	memmove(self->waiting, self->waiting + ready, self->waiting_length);
	*length = ready;
	return start;
}

const char *gw_stream_decoder_text(const struct gw_stream_decoder *decoder, size_t *length)
{
	*length = decoder->shown_length;
	return decoder->shown;
}
