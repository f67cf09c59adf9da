"""Process sessions on the real queues and the real repository: one processor, one thread.

Each session takes FlowFiles of one queue, sends them to the next, and commits: one batch in the
journal. FlowFiles have five attributes and share a claim of 100 bytes. Rates are by the processor
time of this process, all threads together: on a machine that others use too, the wall says more
about them. Durable ones are by the wall: they are those of the disk's fsync, so they stand beside a
loop of write and fsync.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.table import Row, against, print_rows
from penstock.core.clock import SystemClock
from penstock.core.uuids import RandomUuids
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor_state import StateManager
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.session.process_session import ProcessSession
from penstock.flow.session.services import SessionContext, SessionServices
from penstock.flow.session.session_transaction import SessionTransaction
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.disk import OsFileSystem

FLOWFILES = 100_000
FEED = 10_000
DURABLE_SESSIONS = 300
THREADS = 16
AIM_ONE = 12_000.0
AIM_MANY = 100_000.0


class Line:
    """Two queues; a session moves FlowFiles from one to the other, and the next back."""

    def __init__(self, folder: str) -> None:
        fs, clock = OsFileSystem(), SystemClock()
        self.content = ContentRepository.open(f"{folder}/content", fs=fs, clock=clock)
        self.repository = FlowFileRepository.open(
            f"{folder}/flowfiles", fs=fs, clock=clock, content=self.content
        )
        self.services = SessionServices(self.repository, self.content, clock, RandomUuids(), fs)
        options = QueueOptions(swap_threshold=10 * FLOWFILES, backpressure_count=0)
        home = self.repository.swap_store
        queues = [FlowFileQueue(name, home, clock, options) for name in ("one", "other")]
        self.source, self.target = queues
        self.feed()

    def feed(self) -> None:
        claim = self.content.put(b"x" * 100)
        for _ in range(FLOWFILES // FEED):
            first = self.repository.next_ids(FEED)
            flowfiles = [
                FlowFile(
                    number,
                    {
                        "uuid": f"u{number}",
                        "filename": f"f{number}",
                        "path": "./",
                        "a": "1",
                        "b": "2",
                    },
                    100,
                    claim,
                    lineage_index=number,
                )
                for number in range(first, first + FEED)
            ]
            self.repository.commit(Changes(puts={self.source.id: flowfiles}))
            self.source.put_many(flowfiles)

    def run(self, sessions: int, size: int, *, durable: bool = False) -> float:
        """Run sessions of so many FlowFiles; returns seconds, if not durable of processor time."""
        context = self.session_context()
        clock = time.perf_counter if durable else time.process_time
        started = clock()
        self._move(context, sessions, size, durable=durable)
        spent = clock() - started
        self.source, self.target = self.target, self.source
        return spent

    def run_durable(self, threads: int, sessions: int) -> float:
        """Run so many durable sessions of one FlowFile on each of many threads; seconds."""
        context = self.session_context()
        workers = [
            threading.Thread(
                target=self._move, args=(context, sessions, 1), kwargs={"durable": True}
            )
            for _ in range(threads)
        ]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - started

    def make(self, *, at_once: bool) -> float:
        """Make a thousand FlowFiles with five attributes in one session; returns seconds."""
        each = [{f"name {one}": f"{one}-{number}" for one in range(5)} for number in range(1_000)]
        session = ProcessSession(SessionTransaction(self.session_context(), self.services))
        started = time.process_time()
        if at_once:
            session.transfer(session.create(each=each), "success")
        else:
            for attributes in each:
                session.transfer(session.create(attributes=attributes), "success")
        spent = time.process_time() - started
        session.rollback()
        return spent

    def session_context(self) -> SessionContext:
        """Return a processor between the two queues."""
        return SessionContext(
            "processor",
            StateManager("processor", self.repository),
            inputs=[self.source],
            outputs={"success": [self.target]},
            relationships=frozenset({"success"}),
        )

    def _move(self, context: SessionContext, sessions: int, size: int, *, durable: bool) -> None:
        for _ in range(sessions):
            session = ProcessSession(SessionTransaction(context, self.services))
            session.transfer(session.get_many(size), "success")
            session.commit(durable=durable)

    def close(self) -> None:
        self.repository.close()
        self.content.close()


def fsyncs_per_second(folder: str, size: int) -> float:
    """Write and fsync so many bytes, over and over."""
    path = Path(folder) / "plain"
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        started = time.perf_counter()
        for _ in range(DURABLE_SESSIONS):
            os.write(file, b"x" * size)
            os.fdatasync(file)
        return DURABLE_SESSIONS / (time.perf_counter() - started)
    finally:
        os.close(file)


def _on_line(folder: str, measure: Callable[[Line], list[Row]]) -> list[Row]:
    line = Line(folder)
    try:
        return measure(line)
    finally:
        line.close()


def _rows(folder: str, line: Line) -> list[Row]:
    many = FLOWFILES / line.run(FLOWFILES // 1_000, 1_000)
    hundred = 500 / line.run(500, 100)
    one = FLOWFILES / 4 / line.run(FLOWFILES // 4, 1)
    one_by_one = 1_000 / min(line.make(at_once=False) for _ in range(10))
    at_once = 1_000 / min(line.make(at_once=True) for _ in range(10))
    durable = DURABLE_SESSIONS / line.run(DURABLE_SESSIONS, 1, durable=True)
    together = THREADS * DURABLE_SESSIONS / line.run_durable(THREADS, DURABLE_SESSIONS)
    durable_hundred = DURABLE_SESSIONS / line.run(DURABLE_SESSIONS, 100, durable=True)
    peer = "write and fsync alone"
    return [
        against("sessions of 1,000 FlowFiles", many, "FlowFiles/s", "aim", AIM_MANY, ">= 1"),
        against("sessions of 100 FlowFiles", hundred * 100, "FlowFiles/s", "aim", AIM_MANY),
        against("sessions of 1 FlowFile", one, "sessions/s", "aim", AIM_ONE, ">= 1"),
        against(
            "sessions of 1, durable", durable, "sessions/s", peer, fsyncs_per_second(folder, 300)
        ),
        against(
            f"sessions of 1, durable, {THREADS} threads",
            together,
            "sessions/s",
            peer,
            fsyncs_per_second(folder, 300),
        ),
        against(
            "sessions of 100, durable",
            durable_hundred,
            "sessions/s",
            peer,
            fsyncs_per_second(folder, 20_000),
        ),
        Row("made one by one and sent", one_by_one, "FlowFiles/s"),
        against("made at once and sent", at_once, "FlowFiles/s", "one by one", one_by_one),
    ]


def run() -> list[Row]:
    """Return the rows of the table."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        return _on_line(folder, lambda line: _rows(folder, line))


if __name__ == "__main__":
    print_rows(run())
