"""The journal against a model: operate, fail, be killed, lose power, also while it is opened."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.core.errors import Unavailable
from penstock.storage.journal import Journal
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss, reopen_after_power_loss

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = "/t/journal"

State = tuple[bytes, tuple[bytes, ...]]


class JournalMachine(RuleBasedStateMachine):
    """A kill loses nothing; a power loss leaves a state since the last sync; nothing else ever."""

    @initialize()
    def start(self) -> None:
        self.number = 0
        self.states: list[State] = [(b"", ())]  # since the last one that is durable
        self.sync_failed = False
        self.journal = self.open(CrashableFileSystem())

    def open(self, fs: CrashableFileSystem) -> Journal:
        self.fs = fs
        return Journal.open(FOLDER, fs=fs, clock=VirtualClock())

    def look(self) -> State:
        found = Journal.open(FOLDER, fs=copy.deepcopy(self.fs), clock=VirtualClock())
        return found.snapshot, tuple(found.records)

    def attempt(self, operation: Callable[[], None]) -> bool | None:
        """Run; False when it failed, None when the power went away meanwhile."""
        try:
            operation()
        except Unavailable:
            self.fs.forget_faults()
            return False
        except PowerLoss:
            return None
        return True

    def make(self, size: int) -> bytes:
        self.number += 1
        return f"{self.number}.".encode().ljust(size, b"-")

    # -- what happens to it

    @rule(sizes=st.lists(st.integers(4, 900), min_size=1, max_size=4))
    def append(self, sizes: list[int]) -> None:
        records = [self.make(size) for size in sizes]
        snapshot, before = self.states[-1]
        after = (snapshot, (*before, *records))
        match self.attempt(lambda: self.journal.append(records)):
            case True:
                self.states.append(after)
            case None:
                self.states.append(after)
                self.lose_power(self.number, [])

    @rule()
    def sync(self) -> None:
        match self.attempt(self.journal.sync):
            case True:
                self.states = self.states[-1:]
                self.sync_failed = False
            case False:
                self.sync_failed = True
            case None:
                self.lose_power(self.number, [])

    @rule(size=st.integers(0, 1500))
    def compact(self, size: int) -> None:
        after: State = (self.make(size), ())
        match self.attempt(lambda: self.journal.compact(after[0])):
            case True:
                self.states = [after]
                self.sync_failed = False
            case False:
                if self.look() == after:  # named, not durably
                    self.states.append(after)
                    self.sync_failed = False
            case None:
                self.states.append(after)
                self.lose_power(self.number, [])

    @rule()
    def close(self) -> None:
        self.journal.close()

    @rule(kind=st.sampled_from(["create", "append", "truncate", "fsync", "rename", "delete"]))
    def fail_next(self, kind: str) -> None:
        self.fs.fail_next(kind, keep_bytes=5)

    @rule(steps=st.integers(1, 8), keep=st.integers(0, 2000))
    def lose_power_soon(self, steps: int, keep: int) -> None:
        self.fs.kill_at(self.fs.steps + steps, keep_bytes=keep)

    @rule()
    def kill_process(self) -> None:
        if self.sync_failed:
            return  # what an fsync lost is known to the process only
        self.fs.forget_faults()
        self.journal = self.open(self.fs.kill_process())

    @rule(seed=st.integers(0, 2**32), again=st.lists(st.integers(1, 5), max_size=3))
    def lose_power(self, seed: int, again: list[int]) -> None:
        """Lose power now, and during each of the next openings after so many steps."""
        self.journal = reopen_after_power_loss(self.fs, seed, again, self.open)
        found = (self.journal.snapshot, tuple(self.journal.records))
        assert found in self.states
        self.states = [found]
        self.sync_failed = False

    # -- what must hold at any time

    @invariant()
    def whoever_opens_it_finds_the_newest_state(self) -> None:
        if not self.fs._faults and not self.fs._next_faults:
            assert self.look() == self.states[-1]


TestJournalModel = JournalMachine.TestCase
TestJournalModel.settings = settings(stateful_step_count=40)
