"""What the measuring scripts of this folder share: where programs, models and texts are, and runs
of the real gpu-worker."""
import argparse
import json
import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def add_arguments(parser):
    """Options that both scripts know."""
    parser.add_argument("--bin-dir", metavar="DIR",
                        default=os.path.join(TOP, "build", "cpu-release", "bin"),
                        help="where gpu-worker and kvstored are (default: build/cpu-release/bin)")
    parser.add_argument("--model", metavar="FILE",
                        default=os.environ.get("CLUSTERKV_MODEL_SMOLLM2"),
                        help="GGUF model (default: SmolLM2, as deploy/scripts/model finds it)")
    parser.add_argument("--text", metavar="FILE", help="text of the prompts, repeated when it is "
                        "too short (default: ../shared/data/novel.txt, else deploy/data)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
                        help="compute threads (default: one for each CPU)")
    parser.add_argument("--json", metavar="FILE", help="also write all samples as JSON; -: to "
                        "standard output, instead of the table")


def positive_list(text):
    """An option's value: positive numbers, separated by commas, in rising order."""
    try:
        values = sorted({int(word) for word in text.split(",")})
    except ValueError:
        values = [0]
    if values[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give positive numbers, separated by commas")
    return values


def find_model(model):
    if model:
        return model if os.path.isfile(model) else fail(f"there is no model {model}")
    script = os.path.join(TOP, "deploy", "scripts", "model")
    found = subprocess.run([script, "--cached"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or fail("no model: give --model, or run deploy/scripts/model once")


def find_text(text):
    shared = os.environ.get("CLUSTERKV_SHARED", os.path.join(TOP, "..", "shared"))
    choices = [text] if text else [os.path.join(shared, "data", "novel.txt"),
                                   os.path.join(TOP, "deploy", "data", "constitution.txt")]
    for path in choices:
        if os.path.isfile(path):
            return path
    return fail(f"there is no text {choices[-1]}: give --text")


def program(bin_dir, name):
    path = os.path.join(bin_dir, name)
    return path if os.access(path, os.X_OK) else fail(
        f"there is no {path}: build it (cmake --build build/cpu-release) or give --bin-dir")


def tokenize(worker, model, text, count):
    """The first `count` token ids of the text, which is repeated when it has fewer."""
    answer = subprocess.run([worker, "tokenize", "--model", model, "--file", text, "--json"],
                            capture_output=True, text=True, check=False)
    if answer.returncode:
        fail(f"gpu-worker tokenize failed: {answer.stderr.strip()}")
    ids = json.loads(answer.stdout)["tokens"]
    if not ids:
        fail(f"{text} has no tokens")
    return (ids * (count // len(ids) + 1))[:count]


def generate_command(worker, model, threads, tokens_file, max_tokens, more=()):
    """The arguments of a measured answer: greedy, of a fixed length, reported as JSON."""
    return [worker, "generate", "--model", model, "--threads", str(threads),
            "--tokens-file", tokens_file, "--max-tokens", str(max_tokens), "--ignore-end",
            "--json", "--log-level", "error", *more]


def generate(*arguments, **options):
    """Run such a command; its report."""
    answer = subprocess.run(generate_command(*arguments, **options), capture_output=True,
                            text=True, check=False)
    if answer.returncode:
        fail(f"gpu-worker generate failed: {answer.stderr.strip()}")
    return json.loads(answer.stdout)


def write_ids(path, ids):
    with open(path, "w", encoding="ascii") as file:
        file.write(" ".join(map(str, ids)))


def finish(arguments, result, table):
    """Print the table, and the result where --json asks for it."""
    if arguments.json != "-":
        print(table)
    if arguments.json == "-":
        print(json.dumps(result, indent=1))
    elif arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


def markdown(header, rows):
    """A table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(header) + " |",
             "|---|" + "---:|" * (len(header) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
