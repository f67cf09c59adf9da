"""`make simulate`: run many seeds, and shrink those that fail."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from typing import Final

from tests.harness.cluster_simulation.chance import FAULTS, USER_ACTIONS, Faults
from tests.harness.cluster_simulation.run import run_seed, shrink, tell

_TOLD_EVERY: Final = 100


def main() -> int:
    """Run the seeds that were asked for; 1 if any has failed."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="one seed, or FIRST:END")
    parser.add_argument("--without", action="append", default=[], choices=[*FAULTS, *USER_ACTIONS])
    parser.add_argument("--most", type=int, default=Faults().most, help="faults at most")
    parser.add_argument("--shrink", action="store_true", help="look for fewer faults")
    parser.add_argument("--story", type=int, default=40, help="lines of a failure's story")
    parser.add_argument("--log", action="store_true", help="show what the parts log")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO if given.log else logging.CRITICAL)
    first, _, end = given.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    faults = Faults(frozenset(given.without), given.most)
    gc.freeze()  # No look for cycles goes through what was imported: a fifth of the time.
    failed, counts, begun = [], Counter[str](), time.monotonic()
    commits = virtual_s = 0.0
    for seed in seeds:
        outcome = run_seed(seed, faults)
        counts.update(outcome.faults)
        commits += outcome.commits
        virtual_s += outcome.virtual_s
        if seed % _TOLD_EVERY == 0:
            say(f"{seed} after {time.monotonic() - begun:.0f} s")
        if outcome.violation:
            failed.append(seed)
            smallest, fewer = outcome, faults
            if given.shrink:
                smallest, fewer = shrink(outcome, faults, say)
            say(f"{tell(smallest, fewer, given.story)}\n")
    took_s = time.monotonic() - begun
    say(
        f"{len(seeds)} seeds in {took_s:.0f} s, {virtual_s / 3600:.1f} virtual hours,"
        f" {commits:.0f} commits, {counts.total()} faults; failed: {failed or 'none'}"
    )
    say(", ".join(f"{count} x {kind}" for kind, count in counts.most_common()))
    return 1 if failed else 0


def fix_order_of_sets() -> None:
    """Begin again with the hashes of texts fixed, or a seed is another one in each process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.harness.cluster_simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})


def say(text: str) -> None:
    """Print for whoever started it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    fix_order_of_sets()
    sys.exit(main())
