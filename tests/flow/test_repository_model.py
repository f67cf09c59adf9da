"""The FlowFile and content repositories against a model: operate, fail, be killed, lose power.

What is kept: each FlowFile once, with its content; what was durable; the state after some commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.core.errors import Unavailable
from penstock.flow.repository.repository_changes import Changes
from penstock.storage.content.claims import ContentClaim
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss, reopen_after_power_loss
from tests.flow.repository_kit import Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.queue.swap_store import SwapFileInfo

QUEUES = ("a", "b", "c")


@dataclass(frozen=True)
class CommittedState:
    """The state after some commit."""

    flowfiles: dict[int, tuple[str, FlowFile]] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)


class RepositoryMachine(RuleBasedStateMachine):
    """Conservation: a crash leaves the state after some commit, not before the durable one."""

    @initialize()
    def start(self) -> None:
        self.contents: dict[ContentClaim, bytes] = {}
        self.number = 0
        self.history = [CommittedState()]  # since the last one that is durable
        self.undecided: list[CommittedState] = []  # of commits that were undone
        self.discarded = False  # content of rows whose file is not done with stays
        self.begin(CrashableFileSystem())

    def begin(self, fs: CrashableFileSystem) -> None:
        self.fs = fs
        self.fsync_fails = False
        self.opened = Opened.open(fs)
        self.files: dict[str, tuple[SwapFileInfo, dict[int, int]]] = {}  # rows that are not loaded

    @property
    def world(self) -> CommittedState:
        return self.history[-1]

    def in_memory(self, queue: str | None = None) -> list[int]:
        away = {one for _, rows in self.files.values() for one in rows.values()}
        return [
            one
            for one, (where, _) in self.world.flowfiles.items()
            if one not in away and queue in (None, where)
        ]

    def write(self, size: int) -> ContentClaim | None:
        self.number += 1
        data = (b"%d." % self.number).ljust(size, b"-")[:size]
        claim = self.opened.content.put(data)
        if claim is not None:
            self.contents[claim] = data
        return claim

    def commit(
        self, changes: Changes, after: dict[int, tuple[str, FlowFile]], *, durable: bool = False
    ) -> None:
        states = {**self.world.states, **changes.states}
        world = CommittedState(
            after, {key: value for key, value in states.items() if value is not None}
        )
        try:
            self.opened.repository.commit(changes, durable=durable)
        except Unavailable:
            if durable:
                self.undecided.append(world)
            self.release(changes.written)
        except PowerLoss:
            self.history.append(world)
            self.recover(self.number, [])
        else:
            self.advance(world, durable=durable)

    def release(self, claims: Sequence[ContentClaim]) -> None:
        """Roll back."""
        content = self.opened.content

        def let_go() -> None:
            for claim in claims:
                content.release(claim.resource)

        self.attempt(let_go)

    def advance(self, world: CommittedState, *, durable: bool) -> None:
        self.history.append(world)
        if durable:
            self.history = [world]
            self.undecided = []

    def attempt(self, operation: Callable[[], None]) -> bool:
        try:
            operation()
        except Unavailable:
            return False
        except PowerLoss:
            self.recover(self.number, [])
            return False
        return True

    # -- what processors do

    @rule(
        queue=st.sampled_from(QUEUES),
        sizes=st.lists(st.integers(0, 400), min_size=1, max_size=4),
        durable=st.booleans(),
    )
    def create(self, queue: str, sizes: list[int], *, durable: bool) -> None:
        made: list[FlowFile] = []
        written: list[ContentClaim] = []

        def make() -> None:
            for size in sizes:
                claim = self.write(size)
                if claim is not None:
                    written.append(claim)
                flowfile = self.opened.make(str(self.number))
                made.append(msgspec.structs.replace(flowfile, claim=claim, size=size))

        content = self.opened.content
        if not self.attempt(make):
            if content is self.opened.content:
                self.release(written)
            return
        after = self.world.flowfiles | {one.id: (queue, one) for one in made}
        changes = Changes(puts={queue: made}, written=written)
        self.commit(changes, after, durable=durable)

    @precondition(lambda self: self.in_memory())
    @rule(
        data=st.data(), queue=st.sampled_from(QUEUES), rewrite=st.booleans(), durable=st.booleans()
    )
    def change(self, data: Any, queue: str, *, rewrite: bool, durable: bool) -> None:
        ids = data.draw(
            st.lists(st.sampled_from(self.in_memory()), unique=True, min_size=1, max_size=5)
        )
        before = [self.world.flowfiles[one][1] for one in ids]
        self.number += 1
        now = [
            msgspec.structs.replace(one, attributes={"text": str(self.number)}) for one in before
        ]
        written = []
        if rewrite:
            claims: list[ContentClaim | None] = []
            opened = self.opened
            if not self.attempt(lambda: claims.append(self.write(50))):
                return
            assert opened is self.opened
            written = [claim for claim in claims if claim is not None]
            now[0] = msgspec.structs.replace(now[0], claim=claims[0], size=50)
        after = self.world.flowfiles | {one.id: (queue, one) for one in now}
        changes = Changes(
            puts={queue: now}, replaced=before, written=written, states={queue: b"%d" % self.number}
        )
        self.commit(changes, after, durable=durable)

    @precondition(lambda self: self.in_memory())
    @rule(data=st.data(), missing=st.booleans(), durable=st.booleans())
    def remove(self, data: Any, *, missing: bool, durable: bool) -> None:
        ids = data.draw(
            st.lists(st.sampled_from(self.in_memory()), unique=True, min_size=1, max_size=5)
        )
        before = [self.world.flowfiles[one][1] for one in ids]
        after = {one: entry for one, entry in self.world.flowfiles.items() if one not in ids}
        changes = Changes(missing=before) if missing else Changes(removes=before)
        self.commit(changes, after, durable=durable)

    @precondition(lambda self: self.in_memory())
    @rule(data=st.data(), queue=st.sampled_from(QUEUES))
    def clone(self, data: Any, queue: str) -> None:
        one = data.draw(st.sampled_from(self.in_memory()))
        original = self.world.flowfiles[one][1]
        copy = msgspec.structs.replace(original, id=self.opened.repository.next_ids(1))
        after = self.world.flowfiles | {copy.id: (queue, copy)}
        self.commit(Changes(puts={queue: [copy]}), after)

    # -- what queues do

    @precondition(lambda self: self.in_memory())
    @rule(data=st.data())
    def swap_out(self, data: Any) -> None:
        queue = data.draw(
            st.sampled_from(sorted({self.world.flowfiles[one][0] for one in self.in_memory()}))
        )
        ids = self.in_memory(queue)[:8]
        flowfiles = [self.world.flowfiles[one][1] for one in ids]

        def write() -> None:
            file = self.opened.repository.swap_store.swap_out(queue, flowfiles, "fifo")
            self.files[file.name] = (file, dict(enumerate(ids)))
            self.advance(self.world, durable=True)

        self.attempt(write)

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def load(self, data: Any) -> None:
        file, rows = self.files[data.draw(st.sampled_from(sorted(self.files)))]
        count = data.draw(st.integers(1, len(rows)))
        taken = list(rows)[:count]
        ids = [rows.pop(row) for row in taken]
        if not rows:
            del self.files[file.name]
        self.opened.repository.swap_store.loaded(file, taken, ids)

    @precondition(lambda self: self.files)
    @rule(data=st.data(), whole=st.booleans(), damage=st.booleans())
    def drop(self, data: Any, *, whole: bool, damage: bool) -> None:
        file, rows = self.files[data.draw(st.sampled_from(sorted(self.files)))]
        count = len(rows) if whole else data.draw(st.integers(1, len(rows)))
        taken = sorted(rows)[:count]
        gone = {rows[row] for row in taken}
        after = {one: entry for one, entry in self.world.flowfiles.items() if one not in gone}
        claims: dict[Any, int] = {}
        for one in gone:
            claim = self.world.flowfiles[one][1].claim
            if claim is not None:
                claims[claim.resource] = claims.get(claim.resource, 0) + 1
        home = self.opened.repository.swap_store
        commits = self.opened.repository.statistics().commits
        world = CommittedState(after, self.world.states)
        self.discarded |= damage or whole
        try:
            if damage:
                home.damaged(file, taken, "the disk said so")
            elif whole:
                home.discard(file)
            else:
                home.drop_rows(file, taken, claims)
        except Unavailable:
            return
        except PowerLoss:
            self.history.append(world)
            self.recover(self.number, [])
            return
        for row in taken:
            del rows[row]
        if not rows:
            del self.files[file.name]
        if self.opened.repository.statistics().commits > commits:
            self.advance(world, durable=False)
        else:
            # Damage that could not be recorded: known again at the next start, as the file is.
            self.recover_by_kill()

    # -- what happens to it

    @rule()
    def sync(self) -> None:
        if self.attempt(self.opened.repository.sync):
            self.advance(self.world, durable=True)

    @rule()
    def compact(self) -> None:
        if self.attempt(self.opened.repository.compact):
            self.advance(self.world, durable=True)

    @rule(ms=st.sampled_from([1, 60, 200]))
    def time_passes(self, ms: int) -> None:
        self.opened.clock.advance(ms=ms)

    @rule(
        kind=st.sampled_from(["create", "append", "truncate", "fsync", "rename", "delete"]),
    )
    def fail_next(self, kind: str) -> None:
        self.fsync_fails |= kind == "fsync"
        self.fs.fail_next(kind, keep_bytes=5)

    @rule(room=st.integers(0, 2000))
    def disk_fills_up(self, room: int) -> None:
        self.fs.capacity_bytes = self.fs.used_bytes() + room

    @rule()
    def faults_end(self) -> None:
        self.fs.forget_faults()

    @rule(steps=st.integers(1, 12), keep=st.integers(0, 2000))
    def lose_power_soon(self, steps: int, keep: int) -> None:
        self.fs.kill_at(self.fs.steps + steps, keep_bytes=keep)

    @rule()
    def close_and_open(self) -> None:
        self.fs.forget_faults()
        self.opened.close()
        self.advance(self.world, durable=True)
        self.begin(self.fs)
        self.check_found(newest=True)

    @rule()
    def kill_process(self) -> None:
        self.recover_by_kill()

    def recover_by_kill(self) -> None:
        """What was visible is there."""
        if self.fsync_fails:
            # Which pages an fsync lost is known to the process only.
            self.recover(self.number, [])
            return
        self.fs.forget_faults()
        newest = not self.undecided
        self.begin(self.fs.kill_process())
        self.check_found(newest=newest)

    @rule(seed=st.integers(0, 2**32), again=st.lists(st.integers(1, 15), max_size=3))
    def lose_power(self, seed: int, again: list[int]) -> None:
        self.recover(seed, again)

    def recover(self, seed: int, again: list[int]) -> None:
        """Lose power now, and during each of the next openings after so many steps."""
        reopen_after_power_loss(self.fs, seed, again, self.begin)
        self.check_found(newest=False)

    def check_found(self, *, newest: bool) -> None:
        found = self.opened.found()
        states = {
            queue: state
            for queue in QUEUES
            if (state := self.opened.repository.state(queue)) is not None
        }
        world = CommittedState(found, states)
        if newest:
            assert world == self.world
        assert world in self.history or world in self.undecided
        self.history, self.undecided = [world], []
        restored = [
            file
            for queue in self.opened.repository.recovered.queues.values()
            for file in queue.swap_files
        ]
        self.discarded &= bool(restored)
        for file in restored:
            ids = self.ids_in(file.file)
            rows = {row: one for row, one in enumerate(ids) if row not in set(file.done)}
            self.files[file.file.name] = (file.file, rows)
        resources = set()
        for _, flowfile in found.values():
            if flowfile.claim is not None:
                assert self.opened.content.read(flowfile.claim) == self.contents[flowfile.claim]
                resources.add(flowfile.claim.resource.id)
        kept = {resource.id for one in restored for resource, _ in one.file.summary.resource_claims}
        assert resources <= self.opened.content_files() <= resources | kept
        known = {*self.files} | {
            name for name in self.opened.swap_folder() if name.endswith((".unknown", ".bad"))
        }
        assert set(self.opened.swap_folder()) == known

    def ids_in(self, file: SwapFileInfo) -> list[int]:
        reader = self.opened.repository.swap_store.open(file)
        rows = reader.read(0, file.summary.count)
        reader.close()
        return [flowfile.id for flowfile in rows.flowfiles]

    # -- what must hold at any time

    @invariant()
    def the_repository_counts_what_is_there(self) -> None:
        statistics = self.opened.repository.statistics()
        assert statistics.flowfiles + statistics.swapped_flowfiles == len(self.world.flowfiles)
        if not self.discarded:
            with_content = [one for _, one in self.world.flowfiles.values() if one.claim]
            assert self.opened.content.statistics().references == len(with_content)

    @invariant()
    def all_content_is_readable(self) -> None:
        for _, flowfile in self.world.flowfiles.values():
            if flowfile.claim is not None:
                assert self.opened.content.read(flowfile.claim) == self.contents[flowfile.claim]


TestRepositoryModel = RepositoryMachine.TestCase
TestRepositoryModel.settings = settings(stateful_step_count=40)
