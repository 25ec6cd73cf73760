/* A target with a fault, for the test of the driver: three bytes in a row that are the same end the
 * process, in the way that the first byte says. */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (size_t i = 0; i + 2 < size; i++) {
		if (data[i] != data[i + 1] || data[i] != data[i + 2]) continue;
		if (data[0] % 2 == 0) abort();
		exit(3);
	}
	return 0;
}
