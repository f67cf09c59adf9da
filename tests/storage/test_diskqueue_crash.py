"""The crash tier of the disk queue: operate, fail, lose power, reopen, lose power again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.core.errors import Unavailable
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.log_reader import read_range
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss, reopen_after_power_loss

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
FOLDER = "/topics/flights/0"
OPTIONS = DiskQueueOptions(
    sync_every_messages=7, sync_interval_ms=1000, retention_ms=2000, sync_in_background=False
)


class DiskQueueMachine(RuleBasedStateMachine):
    """What was promised durable is there and in order, nothing is invented, loss is counted."""

    @initialize(file_bytes=st.sampled_from([600, 2000, 10_000]))
    def start(self, file_bytes: int) -> None:
        self.clock = VirtualClock()
        self.options = replace(OPTIONS, max_bytes_per_file=file_bytes)
        self.number = 0
        self.candidates: dict[int, set[bytes]] = {}  # what may be read at an offset
        self.visible: dict[int, bytes] = {}  # what must be read, as long as there is power
        self.promised: dict[int, bytes] = {}  # what must be read after a power loss
        self.cursors: dict[str, int] = {}  # the least position that a sync has saved
        self.queue = self.open(CrashableFileSystem())

    def open(self, fs: CrashableFileSystem) -> DiskQueue:
        self.fs = fs
        return DiskQueue.open(FOLDER, self.options, fs=fs, clock=self.clock)

    def attempt(self, operation: Callable[[], T]) -> T | None:
        """Run; None when it failed or the power went away meanwhile."""
        try:
            return operation()
        except Unavailable:
            return None
        except PowerLoss:
            self.lose_power(self.number, [])
            return None

    def note_promises(self) -> None:
        durable = self.queue.durable
        self.promised |= {o: m for o, m in self.visible.items() if o < durable}

    # -- what happens to it

    @rule(
        sizes=st.lists(st.integers(0, 700), min_size=1, max_size=5),
        durable=st.booleans(),
    )
    def append(self, sizes: list[int], durable: bool) -> None:
        batch = []
        for size in sizes:
            self.number += 1
            batch.append((f"{self.number}-" * size)[: max(size, 8)].encode())
        base = self.queue.latest
        for index, message in enumerate(batch):
            self.candidates.setdefault(base + index, set()).add(message)
        queue = self.queue
        written = self.attempt(lambda: queue.append(batch, durable=durable))
        if self.queue is not queue:
            return  # the power went away
        if written is None and not durable:
            assert queue.latest == base
        if written is not None:
            assert (written.start, written.end) == (base, base + len(batch))
            assert queue.latest == written.end
            if durable:
                assert queue.durable >= written.end
        if queue.latest > base:
            self.visible |= {base + i: message for i, message in enumerate(batch)}
        self.note_promises()

    @rule()
    def sync(self) -> None:
        queue = self.queue
        positions = {name: min(queue.cursor(name).position, queue.latest) for name in self.cursors}
        if self.attempt(queue.sync) is not None:
            assert queue.durable == queue.latest
            self.cursors |= positions
            self.note_promises()

    @rule(ms=st.integers(1, 1500))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule(name=st.sampled_from("ab"), share=st.floats(0, 1))
    def advance_cursor(self, name: str, share: float) -> None:
        queue = self.queue
        cursor = self.attempt(lambda: queue.cursor(name, "earliest"))
        if cursor is not None and self.queue is queue:
            self.cursors.setdefault(name, 0)
            position = cursor.position
            offset = position + int((queue.latest - position) * share)
            cursor.advance(offset)
            assert cursor.position == offset

    @rule()
    def retain(self) -> None:
        queue = self.queue
        report = self.attempt(lambda: queue.retention.retain(self.clock.now_ms()))
        if report is not None:
            assert report.earliest == queue.earliest
            for name in self.cursors:
                assert queue.earliest <= queue.cursor(name).position

    @rule(max_bytes=st.integers(0, 5000))
    def drop_oldest(self, max_bytes: int) -> None:
        queue = self.queue
        first, before = queue.earliest, queue.statistics()
        # One that is larger than it may be is rolled first.
        last_file = before.log_files == 1 and before.bytes <= self.options.max_bytes_per_file
        dropped = self.attempt(lambda: queue.retention.drop_oldest(max_bytes))
        if dropped is not None:
            assert dropped == queue.earliest - first
            assert not (dropped and last_file)
        if self.queue is queue:
            for name in self.cursors:
                assert queue.earliest <= queue.cursor(name).position

    @rule(file_bytes=st.sampled_from([600, 2000, 10_000]))
    def close_and_open(self, file_bytes: int) -> None:
        """The file size may change at any time."""
        self.fs.forget_faults()
        self.queue.close()
        self.note_promises()
        self.options = replace(OPTIONS, max_bytes_per_file=file_bytes)
        latest = self.queue.latest
        self.queue = self.open(self.fs)
        assert self.queue.latest == latest

    @rule()
    def kill_process(self) -> None:
        """kill -9 loses nothing that was visible."""
        latest = self.queue.latest
        failed = self.queue.statistics().sync_failures
        if failed:
            return  # what an fsync lost is known to the process only
        self.fs.forget_faults()
        self.queue = self.open(self.fs.kill_process())
        assert self.queue.latest == latest

    @rule(steps=st.integers(1, 6), keep=st.integers(0, 2000))
    def fail_soon(self, steps: int, keep: int) -> None:
        self.fs.fail_at(self.fs.steps + steps, keep_bytes=keep)

    @rule(kind=st.sampled_from(["append", "fsync", "create", "delete"]))
    def fail_next(self, kind: str) -> None:
        self.fs.fail_next(kind)

    @rule(steps=st.integers(1, 12), keep=st.integers(0, 2000))
    def lose_power_soon(self, steps: int, keep: int) -> None:
        self.fs.kill_at(self.fs.steps + steps, keep_bytes=keep)

    @rule(room=st.integers(0, 1500))
    def fill_disk(self, room: int) -> None:
        self.fs.capacity_bytes = self.fs.used_bytes() + room

    @rule()
    def remedy(self) -> None:
        """After the faults stop, it works again, without being reopened."""
        self.fs.forget_faults()
        assert self.queue.sync() == self.queue.latest
        self.note_promises()

    @rule(seed=st.integers(0, 2**32), again=st.lists(st.integers(1, 8), max_size=3))
    def lose_power(self, seed: int, again: list[int]) -> None:
        """Lose power now, and during each of the next recoveries after so many steps."""
        self.queue = reopen_after_power_loss(self.fs, seed, again, self.open)
        self.look_after_crash()

    def look_after_crash(self) -> None:
        found = self.read_all()
        earliest, latest = self.queue.earliest, self.queue.latest
        for offset, message in self.promised.items():
            assert offset < latest
            if offset >= earliest:
                assert found.get(offset) == message, f"{offset} was promised"
        for offset, message in found.items():
            assert message in self.candidates[offset], f"{offset} was invented"
        assert self.queue.statistics().messages_lost == latest - earliest - len(found)
        for name, position in self.cursors.items():
            assert min(position, latest) <= self.queue.cursor(name).position <= latest
        self.visible = found
        self.candidates = {offset: {message} for offset, message in found.items()}

    # -- what must hold at any time

    def read_all(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        offset = self.queue.earliest
        while offset < self.queue.latest:
            blocks = self.queue.read(offset, 700)
            if not blocks:
                break
            for block in blocks:
                for index, message in enumerate(block.messages.to_pylist()):
                    assert block.base_offset + index not in found
                    found[block.base_offset + index] = message
            offset = blocks[-1].base_offset + blocks[-1].count
        assert list(found) == sorted(found)
        return found

    @invariant()
    def readers_see_what_is_visible(self) -> None:
        queue = self.queue
        found = self.read_all()
        earliest = queue.earliest
        assert found == {o: m for o, m in self.visible.items() if o >= earliest}
        mapped = {
            part.base_offset + index: message
            for part in read_range(FOLDER, earliest, queue.latest, fs=self.fs)
            for index, message in enumerate(part.messages.to_pylist())
        }
        assert mapped == found


TestDiskQueueCrash = DiskQueueMachine.TestCase
TestDiskQueueCrash.settings = settings(stateful_step_count=40)
