#!/usr/bin/env python3
"""deploy/scripts/cuda-toolkit on made-up machines: which toolkit it takes, and that --cached asks
nobody. The download itself is not tested here."""
import os
import shutil
import subprocess
import tempfile
import unittest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
SCRIPT = os.path.join(TOP, "deploy", "scripts", "cuda-toolkit")
HEADERS = ["cuda_runtime.h", "cuda_fp16.h", "crt/host_config.h"]


def touch(path, text="", mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def make_headers(folder):
    for name in HEADERS:
        touch(os.path.join(folder, "include", name))


def make_toolkit(folder, release="13.0", cublas=False):
    make_headers(folder)
    touch(os.path.join(folder, "bin", "nvcc"),
          f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n", 0o755)
    if cublas:
        touch(os.path.join(folder, "include", "cublas_v2.h"))
        touch(os.path.join(folder, "lib64", "libcublas.so"))


class Toolkit(unittest.TestCase):
    def setUp(self):
        self.root = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def ask(self, *options, home=None, on_path=None):
        """Status and first line of output. Whatever the test says, pip cannot reach anything."""
        folders = ([os.path.join(on_path, "bin")] if on_path else []) + ["/usr/bin", "/bin"]
        environment = {"PATH": ":".join(folders), "CLUSTERKV_CACHE_DIR": self.path("cache"),
                       "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
        if home:
            environment["CUDA_HOME"] = home
        answer = subprocess.run([SCRIPT, *options], capture_output=True, text=True, check=False,
                                env=environment)
        return answer.returncode, answer.stdout.strip(), answer.stderr

    def test_order(self):
        for name in ("home", "onpath"):
            make_toolkit(self.path(name))
        make_toolkit(self.path("cache", "cuda", "toolkit-13.0"))
        home, onpath = self.path("home"), self.path("onpath")
        self.assertEqual(self.ask(home=home, on_path=onpath)[:2], (0, home))
        self.assertEqual(self.ask(on_path=onpath)[:2], (0, onpath))
        self.assertEqual(self.ask("--headers", on_path=onpath)[:2],
                         (0, os.path.join(onpath, "include")))
        self.assertEqual(self.ask("--no-system", home=home, on_path=onpath)[:2],
                         (0, self.path("cache", "cuda", "toolkit-13.0")))

    def test_what_does_not_suit(self):
        make_toolkit(self.path("old"), "11.8")
        make_headers(self.path("bare"))
        for home in ("old", "bare", "nowhere"):
            status, output, complaint = self.ask(home=self.path(home))
            self.assertEqual((status, output), (1, ""))
            self.assertIn("CUDA_HOME=" + self.path(home), complaint)
        self.assertEqual(self.ask("--headers", home=self.path("bare"))[0], 0)

    def test_cublas(self):
        make_toolkit(self.path("without"))
        make_toolkit(self.path("with"), cublas=True)
        self.assertEqual(self.ask("--cublas", home=self.path("without"))[0], 1)
        self.assertEqual(self.ask("--cublas", home=self.path("with"))[:2], (0, self.path("with")))

    def test_cached(self):
        for options in ([], ["--headers"], ["--cublas"]):
            self.assertEqual(self.ask("--no-system", "--cached", *options), (1, "", ""))
        headers = self.path("cache", "cuda", "headers-13.0")
        make_headers(headers)
        self.assertEqual(self.ask("--no-system", "--cached", "--headers")[:2],
                         (0, os.path.join(headers, "include")))
        self.assertEqual(self.ask("--no-system", "--cached")[0], 1)

    def test_usage(self):
        self.assertEqual(self.ask("--header")[0], 2)
        self.assertEqual(self.ask("--headers", "--cublas")[0], 2)
        self.assertEqual(self.ask("--help")[0], 0)


if __name__ == "__main__":
    unittest.main()
