"""A process keeps the memory of buffers that it frees."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = 100
PAGES_OF_FOUR_BUFFERS = 4 * 300_000 // 4096
FAULTS = """
import resource
from penstock.core.host_memory import keep_freed_memory

keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(%d):
    [bytearray(300_000) for _ in range(4)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_buffers_get_the_pages_of_those_before() -> None:
    """Without that, each page of each buffer is a fault that the kernel handles."""
    program = [sys.executable, "-c", FAULTS % ROUNDS]
    faults = int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    assert faults < ROUNDS * PAGES_OF_FOUR_BUFFERS / 10
