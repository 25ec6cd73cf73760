#!/usr/bin/env python3
"""tests/kernels/cuda/resource_table on what ptxas writes of kernels: a good one, and bad ones."""
import os
import subprocess
import tempfile
import unittest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
SCRIPT = os.path.join(TOP, "tests", "kernels", "cuda", "resource_table")


def kernel(name, architecture, used="8 registers, used 1 barriers, 512 bytes smem",
           frame=(0, 0, 0)):
    return (f"ptxas info    : Compiling entry function '{name}' for 'sm_{architecture}'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    {frame[0]} bytes stack frame, {frame[1]} bytes spill stores, "
            f"{frame[2]} bytes spill loads\n"
            f"ptxas info    : Used {used}\n")


GOOD = kernel("_Z5scaleILi128EEvPffi", 80) + kernel("_Z5scaleILi128EEvPffi", 90, "40 registers")


class Table(unittest.TestCase):
    def run_on(self, text, architectures="80,90"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "scale.cu.resources")
            if text is not None:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            answer = subprocess.run([SCRIPT, architectures, path], capture_output=True, text=True,
                                    check=False)
            return answer.returncode, answer.stdout, answer.stderr

    def test_good(self):
        status, output, complaint = self.run_on(GOOD)
        self.assertEqual((status, complaint), (0, ""))
        row = next(line for line in output.split("\n") if "scale<128>" in line)
        self.assertEqual(row.split(), ["scale<128>", "8", "512", "B", "40", "0", "B"])

    def test_bad(self):
        for frame in ((16, 0, 0), (0, 4, 0), (0, 0, 4)):
            bad = kernel("_Z4dumbPf", 90, frame=frame)
            status, _, complaint = self.run_on(GOOD + kernel("_Z4dumbPf", 80) + bad)
            self.assertEqual(status, 1)
            self.assertIn("dumb on sm_90", complaint)

    def test_what_is_not_there(self):
        self.assertIn("not there for sm_89", self.run_on(GOOD, "80,89,90")[2])
        self.assertIn("is not compiled", self.run_on(None)[2])
        self.assertEqual(self.run_on("ptxas info    : 0 bytes gmem\n")[0], 1)

    def test_none(self):
        answer = subprocess.run([SCRIPT, "--none", "no nvcc"], capture_output=True, text=True,
                                check=False)
        self.assertEqual((answer.returncode, answer.stdout), (77, "skipped: no nvcc\n"))


if __name__ == "__main__":
    unittest.main()
