"""A client of gpu-worker's HTTP API that notes when each part of a streamed answer came."""
import dataclasses
import http.client
import json
import time
import urllib.parse

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclasses.dataclass
class Answer:
    """Times are of the monotonic clock, in seconds."""
    worker: int
    sent: float
    opened: float = 0.0
    hit: int = 0         # tokens of the prompt that were found stored
    prompt: int = 0
    text: str = ""
    times: list = dataclasses.field(default_factory=list)   # of events with text
    counts: list = dataclasses.field(default_factory=list)  # tokens behind each
    tokens: list = dataclasses.field(default_factory=list)
    digest: str = ""
    margins: list = dataclasses.field(default_factory=list)
    error: str = ""

    def first_token(self):
        """Seconds that the client waited for it."""
        return self.times[0] - self.sent


def text_of(choice):
    return choice["delta"].get("content", "") if "delta" in choice else choice["text"]


def read(response, answer):
    """The events of a streamed answer, until it ends."""
    if response.status != 200:
        answer.error = f"{response.status}: {response.read().decode()}"
        return
    for line in response:
        now = time.monotonic()
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        own = event.get("clusterkv", {})
        if "error" in event:
            answer.error = event["error"]["message"]
        elif not answer.opened:
            answer.opened = now
            answer.prompt, answer.hit = own["prompt_tokens"], own["prefix_hit_tokens"]
        elif event["choices"][0]["finish_reason"] is None:
            answer.times.append(now)
            answer.counts.append(own["tokens"])
            answer.text += text_of(event["choices"][0])
        else:
            answer.tokens = own["tokens"]
            answer.digest = own.get("logits_digest", "")
            answer.margins = own.get("margins", [])


class Client:
    """A connection to each worker, used by one thread."""

    def __init__(self, urls):
        self.urls = [urllib.parse.urlsplit(url) for url in urls]
        self.connections = {}

    def ask(self, answer, path, body):
        """Send a request to the worker of `answer`, which takes what comes back. Greedy, streamed,
        and of exactly `max_tokens` tokens."""
        body = json.dumps(body | {"temperature": 0, "ignore_end": True, "stream": True})
        try:
            read(self.send(answer.worker, path, body), answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"
            self.connections.pop(answer.worker).close()
        return answer

    def send(self, worker, path, body):
        """The response's head. A worker closes a connection that was silent for --idle-timeout,
        while its client was busy with the other one: then on a new one."""
        url, reused = self.urls[worker], worker in self.connections
        if not reused:
            self.connections[worker] = http.client.HTTPConnection(url.hostname, url.port,
                                                                  timeout=300)
        try:
            self.connections[worker].request("POST", path, body)
            return self.connections[worker].getresponse()
        except ConnectionError:
            if not reused:
                raise
        self.connections.pop(worker).close()
        return self.send(worker, path, body)
