#!/usr/bin/env python3
"""Makes tests/golden/own/smollm2.json: what a model answers when nothing is rounded.

    make_own_goldens.py MODEL.gguf OUTPUT.json

The numbers come from a float32 forward pass in NumPy over the file's weights, dequantised by the
`gguf` package: no activation is ever quantised, and attention sees all keys. It shares no code with
the worker. Token ids come from llama-cpp-python when it can be imported. Needs `pip install gguf
numpy llama-cpp-python`; the file that it writes is committed, so tests need none of them.
"""
import argparse
import hashlib
import json
import sys

import numpy
from gguf import GGUFReader, dequantize

STEPS = 24
CHAT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")
PROMPTS = [
    ("sentence", "The lighthouse keeper counted the ships that passed,"),
    ("question", CHAT.format("Name three rivers.")),
    ("code", "def area(width, height):\n    return"),
]


class Model:
    """A llama model (queries and keys permuted for the rotation of neighbours) in float32."""

    def __init__(self, path):
        reader = GGUFReader(path)

        def field(name, otherwise=None):
            entry = reader.fields.get(name)
            return otherwise if entry is None else entry.contents()

        if field("general.architecture") != "llama":
            sys.exit(f"{path}: architecture {field('general.architecture')}, only llama is known")
        self.weights = {}
        for tensor in reader.tensors:
            shape = [int(size) for size in reversed(tensor.shape)]
            values = dequantize(tensor.data, tensor.tensor_type)
            self.weights[tensor.name] = values.astype(numpy.float32).reshape(shape)
        self.layers = field("llama.block_count")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv", self.heads)
        self.epsilon = field("llama.attention.layer_norm_rms_epsilon")
        self.rope_base = field("llama.rope.freq_base", 10000.0)
        self.head_dim = field("llama.embedding_length") // self.heads
        embedding = self.weights["token_embd.weight"]
        self.output = self.weights.get("output.weight", embedding)

    def norm(self, rows, name):
        mean_square = numpy.mean(rows.astype(numpy.float64) ** 2, axis=-1, keepdims=True)
        scale = 1.0 / numpy.sqrt(mean_square + self.epsilon)
        return (rows * scale.astype(numpy.float32)) * self.weights[name]

    def rotate(self, rows):
        """rows[token][head][head_dim]: turn each pair of neighbours by position times frequency."""
        count, _, size = rows.shape
        frequency = self.rope_base ** (-numpy.arange(0, size, 2, dtype=numpy.float64) / size)
        angle = numpy.outer(numpy.arange(count), frequency)[:, None, :]
        turn = numpy.exp(1j * angle).astype(numpy.complex64)
        pairs = rows.reshape(count, -1, size // 2, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
        return numpy.stack([turned.real, turned.imag], -1).reshape(rows.shape)

    def attend(self, layer, rows):
        count = len(rows)
        name = f"blk.{layer}."

        def project(which, heads):
            product = rows @ self.weights[name + which].T
            return product.reshape(count, heads, self.head_dim)

        q = self.rotate(project("attn_q.weight", self.heads))
        k = self.rotate(project("attn_k.weight", self.kv_heads))
        v = project("attn_v.weight", self.kv_heads)
        group = self.heads // self.kv_heads
        k, v = numpy.repeat(k, group, axis=1), numpy.repeat(v, group, axis=1)
        scores = numpy.einsum("qhd,khd->hqk", q, k) / numpy.float32(numpy.sqrt(self.head_dim))
        scores[:, numpy.triu(numpy.ones((count, count), bool), 1)] = -numpy.inf
        weights = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = numpy.einsum("hqk,khd->qhd", weights, v).reshape(count, -1)
        return mixed @ self.weights[name + "attn_output.weight"].T

    def feed_forward(self, layer, rows):
        name = f"blk.{layer}."
        gate = rows @ self.weights[name + "ffn_gate.weight"].T
        up = rows @ self.weights[name + "ffn_up.weight"].T
        gate = gate / (1.0 + numpy.exp(-gate))
        return (gate * up) @ self.weights[name + "ffn_down.weight"].T

    def logits(self, ids):
        """[tokens][vocabulary]: what follows each token."""
        rows = self.weights["token_embd.weight"][ids]
        for layer in range(self.layers):
            normed = self.norm(rows, f"blk.{layer}.attn_norm.weight")
            rows = rows + self.attend(layer, normed)
            normed = self.norm(rows, f"blk.{layer}.ffn_norm.weight")
            rows = rows + self.feed_forward(layer, normed)
        return self.norm(rows, "output_norm.weight") @ self.output.T


def mean_nll(logits, ids):
    most = logits[:-1].max(axis=-1)
    sums = numpy.exp((logits[:-1] - most[:, None]).astype(numpy.float64)).sum(axis=-1)
    chosen = logits[numpy.arange(len(ids) - 1), ids[1:]]
    return float(numpy.mean(most + numpy.log(sums) - chosen))


def logits_item(name, ids, logits):
    last = logits[-1]
    top = numpy.argsort(-last, kind="stable")[:10]
    oracle = {"top10": [{"id": int(i), "logit": round(float(last[i]), 4)} for i in top],
              "mean_nll": round(mean_nll(logits, ids), 5)}
    return {"name": name, "n_tokens": len(ids), "ids": ids, "f32_oracle": oracle}


def greedy_item(name, model, prompt):
    ids, margins = [], []
    for _ in range(STEPS):
        last = model.logits(prompt + ids)[-1]
        first, second = numpy.argsort(-last, kind="stable")[:2]
        ids.append(int(first))
        margins.append(round(float(last[first] - last[second]), 4))
    return {"name": name, "prompt_ids": prompt, "ids": ids,
            "f32_oracle": {"ids": ids, "margins": margins}}


def tokenizer(path):
    try:
        from llama_cpp import Llama
    except ImportError:
        sys.exit("make_own_goldens: token ids need llama-cpp-python: pip install llama-cpp-python")
    vocabulary = Llama(path, vocab_only=True, verbose=False)
    return lambda text: vocabulary.tokenize(text.encode(), add_bos=False, special=True)


def write(path, golden):
    """One line for each prompt and kind, so that a changed number is a readable difference."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n")
        for key in ("model_sha256", "oracle"):
            file.write(f"{json.dumps(key)}: {json.dumps(golden[key])},\n")
        for key in ("logits", "greedy"):
            rows = ",\n".join(json.dumps(item) for item in golden[key])
            file.write(f"{json.dumps(key)}: [\n{rows}\n]{',' if key == 'logits' else ''}\n")
        file.write("}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", help="a GGUF file of the llama architecture")
    parser.add_argument("output", help="where to write the golden file")
    arguments = parser.parse_args()
    with open(arguments.model, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    model, tokenize = Model(arguments.model), tokenizer(arguments.model)
    golden = {"model_sha256": digest, "logits": [], "greedy": [],
              "oracle": "make_own_goldens.py: NumPy, float32 weights and activations"}
    for name, text in PROMPTS:
        ids = tokenize(text)
        golden["logits"].append(logits_item(name, ids, model.logits(ids)))
        golden["greedy"].append(greedy_item(name, model, ids))
        print(f"{name}: {len(ids)} tokens", file=sys.stderr)
    write(arguments.output, golden)


if __name__ == "__main__":
    main()
