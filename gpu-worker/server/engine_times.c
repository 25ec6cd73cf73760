/* Where a request's time goes, as its sequence's report says it. */
#include "common/base/log.h"
#include "gpu-worker/server/engine_internal.h"

static uint64_t ns_of(double seconds)
{
	return seconds > 0.0 ? (uint64_t)(seconds * 1e9) : 0;
}

/* A resumed sequence's replay is decode steps before its first new token: part of its prompt. */
static struct gw_stage_work work_of(const struct gw_report *report)
{
	return (struct gw_stage_work){
	    .all_ns = ns_of(report->prefill_seconds + report->decode_seconds),
	    .index_ns = ns_of(report->index_seconds),
	    .offload_ns = ns_of(report->offload_seconds),
	    .fetch_ns = ns_of(report->attach_seconds + report->fetch_seconds),
	    .select_ns = ns_of(report->select_seconds),
	    .steps = report->decode_steps,
	};
}

/* Sums of floating point may come back a nanosecond short. */
static uint64_t less(uint64_t all, uint64_t part)
{
	return all > part ? all - part : 0;
}

static struct gw_stage_work without(
    const struct gw_stage_work *all, const struct gw_stage_work *part)
{
	return (struct gw_stage_work){
	    .all_ns = less(all->all_ns, part->all_ns),
	    .index_ns = less(all->index_ns, part->index_ns),
	    .offload_ns = less(all->offload_ns, part->offload_ns),
	    .fetch_ns = less(all->fetch_ns, part->fetch_ns),
	    .select_ns = less(all->select_ns, part->select_ns),
	    .steps = less(all->steps, part->steps),
	};
}

void gw_log_subject(const struct gw_engine_request *request)
{
	struct kv_log_subject subject = {0};

	if (request != NULL) subject.request = request->asked.request_id;
	if (request != NULL && request->session != NULL)
		subject.sequence = gw_session_id(request->session);
	kv_log_set_subject(subject);
}

void gw_times_update(struct gw_engine_request *request)
{
	struct gw_request_times *times = &request->times;
	const struct gw_sequence *sequence;
	struct gw_stage_work work;

	if (request->session == NULL) return;
	sequence = gw_session_sequence(request->session);
	work = work_of(gw_sequence_report(sequence));
	times->prompt_tokens = gw_sequence_prompt_tokens(sequence);
	gw_session_tokens(request->session, &times->tokens);
	if (times->ready_ns > 0) {
		times->answer = without(&work, &times->prompt);
		return;
	}
	times->prompt = work;
	/* What an answer that was put back finds is its own. */
	times->found_tokens = gw_sequence_prefix_hit(sequence);
}

bool gw_times_unit(struct gw_engine_request *request, uint64_t unit_ns, uint64_t *layer_ns)
{
	uint32_t layers =
	    gw_sequence_report(gw_session_sequence(request->session))->prefill_layers;

	request->layer_ns += unit_ns;
	/* A replay is one unit of all layers: what each took is not known. */
	if (layers != request->told_layers + 1) return false;
	*layer_ns = request->layer_ns;
	request->layer_ns = 0;
	request->told_layers = layers;
	return true;
}
