"""Real processes for tests in Python: a kvstored, gpu-workers, and what else a test starts. All
live in one folder that goes with them, and are ended by their ids."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = 77


def skip(reason):
    """End the test as one that lacks what it needs."""
    print(f"skipped: {reason}", file=sys.stderr)
    sys.exit(SKIPPED)


def wait_for(what, condition, seconds=60.0):
    """Ask until the answer is true, and return it."""
    end = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


def fetch(url, seconds=10.0):
    """The code and the text of what is at `url`; code 0 while nobody is there."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def post(url, body, seconds=60.0):
    """What is answered to a JSON object; urllib's HTTPError for any code but 200."""
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.loads(answer.read())


def tell(stats_socket, command):
    """A command of a store's stats socket; what it says to it."""
    with socket.socket(socket.AF_UNIX) as stats:
        stats.settimeout(30)
        stats.connect(stats_socket)
        stats.sendall(command.encode() + b"\n")
        return stats.recv(4096).decode()


def evict_all(stats_socket):
    """Have a store drop what nobody uses."""
    return tell(stats_socket, "evict")


def free_port():
    """A port of the loopback address that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Processes:
    """Use it as a context: at its end what was started is ended, the last one first, and the logs
    are printed when an exception came."""

    def __init__(self, bin_dir):
        self.bin = bin_dir
        self.folder = tempfile.mkdtemp(prefix="clusterkv-test.")
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for name, process, _ in reversed(self.started):
            self.end(process, name)
        if kind is not None:
            self.print_logs()
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def print_logs(self):
        for name, _, log in self.started:
            with open(log, encoding="utf-8", errors="replace") as file:
                print(f"---- {name}\n{file.read()[-4000:]}", file=sys.stderr)

    @staticmethod
    def end(process, name):
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            print(f"{name} did not end within 30 s", file=sys.stderr)

    def start(self, name, command):
        """In the background; its output is in the file NAME.log."""
        log = self.path(name + ".log")
        with open(log, "wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.started.append((name, process, log))
        return process

    def process(self, name):
        return next(process for started, process, _ in self.started if started == name)

    def log_of(self, name):
        with open(self.path(name + ".log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    @staticmethod
    def must_run(name, process):
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}")

    def url_in_log(self, name, process, pattern):
        def look():
            self.must_run(name, process)
            found = re.search(pattern, self.log_of(name))
            return found and found[1]
        return wait_for(f"the address of {name}", look)

    def start_store(self, *arguments):
        """Its HTTP address; the sockets are kv.sock and stats.sock in the folder. A store goes on
        without its HTTP listener: when another took the port meanwhile, it is started anew."""
        for _ in range(5):
            url = self.try_store(arguments)
            if url:
                return url
            _, process, _ = self.started.pop()
            self.end(process, "kvstored")
        raise RuntimeError("kvstored: no port for its HTTP listener")

    def try_store(self, arguments):
        """None: it runs, but not at its HTTP address."""
        address = f"127.0.0.1:{free_port()}"
        command = [os.path.join(self.bin, "kvstored"), "--config=", "--socket",
                   self.path("kv.sock"), "--stats-socket", self.path("stats.sock"),
                   "--http-listen", address, *arguments]
        process = self.start("kvstored", command)

        def look():
            self.must_run("kvstored", process)
            if "no HTTP: " in self.log_of("kvstored"):
                return "taken"
            return fetch(f"http://{address}/readyz")[0] == 200

        found = wait_for("kvstored to be ready", look)
        return None if found == "taken" else f"http://{address}"

    def start_worker(self, name, model, *arguments):
        """A ready worker's HTTP address."""
        command = [os.path.join(self.bin, "gpu-worker"), "serve", "--config=", "--model", model,
                   "--backend", "cpu", "--listen", "127.0.0.1:0", "--name", name, *arguments]
        process = self.start(name, command)
        url = self.url_in_log(name, process, r"listening on (http://[0-9.:]+)")
        wait_for(f"{name} to be ready", lambda: fetch(url + "/health")[0] == 200)
        return url
