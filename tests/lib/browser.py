"""A headless Chromium that a test steers through a pipe, by the DevTools protocol."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# It runs in containers, as root, with little shared memory, and asks nobody outside.
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--hide-scrollbars", "--no-first-run", "--no-default-browser-check", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-extensions",
         "--remote-debugging-pipe", "about:blank"]


def find():
    """The program, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """Use it as a context. `messages`: what the page's console and the browser said of it."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="clusterkv-browser.")
        self.last_id, self.pending, self.messages, self.session = 0, b"", [], None
        reads, self.output = os.pipe()
        self.input, writes = os.pipe()
        # Out of the way of 3 and 4, where the browser expects them.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (reads, writes)]
        command = ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", program,
                   f"--user-data-dir={self.folder}", *FLAGS]
        environment = {**os.environ, "XDG_CONFIG_HOME": self.folder, "XDG_CACHE_HOME": self.folder}
        self.process = subprocess.Popen(
            command, pass_fds=ends, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (reads, writes, *ends):
            os.close(end)

    def __enter__(self):
        try:
            return self.attach()
        except BaseException:
            self.__exit__()
            raise

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.input)
        os.close(self.output)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, **parameters):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            answer = self.next_message(end)
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def next_message(self, end):
        while b"\0" not in self.pending:
            if not select.select([self.input], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self.input, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.pending += part
        message, _, self.pending = self.pending.partition(b"\0")
        return json.loads(message)

    def note(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            self.messages.append(parameters["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(json.dumps(parameters["args"])[:500])

    def open(self, url):
        """Returns when the page is there and its scripts have begun."""
        error = self.call("Page.navigate", url=url).get("errorText")
        if error:
            raise RuntimeError(f"{url}: {error}")
        end = time.monotonic() + 30
        while self.evaluate("location.href + ' ' + document.readyState") != f"{url} complete":
            if time.monotonic() > end:
                raise TimeoutError(f"{url} is not loaded")
            time.sleep(0.05)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def look(self, width, height, scheme):
        """Another size and colour scheme ("light" or "dark")."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                            clip={"x": 0, "y": 0, "width": size["width"],
                                  "height": size["height"], "scale": 1})
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))
