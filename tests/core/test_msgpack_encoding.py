"""Packing where memory runs out: an exception, and not the end of the process."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from penstock.core.msgpack_encoding import pack

PROGRAM = """
import resource
from pathlib import Path
from penstock.core.msgpack_encoding import pack

values = [{"text": "x" * 20_000} for _ in range(400)]
pack([1])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (9 << 20), -1))
held = []
try:
    while True:
        held.append(pack(values))
except MemoryError:
    print("raised")
"""


def test_packs_as_msgspec_does() -> None:
    value = {"a": [1, "text", b"bytes", None, 2.5], "b": {"c": list(range(1_000))}}
    assert pack(value) == msgspec.msgpack.encode(value)


def test_where_memory_runs_out_packing_raises() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "raised\n"), done.stderr
