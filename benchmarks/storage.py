"""The disk queue beside what the machine can do: sequential writes, memory copies, fsyncs.

Each figure and its peer are taken in turns in the same run, and the best of the rounds counts: on
a machine that others use too, the best says most about the code. ``--size MB`` sets how much one
round writes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.table import Row, against, print_rows
from penstock.storage.queue.disk_queue import DiskQueue
from penstock.storage.queue.log_files import log_file_name
from penstock.storage.queue.log_reader import read_range

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 200
MESSAGE_BYTES = 256
ROUNDS = 5
LOG_FILE_BYTES = 100 << 20
THREADS = 16


def run(size_mb: int = 256) -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        return [
            *append_rows(folder, size_mb << 20),
            *read_rows(folder),
            durable_row(folder),
            open_row(folder),
        ]
    finally:
        shutil.rmtree(folder)


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def append_rows(folder: Path, size: int) -> list[Row]:
    """Append batches, beside a plain sequential write of as many bytes in as large pieces."""
    messages = [os.urandom(MESSAGE_BYTES) for _ in range(BATCH)]
    block = b"".join(messages) + bytes(4 * BATCH + 56)
    batches = size // len(block)

    def ours() -> float:
        shutil.rmtree(folder / "queue", ignore_errors=True)
        with DiskQueue.open(str(folder / "queue")) as queue:
            return seconds(lambda: [queue.append(messages) for _ in range(batches)])

    def peer() -> float:
        with (folder / "plain").open("wb", buffering=0) as file:
            taken = seconds(lambda: [os.writev(file.fileno(), [block]) for _ in range(batches)])
            os.fsync(file.fileno())
        return taken

    taken = [(ours(), peer()) for _ in range(ROUNDS)]
    best, best_peer = min(one for one, _ in taken), min(two for _, two in taken)
    rate = batches * BATCH / best
    return [
        against("storage: append, batches of 200 x 256 B", rate, "msg/s", "asked", 3e6, ">= 1"),
        against(
            "storage: append, bytes on disk",
            batches * len(block) / best / 1e6,
            "MB/s",
            "sequential writev",
            batches * len(block) / best_peer / 1e6,
        ),
    ]


def read_rows(folder: Path) -> list[Row]:
    """Read the queue as Arrow arrays, beside copying as many bytes in memory."""
    queue = str(folder / "queue")
    end = _end_of(queue)
    payload = sum(part.messages.nbytes for part in read_range(queue, 0, end))
    source = bytearray(os.urandom(1 << 20)) * (payload >> 20)
    target = bytearray(len(source))

    def copy() -> None:
        target[:] = source

    def ours() -> None:
        count = sum(len(part.messages) for part in read_range(queue, 0, end))
        assert count == end

    taken = [(seconds(ours), seconds(copy)) for _ in range(ROUNDS)]
    rate = payload / min(one for one, _ in taken) / 1e6
    peer = len(source) / min(two for _, two in taken) / 1e6
    return [
        against("storage: read as Arrow arrays", rate, "MB/s", "asked", 1000, ">= 1"),
        against("storage: read as Arrow arrays", rate, "MB/s", "memcpy", peer),
    ]


def _end_of(folder: str) -> int:
    with DiskQueue.open(folder) as queue:
        return queue.latest


def durable_row(folder: Path) -> Row:
    """Durable appends of 16 threads, which share fsyncs, beside write and fsync in turn."""
    message = [os.urandom(MESSAGE_BYTES)]
    each = 100

    def peer() -> float:
        with (folder / "fsync").open("wb", buffering=0) as file:

            def write_and_sync() -> None:
                for _ in range(each):
                    file.write(message[0])
                    os.fdatasync(file.fileno())

            return each / seconds(write_and_sync)

    with DiskQueue.open(str(folder / "durable")) as queue:

        def append_some() -> None:
            for _ in range(each):
                queue.append(message, durable=True)

        def ours() -> float:
            threads = [threading.Thread(target=append_some) for _ in range(THREADS)]

            def together() -> None:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            return THREADS * each / seconds(together)

        taken = [(ours(), peer()) for _ in range(3)]
    return against(
        "storage: durable appends, 16 threads",
        max(one for one, _ in taken),
        "1/s",
        "write + fsync in turn",
        max(two for _, two in taken),
        "> 1",
    )


def open_row(folder: Path) -> Row:
    """Open a queue of 10 GB.

    Opening reads the names, the sizes and the last log file, so that one is real and full; the
    others are as large, but holes.
    """
    queue_folder = folder / "large"
    queue_folder.mkdir()
    per_file = 400_000
    for index in range(100):
        with (queue_folder / log_file_name(index * per_file)).open("wb") as file:
            # The last one is empty: the queue begins it anew and fills it.
            file.truncate(LOG_FILE_BYTES if index < 99 else 0)
    messages = [os.urandom(MESSAGE_BYTES)] * BATCH
    with DiskQueue.open(str(queue_folder)) as queue:
        while queue.statistics().bytes < 100 * LOG_FILE_BYTES - (1 << 20):
            queue.append(messages)
        latest = queue.latest

    def reopen() -> float:
        start = time.perf_counter()
        queue = DiskQueue.open(str(queue_folder))
        taken = time.perf_counter() - start
        assert queue.latest == latest
        queue.close()
        return taken

    taken = min(reopen() for _ in range(3))
    return against("storage: open a queue of 10 GB", taken, "s", "asked", 1.0, "< 1")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, metavar="MB")
    print_rows(run(parser.parse_args().size))
