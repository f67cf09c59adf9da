"""The queue of a connection through its swap threshold, beside queues that only remember.

A million FlowFiles with five attributes are put in batches and polled in batches, as sessions do;
swap files are fsynced. NiFi's figures are those of its own Java classes on such a machine, measured
once, without an fsync. ``--count N`` sets how many.

Rates are by the processor time of this process: on a machine that others use too, the wall says
more about them. A million by priority lie in runs that all have some of each priority.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import persistqueue

from benchmarks.processes import peak_mib
from benchmarks.table import Row, against, print_rows
from penstock.core.clock import SystemClock
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import FirstInFirstOut, PriorityAttribute
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.queue.swap_store import RestoredSwapFile, SwapFileInfo
from penstock.flow.swap.swap_file import SwapReader, read_summary, write_swap_file
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.storage.disk import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.flow.prioritizers import Prioritizer

PUT_BATCH = 1_000
POLL_BATCH = 500
FILE_ROWS = 10_000
KEPT = 2_000
START_MS = 1_700_000_000_000
OPTIONS = QueueOptions(backpressure_count=0, backpressure_bytes=0)


def run(count: int = 200_000) -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        return [
            *file_rows(folder),
            *through_rows(folder, count, "first in, first out", [FirstInFirstOut()]),
            *through_rows(folder, count, "by priority", [PriorityAttribute()]),
            *depth_rows(count * 5),
        ]
    finally:
        shutil.rmtree(folder)


def made(count: int, first: int = 0) -> list[FlowFile]:
    """Return FlowFiles as a flow that splits files makes them."""
    rng = random.Random(first)
    return [
        FlowFile(
            number,
            {
                "uuid": str(uuid.UUID(int=rng.getrandbits(128))),
                "filename": f"flight-{number}.json",
                "path": "./2024/01/",
                "mime.type": "application/json",
                "priority": str(rng.randrange(100)),
            },
            1_000 + number % 977,
            ContentClaim(
                ResourceClaim(
                    f"{START_MS}-{number // 1_000}", "default", str(number // 1_000 % 64)
                ),
                number % 1_000 * 1_100,
                1_000 + number % 977,
                rng.getrandbits(32),
            ),
            entry_ms=START_MS + number // 10,
            lineage_start_ms=START_MS + number // 10,
            lineage_index=number,
            queued_ms=START_MS + number // 10,
            queue_index=number,
        )
        for number in range(first, first + count)
    ]


class Files:
    """A `SwapHome` that writes and reads swap files, and keeps no journal."""

    def __init__(self, folder: Path) -> None:
        self._fs = OsFileSystem()
        self._folder = folder
        self.written: list[SwapFileInfo] = []

    def path(self, file: SwapFileInfo) -> str:
        """Return where a swap file is."""
        return str(self._folder / file.name)

    def swap_out(self, queue: str, flowfiles: Sequence[FlowFile], order: str) -> SwapFileInfo:
        """Write a swap file."""
        name = f"{len(self.written)}.swap"
        path = str(self._folder / name)
        file = SwapFileInfo(name, write_swap_file(self._fs, path, queue, order, flowfiles))
        self.written.append(file)
        return file

    def open(self, file: SwapFileInfo) -> SwapReader:
        """Open a swap file."""
        return SwapReader.open(self._fs, self.path(file))

    def loaded(self, file: SwapFileInfo, rows: Sequence[int], ids: Sequence[int]) -> None:
        """Learn that rows were handed out."""

    def drop_rows(
        self, file: SwapFileInfo, rows: Sequence[int], claims: Mapping[ResourceClaim, int]
    ) -> None:
        """Learn that rows are gone."""

    def discard(self, file: SwapFileInfo) -> None:
        """Learn that all rows are gone."""

    def remove(self, flowfiles: Sequence[FlowFile]) -> None:
        """Learn that FlowFiles are gone."""

    def damaged(self, file: SwapFileInfo, rows: Sequence[int], reason: str) -> None:
        """Refuse: nothing is damaged here."""
        raise SystemExit(f"{file.name}: {len(rows)} rows: {reason}")


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds a call takes, by the wall and by the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - processor


def file_rows(folder: Path) -> list[Row]:
    """Write and read swap files of 10,000, beside NiFi's and beside a plain write and fsync."""
    files = Files(folder)
    flowfiles = made(FILE_ROWS)
    out = [timed(lambda: files.swap_out("q", flowfiles, "o"))[0] for _ in range(7)]
    size = Path(files.path(files.written[0])).stat().st_size

    def swap_in() -> None:
        reader = files.open(files.written[0])
        assert len(reader.read(0, FILE_ROWS).flowfiles) == FILE_ROWS
        reader.close()

    into = [timed(swap_in)[0] for _ in range(7)]
    data = os.urandom(size)

    def plain() -> None:
        with (folder / "plain").open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())

    disk = [timed(plain)[0] for _ in range(7)]
    name = "queue: swap out 10,000, fsynced"
    return [
        against(name, median(out) * 1e3, "ms", "NiFi's classes, no fsync", 50, "<= 0.5"),
        against(name, median(out) * 1e3, "ms", "write + fsync as much", median(disk) * 1e3),
        against("queue: swap in 10,000", median(into) * 1e3, "ms", "NiFi's classes", 140, "<= 0.5"),
        against("queue: bytes of 10,000", size / 1e6, "MB", "NiFi's V3", 2.4, "<= 0.5"),
    ]


def through_rows(
    folder: Path, count: int, name: str, prioritizers: Sequence[Prioritizer]
) -> list[Row]:
    """Put all, then poll and acknowledge all, beside a queue that holds all in memory."""
    home = Files(Path(tempfile.mkdtemp(dir=folder)))
    ours = FlowFileQueue("q", home, SystemClock(), OPTIONS)
    ours.set_prioritizers(prioritizers)
    flowfiles = made(count)
    peer_put, peer_poll = remembering(flowfiles)

    def put_all() -> None:
        for start in range(0, count, PUT_BATCH):
            ours.put_many(flowfiles[start : start + PUT_BATCH])

    def poll_all() -> None:
        while taken := ours.poll_many(POLL_BATCH).flowfiles:
            ours.acknowledge(len(taken), sum([one.size for one in taken]))

    put, poll = timed(put_all)[1], timed(poll_all)[1]
    assert ours.size.is_empty
    kept_put, kept_get = keeping(folder, flowfiles[:KEPT])
    return [
        against(f"queue: put, {name}", count / put, "1/s", "NiFi's classes", 165_000, ">= 2"),
        against(f"queue: put, {name}", count / put, "1/s", "persist-queue, SQLite", kept_put),
        against(f"queue: poll, {name}", count / poll, "1/s", "persist-queue, SQLite", kept_get),
        against(f"queue: put, {name}", count / put, "1/s", "queue.PriorityQueue", peer_put),
        against(f"queue: poll, {name}", count / poll, "1/s", "NiFi's classes", 70_000, ">= 2"),
        against(f"queue: poll, {name}", count / poll, "1/s", "queue.PriorityQueue", peer_poll),
    ]


def remembering(flowfiles: Sequence[FlowFile]) -> tuple[float, float]:
    """Return puts and gets per second of the library's queue, one by one as it has it."""
    peer: queue.PriorityQueue[tuple[int, FlowFile]] = queue.PriorityQueue()

    def put_all() -> None:
        for one in flowfiles:
            peer.put((one.id, one))

    def get_all() -> None:
        for _ in flowfiles:
            peer.get()

    put, get = timed(put_all)[1], timed(get_all)[1]
    return len(flowfiles) / put, len(flowfiles) / get


def keeping(folder: Path, flowfiles: Sequence[FlowFile]) -> tuple[float, float]:
    """Return puts and gets per second of a library's queue on disk, which commits each."""
    peer = persistqueue.SQLiteQueue(tempfile.mkdtemp(dir=folder), auto_commit=True)
    texts = [(one.id, dict(one.attributes)) for one in flowfiles]

    def put_all() -> None:
        for text in texts:
            peer.put(text)

    def get_all() -> None:
        for _ in texts:
            peer.get()

    put, get = timed(put_all)[1], timed(get_all)[1]
    peer.close()
    return len(texts) / put, len(texts) / get


def depth_rows(count: int) -> list[Row]:
    """Queue many in a process of its own, for its memory, and find them again after a restart."""
    command = [sys.executable, "-m", "benchmarks.flowqueue", "--depth", str(count)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    peak_mb, restore_s = map(float, answer)
    share = count / 1_000_000
    return [
        against(f"queue: {count:,} queued, memory", peak_mb, "MB", "asked", 400, "< 1"),
        against(f"queue: {count:,} restored", restore_s, "s", "asked", 10 * share, "< 1"),
    ]


def depth(count: int) -> None:
    """Put many, made as they are put; print the peak of memory and the seconds of a restore."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        home = Files(folder)
        ours = FlowFileQueue("q", home, SystemClock(), OPTIONS)
        for start in range(0, count, PUT_BATCH):
            ours.put_many(made(PUT_BATCH, start))
        peak_mb = peak_mib() * 1.048576
        fs = OsFileSystem()
        again = FlowFileQueue("q", home, SystemClock(), OPTIONS)

        def restore() -> None:
            files = [
                RestoredSwapFile(SwapFileInfo(one.name, read_summary(fs, home.path(one))))
                for one in home.written
            ]
            again.restore([], files)
            assert again.poll().flowfiles  # the first poll finds the first of all files

        taken = timed(restore)[0]
        assert again.size.count >= count - 2 * OPTIONS.swap_threshold
        print(peak_mb, taken)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--depth", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.depth:
        depth(arguments.depth)
    else:
        print_rows(run(arguments.count))
