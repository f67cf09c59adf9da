"""A process with a FlowFile repository and a queue under a limit of the system.

It notes what it was about to do and what was acknowledged; `test_flow_limits.py` starts it, and
compares what a start finds afterwards.

    python flow_limits.py FOLDER LIMIT

Each line of FOLDER/notes is a step: `begin N put|move|remove IDS`, then `ok N`, or `no N` and the
exception. The last lines are `queue IDS`, what was in the queue once the limit was lifted, and
`end`, with whether the repository has stopped, and how many rounds raised.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.core.clock import SystemClock
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository_changes import Changes
from penstock.storage.content.content_repository import ContentOptions, ContentRepository
from penstock.storage.disk import OsFileSystem

STEPS: Final = 240
DRAIN_LIMIT_S: Final = 240
BATCH: Final = 40
TEXT: Final = "x" * 20_000
MORE_BYTES: Final = 40 << 20
QUEUE: Final = "q"
# Of the queue, as few as fit in the memory that is left, so that it swaps under each limit.
OPTIONS: Final = {
    "memory": QueueOptions(swap_threshold=1_600, swap_batch=400, backpressure_count=0),
    "files": QueueOptions(swap_threshold=200, swap_batch=100, backpressure_count=0),
    "threads": QueueOptions(swap_threshold=200, swap_batch=100, backpressure_count=0),
}


def open_folder(folder: str) -> tuple[ContentRepository, FlowFileRepository]:
    """Open content and repository as a service does."""
    fs, clock = OsFileSystem(), SystemClock()
    options = ContentOptions(resource_bytes=1 << 20, open_files=2, min_free_bytes=0)
    content = ContentRepository.open(f"{folder}/content", fs=fs, clock=clock, options=options)
    repository = FlowFileRepository.open(
        f"{folder}/flowfiles",
        fs=fs,
        clock=clock,
        content=content,
        options=RepositoryOptions(snapshot_bytes=8 << 20),
    )
    return content, repository


@contextlib.contextmanager
def limited(kind: str) -> Iterator[None]:
    """Take nearly all that is left of something."""
    if kind == "threads":  # `limiting` has the handlers
        signal.raise_signal(signal.SIGUSR1)
        yield
        signal.raise_signal(signal.SIGUSR2)
        return
    if kind == "memory":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        what, most = resource.RLIMIT_AS, used + MORE_BYTES
    else:
        taken = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
        free = next(one for one in range(len(taken) + 1) if one not in taken)
        what, most = resource.RLIMIT_NOFILE, free + 1
    before = resource.getrlimit(what)
    resource.setrlimit(what, (most, before[1]))
    yield
    resource.setrlimit(what, before)


class Steps:
    """Steps on a repository and a queue; what is in both is known from the notes."""

    def __init__(self, folder: str, kind: str) -> None:
        self.notes = os.open(f"{folder}/notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.content, self.repository = open_folder(folder)
        self.queue = FlowFileQueue(
            QUEUE, self.repository.swap_store, SystemClock(), OPTIONS[kind],
            background=lambda job: threading.Thread(target=job, daemon=True).start(),
        )  # fmt: skip
        self.number = 0
        self.taken: list[FlowFile] = []

    def note(self, line: bytes) -> None:
        """Write a line; there is always memory for that in the end."""
        while True:
            with contextlib.suppress(MemoryError):
                os.write(self.notes, line)
                return

    def step(self, what: str, flowfiles: list[FlowFile], changes: Changes) -> bool:
        """Commit with notes around it; say whether it was acknowledged."""
        self.number += 1
        ids = " ".join(str(one.id) for one in flowfiles)
        lines = f"begin {self.number} {what} {ids}\n", f"ok {self.number}\n", f"no {self.number} "
        begin, done, failed = (line.encode() for line in lines)
        self.note(begin)
        try:
            self.repository.commit(changes, durable=self.number % 3 == 0)
        except Exception as error:
            self.note(failed + type(error).__name__.encode() + b"\n")
            raise
        self.note(done)
        return True

    def put(self) -> None:
        """Make FlowFiles with content, and put them into the queue."""
        made: list[FlowFile] = []
        written = []
        is_committed = False
        try:
            first = self.repository.next_ids(BATCH)
            index = self.repository.next_queue_indexes(BATCH)
            for number in range(BATCH):
                claim = self.content.put(b"%d" % (first + number) * 20)
                assert claim is not None
                written.append(claim)
                attributes = {"text": f"{number}{TEXT}"}
                made.append(
                    FlowFile(
                        first + number, attributes, claim.length, claim, queue_index=index + number
                    )
                )
            changes = Changes(puts={QUEUE: made}, written=written)
            is_committed = self.step("put", made, changes)
        finally:
            if not is_committed:
                for claim in written:
                    self.content.release(claim.resource)
        self.queue.put_many(made)

    def take(self) -> None:
        """Take FlowFiles; every other batch is removed, the rest goes back changed."""
        polled = self.queue.poll_many(BATCH)
        size_bytes = sum(one.size for one in polled.flowfiles)
        back: list[FlowFile] | None = polled.flowfiles
        try:
            if self.number % 2:
                self.step("remove", polled.flowfiles, Changes(removes=polled.flowfiles))
                back = None
            else:
                changes = Changes(puts={QUEUE: polled.flowfiles}, replaced=polled.flowfiles)
                self.step("move", polled.flowfiles, changes)
        finally:
            try:
                if back:
                    self.queue.put_many(back)
            finally:
                self.queue.acknowledge(len(polled.flowfiles), size_bytes)

    def drain(self) -> None:
        """Take all that is in the queue; a swap file whose reading failed is read again later."""
        ids: list[str] = []
        given_up_s = time.monotonic() + DRAIN_LIMIT_S
        while time.monotonic() < given_up_s:
            polled = self.queue.poll_many(1_000).flowfiles
            ids += [str(one.id) for one in polled]
            self.queue.acknowledge(len(polled), sum(one.size for one in polled))
            if not polled and self.queue.size.is_empty:
                break
            if not polled:
                time.sleep(0.01)
        self.note(f"queue {' '.join(ids)}\n".encode())


def main() -> None:
    """Work, under a limit from the second part on, and end as a process that is killed."""
    folder, kind = sys.argv[1:]
    steps = Steps(folder, kind)
    for _ in range(3):
        steps.put()
    raised = 0
    with limited(kind):
        for number in range(STEPS):
            raised += 1
            with contextlib.suppress(Exception):
                if number % 4 == 3:
                    steps.take()
                else:
                    steps.put()
                raised -= 1
    steps.drain()
    steps.note(b"end %d %d\n" % (steps.repository._commits.is_stopped, raised))
    os._exit(0)


if __name__ == "__main__":
    main()
