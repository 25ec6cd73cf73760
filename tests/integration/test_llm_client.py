"""The command-line client `llm` (PyPI) against a real worker, as its users set it up: a model of
extra-openai-models.yaml. Arguments: the folder of the programs, a model. CLUSTERKV_LLM names the
client's program, where it is not to be the one in PATH."""
import json
import os
import shutil
import subprocess
import sys
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "lib"))
from processes import Processes, skip

PROGRAM = os.environ.get("CLUSTERKV_LLM") or shutil.which("llm")
if not PROGRAM:
    skip("llm is not there: pip install llm, or CLUSTERKV_LLM=PROGRAM")

KEY = "sk-0123456789abcdef"
PROMPT = "the in on and you"
# Without api_key_name the client sends a made-up key, whatever the environment has.
MODELS = """\
- &chat {{model_id: chat, model_name: {name}, api_base: "{url}/v1", api_key_name: clusterkv}}
- {{<<: *chat, model_id: text, completion: true}}
- {{<<: *chat, model_id: other, model_name: gpt-9}}
"""
environment = {}


def run(*arguments, key=KEY):
    """What the client ends with, says and complains of. It looks at nothing of the user's."""
    done = subprocess.run([PROGRAM, *arguments], env={**environment, "OPENAI_API_KEY": key},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          check=False)
    return done.returncode, done.stdout, done.stderr


class Client(unittest.TestCase):
    def ask(self, *arguments):
        code, said, complaint = run(*arguments, "-o", "temperature", "0", "-o", "max_tokens", "12")
        self.assertEqual((code, complaint), (0, ""))
        return said

    def last(self):
        """What the client has kept of the last answer, with the worker's usage."""
        code, said, complaint = run("logs", "-n", "1", "--json")
        self.assertEqual((code, complaint), (0, ""))
        return json.loads(said)[0]

    def test_whole_and_streamed(self):
        for model in ("chat", "text"):
            with self.subTest(model):
                whole = self.ask("-m", model, PROMPT, "--no-stream")
                usage = self.last()["response_json"]["usage"]
                self.assertGreater(len(whole.strip()), 0)
                self.assertLessEqual(1, usage["completion_tokens"])
                self.assertLessEqual(usage["completion_tokens"], 12)
                self.assertEqual(self.ask("-m", model, PROMPT), whole)
                self.assertEqual(self.last()["response"], whole.removesuffix("\n"))

    def test_second_turn(self):
        first = self.ask("-m", "chat", PROMPT, "-s", "on")
        before = self.last()
        self.ask("-c", "of a")
        after = self.last()
        self.assertEqual(after["conversation_id"], before["conversation_id"])
        # The question and its answer came along, and what was known of them was found.
        self.assertGreater(after["input_tokens"], before["input_tokens"] + len(first.split()))
        usage = after["response_json"]["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)

    def test_refusals(self):
        for named, arguments in (("max_tokens", ("chat", "-o", "max_tokens", "1000000")),
                                 ("logit_bias", ("chat", "-o", "logit_bias", '{"5": 3}')),
                                 ("response_format", ("chat", "-o", "json_object", "1")),
                                 ("404", ("other",))):
            with self.subTest(named):
                code, said, complaint = run("-m", *arguments, PROMPT)
                self.assertEqual((code, said), (1, ""))
                self.assertIn(named, complaint)
        code, said, complaint = run("-m", "chat", PROMPT, key="sk-wrong")
        self.assertEqual((code, said), (1, ""))
        self.assertIn("Bearer", complaint)


if __name__ == "__main__":
    with Processes(sys.argv[1]) as processes:
        keys = processes.path("keys")
        with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(KEY + "\n")
        processes.start_store("--memory", "64MiB")
        worker = processes.start_worker("worker", sys.argv[2], "--threads", "1", "--store",
                                        "unix:" + processes.path("kv.sock"),
                                        "--api-key-file", keys)
        home = processes.path("llm")
        os.mkdir(home)
        with open(os.path.join(home, "extra-openai-models.yaml"), "w", encoding="utf-8") as file:
            file.write(MODELS.format(name=os.path.basename(sys.argv[2]), url=worker))
        environment.update(os.environ, LLM_USER_PATH=home, HOME=home)
        if not unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful():
            sys.exit(1)
