/* Where prompts are cut: for every length near an edge, and so that equal prefixes meet. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/pipeline/step.h"

enum { MOST = 400 };

static struct gw_policy_options policy(uint32_t segment, uint32_t window)
{
	return (struct gw_policy_options){.segment = segment, .window = window};
}

static void expect(uint32_t tokens, uint32_t segment, uint32_t window, const uint32_t *ends,
    uint32_t count, int tail)
{
	struct gw_policy_options options = policy(segment, window);
	struct kvc_cut cuts[MOST];

	assert_int_equal(gw_segmentation(tokens, &options, cuts, MOST), count);
	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal(cuts[i].end, ends[i]);
		assert_int_equal(cuts[i].kind, tail && i + 1 == count ? KVW_PLAIN : KVW_CLUSTERED);
	}
}

static void examples(void **state)
{
	(void)state;
	expect(1, 100, 20, (uint32_t[]){1}, 1, 1);
	expect(20, 100, 20, (uint32_t[]){20}, 1, 1);
	expect(21, 100, 20, (uint32_t[]){1, 21}, 2, 1);
	expect(119, 100, 20, (uint32_t[]){99, 119}, 2, 1);
	expect(120, 100, 20, (uint32_t[]){100, 120}, 2, 1);
	expect(121, 100, 20, (uint32_t[]){100, 101, 121}, 3, 1);
	expect(320, 100, 20, (uint32_t[]){100, 200, 300, 320}, 4, 1);
	expect(1, 100, 0, (uint32_t[]){1}, 1, 0);
	expect(100, 100, 0, (uint32_t[]){100}, 1, 0);
	expect(101, 100, 0, (uint32_t[]){100, 101}, 2, 0);
	expect(250, 100, 0, (uint32_t[]){100, 200, 250}, 3, 0);
	expect(8192, 4096, 128, (uint32_t[]){4096, 8064, 8192}, 3, 1);
}

/* The rule, said in another way, for all lengths and several sizes. */
static void check_rule(uint32_t tokens, uint32_t segment, uint32_t window)
{
	struct gw_policy_options options = policy(segment, window);
	struct kvc_cut cuts[MOST];
	uint32_t count = gw_segmentation(tokens, &options, cuts, MOST), start = 0;
	uint32_t body = tokens > window ? tokens - window : 0;

	assert_true(count >= 1 && count <= gw_segmentation_bound(tokens, &options));
	for (uint32_t i = 0; i < count; i++) {
		assert_true(cuts[i].end > start);
		if (cuts[i].kind == KVW_PLAIN) {
			assert_int_equal(i, count - 1);
			assert_int_equal(start, body);
			assert_true(cuts[i].end - start <= window);
		} else {
			assert_true(cuts[i].end == body || cuts[i].end == (i + 1) * segment);
			assert_true(cuts[i].end - start <= segment && cuts[i].end <= body);
		}
		start = cuts[i].end;
	}
	assert_int_equal(start, tokens);
	assert_int_equal(cuts[count - 1].kind == KVW_PLAIN, window > 0);
}

static void the_rule_holds_for_every_length(void **state)
{
	static const uint32_t segments[] = {1, 2, 16, 17, 64}, windows[] = {0, 1, 5, 16, 64, 65, 500};

	(void)state;
	for (uint32_t s = 0; s < 5; s++)
		for (uint32_t w = 0; w < 7; w++)
			for (uint32_t tokens = 1; tokens < 300; tokens++)
				check_rule(tokens, segments[s], windows[w]);
}

/* A longer prompt has all full segments of a shorter one. */
static void full_segments_stay_where_they_are(void **state)
{
	struct gw_policy_options options = policy(32, 20);
	struct kvc_cut shorter[MOST], longer[MOST];

	(void)state;
	for (uint32_t tokens = 1; tokens < 300; tokens++) {
		uint32_t a = gw_segmentation(tokens, &options, shorter, MOST);
		uint32_t b = gw_segmentation(tokens + 1 + tokens % 50, &options, longer, MOST);

		assert_true(b >= a);
		for (uint32_t i = 0; i < a && shorter[i].end == (i + 1) * 32; i++) {
			assert_int_equal(longer[i].end, shorter[i].end);
			assert_int_equal(longer[i].kind, KVW_CLUSTERED);
		}
	}
}

static void capacity_is_kept(void **state)
{
	struct gw_policy_options options = policy(10, 5);
	struct kvc_cut cuts[4];

	(void)state;
	memset(cuts, 0xee, sizeof cuts);
	assert_int_equal(gw_segmentation(1000, &options, cuts, 3), 3);
	assert_int_equal(cuts[2].end, 30);
	assert_int_equal(cuts[3].end, 0xeeeeeeee);
	assert_int_equal(gw_segmentation(UINT32_MAX, &options, cuts, 3), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(examples),
	    cmocka_unit_test(the_rule_holds_for_every_length),
	    cmocka_unit_test(full_segments_stay_where_they_are),
	    cmocka_unit_test(capacity_is_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
