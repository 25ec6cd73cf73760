#!/usr/bin/env python3
"""tests/tidy/run must find what is wrong: trees with one fault of each kind, and a good one."""
import os
import subprocess
import sys
import tempfile
import unittest

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")

RULES = """# a comment
module low:
module high: low/
\t!low/secret.h
module tests: tests/ low/ high/
file high/special.c: low/secret.h
library uv.h: high/loop.c
library cuda_runtime_api.h: low/
standard stdio.h stdlib.h
limit function-lines 5
limit line-columns 40
limit file-lines 20
limit tab-columns 4
may-exit high/main.c
header-part low/part.h
header-c low/atomic.h
header-cxx low/template.h
header-cuda low/device.h
never \\bTO""" + """DO\\b
never (?<![\\w./])/elsewhere/\\w
"""

GOOD = {
    "tests/tidy/includes.table": RULES,
    "tests/tidy/gnu_source.list": "# why\nlow/gnu.c  memfd\n",
    "low/low.h": "enum low { LOW };\n",
    "low/secret.h": "enum secret { SECRET };\n",
    "low/part.h": "int part(PART x);\n",
    "low/atomic.h": "extern _Atomic int low_count;\n",
    "low/template.h": "template <class T> T low(T x);\n",
    "low/device.h": "#include <cuda_runtime_api.h>\n\ncudaError_t low(void);\n",
    "low/gnu.c": "#define _GNU_SOURCE\n#include <stdio.h>\n",
    "high/special.c": '#include "low/secret.h"\n',
    "high/loop.c": "#include <uv.h>\n",
    "high/main.c": '#include "low/low.h"\n\nint main(void)\n{\n\texit(0);\n}\n',
    "high/typed.h": '#include "low/low.h"\n\ntypedef enum low (*typed)(int x);\nstruct high;\n',
    "high/sizes.c": "void f(void)\n{\n\tint a[LIMIT + 1];\n\tint b[sizeof(x)[2] * 2];\n"
                    "\tf(a[i]);\n}\n",
    "high/quote.c": "/* exit(1) */ char *x = \"exit(1)\";\n",
}

# What is planted: the file, its text, and words of the complaint.
BAD = {
    "upwards": ("low/up.c", '#include "high/typed.h"\n', "low may not include high/typed.h"),
    "taken back": ("high/a.c", '#include "low/secret.h"\n', "high may not include low/secret.h"),
    "missing": ("high/a.c", '#include "low/none.h"\n', "is no file"),
    "relative": ("high/a.c", '#include "../low/low.h"\n', "is no file"),
    "unknown folder": ("new/a.c", '#include "low/low.h"\n', "no module"),
    "library": ("low/a.c", "#include <uv.h>\n", "<uv.h> may only be included by"),
    "unknown library": ("low/a.c", "#include <curl.h>\n", "<curl.h> is neither"),
    "long function": ("low/a.c", "int f(void)\n{\n" + "\tx();\n" * 4 + "}\n", "a function of 6"),
    "long line": ("low/a.c", "\t" * 9 + "int x;\n", "42 columns"),
    "long file": ("low/a.c", "int x;\n" * 21, "21 lines"),
    "white space": ("low/a.c", "int x; \n", "white space"),
    "wide script": ("high/script", "#!/bin/sh\n" + "e" * 41 + "\n", "41 columns"),
    "gnu": ("low/a.c", "#define _GNU_SOURCE\n", "_GNU_SOURCE in a file"),
    "gnu gone": ("low/gnu.c", "#include <stdio.h>\n", "does not define"),
    "typedef": ("low/a.h", "typedef struct {\n\tint x;\n} point;\n", "a typedef"),
    "vla": ("low/a.c", "void f(int n)\n{\n\tint a[n + 1];\n}\n", "VLA"),
    "vla by size": ("low/a.c", "void f(int n)\n{\n\tint a[n * sizeof(int)];\n}\n", "VLA"),
    "exit": ("low/a.c", "void f(void)\n{\n\texit(1);\n}\n", "exit() in a library"),
    "abort": ("low/a.c", "void f(void)\n{\n\tabort();\n}\n", "abort() in a library"),
    "header in C": ("low/a.h", "class x;\n", "does not compile alone as c11"),
    "header in C++": ("low/a.h", "struct a;\nvoid f(struct a *class);\n", "alone as c++17"),
    "word": ("low/a.md", "a TO" + "DO\n", "does not belong"),
    "path": ("low/a.md", "see /else" + "where/me\n", "does not belong"),
    "dead rule": ("tests/tidy/includes.table", RULES + "file low/gone.c: high/\n", "low/gone.c"),
}


def run(files):
    """The exit status and the output of a check of a tree of these files."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        answer = subprocess.run([sys.executable, RUN, "--root", root], capture_output=True,
                                text=True, check=False)
        return answer.returncode, answer.stdout + answer.stderr


class Tidy(unittest.TestCase):
    def test_good_tree(self):
        self.assertEqual(run(GOOD)[0], 0, run(GOOD)[1])

    def test_each_fault_is_found(self):
        for name, (path, text, complaint) in BAD.items():
            with self.subTest(name):
                status, output = run({**GOOD, path: text})
                self.assertEqual(status, 1, output)
                self.assertIn(complaint, output)
                self.assertIn("1 problems", output)

    def test_wrong_table(self):
        status, output = run({**GOOD, "tests/tidy/includes.table": "modul low:\n"})
        self.assertEqual(status, 1)
        self.assertIn("unknown keyword", output)


if __name__ == "__main__":
    unittest.main()
