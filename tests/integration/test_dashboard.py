"""The store's page in Chromium, beside a worker under load: figures appear, nothing is blocked or
thrown, it fits a telephone, and it notices who comes and goes. Arguments: the folder of the
programs and a model. CLUSTERKV_ARTIFACTS names a folder for pictures."""
import json
import os
import sys
import threading
import time
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "lib"))
import browser
from processes import Processes, skip, wait_for

SHAPE = ("--threads", "1", "--budget", "48", "--sinks", "4", "--window", "32", "--fold", "32",
         "--segment", "64", "--cluster-tokens", "8", "--dense-layers", "1", "--cache", "64KiB")
FIGURES = ("hit", "fetched", "decoded", "attended", "sequences", "cache", "arena")
LOOKS = ((1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light"), (390, 844, "dark"))


class Load:
    """Answers of a few seconds each, to prompts of which each is new, until it is told to stop."""

    def __init__(self, urls):
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(url, i))
                        for i, url in enumerate(urls)]
        for thread in self.threads:
            thread.start()

    def run(self, url, number):
        while not self.ends.is_set():
            number += 97
            body = {"prompt": [40 + (number + i * i) % 61 for i in range(900)], "max_tokens": 500,
                    "ignore_end": True}
            try:
                request = urllib.request.Request(url + "/v1/completions",
                                                 json.dumps(body).encode())
                urllib.request.urlopen(request, timeout=60).read()
            except OSError:
                self.ends.wait(0.2)

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def shown(page, figure):
    """The first number of a tile; 0 where there is none."""
    text = page.evaluate(f"document.getElementById('now-{figure}').textContent")
    digits = text.split()[0].replace(",", "").split("/")[0]
    return float(digits) if digits.replace(".", "").isdigit() else 0.0


def check_figures(page):
    for figure in FIGURES:
        wait_for(f"a figure of {figure}", lambda figure=figure: shown(page, figure) > 0, 30)
        wait_for(f"a line of {figure}", lambda figure=figure: page.evaluate(
            f"[...document.querySelectorAll('#chart-{figure} path:not(.grid)')]"
            ".some(path => path.getAttribute('d').includes('L'))"), 30)
    rows, total = page.evaluate(
        "[[...document.querySelectorAll('#workers tr')].map(row =>"
        "[...row.cells].map(cell => cell.textContent)),"
        "document.getElementById('now-decoded').textContent]")
    print(rows, total)
    speeds = [float(text.replace(",", "").split("/")[0]) for text in
              (total, *(row[6] for row in rows))]
    assert abs(speeds[0] - sum(speeds[1:])) <= 3, "all is not the sum of its workers"
    assert sorted(row[0] for row in rows) == ["worker-0", "worker-1"], rows
    assert all(row[1] == "connected" and len(row) == 12 for row in rows), rows
    assert page.evaluate("document.getElementById('state').textContent") == "Ready"
    pointed = page.evaluate("""(() => {
        const plot = document.querySelector('.plot'), box = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right - box.width / 100}));
        return plot.querySelector('.at') !== null;})()""")
    assert pointed, "no line where the pointer is"
    page.evaluate("document.querySelector('.plot').dispatchEvent(new PointerEvent('pointerleave'))")


def check_looks(page, pictures):
    grounds = set()
    time.sleep(10 if pictures else 0)
    for width, height, scheme in LOOKS:
        page.look(width, height, scheme)
        size = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert size[0] <= width and size[1] == width, f"{width}: the page is {size} wide"
        crowded = page.evaluate("""[...document.querySelectorAll('#tiles b')].filter(figure => {
            const shown = figure.textContent, tile = figure.parentElement;
            figure.textContent = '1,023 MiB/s';
            const over = tile.scrollWidth > tile.clientWidth;
            figure.textContent = shown;
            return over;}).length""")
        assert crowded == 0, f"{width}: the longest figure does not fit into {crowded} tiles"
        grounds.add((scheme, page.evaluate("getComputedStyle(document.body).backgroundColor")))
        if pictures:
            page.screenshot(os.path.join(pictures, f"dashboard-{width}-{scheme}.png"))
    assert len(grounds) == 2 and len({ground for _, ground in grounds}) == 2, grounds


def wait_event(page, text):
    wait_for(f"the event {text!r}", lambda: text in page.evaluate(
        "document.getElementById('events').textContent"), 30)


def check_events(page, processes):
    wait_event(page, "segments evicted")
    processes.process("worker-1").kill()
    wait_event(page, "worker-1: left")
    wait_event(page, "1 worker lost: died")
    # Who ends without a word and is back at once has the same name, as another process.
    name = "worker-0"
    processes.process(name).kill()
    processes.start_worker(name, sys.argv[2], *SHAPE, "--store",
                           "unix:" + processes.path("kv.sock"))
    wait_event(page, f"{name} reconnected")


def main():
    program = browser.find() or skip("there is no Chromium: deploy/scripts/packages --for tests")
    pictures = os.environ.get("CLUSTERKV_ARTIFACTS")
    with Processes(sys.argv[1]) as processes:
        store = processes.start_store("--memory", "16MiB")
        address = "unix:" + processes.path("kv.sock")
        urls = [processes.start_worker(f"worker-{i}", sys.argv[2], *SHAPE, "--store", address)
                for i in range(2)]
        load = Load(urls)
        try:
            with browser.Browser(program) as page:
                page.look(1280, 800, "light")
                page.open(store + "/")
                check_figures(page)
                check_looks(page, pictures)
                check_events(page, processes)
                # The browser asks for an icon by itself.
                said = [text for text in page.messages if "404" not in text]
                assert not said, said
        finally:
            load.stop()


if __name__ == "__main__":
    main()
