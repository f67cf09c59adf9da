"""The soak of hand-offs as a suite of `make soak`: a case is a minute with one hand-off.

make soak ARGS="hand-offs --total 30"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.kits.soak_samples_kit import counts_of

TEST: Final = Path(__file__).parent.parent / "system" / "test_soak.py"
_FAILURE_CHARACTERS_MAX: Final = 4_000


def _run(minutes: range) -> tuple[list[str], dict[str, int]]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-n", "0", str(TEST)],
        env={**os.environ, "PENSTOCK_SOAK_MINUTES": str(len(minutes))},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (line.lstrip(".") for line in done.stdout.splitlines())
    samples = [json.loads(line) for line in lines if line.startswith('{"minute"')]
    counts: dict[str, int] = {}
    if samples:
        counts = {"hand_offs": samples[-1]["handoffs"], "events": samples[-1]["events"]}
        for name in ("worker", "overlord", "router", "spark"):
            use = samples[-1]["processes"].get(name, {})
            counts |= {f"{name}_{kind}": value for kind, value in use.items() if kind != "pid"}
        counts |= counts_of(samples[-1])
    failures = [done.stdout[-_FAILURE_CHARACTERS_MAX:]] if done.returncode else []
    return failures, counts


@contextmanager
def hand_offs() -> Iterator[Callable[[range], tuple[list[str], dict[str, int]]]]:
    """Give what runs a number of minutes."""
    yield _run
