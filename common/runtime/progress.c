#include "common/runtime/progress.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	BAR_CELLS = 30,
	TEXT_SIZE = 256,
	BAR_INTERVAL_MS = 100,
	LINE_INTERVAL_MS = 5000,
	STATUS_INTERVAL_MS = 1000
};

struct kv_progress {
	struct kv_allocator *allocator;
	struct kv_progress_settings settings;
	uint64_t started_ms;
	uint64_t shown_ms;  /* of the bar or line, 0: none yet */
	uint64_t status_ms; /* of STATUS= */
	uint64_t done;
	bool shown;
};

enum kv_status kv_progress_create(struct kv_allocator *allocator,
    const struct kv_progress_settings *settings, struct kv_progress **progress)
{
	struct kv_progress *made = kv_alloc_zero(allocator, sizeof *made);

	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->settings = *settings;
	if (!made->settings.bar_interval_ms) made->settings.bar_interval_ms = BAR_INTERVAL_MS;
	if (!made->settings.line_interval_ms) made->settings.line_interval_ms = LINE_INTERVAL_MS;
	if (settings->mode == KV_PROGRESS_AUTO)
		made->settings.mode = isatty(settings->fd) ? KV_PROGRESS_BAR : KV_PROGRESS_LINES;
	made->started_ms = kv_now_ms();
	made->shown_ms = made->started_ms;
	made->status_ms = made->started_ms;
	*progress = made;
	return KV_OK;
}

/* "12.5 MiB" or "1234 tokens". */
static void put_amount(const struct kv_progress *progress, double amount, char *text, size_t size)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	const char *unit = progress->settings.unit ? progress->settings.unit : "";
	size_t at = 0;

	if (strcmp(unit, "bytes") != 0) {
		snprintf(text, size, amount < 10.0 && amount > 0.0 ? "%.2f %s" : "%.0f %s", amount, unit);
		return;
	}
	while (amount >= 1024.0 && at < 4) {
		amount /= 1024.0;
		at++;
	}
	snprintf(text, size, at ? "%.1f %s" : "%.0f %s", amount, units[at]);
}

static void put_summary(const struct kv_progress *progress, uint64_t now, char *text, size_t size)
{
	double seconds = (double)(now - progress->started_ms) / 1000.0;
	double rate = seconds > 0.0 ? (double)progress->done / seconds : 0.0;
	uint64_t total = progress->settings.total;
	char done[64];
	char speed[64];
	char left[64] = "";

	if (strcmp(progress->settings.unit ? progress->settings.unit : "", "bytes") == 0)
		put_amount(progress, (double)progress->done, done, sizeof done);
	else
		snprintf(done, sizeof done, "%" PRIu64 " %s", progress->done,
		    progress->settings.unit ? progress->settings.unit : "");
	put_amount(progress, rate, speed, sizeof speed);
	if (total && rate > 0.0 && progress->done < total)
		snprintf(left, sizeof left, ", %.0f s left", (double)(total - progress->done) / rate);
	if (total)
		snprintf(text, size, "%3.0f %%, %s, %s/s%s", 100.0 * (double)progress->done / (double)total,
		    done, speed, left);
	else
		snprintf(text, size, "%s, %s/s", done, speed);
}

static void draw_bar(const struct kv_progress *progress, const char *summary, bool end)
{
	char cells[BAR_CELLS + 1];
	char line[TEXT_SIZE * 2];
	uint64_t total = progress->settings.total;
	double share = total ? (double)progress->done / (double)total : 0.0;
	int filled = share >= 1.0 ? BAR_CELLS : (int)(share * BAR_CELLS);
	int length;

	memset(cells, '.', BAR_CELLS);
	memset(cells, '#', (size_t)filled);
	cells[BAR_CELLS] = '\0';
	/* ESC [K clears what a longer line left behind. */
	if (total)
		length = snprintf(line, sizeof line, "\r%s [%s] %s\033[K%s", progress->settings.title,
		    cells, summary, end ? "\n" : "");
	else
		length = snprintf(line, sizeof line, "\r%s %s\033[K%s", progress->settings.title, summary,
		    end ? "\n" : "");
	if (length < 0) return;
	if ((size_t)length >= sizeof line) length = (int)sizeof line - 1;
	/* A terminal that is gone does not stop the work. */
	if (write(progress->settings.fd, line, (size_t)length) < 0) return;
}

static void show(struct kv_progress *progress, uint64_t now, bool end)
{
	char summary[TEXT_SIZE];

	put_summary(progress, now, summary, sizeof summary);
	if (progress->settings.mode == KV_PROGRESS_BAR)
		draw_bar(progress, summary, end);
	else
		kv_info("progress", "%s: %s%s", progress->settings.title, summary, end ? ", done" : "");
	progress->shown_ms = now;
	progress->shown = true;
}

void kv_progress_update(struct kv_progress *progress, uint64_t done)
{
	uint64_t now = kv_now_ms();
	bool bar = progress->settings.mode == KV_PROGRESS_BAR;
	uint64_t interval =
	    bar ? progress->settings.bar_interval_ms : progress->settings.line_interval_ms;
	char summary[TEXT_SIZE];

	progress->done = done;
	if (progress->settings.mode != KV_PROGRESS_OFF &&
	    ((bar && !progress->shown) || now - progress->shown_ms >= interval))
		show(progress, now, false);
	if (kv_sd_enabled(progress->settings.notify) &&
	    now - progress->status_ms >= STATUS_INTERVAL_MS) {
		put_summary(progress, now, summary, sizeof summary);
		kv_sd_status(progress->settings.notify, "%s: %s", progress->settings.title, summary);
		progress->status_ms = now;
	}
}

void kv_progress_finish(struct kv_progress *progress)
{
	if (!progress) return;
	if (progress->shown) show(progress, kv_now_ms(), true);
	kv_free(progress->allocator, progress);
}
