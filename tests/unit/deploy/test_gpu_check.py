#!/usr/bin/env python3
"""deploy/scripts/gpu-check on made-up machines: none without a GPU, and programs that answer as
the real ones do, or do not."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
SCRIPT = os.path.join(TOP, "deploy", "scripts", "gpu-check")
SMI = "#!/bin/sh\necho 'NVIDIA Made-Up 9, 580.1, 81559, 9.0, 5, 16'\n"

# Tokens and margins come from the environment, so that a GPU can be made to differ.
WORKER = """#!/bin/sh
[ "$1" = serve ] && echo '2026-11-30T10:00:00Z error gpu-worker: 65: the most is 16' >&2 && exit 2
where=$3 third=7 margin=${FAKE_PARTS:-1}
if [ "$where" = cuda ] && [ -n "$FAKE_REFUSES" ]; then
    echo '2026-11-30T10:00:00Z error gpu-worker: backend cuda: the driver is too old' >&2
    exit 1
fi
[ "$where" = cuda ] && [ -n "$FAKE_PARTS" ] && third=9
case "$*" in *" --store unix:"*)
    [ -z "$FAKE_STORELESS" ] || { echo 'error gpu-worker: it cannot be registered' >&2; exit 1; } ;;
esac
echo '{"policy": "clusterkv", "budget": 1, "transport": "map", "prefill_seconds": 0.2,
"index_seconds": 0.5, "decode_seconds": 1.0, "select_seconds": 0.256, "fetch_seconds": 0.512,
"ms_per_token": 4.0, "prompt_tokens": 8192, "prefix_hit_tokens": 0,
"cache": {"hit_bytes": 3, "miss_bytes": 25600000000, "hit_rate": 0.75},'
echo "\\"margins\\": [1, 1, $margin, 1], \\"tokens\\": [5, 6, $third, 8],"
echo "\\"backend\\": \\"$where\\"}"
"""
GATHER = """#!/bin/sh
echo '{"bytes": 1, "copy_gb_s": 50.0, "gather": [
{"extent_bytes": 8192, "blocks": 16, "gb_s": 40.0},
{"extent_bytes": 8192, "blocks": 32, "gb_s": 45.0}]}'
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.root = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.tools = os.path.join(self.root, "tools")
        for name in ("env", "sh", "ldd", "python3", "cat", "bash", "sed", "grep", "tr", "ls"):
            found = shutil.which(name) if name != "python3" else sys.executable
            os.makedirs(self.tools, exist_ok=True)
            if found:
                os.symlink(found, os.path.join(self.tools, name))

    def put(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(full, 0o755)

    def bundle(self, kernel="exit 0"):
        self.put("tools/nvidia-smi", SMI)
        self.put("pack/bin/gpu-worker", WORKER)
        self.put("pack/bin/kvstored", "#!/bin/sh\nexec cat >/dev/null\n")
        self.put("pack/bin/kvctl", "#!/bin/sh\nexit 0\n")
        self.put("pack/bin/bench_cuda_gather", GATHER)
        self.put("pack/tests/test_kernels_cuda_good_gpu", "#!/bin/sh\nexit 0\n")
        self.put("pack/tests/test_kernels_cuda_other_gpu", f"#!/bin/sh\n{kernel}\n")

    def ask(self, *options, **variables):
        environment = {"PATH": self.tools, "TMPDIR": self.root, **variables}
        answer = subprocess.run(
            [sys.executable, SCRIPT, "--out", os.path.join(self.root, "out"), *options],
            capture_output=True, text=True, check=False, env=environment)
        return answer.returncode, answer.stdout, answer.stderr

    def carried(self, *options, **variables):
        status, told, errors = self.ask("--carried", os.path.join(self.root, "pack"), *options,
                                        **variables)
        path = os.path.join(self.root, "out", "gpu-made-up-9.json")
        with open(path, encoding="utf-8") as file:
            return status, told, errors, json.load(file)["steps"]

    def test_without_gpu(self):
        status, told, errors = self.ask()
        self.assertEqual((status, told), (1, ""))
        self.assertEqual(errors.count("\n"), 1)
        self.assertIn("no GPU on this machine: nvidia-smi is not there", errors)
        self.put("tools/nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
        status, told, errors = self.ask()
        self.assertEqual((status, told), (1, ""))
        self.assertIn("NVIDIA-SMI has failed", errors)
        self.assertFalse(os.path.exists(os.path.join(self.root, "out")))

    def test_all_is_well(self):
        self.bundle()
        status, told, errors, steps = self.carried()
        self.assertEqual(status, 0, errors)
        self.assertIn("2 of 2 passed", told)
        self.assertIn("| gather of 8192 bytes each | 32 | 45.00 | 0.90 |", told)
        self.assertIn("| 32768: clusterkv 1024, R=2 | 0.20 | 40960 | 0.50 | 4.000 | 1.00 | 2.00 "
                      "| 0.750 | 100.0 |", told)
        self.assertEqual(len(steps["bench"]["runs"]), 36)
        self.assertIn("the most is 16", steps["batch"]["sizes"]["64"]["not_there"])
        with open(os.path.join(self.root, "out", "gpu-made-up-9.md"), encoding="utf-8") as file:
            self.assertEqual(file.read().strip(), told.strip())

    def test_kernel_fails(self):
        self.bundle("echo 'attend: 3 is not 4'; exit 1")
        status, _, errors, steps = self.carried("--only", "kernels")
        self.assertEqual(status, 1)
        self.assertIn("FAILED: kernels: other: attend: 3 is not 4", errors)
        self.assertEqual(steps["kernels"]["tests"]["good"]["result"], "passed")
        # A test that skips itself has shown nothing.
        self.bundle("exit 77")
        self.assertEqual(self.carried("--only", "kernels")[0], 1)

    def test_tokens_part(self):
        self.bundle()
        status, _, errors, steps = self.carried("--only", "tokens", FAKE_PARTS="0.6")
        self.assertEqual(status, 1)
        self.assertIn("q8_0, full, fp32: part after 2", errors)
        self.assertNotIn("FAILED: tokens: q8_0, full: ", errors)
        self.assertEqual(steps["tokens"]["cases"]["q8_0, full"], {
            "backend": "cuda", "tokens": 4, "same": 2, "margin": 0.6})
        self.assertEqual(self.carried("--only", "tokens", FAKE_PARTS="0.01")[0], 0)

    def test_no_backend(self):
        self.bundle()
        status, told, _, steps = self.carried(FAKE_REFUSES="1")
        self.assertEqual(status, 1)
        self.assertIn("not there: gpu-worker: backend cuda: the driver is too old", told)
        self.assertEqual(len(steps["bench"]["runs"]), 1)

    def test_without_store(self):
        self.bundle()
        status, told, errors, steps = self.carried("--only", "bench", FAKE_STORELESS="1")
        self.assertEqual(status, 0, errors)
        self.assertIn("computes its prompt: error gpu-worker: it cannot be registered", told)
        self.assertTrue(all("ms_per_token" in run for run in steps["bench"]["runs"].values()))

    def test_goes_on(self):
        self.bundle()
        # By what the shortest took, the longest would take 45 s.
        _, told, errors, steps = self.carried("--limit", "60")
        runs = steps["bench"]["runs"]
        self.assertEqual([name for name, run in runs.items() if "not_measured" in run],
                         [name for name in runs if name.startswith("122880")])
        self.assertIn("- 122880: full, on the device: not measured: it may take 65 s", told)
        first = steps["kernels"]
        self.put("pack/tests/test_kernels_cuda_good_gpu", "#!/bin/sh\nexit 1\n")
        status, _, errors, steps = self.carried("--from", "bench")
        self.assertEqual(status, 0, errors)
        self.assertEqual(steps["kernels"], first)
        self.assertNotIn("not_measured", json.dumps(steps["bench"]))

    def test_lacking(self):
        self.bundle()
        os.remove(os.path.join(self.root, "pack", "bin", "kvstored"))
        status, _, errors = self.ask("--carried", os.path.join(self.root, "pack"))
        self.assertEqual(status, 1)
        self.assertIn("lacks kvstored", errors)
        self.assertEqual(self.ask("--from", "coffee")[0], 2)


if __name__ == "__main__":
    unittest.main()
