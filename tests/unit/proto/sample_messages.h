/* One full example of every message, for the codec's tests and as seeds of its fuzz target. */
#ifndef KV_TESTS_SAMPLE_MESSAGES_H
#define KV_TESTS_SAMPLE_MESSAGES_H

#include "proto/codec.h"

enum { SAMPLE_REQUESTS = 13, SAMPLE_RESPONSES = 7 };

/* Valid until the next call of the same function. index < SAMPLE_REQUESTS, SAMPLE_RESPONSES. */
Kv__Request *sample_request(int index);
Kv__Response *sample_response(int index);

#endif
