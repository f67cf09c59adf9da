"""Bar charts from the tables that `docs/concepts/benchmarks.md` records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drawing import Kind, Picture

PAGE: Final = Path(__file__).parent.parent / "concepts" / "benchmarks.md"
_ROW: Final = re.compile(
    r"(?P<name>\S.*?) {2,}(?P<ours>[\d,.]+) +(?P<unit>\S.*?) {2,}(?P<peer>\S.*?)"
    r" {2,}(?P<figure>[\d,.]+) +(?P<ratio>[\d,.]+).*"
)
LEFT: Final = 250
WIDTH: Final = 480
BAR: Final = 16


@dataclass(frozen=True)
class Measured:
    """A row of a table: a figure of Penstock, that of a peer, and their ratio.

    The ratio of medians of rounds is not always the quotient of the two figures.
    """

    name: str
    ours: float
    peer: float
    ratio: float


def rows() -> dict[str, Measured]:
    """Return the recorded rows by their names; the first row of a name counts."""
    found: dict[str, Measured] = {}
    for line in PAGE.read_text().splitlines():
        match = _ROW.fullmatch(line)
        if match is not None:
            name = match["name"]
            figures = (number(match[one]) for one in ("ours", "figure", "ratio"))
            found.setdefault(name, Measured(name, *figures))
    return found


def number(text: str) -> float:
    """Return a number with separators of thousands."""
    return float(text.replace(",", ""))


def short(value: float) -> str:
    """Return a rate with three digits."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.2f} M/s"
    return f"{value / 1_000:.0f} k/s" if value >= 1_000 else f"{value:.0f} /s"


def chart(title: str, description: str, peer: str, shown: list[Measured]) -> Picture:
    """Return pairs of bars, ours above the peer's.

    Args:
        title: Title of the picture.
        description: The same for readers who cannot see it.
        peer: Name of the peer.
        shown: The rows.
    """
    step = 2 * BAR + 18
    p = Picture(860, 50 + step * len(shown), title, description)
    most = max(max(row.ours, row.peer) for row in shown)
    p.box(LEFT, 12, 16, 14, "", "process")
    p.text(LEFT + 24, 19, "Penstock")
    p.box(LEFT + 120, 12, 16, 14, "", "old")
    p.text(LEFT + 144, 19, peer)
    for line, row in enumerate(shown):
        top = 42 + step * line
        p.text(15, top + BAR, row.name)
        kinds: tuple[tuple[float, Kind], ...] = ((row.ours, "process"), (row.peer, "old"))
        for place, (value, kind) in enumerate(kinds):
            length = max(2.0, WIDTH * value / most)
            p.box(LEFT, top + (BAR + 1) * place, round(length, 1), BAR, "", kind)
            ratio = f", {row.ratio:.1f} times" if kind == "process" else ""
            p.text(LEFT + length + 8, top + (BAR + 1) * place + BAR / 2, short(value) + ratio)
    return p
