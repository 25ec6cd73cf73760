#!/usr/bin/env python3
"""Make a man page: a template, with the options that the program itself lists.

usage: make.py TEMPLATE PROGRAM VERSION OUTPUT

A line "@OPTIONS@" or "@OPTIONS COMMAND@" in the template becomes the options that PROGRAM [COMMAND]
--help shows; "@COMMANDS@" its commands; @VERSION@ anywhere the version. A page is thus as complete
as the help, and a command that the template forgets is an error.
"""
import re
import subprocess
import sys


def run_help(program, command):
    words = [program] + ([command] if command else []) + ["--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        sys.exit(f"make.py: {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def entries(lines):
    """The groups of a help text: (heading, [(term, description)])."""
    groups, heading = [], None
    for line in lines:
        if re.fullmatch(r"\S[^:]*:", line):
            heading = line[:-1]
            groups.append((heading, []))
        elif heading is None or not line.startswith("  "):
            if line.strip():
                heading = None
        elif line.startswith("   "):
            term, text = groups[-1][1][-1]
            groups[-1][1][-1] = (term, f"{text} {line.strip()}".strip())
        else:
            term, _, text = line.strip().partition("  ")
            groups[-1][1].append((term, text.strip()))
    return groups


def bold_term(term):
    name, equals, value = term.partition("=")
    bold = f"\\fB{escape(name)}\\fR"
    return bold + (f"=\\fI{escape(value)}\\fR" if equals else "")


def options(program, command):
    out = []
    for heading, items in entries(run_help(program, command)):
        if heading == "Commands" or heading.startswith("Usage"):
            continue
        out.append(f".SS \"{escape(heading)}\"")
        for term, text in items:
            out += [".TP", bold_term(term), escape(text)]
    return out


def commands(program, template):
    out = []
    for heading, items in entries(run_help(program, None)):
        for term, text in items if heading == "Commands" else []:
            if f"@OPTIONS {term}@" not in template:
                sys.exit(f"make.py: the template lacks @OPTIONS {term}@")
            out += [".TP", bold_term(term), escape(text)]
    return out


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    _, template_path, program, version, output = sys.argv
    with open(template_path, encoding="utf-8") as file:
        template = file.read()
    page = []
    for line in template.replace("@VERSION@", version).splitlines():
        wanted = re.fullmatch(r"@OPTIONS ?(\S*)@", line)
        if wanted:
            page += options(program, wanted.group(1))
        elif line == "@COMMANDS@":
            page += commands(program, template)
        else:
            page.append(line)
    with open(output, "w", encoding="utf-8") as file:
        file.write("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
