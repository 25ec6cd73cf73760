#!/usr/bin/env python3
"""Asks a gpu-worker a question about a text, and says what the answer took.

Needs the standard library only. Progress goes to standard error, the answer and the figures to
standard output.
"""
import argparse
import http.client
import json
import socket
import sys
import time
import urllib.parse

BAR_COLUMNS = 40


class Failure(Exception):
    """Something that the reader of the message can act on."""


class Progress:
    """A bar that is drawn over itself on a terminal, a line every quarter otherwise."""

    def __init__(self):
        self.terminal = sys.stderr.isatty()
        self.shown = -1
        self.begun = time.monotonic()

    def update(self, done, total):
        percent = 100 * done // max(total, 1)
        step = percent if self.terminal else percent // 25 * 25
        if step == self.shown:
            return
        self.shown = step
        filled = BAR_COLUMNS * done // max(total, 1)
        bar = "#" * filled + "." * (BAR_COLUMNS - filled)
        text = f"prefill [{bar}] {step:3d} %  {time.monotonic() - self.begun:.0f} s"
        if self.terminal:
            sys.stderr.write(f"\r{text}")
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def finish(self):
        if self.shown >= 0 and self.terminal:
            sys.stderr.write("\n")
        self.shown = -1


def error_text(body):
    """What a worker says went wrong: OpenAI's error object, or whatever came."""
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace").strip()[:400]


def events(response):
    """The lines of a stream of server-sent events: comments as text, data as objects."""
    for line in response:
        line = line.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith(":"):
            yield line[1:].strip()
        elif line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line[len("data: "):])
            if "error" in event:
                raise Failure(f"the worker gave up: {event['error'].get('message', event)}")
            yield event


def stream(url, request, timeout):
    """Send the request, and yield the events of its answer."""
    try:
        address = urllib.parse.urlsplit(url)
        host, port = address.hostname, address.port
    except ValueError:
        host = None
    if not host or address.scheme != "http":
        raise Failure(f"--url {url} is no address of the form http://HOST:PORT")
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(request),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise Failure(f"{url} answered {response.status}: {error_text(response.read())}")
        yield from events(response)
    except OSError as error:
        raise Failure(f"no answer from {url}: {reason(error)}") from error
    except http.client.HTTPException as error:
        raise Failure(f"no answer from {url}: {error or type(error).__name__}") from error
    finally:
        connection.close()


def ask(url, text, question, max_tokens, timeout):
    """Print the answer as it comes; returns the last event, which holds usage and report."""
    request = {
        "messages": [{"role": "user", "content": f"{text}\n\n{question}"}],
        "max_tokens": max_tokens, "temperature": 0, "stream": True,
    }
    last, progress = None, Progress()
    for event in stream(url, request, timeout):
        if isinstance(event, str):
            word, _, counts = event.partition(" ")
            if word == "prefill":
                progress.update(*(int(count) for count in counts.split("/")))
            continue
        delta = event["choices"][0].get("delta", {}).get("content", "")
        if delta:
            progress.finish()
            sys.stdout.write(delta)
            sys.stdout.flush()
        if "usage" in event:
            last = event
    progress.finish()
    sys.stdout.write("\n")
    if last is None:
        raise Failure("the stream ended before the answer did")
    return last


def read_text(path):
    """What --text names."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise Failure(f"--text {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"--text {path}: this is no text in UTF-8: byte {error.start} is"
                      f" 0x{error.object[error.start]:02x}") from error


def write_report(path, report):
    """What --report names."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file)
    except OSError as error:
        raise Failure(f"--report {path}: {reason(error)}") from error


def reason(error):
    """What the system said, without its number."""
    return error.strerror or str(error) or type(error).__name__


def store_stats(path):
    """The store's numbers, from its stats socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5)
            connection.connect(path)
            connection.sendall(b"stats json\r\n")
            answer = b""
            while not answer.endswith(b"\n"):
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
        return json.loads(answer)
    except OSError as error:
        raise Failure(f"--stats {path}: no statistics: {reason(error)}") from error
    except ValueError as error:
        raise Failure(f"--stats {path}: this is no store's stats socket: {error}") from error


def hit_rate(path, worker, decoded):
    """The worker's cache hit rate. It reports once a second: wait until it counts this answer."""
    for _ in range(30):
        found = store_stats(path).get("workers", {}).get(worker, {})
        if found.get("decode_tokens_total", 0) >= decoded and "cache_hit_rate" in found:
            return found["cache_hit_rate"]
        time.sleep(0.2)
    return None


def plural(count, noun):
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def figures(last, rate):
    """Pairs of a name and a value, as text."""
    report, usage = last["clusterkv"], last["usage"]
    found = usage["prompt_tokens_details"]["cached_tokens"]
    computed = usage["prompt_tokens"] - found
    attended = report["budget_tokens_mean"] + report["window_tokens_mean"]
    yield "prompt", f"{usage['prompt_tokens']:,} tokens"
    again = ", which were not computed again" if found else ""
    yield "found in the store", f"{found:,} tokens{again}"
    speed = f" ({computed / max(report['prefill_seconds'], 1e-9):,.0f} tokens/s)"
    yield "prefill", (f"{report['prefill_seconds']:.2f} s for {plural(computed, 'token')}"
                      f"{speed if computed >= 100 else ''}")
    yield "decode", (f"{report['ms_per_token']:.1f} ms a token"
                     f" ({1000 / max(report['ms_per_token'], 1e-9):,.0f} tokens/s),"
                     f" {plural(usage['completion_tokens'], 'token')}")
    yield "attended", (f"{attended:,.0f} tokens a head in sparse layers, of which"
                       f" {report['window_tokens_mean']:,.0f} in the window")
    if rate is not None:
        yield "cache hit rate", f"{100 * rate:.1f} % of selected bytes (stats socket)"


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n", maxsplit=1)[0])
    parser.add_argument("--url", required=True, help="the worker, http://HOST:PORT")
    parser.add_argument("--text", metavar="FILE", help="the text that the question is about")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS",
                        help="how long the worker may be silent")
    parser.add_argument("--stats", metavar="PATH", help="the store's stats socket")
    parser.add_argument("--worker", metavar="NAME", help="the worker's name there")
    parser.add_argument("--report", metavar="FILE", help="also write the last event, as JSON")
    parser.add_argument("question")
    options = parser.parse_args()
    text = ""
    if options.text:
        text = read_text(options.text)
    last = ask(options.url, text, options.question, options.max_tokens, options.timeout)
    rate = None
    if options.stats and options.worker:
        rate = hit_rate(options.stats, options.worker, last["usage"]["completion_tokens"])
    print()
    for name, value in figures(last, rate):
        print(f"  {name:<20}{value}")
    if options.report:
        write_report(options.report, {**last, "cache_hit_rate": rate})
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.stderr.write(f"\nask: {failure}\n")
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as failure:
        sys.stderr.write(f"\nask: {reason(failure)}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        sys.exit(130)
