/* Votes, for the vectors of the file that includes it. */
#include <math.h>

V_INLINE vec logits_at(const struct kn_votes *v, const float *logits, uint32_t c)
{
	vec none = v_set(-INFINITY);
	vec x = v_load_part(logits + c, v->clusters - c, none);
	vec size = v_load_part(v->log_sizes + c, v->clusters - c, none);
	if (v->size_term) return v_add(x, size);
	return v_select(v_equal(size, none), none, x);
}

static void votes(const struct kn_votes *v)
{
	for (uint32_t g = 0; g < v->group; g++) {
		const float *logits = v->logits + g * v->stride;
		vec most = v_set(-INFINITY), sum = v_zero();
		for (uint32_t c = 0; c < v->clusters; c += VEC)
			most = v_max(logits_at(v, logits, c), most);
		float max = v_most(most);
		vec base = v_set(max == -INFINITY ? 0.0f : max);
		for (uint32_t c = 0; c < v->clusters; c += VEC) {
			vec x = v_sub(logits_at(v, logits, c), base);
			vec e = v_exp2(v_mul(x, v_set(KN_LOG2E)));
			v_store_part(v->weights + c, v->clusters - c, e);
			sum = v_add(sum, e);
		}
		float total = v_sum(sum);
		vec inverse = v_set(total == 0.0f ? 0.0f : 1.0f / total);
		for (uint32_t c = 0; c < v->clusters; c += VEC) {
			uint32_t n = v->clusters - c;
			vec before = g == 0 ? v_zero() : v_load_part(v->votes + c, n, v_zero());
			vec e = v_load_part(v->weights + c, n, v_zero());
			v_store_part(v->votes + c, n, v_fma(e, inverse, before));
		}
	}
}
