"""Two ways to do the same work, measured in turns on one machine.

Both run in each round, and which one is first alternates, so that a disturbance of the machine
rarely meets one of them alone. The figures are medians: of the rates of each, and of the ratios of
the rounds, which a disturbance moves least. Each round is printed.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS: Final = 5
WARM_UP_ROUNDS: Final = 2


def in_turns(
    name: str,
    rows: int,
    ours: Callable[[], float],
    plain: Callable[[], float],
    *,
    rounds: int = ROUNDS,
    aim: str = "",
    peer: str = "plain PySpark",
) -> Row:
    """Return rows a second beside those of a peer.

    Args:
        name: Name of the row.
        rows: How many rows each run takes.
        ours: Runs Penstock once, and returns its seconds.
        plain: Runs the peer once, and returns its seconds.
        rounds: How many rounds count, after the first ones, which warm up.
        aim: The ratio that must be reached.
        peer: Name of the peer.
    """
    pairs = []
    for number in range(WARM_UP_ROUNDS + rounds):
        if number % 2:
            plain_s = plain()
            ours_s = ours()
        else:
            ours_s = ours()
            plain_s = plain()
        shown = f"ours {ours_s:.2f} s, {peer} {plain_s:.2f} s, ratio {plain_s / ours_s:.2f}"
        print(f"  {name}: {shown}", file=sys.stderr, flush=True)
        pairs.append((ours_s, plain_s))
    counted = pairs[WARM_UP_ROUNDS:]
    return Row(
        name,
        rows / median(ours_s for ours_s, _ in counted),
        "rows/s",
        peer,
        rows / median(plain_s for _, plain_s in counted),
        median(plain_s / ours_s for ours_s, plain_s in counted),
        aim,
    )
