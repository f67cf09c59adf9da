"""Cost of provenance for the rate of a flow: the chain of `flow`, with and without it.

Both run alternately in one process, and each pair is compared, so that a slow moment of the machine
meets both. The rate is that of processor time of the flow, and by the wall; the events are
derived by another process, as in the service (`--provenance-topic`).
"""

from __future__ import annotations

import statistics
import tempfile
import time

from benchmarks.flow import BATCH, chain
from benchmarks.table import Row, print_rows
from penstock.flow.provenance.provenance_reader import ProvenanceReader
from penstock.flow.repository.commit_spool import SPOOL_FOLDER, SpoolOptions
from penstock.storage.disk import OsFileSystem

ROUNDS = 11
COUNT = 50_000
ONE_BY_ONE = 5_000
AIM = ">= 0.95"


def compare(folder: str, name: str, count: int, batch: int) -> list[Row]:
    """Return the rates with provenance against those without; the ratio is the median of pairs."""
    rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    chain(f"{folder}/{name}-warm", count // 5, batch)
    for number in range(ROUNDS):
        for is_on in (number % 2 == 0, number % 2 == 1):
            options = SpoolOptions() if is_on else None
            rates[is_on].append(chain(f"{folder}/{name}-{number}-{is_on}", count, batch, options))
    rows = []
    for place, how in ((0, "by the wall"), (1, "of processor time")):
        pairs = [(on[place], off[place]) for on, off in zip(rates[True], rates[False], strict=True)]
        ours, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median([on / off for on, off in pairs])
        title = f"flow with provenance: {name}, {how}"
        rows.append(Row(title, ours, "FlowFiles/s", "without", peer, ratio, AIM))
    return rows


def derive(folder: str) -> list[Row]:
    """Return how fast events are derived for their topic, and how long a lineage takes."""
    reader = ProvenanceReader(OsFileSystem(), folder)
    started, following, count = time.perf_counter(), 0, 0
    while (batch := reader.events(following)).count:
        following, count = batch.last + 1, count + batch.count
    derived = count / (time.perf_counter() - started)
    started = time.perf_counter()
    assert reader.lineage([COUNT // 2], 5).events
    took_ms = (time.perf_counter() - started) * 1_000
    return [
        Row("provenance: events derived in the other process", derived, "events/s"),
        Row("provenance: lineage of one FlowFile", took_ms, "ms", "limit", 1_000, took_ms / 1_000),
    ]


def run() -> list[Row]:
    """Run both comparisons."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        rows = compare(folder, "batches of 1,000", COUNT, BATCH)
        rows += compare(folder, "one at a time", ONE_BY_ONE, 1)
        return [*rows, *derive(f"{folder}/batches of 1,000-0-True/{SPOOL_FOLDER}")]


if __name__ == "__main__":
    print_rows(run())
