"""The mutation gate: put faults into the product, and count those that the simulation notices.

    python -m tests.simulation.mutation --seeds 20 --sample 40
    python -m tests.simulation.mutation --only suspend-does-nothing --seeds 200
    python -m tests.simulation.mutation --part lockbox --jobs 2
    python -m tests.simulation.mutation --reach

It prints a line for each fault, then the share of noticed ones by part, and the survivors with
their verdicts. Results are added to `record.jsonl`, and are not repeated for the same sources. It
ends with 1 if a fault survived that has no verdict, or if fewer were noticed than `--least`
requires. `--reach` tries no fault, and prints those whose code no seed executes.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.simulation.mutation.catalogue import Fault, load
from tests.simulation.mutation.trials import Reach, Record, Trees, Trial, carry_on

RECORD: Final = Path(__file__).parent / "record.jsonl"
_SOON: Final = 20
_HOW_CHARACTERS: Final = 110


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the faults that were asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.mutation", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=_SOON, help="seeds for each fault")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="one fault")
    parser.add_argument("--part", action="append", default=[], metavar="NAME", help="one part")
    parser.add_argument("--sample", type=int, help="number of faults, the same ones each time")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no fault later")
    parser.add_argument("--least", type=float, default=0.0, help="noticed, in percent")
    parser.add_argument("--record", type=Path, default=RECORD, help="file that lines are added to")
    parser.add_argument("--reach", action="store_true", help="only which faults are executed")
    given = parser.parse_args(arguments)
    faults = chosen(load(), given.only, given.part, given.sample)
    trees = Trees.now()
    record, reach = Record(given.record, trees), Reach(given.record.with_name("reach.json"), trees)
    if given.reach:
        reach.require(given.seeds)
        print(not_executed(faults, reach, given.seeds))
        return 0
    trials = record.trials(faults)
    if not all(trial.is_enough(given.seeds) for trial in trials.values()):
        reach.require(given.seeds)
    until_s = time.monotonic() + given.seconds
    mutex = threading.Lock()  # guards the trials and the output

    def attempt(trial: Trial) -> None:
        if trial.is_enough(given.seeds) or time.monotonic() >= until_s:
            return
        done = carry_on(trial, given.seeds, reach, record)
        with mutex:
            trials[done.fault.id] = done
            print(told(done), flush=True)

    with ThreadPoolExecutor(given.jobs) as jobs:
        list(jobs.map(attempt, list(trials.values())))
    tried = [trial for trial in trials.values() if trial.is_enough(given.seeds)]
    print(summary(tried, given.seeds))
    unjudged = [one for one in tried if one.noticed is None and not one.fault.verdict]
    return int(bool(unjudged) or share(tried) < given.least)


def chosen(
    faults: Sequence[Fault], only: Sequence[str], parts: Sequence[str], sample: int | None
) -> list[Fault]:
    """Return the faults to try: those that are not equivalent, in a random order."""
    known = {fault.id for fault in faults}
    if unknown := sorted(set(only) - known):
        sys.exit(f"there is no fault {unknown[0]!r} in the catalogue")
    found = [
        fault
        for fault in faults
        if fault.verdict != "equivalent"
        and (not only or fault.id in only)
        and (not parts or fault.part in parts)
    ]
    return found[:sample]


def not_executed(faults: Sequence[Fault], reach: Reach, seeds: int) -> str:
    """Return how many faults of each part no seed executes, and which."""
    idle = [fault for fault in faults if not reach.seeds_of(fault, range(seeds))]
    counts, idle_counts = Counter(one.part for one in faults), Counter(one.part for one in idle)
    lines = [f"{'part':18}{'faults':>8}{'not run':>9}"]
    lines += [f"{part:18}{counts[part]:8}{idle_counts[part]:9}" for part in sorted(counts)]
    lines.append(f"{'all':18}{len(faults):8}{len(idle):9}")
    return "\n".join([*lines, *sorted(f"{one.part} {one.id}: {one.breaks}" for one in idle)])


def told(trial: Trial) -> str:
    """Return a line about a trial."""
    if trial.noticed is not None:
        return f"{trial.fault.id}: seed {trial.noticed}, {trial.how[:_HOW_CHARACTERS]}"
    seen = f"in {trial.reached} of {trial.seeds} seeds" if trial.reached else "never"
    return f"{trial.fault.id}: SURVIVED, its lines ran {seen}"


def share(trials: Sequence[Trial]) -> float:
    """Return how many of the faults were noticed, in percent."""
    return 100 * sum(one.noticed is not None for one in trials) / max(1, len(trials))


def summary(trials: Sequence[Trial], seeds: int) -> str:
    """Return a table of the parts, the survivors with their verdicts, and wrong verdicts."""
    lines = [f"{'part':18}{'faults':>8}{'not run':>9}{f'in {_SOON}':>8}{f'in {seeds}':>8}"]
    parts = sorted({one.fault.part for one in trials})
    for part in (*parts, ""):
        own = [one for one in trials if part in {one.fault.part, ""}]
        counts = (
            len(own),
            sum(not one.reached for one in own),
            sum(one.within(_SOON) for one in own),
            sum(one.noticed is not None for one in own),
        )
        numbers = f"{counts[0]:8}{counts[1]:9}{counts[2]:8}{counts[3]:8}"
        lines.append(f"{part or 'all':18}{numbers}{share(own):6.0f} %")
    for one in trials:
        if one.noticed is None:
            verdict = (
                f"{one.fault.verdict}: {one.fault.reason}" if one.fault.verdict else "unjudged"
            )
            lines.append(f"{told(one)}; {verdict}")
        elif one.fault.verdict:
            lines.append(f"{told(one)}; its verdict is no longer true: {one.fault.verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
