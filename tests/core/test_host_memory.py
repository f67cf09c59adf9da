"""A process keeps the memory of buffers that it frees."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.broker.options import BrokerOptions

ROUNDS = 100
LARGEST = BrokerOptions("folder").max_body_bytes
FAULTS = """
import resource, sys
from penstock.core.host_memory import keep_freed_memory

keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(int(sys.argv[1])):
    [bytearray(int(sys.argv[3])) for _ in range(int(sys.argv[2]))]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(("count", "size"), [(4, 300_000), (2, LARGEST)])
def test_buffers_get_the_pages_of_those_before(count: int, size: int) -> None:
    """Without that, each page of each buffer is a fault that the kernel handles."""
    program = [sys.executable, "-c", FAULTS, *map(str, (ROUNDS, count, size))]
    faults = int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    assert faults < ROUNDS * count * size / 4096 / 10
