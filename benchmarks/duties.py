"""The overlord's duties in a term's first round, which knows nothing yet: 1,000,000 segments.

    .venv/bin/python -m benchmarks.duties [SEGMENTS]

One datasource with a segment an hour, every tenth of which hides an older one, half of them as a
compaction left them. Each duty runs in a process of its own, for its memory; what this takes before
the round is not counted. The second round comes after one segment more.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.processes import peak_mib
from benchmarks.table import Row, print_rows
from penstock.core.intervals import Interval
from penstock.indexing.overlord.compaction.compaction_duty import CompactionConfigs, CompactionDuty
from penstock.indexing.overlord.duties.duty import DutyTools
from penstock.indexing.overlord.duties.janitor import JanitorDuty
from penstock.indexing.overlord.task_index import TaskIndex
from penstock.indexing.specs.compaction import parse_cluster_compaction, parse_compaction
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.core.clock import Clock

SEGMENTS: Final = 1_000_000
BATCH: Final = 10_000
HOUR_MS: Final = 3_600_000
DIMENSIONS: Final = tuple(f"dimension{number}" for number in range(20))
METRICS: Final = ("count", "sum_delay", "max_delay")
COLUMNS: Final = (
    ("__time", "timestamp"),
    *((name, "string") for name in DIMENSIONS),
    *((name, "bigint") for name in METRICS),
)
CONFIG: Final = parse_compaction({"dataSource": "d", "inputSegmentSizeBytes": 1 << 40})
STATE: Final = {
    "partitionsSpec": CONFIG.tuning.partitions.model_dump(
        mode="json", by_alias=True, exclude_none=True
    ),
    "granularitySpec": {"segmentGranularity": "HOUR", "queryGranularity": "NONE", "rollup": False},
    "dimensionsSpec": {"dimensions": [{"type": "string", "name": name} for name in DIMENSIONS]},
}


class Unlocked:
    """A lockbox without locks."""

    def locked_intervals(self, policies: object) -> Future[Mapping[str, list[Interval]]]:
        """Return none."""
        del policies
        return done({})


def done(value: object) -> Future:  # type: ignore[type-arg]
    """Return a future that has its result."""
    future: Future[object] = Future()
    future.set_result(value)
    return future


def segment(hour: int, version: str) -> Segment:
    """Return the segment of an hour."""
    return Segment(
        "d",
        Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS),
        version,
        {"type": "local", "path": f"/deep/d/{hour:07}/{version}/0/part-00000.parquet"},
        ShardSpec(0, 1),
        size=500_000_000,
        total_rows=5_000_000,
        dimensions=DIMENSIONS,
        metrics=METRICS,
        columns=COLUMNS,
        last_compaction_state=STATE if hour % 2 else None,
    )


def fill(url: str, count: int, clock: Clock) -> int:
    """Publish segments; return how many hours they are of."""
    store = MetadataStore.open(url, clock=clock)
    hours = count * 10 // 11
    for begin in range(0, hours, BATCH):
        some = range(begin, min(begin + BATCH, hours))
        publish(store, f"new{begin}", (segment(hour, "v2") for hour in some))
        publish(store, f"old{begin}", (segment(hour, "v1") for hour in some if hour % 10 == 0))
    store.close()
    return hours


def publish(store: MetadataStore, name: str, segments: Iterable[Segment]) -> None:
    """Publish segments of one task."""
    store.publish(PublishRequest(name, "d", tuple(one.to_row() for one in segments)))


def duty_of(name: str, store: MetadataStore, clock: Clock, folder: str) -> Callable[[], object]:
    """Return what runs one round of a duty."""
    if name == "janitor":
        return JanitorDuty(store, DeepStore(folder), clock, marks_after_ms=0).sweep
    tools = DutyTools(
        store,
        Unlocked(),  # type: ignore[arg-type]  # the one question that the duty asks
        TaskIndex(),
        lambda _task: done(None),
        lambda: done(10),
        clock,
        str,
    )
    configs = CompactionConfigs({"d": CONFIG}, parse_cluster_compaction({}))
    duty = CompactionDuty(tools)
    return lambda: duty.plans(configs)


def rounds(name: str, url: str, hours: int, folder: str) -> list[tuple[float, float, str]]:
    """Return of two rounds the seconds they took, the memory beyond the start's, and the answer."""
    clock = VirtualClock()
    store = MetadataStore.open(url, clock=clock)
    run = duty_of(name, store, clock, folder)
    found = []
    before = peak_mib()
    for _ in range(2):
        begun = time.perf_counter()
        answer = str(run())
        took_s = time.perf_counter() - begun
        more = peak_mib() - before
        found.append((took_s, more, answer[-120:]))
        publish(store, f"{name} more", [segment(hours + len(name), "v2")])
    store.close()
    return found


def run(count: int = SEGMENTS) -> list[Row]:
    """Measure."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/metadata.db"
        hours = fill(url, count, VirtualClock())
        (Path(folder) / "deep").mkdir()
        spawned = multiprocessing.get_context("spawn")
        for name in ("compaction", "janitor"):
            with spawned.Pool(1) as pool:
                first, second = pool.apply(rounds, (name, url, hours, f"{folder}/deep"))
            print(f"{name}: {first[2]}", file=sys.stderr)
            rows += [
                Row(f"{name}, first round of {count:,} segments", first[0], "s"),
                Row("memory", first[1], "MiB"),
                Row("the next round, one segment more", second[0] * 1_000, "ms"),
            ]
    return rows


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1]) if len(sys.argv) > 1 else SEGMENTS))
