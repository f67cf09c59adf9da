"""The FlowFile repository: commits of one and of many FlowFiles, durable ones, snapshots, a start.

Limits beside them: fsyncs of a file that grows, one after the other, on the same disk.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.table import Row, against, print_rows
from penstock.core.clock import SystemClock
from penstock.flow.flowfile import FlowFile
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.repository_changes import Changes
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.disk import OsFileSystem

if TYPE_CHECKING:
    from penstock.storage.content.claims import ContentClaim

ONES = 20_000
HUNDREDS = 1_000
THREADS = 16
DURABLE_EACH = 200
QUEUED = 1_000_000
PER_SWAP_FILE = 10_000
FSYNCS = 300
AIM_ONES = 20_000.0
AIM_HUNDREDS = 300_000.0
AIM_START_MS = 10_000.0


class Both:
    """A content and a FlowFile repository in a folder."""

    def __init__(self, folder: Path) -> None:
        fs, clock = OsFileSystem(), SystemClock()
        self.content = ContentRepository.open(str(folder / "content"), fs=fs, clock=clock)
        self.repository = FlowFileRepository.open(
            str(folder / "flowfiles"), fs=fs, clock=clock, content=self.content
        )

    def close(self) -> None:
        self.repository.close()
        self.content.close()

    def make(self, count: int, claim: ContentClaim | None) -> list[FlowFile]:
        """Return new FlowFiles with five attributes."""
        first = self.repository.next_ids(count)
        return [
            FlowFile(
                one,
                {"uuid": f"{one:036d}", "filename": f"{one}.csv", "path": "./", "a": "1", "b": "x"},
                1000,
                claim,
                entry_ms=1_700_000_000_000,
                queue_index=one,
            )
            for one in range(first, first + count)
        ]


def commits_per_s(both: Both, count: int, size: int) -> float:
    """Create FlowFiles in commits, move them, remove them; return commits a second."""
    claim = both.content.put(bytes(1000))
    made = both.make(count * size, claim)
    batches = [made[start : start + size] for start in range(0, len(made), size)]
    commit = both.repository.commit
    began_s = time.perf_counter()
    for batch in batches:
        commit(Changes(puts={"one": batch}))
    for batch in batches:
        commit(Changes(puts={"two": batch}, replaced=batch))
    for batch in batches:
        commit(Changes(removes=batch))
    return 3 * count / (time.perf_counter() - began_s)


def durable_per_s(both: Both) -> float:
    """Commit durably on many threads; return commits a second."""

    def work() -> None:
        for flowfile in both.make(DURABLE_EACH, None):
            both.repository.commit(Changes(puts={"one": [flowfile]}), durable=True)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS * DURABLE_EACH / (time.perf_counter() - began_s)


def fsyncs_per_s(folder: Path) -> float:
    """Append 300 bytes and fsync, one after the other."""
    with (folder / "limit").open("wb", buffering=0) as file:
        began_s = time.perf_counter()
        for _ in range(FSYNCS):
            file.write(bytes(300))
            os.fdatasync(file.fileno())
        return FSYNCS / (time.perf_counter() - began_s)


def start_s(folder: Path) -> tuple[float, float]:
    """Queue a million in swap files; return the seconds of one swap-out and of a start."""
    both = Both(folder)
    writing_s = 0.0
    for _ in range(QUEUED // PER_SWAP_FILE):
        made = both.make(PER_SWAP_FILE, both.content.put(bytes(1000)))
        both.repository.commit(Changes(puts={"one": made}))
        began_s = time.perf_counter()
        both.repository.swap_store.swap_out("one", made, "")
        writing_s += time.perf_counter() - began_s
    both.close()
    began_s = time.perf_counter()
    both = Both(folder)
    took_s = time.perf_counter() - began_s
    assert both.repository.statistics().swapped_flowfiles == QUEUED
    both.close()
    return writing_s / (QUEUED // PER_SWAP_FILE), took_s


def run() -> list[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        both = Both(folder / "commits")
        ones = commits_per_s(both, ONES, 1)
        hundreds = 100 * commits_per_s(both, HUNDREDS, 100)
        durable = durable_per_s(both)
        both.close()
        fsyncs = fsyncs_per_s(folder)
        swap_out_s, begin_s = start_s(folder / "start")
    return [
        against("commits of one FlowFile", ones, "commits/s", "aim", AIM_ONES, ">= 1"),
        against("commits of 100", hundreds, "FlowFiles/s", "aim", AIM_HUNDREDS, ">= 1"),
        against("durable commits, 16 threads", durable, "commits/s", "fsyncs", fsyncs, "> 1"),
        Row("swap-out of 10,000, durable", swap_out_s * 1000, "ms"),
        against("start, 1,000,000 swapped", 1000 * begin_s, "ms", "aim", AIM_START_MS, "< 1"),
    ]


if __name__ == "__main__":
    print_rows(run())
