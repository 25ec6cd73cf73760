#!/usr/bin/env python3
"""Write a tiny decoder-only model with random weights as a GGUF file, for tests.

Standard library only, and the same bytes for the same options everywhere. The vocabulary is a valid
byte-level BPE (every byte, a few merges, the ChatML tokens). Weights are scaled so that attention
is peaky, keys of like tokens lie close together, and the best logit stands clear of the next: tests
that compare answers would otherwise compare noise. The ChatML tokens are never the best.
"""
import argparse
import math
import random
import struct

F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
TYPE_NUMBERS = {"f32": F32, "f16": F16, "q4_0": Q4_0, "q8_0": Q8_0}
U32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Ġ stands for a space. Each merge may use what earlier ones made.
MERGES = """
t h|h e|th e|Ġ the|i n|e r|a n|o n|r e|Ġ a|a t|e n|o r|Ġ t|Ġ s|Ġ w|n d|an d|Ġ and|e s|i s|o u|in g
Ġ o|Ġ b|Ġ c|i t|Ġ in|Ġ h|e d|Ġ f|Ġ p|Ġ m|a l|l l|Ġ to|o f|Ġ of|Ġ d|y ou|Ġ you
"""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet():
    """The printable character that stands for each byte in byte-level BPE vocabularies."""
    plain = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + index) for index in range(len(others))]


def vocabulary():
    tokens = SPECIAL + byte_alphabet()
    merges = []
    known = set(tokens)
    for pair in MERGES.replace("\n", "|").split("|"):
        if not pair:
            continue
        left, right = pair.split(" ")
        if left in known and right in known and left + right not in known:
            merges.append(pair)
            tokens.append(left + right)
            known.add(left + right)
    return tokens, merges


def text(value):
    data = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def encode_value(kind, value):
    if kind == STRING:
        return text(value)
    return struct.pack({U32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<B"}[kind], value)


def metadata(key, kind, value):
    if isinstance(value, list):
        head = text(key) + struct.pack("<IIQ", ARRAY, kind, len(value))
        return head + b"".join(encode_value(kind, element) for element in value)
    return text(key) + struct.pack("<I", kind) + encode_value(kind, value)


def quantise_q8_0(values):
    out = []
    for start in range(0, len(values), 32):
        block = values[start:start + 32]
        scale = max(max(block), -min(block)) / 127.0
        inverse = 1.0 / scale if scale else 0.0
        out.append(struct.pack("<e32b", scale, *[round(value * inverse) for value in block]))
    return b"".join(out)


def quantise_q4_0(values):
    out = []
    for start in range(0, len(values), 32):
        block = values[start:start + 32]
        low, high = min(block), max(block)
        scale = (high if high > -low else low) / -8.0
        inverse = 1.0 / scale if scale else 0.0
        codes = [min(15, int(value * inverse + 8.5)) for value in block]
        packed = bytes(codes[i] | codes[i + 16] << 4 for i in range(16))
        out.append(struct.pack("<e", scale) + packed)
    return b"".join(out)


def encode_tensor(kind, values):
    if kind == F32:
        return struct.pack(f"<{len(values)}f", *values)
    if kind == F16:
        return struct.pack(f"<{len(values)}e", *values)
    return quantise_q8_0(values) if kind == Q8_0 else quantise_q4_0(values)


class Model:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.tensors = []
        self.count = 0

    def kind(self, layer):
        """The type of the next matrix. `mixed` turns through all types, within a layer too, so that
        matrices that are stacked have different ones."""
        if self.options.types != "mixed":
            return TYPE_NUMBERS[self.options.types]
        self.count += 1
        return [F32, F16, Q8_0, Q4_0, Q8_0, F16][(self.count + layer) % 6]

    def vector(self, name, length, mean, deviation):
        gauss = self.random.gauss
        values = [gauss(mean, deviation) for _ in range(length)]
        self.tensors.append((name, [length], F32, encode_tensor(F32, values)))

    def matrix(self, name, rows, columns, deviation, layer=0, row_gain=None):
        """`deviation` is that of an output for inputs of deviation 1."""
        gauss = self.random.gauss
        unit = deviation / math.sqrt(columns)
        values = []
        for row in range(rows):
            spread = unit * (row_gain(row) if row_gain else 1.0)
            values.extend([gauss(0.0, spread) for _ in range(columns)])
        kind = self.kind(layer)
        self.tensors.append((name, [columns, rows], kind, encode_tensor(kind, values)))

    def rotary_gain(self, row):
        """Less weight on the channels that turn fast: what a key says then depends on its token
        more than on its position, as in trained models."""
        head_dim = self.options.head_dim
        channel = row % head_dim
        pairs = head_dim // 2
        pair = channel // 2 if self.options.architecture == "llama" else channel % pairs
        return 0.35 if pair < pairs // 3 else 1.2

    def layer(self, index):
        options = self.options
        name = f"blk.{index}."
        q_rows = options.heads * options.head_dim
        kv_rows = options.kv_heads * options.head_dim
        self.vector(name + "attn_norm.weight", options.hidden, 1.0, 0.1)
        self.matrix(name + "attn_q.weight", q_rows, options.hidden, 1.9, index, self.rotary_gain)
        self.matrix(name + "attn_k.weight", kv_rows, options.hidden, 1.9, index, self.rotary_gain)
        self.matrix(name + "attn_v.weight", kv_rows, options.hidden, 1.0, index)
        if options.architecture == "qwen2":
            self.vector(name + "attn_q.bias", q_rows, 0.0, 0.5)
            self.vector(name + "attn_k.bias", kv_rows, 0.0, 0.5)
            self.vector(name + "attn_v.bias", kv_rows, 0.0, 0.2)
        self.matrix(name + "attn_output.weight", options.hidden, q_rows, 1.2, index)
        self.vector(name + "ffn_norm.weight", options.hidden, 1.0, 0.1)
        self.matrix(name + "ffn_gate.weight", options.feed_forward, options.hidden, 1.5, index)
        self.matrix(name + "ffn_up.weight", options.feed_forward, options.hidden, 1.0, index)
        self.matrix(name + "ffn_down.weight", options.hidden, options.feed_forward, 0.8, index)

    def build(self, vocabulary_size):
        options = self.options

        def damp_special(row):
            return 0.02 if row < len(SPECIAL) else 1.0

        # The deviation of an output is that of an element times √hidden: elements have deviation 1
        # (or, tied, what the logits need).
        root = math.sqrt(options.hidden)
        if options.tied:
            self.matrix("token_embd.weight", vocabulary_size, options.hidden, 6.0)
        else:
            self.matrix("token_embd.weight", vocabulary_size, options.hidden, root)
        for index in range(options.layers):
            self.layer(index)
        self.vector("output_norm.weight", options.hidden, 1.0, 0.1)
        if not options.tied:
            self.matrix("output.weight", vocabulary_size, options.hidden, 6.0, 0, damp_special)
        if options.rope_freqs:
            pairs = options.head_dim // 2
            factors = [1.0 if pair < pairs // 2 else 4.0 for pair in range(pairs)]
            self.tensors.append(("rope_freqs.weight", [pairs], F32, encode_tensor(F32, factors)))


def model_metadata(options, tokens, merges):
    arch = options.architecture
    end = tokens.index("<|im_end|>")
    return [
        metadata("general.architecture", STRING, arch),
        metadata("general.name", STRING, f"tiny {arch} with random weights"),
        metadata("general.alignment", U32, ALIGNMENT),
        metadata(f"{arch}.block_count", U32, options.layers),
        metadata(f"{arch}.context_length", U32, options.context),
        metadata(f"{arch}.embedding_length", U32, options.hidden),
        metadata(f"{arch}.feed_forward_length", U32, options.feed_forward),
        metadata(f"{arch}.attention.head_count", U32, options.heads),
        metadata(f"{arch}.attention.head_count_kv", U32, options.kv_heads),
        metadata(f"{arch}.attention.key_length", U32, options.head_dim),
        metadata(f"{arch}.attention.value_length", U32, options.head_dim),
        metadata(f"{arch}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        metadata(f"{arch}.rope.dimension_count", U32, options.head_dim),
        metadata(f"{arch}.rope.freq_base", FLOAT32, options.rope_base),
        metadata("tokenizer.ggml.model", STRING, "gpt2"),
        metadata("tokenizer.ggml.pre", STRING, "smollm" if arch == "llama" else "qwen2"),
        metadata("tokenizer.ggml.tokens", STRING, tokens),
        metadata("tokenizer.ggml.token_type", INT32,
                 [3 if token in SPECIAL else 1 for token in tokens]),
        metadata("tokenizer.ggml.merges", STRING, merges),
        metadata("tokenizer.ggml.bos_token_id", U32, tokens.index("<|im_start|>")),
        metadata("tokenizer.ggml.eos_token_id", U32, end),
        metadata("tokenizer.ggml.padding_token_id", U32, end),
        metadata("tokenizer.ggml.unknown_token_id", U32, 0),
        metadata("tokenizer.ggml.add_bos_token", BOOL, 0),
        metadata("tokenizer.chat_template", STRING, CHAT_TEMPLATE),
    ]


def pad(data):
    return data + bytes(-len(data) % ALIGNMENT)


def write(path, entries, tensors):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries)
    offset = 0
    for name, shape, kind, data in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += len(pad(data))
    body = b"".join(pad(data) for _, _, _, data in tensors)
    with open(path, "wb") as file:
        file.write(pad(head) + body)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--architecture", choices=["llama", "qwen2"], default="llama")
    parser.add_argument("--types", choices=["mixed", *TYPE_NUMBERS], default="mixed")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--feed-forward", type=int, default=256)
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--rope-base", type=float, default=100000.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tied", action="store_true", help="the embedding is the output too")
    parser.add_argument("--rope-freqs", action="store_true", help="with a rope_freqs.weight tensor")
    options = parser.parse_args()
    tokens, merges = vocabulary()
    model = Model(options)
    model.build(len(tokens))
    write(options.output, model_metadata(options, tokens, merges), model.tensors)


if __name__ == "__main__":
    main()
