"""The segment timeline of a datasource with 1,000,000 segments, as the console asks for it.

    .venv/bin/python -m benchmarks.segment_timeline [SEGMENTS]

The store is that of `benchmarks.duties`: a segment an hour, every tenth of which hides an older
one. A process of its own answers, for its memory; what this takes before the first answer is not
counted. Answers are those of the route, as JSON. A thread that waits for a millisecond at a time
reports for how long the first answer held it up, as it would hold up an event loop. The sums are
those of the datasource's page and of the lists.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Final, Self

import orjson

from benchmarks.duties import HOUR_MS, SEGMENTS, fill, publish, segment
from benchmarks.processes import peak_mib
from benchmarks.table import Row, print_rows
from penstock.core.intervals import Interval
from penstock.services.api.coordinator.segment_sums import SegmentSums
from penstock.services.api.coordinator.segment_timeline import SegmentTimelineRoutes
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

CELLS: Final = 400
REPEATED: Final = 10
WAIT_S: Final = 0.001


class LongestDelay:
    """The longest delay of a thread that does nothing but wait."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._wait)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _wait(self) -> None:
        at = time.perf_counter()
        while not self._ended.wait(WAIT_S):
            now = time.perf_counter()
            self.delay_s, at = max(self.delay_s, now - at - WAIT_S), now


def seconds(work: Callable[[], object]) -> float:
    """Return the time that some work takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def answers(url: str, hours: int) -> list[Row]:
    """Measure the answers of a process that has just started."""
    store = MetadataStore.open(url, clock=VirtualClock())
    sums = SegmentSums(store)
    routes = SegmentTimelineRoutes(store, sums)

    def ask(interval: Interval | None = None) -> bytes:
        return orjson.dumps(routes.answer("d", interval, CELLS))

    gc.freeze()  # as a process does once it has started
    before = peak_mib()
    with LongestDelay() as delay:
        first_s = seconds(ask)
    memory = peak_mib() - before
    later_s = min(seconds(ask) for _ in range(REPEATED))
    day = Interval(hours // 2 * HOUR_MS, (hours // 2 + 24) * HOUR_MS)
    day_s = min(seconds(lambda: ask(day)) for _ in range(REPEATED))
    publish(store, "more", [segment(hours, "v2")])
    changed_s = seconds(ask)
    size = len(ask())
    sums.totals(["d"])
    kept_s = min(seconds(lambda: sums.totals(["d"])) for _ in range(REPEATED))
    publish(store, "most", [segment(hours + 1, "v2")])
    moved_s = seconds(lambda: sums.totals(["d"]))
    store.close()
    return [
        Row("segment timeline: first answer", first_s, "s"),
        Row("longest delay of another thread meanwhile", delay.delay_s * 1e3, "ms"),
        Row("memory beyond the start's", memory, "MiB"),
        Row("later answers, all of the time", later_s * 1e3, "ms"),
        Row("a day with its list of segments", day_s * 1e3, "ms"),
        Row("after one segment more", changed_s * 1e3, "ms"),
        Row("size of an answer", size / 1024, "KiB"),
        Row("sums of the datasource", kept_s * 1e3, "ms"),
        Row("sums after one segment more", moved_s * 1e3, "ms"),
    ]


def run(count: int = SEGMENTS) -> list[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/metadata.db"
        hours = fill(url, count, VirtualClock())
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(answers, (url, hours))


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1]) if len(sys.argv) > 1 else SEGMENTS))
