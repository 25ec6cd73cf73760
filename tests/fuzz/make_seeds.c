/* Writes the seeds of the codec's and the frame reader's fuzz targets to a folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/proto/sample_messages.h"

static void put_length(FILE *file, size_t length)
{
	int i;

	for (i = 0; i < 4; i++)
		fputc((int)(length >> (8 * i) & 0xff), file);
}

/* Each message to a file of its own, and to a stream of frames. */
static int write_message(
    const char *folder, int index, const uint8_t *bytes, size_t length, FILE *frames)
{
	char path[512];
	FILE *file;
	int failed;

	snprintf(path, sizeof path, "%s/codec_%02d", folder, index);
	file = fopen(path, "wb");
	if (!file) return 1;
	fputc(index < SAMPLE_REQUESTS ? 0 : 1, file);
	failed = fwrite(bytes, 1, length, file) != length;
	failed |= fclose(file) != 0;
	put_length(frames, length);
	failed |= fwrite(bytes, 1, length, frames) != length;
	return failed;
}

int main(int argc, char **argv)
{
	char path[512];
	FILE *frames;
	int failed = 0, i;

	if (argc != 2) return 2;
	snprintf(path, sizeof path, "%s/frames", argv[1]);
	frames = fopen(path, "wb");
	if (!frames) return 1;
	fputc(7, frames);
	for (i = 0; i < SAMPLE_REQUESTS + SAMPLE_RESPONSES && !failed; i++) {
		enum kv_status status;
		uint8_t *bytes = NULL;
		size_t length = 0;

		if (i < SAMPLE_REQUESTS)
			status = kv_codec_request_pack(kv_heap(), sample_request(i), &bytes, &length);
		else
			status = kv_codec_response_pack(
			    kv_heap(), sample_response(i - SAMPLE_REQUESTS), &bytes, &length);
		failed = status != KV_OK || write_message(argv[1], i, bytes, length, frames);
		kv_free(kv_heap(), bytes);
	}
	failed |= fclose(frames) != 0;
	return failed;
}
