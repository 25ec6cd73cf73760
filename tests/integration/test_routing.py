"""deploy/routing's HAProxy before two workers: questions on a document go to one worker, and when
it is gone to the other, which finds the document in the store. Arguments: the folder of the
programs, a model."""
import collections
import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "lib"))
from processes import Processes, fetch, free_port, post, skip, tell, wait_for

CONFIG = os.path.join(TOP, "deploy", "routing", "haproxy.cfg")
# An odd number: who takes turns would otherwise send each to the same worker again.
DOCUMENTS, QUESTIONS = 13, 3
WORDS = "the in on and you for".split()


def document(number):
    """5,000 characters that are like no other's."""
    text, state = "", number + 1
    while len(text) < 5000:
        state = (state * 1103515245 + 12345) % 2**31
        text += WORDS[(state >> 16) % len(WORDS)] + " "
    return text


def ask(url, number, question, headers=None):
    """(the worker, tokens of the prompt, those of them that were found in the store)"""
    body = {"messages": [{"role": "user", "content": document(number) + "you " * question}],
            "max_tokens": 2, "temperature": 0}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=60) as answer:
        usage = json.load(answer)["usage"]
        return (answer.headers["X-Worker"], usage["prompt_tokens"],
                usage["prompt_tokens_details"]["cached_tokens"])


def homes(url, headers_of):
    """The worker of each document; all its questions must have got there."""
    found = collections.defaultdict(set)
    for question in range(QUESTIONS):
        for number in range(DOCUMENTS):
            worker, _, _ = ask(url, number, question, headers_of(number))
            found[number].add(worker)
    print({number: sorted(workers) for number, workers in found.items()})
    assert all(len(workers) == 1 for workers in found.values()), "a document was at two workers"
    one_each = {number: workers.pop() for number, workers in found.items()}
    assert set(one_each.values()) == {"worker-0", "worker-1"}, "a worker got nothing"
    return one_each


def check_stream(url, addresses):
    """Comes in pieces and not at the end: the first is here while the worker still runs."""
    body = {"prompt": "the in", "max_tokens": 3000, "ignore_end": True, "stream": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.readline().startswith(b"data: {")
        running = [json.loads(fetch(f"http://{address}/health")[1])["running"]
                   for address in addresses]
        assert sorted(running) == [0, 1], f"running: {running}, expected one at one worker"


def complete(url, body):
    """What is answered, as text."""
    try:
        return json.dumps(post(url + "/v1/completions", body))
    except urllib.error.HTTPError as error:
        return error.read().decode()


def wait_for_proxy(processes, state):
    """Until the last that the proxy said of each worker is that it is UP, or DOWN."""
    def look():
        said = re.findall(r"Server workers/(worker-\d) is (UP|DOWN)", processes.log_of("haproxy"))
        return dict(said) == {"worker-0": state, "worker-1": state}
    wait_for(f"the proxy to have both workers {state}", look, 20)


def check_drain(processes, url, addresses):
    """While the store is drained no worker is sent anything new by its health, but each may say so
    in its own words; a resume is theirs as well."""
    new = {"prompt": "the in", "max_tokens": 2}

    tell(processes.path("stats.sock"), "drain")
    wait_for("the workers to say that the store is drained", lambda: all(
        fetch(f"http://{address}/health")[0] == 503 for address in addresses), 10)
    wait_for_proxy(processes, "DOWN")
    for body, code in ((new, "store_draining"), ({"resume": "nobody"}, "sequence_not_found")):
        text = complete(url, body)
        assert code in text, f"{body}: {text}"
    tell(processes.path("stats.sock"), "drain off")
    wait_for_proxy(processes, "UP")
    assert "choices" in complete(url, new)


def check_loss(processes, url, before, headers_of):
    """worker-0 ends: its documents are found by the other, whose own stay."""
    Processes.end(processes.process("worker-0"), "worker-0")
    for number, home in before.items():
        worker, prompt, found = ask(url, number, 0, headers_of(number))
        assert worker == "worker-1", f"document {number} of {home} went to {worker}"
        assert found == prompt - 1, f"document {number} of {home}: {found} of {prompt} found"


def start_proxy(program, processes, addresses):
    address = f"127.0.0.1:{free_port()}"
    os.environ.update(CLUSTERKV_LISTEN=address, CLUSTERKV_WORKER_0=addresses[0],
                      CLUSTERKV_WORKER_1=addresses[1])
    process = processes.start("haproxy", [program, "-db", "-f", CONFIG])
    wait_for("the proxy to have a worker", lambda: fetch(f"http://{address}/health")[0] == 200
             or processes.must_run("haproxy", process), 20)
    return f"http://{address}"


if __name__ == "__main__":
    # Debian has it in a folder of programs for root.
    haproxy = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if not haproxy:
        skip("there is no haproxy: deploy/scripts/test-programs, and its folder in PATH")
    with Processes(sys.argv[1]) as started:
        started.start_store("--memory", "256MiB")
        addresses = [started.start_worker(f"worker-{i}", sys.argv[2], "--threads", "1", "--store",
                                          "unix:" + started.path("kv.sock"))[len("http://"):]
                     for i in range(2)]
        proxy = start_proxy(haproxy, started, addresses)
        homes(proxy, lambda number: {"X-Prefix": f"document-{number}"})
        by_beginning = homes(proxy, lambda number: {})
        check_stream(proxy, addresses)
        check_drain(started, proxy, addresses)
        check_loss(started, proxy, by_beginning, lambda number: {})
