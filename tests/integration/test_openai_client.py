"""OpenAI's own Python client against a real worker: what its users rely on, and how it takes what
the worker refuses. Arguments: the folder of the programs, a model."""
import asyncio
import collections
import json
import os
import subprocess
import sys
import threading
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "lib"))
from processes import Processes, fetch, skip, wait_for


def find_client():
    script = os.path.join(TOP, "deploy", "scripts", "openai-client")
    environment = {**os.environ, "CLUSTERKV_PYTHON": sys.executable}
    found = subprocess.run([script, "--cached"], env=environment, capture_output=True, text=True,
                           check=False)
    if found.returncode:
        skip("the openai package is not there: deploy/scripts/openai-client installs it")
    sys.path.insert(0, found.stdout.strip())


find_client()
import openai

KEY = "sk-0123456789abcdef"
PROMPT = "the in on and you"
QUESTION = [{"role": "user", "content": "the in on and"}]
# More than anybody waits for: the client goes away before.
ENDLESS = {"max_tokens": 16000, "extra_body": {"ignore_end": True}}
store = main = narrow = model = None


def connect(url, key=KEY, **options):
    return openai.OpenAI(base_url=url + "/v1", api_key=key, **{"max_retries": 0, **options})


def health(url):
    return json.loads(fetch(url + "/health")[1])


def sequences_in_store():
    return json.loads(fetch(store + "/stats.json")[1])["store"]['sequences{state="active"}']


def wait_until_idle(url):
    wait_for(f"{url} to have given up", lambda: health(url)["running"] == 0, 20)
    wait_for("the store to have no sequence", lambda: sequences_in_store() == 0, 20)


class Case(unittest.TestCase):
    def setUp(self):
        self.client = connect(main)

    def complete(self, **options):
        return self.client.completions.create(
            **{"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0,
               "extra_body": {"ignore_end": True}, **options})

    def tokenize(self, **body):
        return json.loads(self.client.post("/../tokenize", cast_to=str, body=body))

    def chat(self, **options):
        return self.client.chat.completions.create(
            **{"model": model, "messages": QUESTION, "max_tokens": 12, "temperature": 0,
               "extra_body": {"ignore_end": True}, **options})


class Answers(Case):
    def test_models(self):
        self.assertEqual([one.id for one in self.client.models.list()], [model])
        self.assertEqual(self.client.models.retrieve(model).id, model)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("gpt-9")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_completion(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 12)
        self.assertEqual(answer.usage.total_tokens, 12 + answer.usage.prompt_tokens)
        again = self.complete()
        self.assertEqual(answer.choices[0].text, again.choices[0].text)
        # What the first left in the store is found.
        self.assertEqual(again.usage.prompt_tokens_details.cached_tokens,
                         answer.usage.prompt_tokens - 1)

    def test_prompt_of_tokens(self):
        ids = self.tokenize(prompt=PROMPT)
        by_ids = self.complete(prompt=ids["tokens"])
        self.assertEqual(by_ids.usage.prompt_tokens, ids["count"])
        self.assertEqual(by_ids.choices[0].text, self.complete().choices[0].text)
        self.assertEqual(self.complete(prompt=[PROMPT]).choices[0].text, by_ids.choices[0].text)

    def test_list_of_prompts(self):
        prompts = [PROMPT, "you is to", "of a b c d"]
        answer = self.complete(prompt=prompts, temperature=1, seed=7, n=2)
        self.assertEqual([choice.index for choice in answer.choices], list(range(6)))
        self.assertEqual(answer.usage.completion_tokens, 72)
        lengths = 0
        for i, prompt in enumerate(prompts):
            alone = self.complete(prompt=prompt, temperature=1, seed=7, n=2)
            lengths += alone.usage.prompt_tokens
            self.assertEqual([choice.text for choice in alone.choices],
                             [choice.text for choice in answer.choices[2 * i:2 * i + 2]])
        self.assertEqual(answer.usage.prompt_tokens, lengths)
        ids = [self.tokenize(prompt=prompt)["tokens"] for prompt in prompts]
        greedy = self.complete(prompt=ids)
        self.assertEqual([choice.text for choice in greedy.choices],
                         [choice.text for choice in self.complete(prompt=prompts).choices])
        said = ["", "", ""]
        for chunk in self.complete(prompt=prompts, stream=True):
            said[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(said, [choice.text for choice in greedy.choices])

    def test_chat(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        message = answer.choices[0].message
        self.assertEqual(message.role, "assistant")
        self.assertGreater(len(message.content), 0)
        parts = [{"type": "text", "text": "the in"}, {"type": "text", "text": " on and"}]
        in_parts = self.chat(messages=[{"role": "user", "content": parts}])
        self.assertEqual(in_parts.choices[0].message.content, message.content)
        # An answer goes back as it came.
        longer = self.chat(messages=[*QUESTION, message, *QUESTION])
        self.assertGreater(longer.usage.prompt_tokens, answer.usage.total_tokens)

    def test_developer_is_system(self):
        answers = [self.chat(messages=[{"role": role, "content": "on"}, *QUESTION])
                   for role in ("developer", "system")]
        self.assertEqual(*[answer.choices[0].message.content for answer in answers])
        self.assertGreater(answers[0].usage.prompt_tokens, self.chat().usage.prompt_tokens)

    def test_stop(self):
        whole = self.complete().choices[0].text
        at = len(whole) // 2
        answer = self.complete(stop=["never in it", whole[at:at + 2]]).choices[0]
        self.assertEqual(answer.text, whole[:whole.index(whole[at:at + 2])])
        self.assertEqual(answer.finish_reason, "stop")

    def test_seed(self):
        first, again, other = (self.complete(temperature=1, seed=seed).choices[0].text
                               for seed in (7, 7, 8))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_several_answers(self):
        answer = self.complete(temperature=1, seed=7, n=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        self.assertEqual(answer.usage.completion_tokens, 36)
        for i in range(3):
            alone = self.complete(temperature=1, seed=7 + i).choices[0].text
            self.assertEqual(answer.choices[i].text, alone)

    def test_penalties(self):
        def most_frequent(**options):
            tokens = self.complete(max_tokens=60, **options).clusterkv["tokens"]
            return collections.Counter(tokens).most_common(1)[0][1]
        self.assertLess(most_frequent(frequency_penalty=2, presence_penalty=2),
                        most_frequent(frequency_penalty=-2, presence_penalty=-2))


class Logprobs(Case):
    def test_of_a_completion(self):
        choice = self.complete(logprobs=3).choices[0]
        shown = choice.logprobs
        self.assertEqual(len(shown.tokens), 12)
        self.assertEqual(len(shown.text_offset), 12)
        for token, logprob, top in zip(shown.tokens, shown.token_logprobs, shown.top_logprobs):
            self.assertLessEqual(len(top), 3)
            self.assertAlmostEqual(top[token], max(top.values()), places=5)
            self.assertAlmostEqual(top[token], logprob, places=5)

    def test_offsets_are_of_characters(self):
        """Python finds a token at its offset in the text, whatever bytes the text has before."""
        found = 0
        # It tends to begin with such a character after this.
        prompt = self.tokenize(messages=[{"role": "user", "content": "the in"}])["tokens"]
        for seed in range(300):
            choice = self.complete(prompt=prompt, temperature=1, seed=seed, logprobs=0).choices[0]
            # A byte that is no whole character ends what can be compared.
            whole = choice.text.partition("\ufffd")[0]
            for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset):
                if "\ufffd" not in token and offset < len(whole):
                    self.assertEqual(choice.text[offset:offset + len(token)], token)
                    found += not whole[:offset].isascii()
            if found:
                return
        self.fail("no answer had a token after a character of several bytes")

    def test_of_a_chat(self):
        choice = self.chat(logprobs=True, top_logprobs=2).choices[0]
        content = choice.logprobs.content
        self.assertEqual(len(content), 12)
        said = b"".join(bytes(entry.bytes) for entry in content).decode(errors="replace")
        self.assertEqual(said, choice.message.content)
        for entry in content:
            self.assertEqual(len(entry.top_logprobs), 2)
            self.assertAlmostEqual(entry.top_logprobs[0].logprob, entry.logprob, places=5)
        self.assertIsNone(self.chat().choices[0].logprobs)


class Streams(Case):
    def test_says_the_same(self):
        chunks = list(self.chat(stream=True))
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual(said, self.chat().choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual([chunk.choices[0].finish_reason for chunk in chunks],
                         [None] * (len(chunks) - 1) + ["length"])
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)

    def test_usage(self):
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual([len(chunk.choices) for chunk in chunks], [1] * (len(chunks) - 1) + [0])
        self.assertEqual([chunk.usage is None for chunk in chunks[:-1]], [True] * len(chunks[:-1]))
        self.assertEqual(chunks[-1].usage.completion_tokens, 12)

    def test_several_answers(self):
        said = ["", "", ""]
        for chunk in self.complete(stream=True, temperature=1, seed=7, n=3):
            said[chunk.choices[0].index] += chunk.choices[0].text
        whole = self.complete(temperature=1, seed=7, n=3)
        self.assertEqual(said, [choice.text for choice in whole.choices])

    def test_logprobs(self):
        streamed = [entry.logprob for chunk in self.chat(stream=True, logprobs=True)
                    if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
        whole = self.chat(logprobs=True).choices[0].logprobs.content
        self.assertEqual(len(streamed), 12)
        for one, other in zip(streamed, whole):
            self.assertAlmostEqual(one, other.logprob, places=5)

    def test_helper(self):
        """The client's own collector of chunks is satisfied."""
        kinds = collections.Counter()
        with self.client.chat.completions.stream(
                model=model, messages=QUESTION, max_tokens=12, temperature=0,
                extra_body={"ignore_end": True}) as stream:
            for event in stream:
                kinds[event.type] += 1
        self.assertGreater(kinds["content.delta"], 0)
        self.assertEqual(kinds["content.done"], 1)


class Refusals(Case):
    def refused(self, kind, named, **options):
        with self.assertRaises(kind) as caught:
            self.chat(**options)
        self.assertIn(named, str(caught.exception))
        return caught.exception

    def test_bad_requests(self):
        for named, options in (
                ("max_tokens", {"max_tokens": 10**6}),
                ("temperature", {"temperature": -1}),
                ("top_p", {"top_p": 2}),
                ("frequency_penalty", {"frequency_penalty": 3}),
                ("messages", {"messages": []}),
                ("stop", {"stop": ["x"] * 17}),
                ("n:", {"n": 17}),
                ("top_logprobs", {"top_logprobs": 2}),
                ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
                ("response_format", {"response_format": {"type": "json_object"}}),
                ("type text", {"messages": [{"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}]}),
                ("colour", {"extra_body": {"colour": "green"}})):
            with self.subTest(named):
                error = self.refused(openai.BadRequestError, named, **options)
                self.assertEqual(error.type, "invalid_request_error")

    def test_too_long(self):
        error = self.refused(openai.BadRequestError, "context",
                             messages=[{"role": "user", "content": "the in on " * 10000}])
        self.assertEqual(error.code, "context_length_exceeded")

    def test_other_model(self):
        error = self.refused(openai.NotFoundError, model, model="gpt-9")
        self.assertEqual(error.code, "model_not_found")

    def test_other_endpoints(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=model, input="the")

    def test_keys(self):
        for key in ("sk-wrong", KEY + "x", KEY[:-1]):
            self.client = connect(main, key)
            error = self.refused(openai.AuthenticationError, "Bearer")
            self.assertEqual(error.code, "invalid_api_key")
            with self.assertRaises(openai.AuthenticationError):
                self.client.models.list()


class Narrow(Case):
    """At a worker that answers one request at a time and lets one wait."""

    def setUp(self):
        self.client = connect(narrow)

    def tearDown(self):
        wait_until_idle(narrow)

    def endless(self, client=None, **options):
        client = client or self.client
        return client.completions.create(model=model, prompt=PROMPT, **ENDLESS, **options)

    def test_too_many_at_once(self):
        error = None
        with self.endless(stream=True) as running:
            next(iter(running))
            with self.assertRaises(openai.BadRequestError) as caught:
                self.complete(n=3)
            self.assertIn("n: 3", str(caught.exception))
            with self.assertRaises(openai.RateLimitError) as caught:
                self.complete(n=2)
            error = caught.exception
        self.assertEqual(error.code, "too_many_requests")
        self.assertEqual(error.response.headers["retry-after"], "1")

    def test_comes_again(self):
        """The client's own retries get through when there is room again."""
        running = self.endless(stream=True)
        next(iter(running))
        threading.Timer(0.3, running.close).start()
        self.client = connect(narrow, max_retries=3)
        self.assertEqual(self.complete(n=2).usage.completion_tokens, 24)

    def test_closed_stream(self):
        for kind in (self.client.completions, self.client.chat.completions):
            said = {"prompt": PROMPT} if kind is self.client.completions else {"messages": QUESTION}
            stream = kind.create(model=model, stream=True, **said, **ENDLESS)
            for _ in range(5):
                next(iter(stream))
            self.assertEqual(health(narrow)["running"], 1)
            self.assertEqual(sequences_in_store(), 1)
            stream.close()
            wait_until_idle(narrow)

    def test_timeout(self):
        before = time.monotonic()
        with self.assertRaises(openai.APITimeoutError):
            self.endless(timeout=0.3)
        self.assertLess(time.monotonic() - before, 5)
        wait_until_idle(narrow)

    def test_timeout_while_waiting(self):
        with self.endless(stream=True) as running:
            next(iter(running))
            with self.assertRaises(openai.APITimeoutError):
                self.endless(timeout=0.3)
            wait_for("the second to have gone", lambda: health(narrow)["waiting"] == 0, 20)
            self.assertEqual(health(narrow)["running"], 1)

    def test_cancelled_task(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=narrow + "/v1", api_key=KEY,
                                          max_retries=0) as client:
                task = asyncio.create_task(client.completions.create(
                    model=model, prompt=PROMPT, **ENDLESS))
                await asyncio.sleep(0.3)
                self.assertEqual(health(narrow)["running"], 1)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
        asyncio.run(run())
        wait_until_idle(narrow)


class Stopping(Case):
    def test_stream_of_a_worker_that_stops(self):
        """What the client was told is no whole answer, and it says so."""
        url = processes.start_worker("stopping", model_path, *common, "--drain-timeout", "200ms")
        stream = connect(url).completions.create(model=model, prompt=PROMPT, stream=True, **ENDLESS)
        next(iter(stream))
        processes.process("stopping").terminate()
        with self.assertRaises(openai.APIError):
            for _ in stream:
                pass


if __name__ == "__main__":
    model_path = sys.argv[2]
    model = os.path.basename(model_path)
    with Processes(sys.argv[1]) as processes:
        keys = processes.path("keys")
        with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(KEY + "\n")
        store = processes.start_store("--memory", "64MiB")
        common = ("--threads", "1", "--store", "unix:" + processes.path("kv.sock"))
        main = processes.start_worker("main", model_path, *common, "--api-key-file", keys)
        narrow = processes.start_worker("narrow", model_path, *common, "--max-sequences", "1",
                                        "--max-requests", "1")
        if not unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful():
            sys.exit(1)
