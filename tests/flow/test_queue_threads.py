"""A queue on a real disk, used from many threads and read ahead: nothing is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import FirstInFirstOut, PriorityAttribute
from penstock.flow.queue.queue import AttributeIs, FilterVerdict, FlowFileQueue
from penstock.flow.queue.queue_size import Availability, QueueOptions
from penstock.flow.queue.swap_store import SwapFileInfo
from penstock.flow.swap.swap_file import SwapReader, write_swap_file
from penstock.storage.content.claims import ResourceClaim
from penstock.storage.disk import OsFileSystem
from tests.flow.flow_queue_kit import flowfile

PUTTERS = 3
EACH = 3_000


class DiskHome:
    """A `SwapHome` without a journal, for many threads."""

    def __init__(self, folder: Path) -> None:
        self._fs = OsFileSystem()
        self._folder = folder
        self._mutex = threading.Lock()
        self._count = 0
        self.gone = 0

    def swap_out(self, queue: str, flowfiles: Sequence[FlowFile], order: str) -> SwapFileInfo:
        with self._mutex:
            self._count += 1
            name = f"{self._count}.swap"
        path = str(self._folder / name)
        return SwapFileInfo(name, write_swap_file(self._fs, path, queue, order, flowfiles))

    def open(self, file: SwapFileInfo) -> SwapReader:
        return SwapReader.open(self._fs, str(self._folder / file.name))

    def loaded(self, file: SwapFileInfo, rows: Sequence[int], ids: Sequence[int]) -> None:
        assert len(rows) == len(ids)

    def drop_rows(
        self, file: SwapFileInfo, rows: Sequence[int], claims: Mapping[ResourceClaim, int]
    ) -> None:
        with self._mutex:
            self.gone += len(rows)

    def discard(self, file: SwapFileInfo) -> None:
        raise AssertionError(file.name)

    def remove(self, flowfiles: Sequence[FlowFile]) -> None:
        with self._mutex:
            self.gone += len(flowfiles)

    def damaged(self, file: SwapFileInfo, rows: Sequence[int], reason: str) -> None:
        raise AssertionError((file.name, rows, reason))


def test_many_threads_lose_and_double_nothing(tmp_path: Path) -> None:
    home = DiskHome(tmp_path)
    with ThreadPoolExecutor(1) as background, ThreadPoolExecutor(8) as threads:
        queue = FlowFileQueue(
            "q", home, SystemClock(), QueueOptions(500, 200), background=background.submit
        )
        is_put = threading.Event()

        def put(first: int) -> None:
            for start in range(first, first + EACH, 50):
                made = [flowfile(n, priority=n % 11) for n in range(start, start + 50)]
                queue.put_many(made)

        def poll(pace: int) -> list[int]:
            found: list[int] = []
            while True:
                was_put = is_put.is_set()
                polled = queue.poll_many(pace).flowfiles
                if not polled and was_put:
                    return found
                back = [one for one in polled if one.id % 97 == 0 and not was_put]
                queue.put_many(back)
                found += [one.id for one in polled if one not in back]
                queue.acknowledge(len(polled), sum(one.size for one in polled))

        def meddle() -> None:
            for number in range(12):
                queue.set_prioritizers([PriorityAttribute()] if number % 2 else [FirstInFirstOut()])
                queue.listing.first(20)
                queue.listing.count_by("kind")
                queue.poll_where(lambda _: FilterVerdict.REJECT_AND_STOP)
            request = queue.drop(AttributeIs("priority", "3"))
            assert request.wait(60)
            assert request.progress.failure == ""

        putting = [threads.submit(put, 1 + n * EACH) for n in range(PUTTERS)]
        polling = [threads.submit(poll, pace) for pace in (7, 60)]
        meddling = threads.submit(meddle)
        for one in (*putting, meddling):
            one.result(120)
        is_put.set()
        found = [number for one in polling for number in one.result(120)]
        found += poll(100)
    assert len(found) == len(set(found))
    assert len(found) + home.gone == PUTTERS * EACH
    assert queue.size.is_empty
    assert queue.statistics().lost_count == 0


def test_whether_there_is_work_is_said_while_a_poll_reads_swap_files(tmp_path: Path) -> None:
    said: list[Availability] = []

    class Asking(DiskHome):
        def loaded(self, file: SwapFileInfo, rows: Sequence[int], ids: Sequence[int]) -> None:
            """Have another thread ask while this one holds the queue's mutex."""
            asker = threading.Thread(target=lambda: said.append(queue.availability(0)), daemon=True)
            asker.start()
            asker.join(120)
            assert not asker.is_alive(), "the scheduler would wait now"

    queue = FlowFileQueue("q", Asking(tmp_path), SystemClock(), QueueOptions(10, 10))
    queue.put_many([flowfile(number) for number in range(60)])
    assert len(queue.poll_many(60).flowfiles) == 60
    assert set(said) == {Availability.AVAILABLE}
