"""Writes files, all in one folder and to be run, as an archive that a Linux kernel starts with.

usage: cpio.py ARCHIVE FILE...
"""
import pathlib
import sys


def entry(name: str, mode: int, data: bytes) -> bytes:
    """One file in the "newc" form: a header of hexadecimal numbers, name and data, padded to 4."""
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = ("070701" + "".join(f"{number:08X}" for number in numbers) + name + "\0").encode()
    head += b"\0" * (-len(head) % 4)
    return head + data + b"\0" * (-len(data) % 4)


archive, *files = map(pathlib.Path, sys.argv[1:])
parts = [entry(file.name, 0o100755, file.read_bytes()) for file in files]
archive.write_bytes(b"".join(parts) + entry("TRAILER!!!", 0, b""))
