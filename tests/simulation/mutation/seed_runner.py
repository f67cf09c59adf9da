"""Runs seeds of the simulation in a process of its own, and prints a line of JSON for each.

    python -m tests.simulation.mutation.seed_runner 0 1 2
    python -m tests.simulation.mutation.seed_runner --lines 0 1 2

It ends after the first seed with a violation. The line of a seed has its number, the violation, and
with `--lines` the executed lines of the modules that the catalogue changes.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import resource
import sys
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tests.harness.cluster_simulation.run import run_seed
from tests.simulation.mutation.catalogue import SOURCES, load

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from _typeshed import TraceFunction

CPU_LIMIT_S: Final = 60
"""Processor time of a seed, which usually takes one second: a product that loops is ended."""
WALL_LIMIT_S: Final = 900
MEMORY_LIMIT_BYTES: Final = 6 << 30
_VIOLATION_CHARACTERS: Final = 300


class ExecutedLines:
    """Records which lines of some modules are executed; of each line the first time only."""

    def __init__(self, files: set[str]) -> None:
        self._files = files
        self._left: dict[CodeType, set[int]] = {}
        self.found: defaultdict[str, set[int]] = defaultdict(set)

    def start(self) -> None:
        """Record the lines of this thread, and of threads that start from now on."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def take(self) -> dict[str, list[int]]:
        """Return the lines since the last call."""
        found = {name: sorted(lines) for name, lines in self.found.items()}
        self._left.clear()
        self.found.clear()
        return found

    def _call(self, frame: FrameType, _event: str, _arg: object) -> TraceFunction | None:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            wanted = code.co_filename in self._files
            lines = {line for _, _, line in code.co_lines() if line} if wanted else set[int]()
            left = self._left[code] = lines
        return self._line if left else None

    def _line(self, frame: FrameType, _event: str, _arg: object) -> TraceFunction:
        left, line = self._left.get(frame.f_code), frame.f_lineno
        if left is None or line in left:
            self.found[frame.f_code.co_filename].add(line)
            if left is not None:
                left.discard(line)
        return self._line


def main() -> None:
    """Run the seeds that are named on the command line."""
    given = sys.argv[1:]
    records = given[:1] == ["--lines"]
    lines = None
    if records:
        files = {str(SOURCES / fault.file): fault.file for fault in load()}
        lines = ExecutedLines(set(files))
        lines.start()
        given = given[1:]
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    gc.freeze()
    for seed in map(int, given):
        if not records:
            used = resource.getrusage(resource.RUSAGE_SELF)
            most = int(used.ru_utime + used.ru_stime) + 1 + CPU_LIMIT_S
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
            faulthandler.dump_traceback_later(WALL_LIMIT_S, exit=True)
        outcome = run_seed(seed)
        line: dict[str, object] = {
            "seed": seed,
            "violation": outcome.violation[:_VIOLATION_CHARACTERS],
        }
        if lines is not None:
            line["lines"] = {files[name]: found for name, found in lines.take().items()}
        out.write(f"{json.dumps(line)}\n")
        out.flush()
        if outcome.violation:
            break
    out.flush()
    os._exit(0)  # Threads of a product with a fault may never end.


if __name__ == "__main__":
    main()
