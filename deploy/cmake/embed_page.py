"""Writes a web page as a C array, and the content security policy that admits the page's own style
and script, by their hashes, and nothing else. Arguments: page, C file, header, name."""
import base64
import hashlib
import re
import sys


def hashes(page, tag):
    parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return " ".join("'sha256-" + base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
                    + "'" for part in parts)


def main():
    source, target, header, name = sys.argv[1:]
    with open(source, encoding="utf-8", newline="") as file:
        page = file.read()
    policy = (f"default-src 'none'; script-src {hashes(page, 'script')}; "
              f"style-src {hashes(page, 'style')}; connect-src 'self'; base-uri 'none'; "
              "form-action 'none'; frame-ancestors 'none'")
    data = page.encode() + b"\0"
    rows = [", ".join(str(byte) for byte in data[i:i + 20]) for i in range(0, len(data), 20)]
    with open(target, "w", encoding="utf-8") as file:
        file.write(f'#include "{header}"\n\nconst char {name}[] = {{\n\t' + ",\n\t".join(
            re.sub(r"\b(1[3-9]\d|12[89]|2\d\d)\b", r"(char)\1", row) for row in rows)
            + f"}};\n\nconst char {name}_policy[] =\n    \"{policy}\";\n")


if __name__ == "__main__":
    main()
