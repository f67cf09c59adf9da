"""The one table that all benchmarks print.

A benchmark module offers ``run() -> list[Row]``; ``python -m benchmarks`` merges and prints them.
"""

from __future__ import annotations

import gc
import importlib
import operator
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADING = ("what", "ours", "unit", "against", "its figure", "ratio", "aim", "")
TO_THE_RIGHT = frozenset({1, 4, 5})
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of ours beside that of a peer or a limit, measured in the same run.

    `ratio` is ours / peer for rates and for times alike; `aim` is what it must be, such as
    ``>= 3`` for a rate and ``< 1`` for a time that must not pass a limit, or "" without an aim.
    """

    name: str
    ours: float
    unit: str
    peer_name: str = ""
    peer: float | None = None
    ratio: float | None = None
    aim: str = ""

    @property
    def verdict(self) -> str:
        """``reached`` or ``MISSED``, or nothing where there is no aim."""
        if not self.aim or self.ratio is None:
            return ""
        comparison, _, bound = self.aim.partition(" ")
        return "reached" if COMPARE[comparison](self.ratio, float(bound)) else "MISSED"


def against(name: str, ours: float, unit: str, peer_name: str, peer: float, aim: str = "") -> Row:
    """Return a row whose ratio is computed."""
    return Row(name, ours, unit, peer_name, peer, ours / peer, aim)


def figure(value: float | None) -> str:
    """Return a number with three digits that matter and thousands set apart."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def start_timer() -> float:
    """Return the time at which a measurement begins, in seconds of `time.perf_counter`.

    Garbage is collected before, and what is left is never scanned again: a collection of all that
    the benchmark prepared takes as long as what some rows measure, and falls into any of them.
    """
    gc.collect()
    gc.freeze()
    return time.perf_counter()


def format_rows(rows: Sequence[Row]) -> str:
    """Return the rows as an aligned table with a heading."""
    cells = [HEADING, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADING))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in TO_THE_RIGHT else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def print_rows(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    print(format_rows(rows))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        figure(row.ours),
        row.unit,
        row.peer_name,
        figure(row.peer),
        figure(row.ratio),
        row.aim,
        row.verdict,
    )


def run_benchmark(name: str) -> list[Row]:
    """Run a benchmark by the name of its module, in this process."""
    found: list[Row] = importlib.import_module(f"benchmarks.{name}").run()
    return found
