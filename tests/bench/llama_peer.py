"""llama.cpp as a peer: one process, one context, timed on request.

    llama_peer.py MODEL CONTEXT THREADS on|off BATCH MICROBATCH [plain]

Reads one JSON object a line, {"ids": […], "contexts": […], "decode": N}, and answers each with one:
the seconds that the prompt's first `contexts` tokens take (cumulative, logits of the last token
only), and the milliseconds of each of N greedy steps after the longest. Only llama_decode and the
wait for it are inside the clock. Key/values are fp16. plain: without repacked weights.
"""
import ctypes
import json
import sys
import time

import llama_cpp
import numpy


class Peer:
    """A model and a context of llama.cpp."""

    def __init__(self, model, context, threads, flash, batch, microbatch, plain):
        self.silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        if plain:
            options.use_extra_bufts = False
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), options)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {model}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = context, batch, microbatch
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = 1 if flash else 0
        settings.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            sys.exit(f"llama.cpp cannot make a context of {context} tokens")
        self.memory = llama_cpp.llama_get_memory(self.context)
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.batch_tokens = batch
        self.batch = llama_cpp.llama_batch_init(batch, 0, 1)

    def step(self, ids, position, wants_logits):
        """Seconds that these tokens take; they follow `position` others."""
        self.batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            self.batch.token[i] = token
            self.batch.pos[i] = position + i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = 0
        self.batch.logits[len(ids) - 1] = 1 if wants_logits else 0
        start = time.perf_counter()
        code = llama_cpp.llama_decode(self.context, self.batch)
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        if code:
            sys.exit(f"llama_decode failed with {code}")
        return seconds

    def prefill(self, ids, position):
        seconds = 0.0
        for at in range(0, len(ids), self.batch_tokens):
            piece = ids[at:at + self.batch_tokens]
            seconds += self.step(piece, position + at, at + len(piece) == len(ids))
        return seconds

    def likeliest(self):
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(numpy.argmax(numpy.ctypeslib.as_array(logits, shape=(self.vocabulary,))))

    def answer(self, ids, contexts, decode):
        llama_cpp.llama_memory_clear(self.memory, False)
        prefill, seconds, done = {}, 0.0, 0
        for count in contexts:
            seconds += self.prefill(ids[done:count], done)
            prefill[str(count)], done = seconds, count
        steps = []
        for i in range(decode):
            steps.append(1e3 * self.step([self.likeliest()], done + i, True))
        return {"prefill_seconds": prefill, "decode_ms": steps}


def main():
    model, context, threads, flash, batch, microbatch = sys.argv[1:7]
    peer = Peer(model, int(context), int(threads), flash == "on", int(batch), int(microbatch),
                sys.argv[7:] == ["plain"])
    ready = {"version": llama_cpp.__version__,
             "system": llama_cpp.llama_print_system_info().decode()}
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # Once untimed: all weights are in memory, all buffers there.
        peer.answer(request["ids"][:64], [64], 1)
        print(json.dumps(peer.answer(**request)), flush=True)


if __name__ == "__main__":
    main()
