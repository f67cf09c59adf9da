"""Sessions under exceptions that nobody expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

import pytest

from penstock.core.errors import PenstockError, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessSession, Relationship
from penstock.flow.queue.queue import FilterVerdict
from penstock.flow.session.session_transaction import SessionTransaction
from penstock.storage.content.writer import ContentWriter
from penstock.testing.memory_disk import CrashableFileSystem
from tests.flow.session_kit import SessionWorld
from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import FaultCases, FaultPlan, count_single

SUCCESS = Relationship(name="success")
INSIDE = (
    "penstock.flow.session",
    *(f"penstock.storage.content.{name}" for name in ("writer", "resources")),
)


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld()


@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("commits", [True, False])
def test_an_exception_of_one_queue_keeps_no_other_step_from_being_taken(
    world: SessionWorld, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], commits: bool
) -> None:
    world.feed("a", b"1")
    world.feed("b", b"2")
    session, transaction = world.begin()
    taken = [session.get(), session.get()]
    first = world.queues["out" if commits else "a"]
    put = first.put_many

    def put_and_raise(flowfiles: Sequence[FlowFile]) -> None:
        put(flowfiles)
        raise error("after they were added, as for a swap file that cannot be written")

    monkeypatch.setattr(first, "put_many", put_and_raise)
    for flowfile in taken:
        assert flowfile is not None
        session.transfer(flowfile, Relationship(name="success"))
    with pytest.raises(error):
        transaction.commit() if commits else transaction.rollback(penalize=True)
    left = [one for name in ("a", "b", "out") for one in world.contents(name)]
    assert sorted(left) == [b"1", b"2"]
    world.check()


class FaultyWorld(SessionWorld):
    """A world with a file system whose calls are counted."""

    def __init__(self) -> None:
        self.faults = Faults()
        fs = self.faults.port(CrashableFileSystem(), results=("create", "open_read"))
        super().__init__(fs=fs)
        self.transactions: list[SessionTransaction] = []
        self.feed("a", b"base")

    def set_up(self) -> None:
        super().set_up()
        self.services = replace(
            self.services,
            clock=self.faults.port(self.clock),
            new_uuid=self.faults.port(self.services.new_uuid),
        )

    def begin(self, *, batching: bool = False) -> tuple[ProcessSession, SessionTransaction]:
        session, transaction = super().begin(batching=batching)
        self.transactions.append(transaction)
        return session, transaction

    def roll_back_all(self) -> None:
        """Roll back as a processor's thread does after an exception."""
        for transaction in self.transactions:
            transaction.rollback()
            transaction.calls.end()


PIECES = (b"-one", b"-two" * 40, b"-three")
Attempt = Callable[[], AbstractContextManager[None]]


class Work:
    """The work of a processor with one FlowFile, in steps of which each may raise."""

    def __init__(self, world: SessionWorld, attempt: Attempt) -> None:
        self.session, self.transaction = world.begin()
        self.appended: list[bytes] = []
        self.made: list[bytes] = []
        flowfile = self.session.get()
        assert flowfile is not None
        for piece in PIECES:
            with attempt():
                self._append(flowfile, piece)
            with attempt():
                self.session.read_all(flowfile)
        with attempt():
            self._make(b"made")
        self.session.transfer(flowfile, SUCCESS)

    def _append(self, flowfile: FlowFile, piece: bytes) -> None:
        with self.session.append(flowfile) as out:
            out.write(piece)
        self.appended.append(piece)

    def _make(self, data: bytes) -> None:
        child = self.session.create()
        try:
            self.session.write(child, data)
        except BaseException:
            self.session.remove(child)
            raise
        self.session.transfer(child, SUCCESS)
        self.made.append(data)

    @property
    def expected(self) -> list[bytes]:
        return sorted([b"base" + b"".join(self.appended), *self.made])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_a_processor_that_an_exception_left_can_be_tried_again(
    error: type[BaseException], after: bool
) -> None:
    at, raised = 0, "a port"
    while raised:
        raised = try_again(lambda faults: faults.armed(error, at, after=after)).raised  # noqa: B023
        at += 1
    assert at > 1


def try_again(arm: Callable[[Faults], AbstractContextManager[None]]) -> Faults:
    """Do the work under faults and roll it back, or not; then do it if it was not done."""
    world = FaultyWorld()
    with arm(world.faults):
        try:
            transaction = Work(world, nullcontext).transaction
            transaction.commit()
        except BaseException:
            world.roll_back_all()
            raise
    where = world.faults.raised
    if world.queues["a"].flowfiles:
        Work(world, nullcontext).transaction.commit()
    assert sorted(world.contents("out")) == sorted([b"base" + b"".join(PIECES), b"made"]), where
    world.check()
    return world.faults


def test_a_processor_that_a_memory_error_left_anywhere_can_be_tried_again() -> None:
    at, raised = 0, "a function"
    while raised:
        raised = try_again(lambda faults: faults.armed_inside(INSIDE, MemoryError, at)).raised  # noqa: B023
        at += 3
    assert at > 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_what_a_session_commits_after_a_caught_exception_is_whole(
    error: type[BaseException], after: bool
) -> None:
    """A processor that goes on after an exception commits what did not raise, or nothing."""
    at, raised = 0, "a port"
    while raised:
        raised = go_on(lambda faults: faults.armed(error, at, after=after), error).raised  # noqa: B023
        at += 1
    assert at > 1


def go_on(
    arm: Callable[[Faults], AbstractContextManager[None]], *errors: type[BaseException]
) -> Faults:
    """Do the work, catch what a step raises, and commit what did not raise, or nothing."""
    world = FaultyWorld()
    with arm(world.faults):
        work = Work(world, lambda: suppress(PenstockError, *errors))
        try:
            work.transaction.commit()
            expected = [("out", one) for one in work.expected]
        except (PenstockError, *errors):
            expected = [("a", b"base")]
    where = world.faults.raised
    found = [(name, one) for name in ("a", "out") for one in world.contents(name)]
    assert sorted(found) == expected, where
    world.check()
    return world.faults


def try_story_again(name: str, plan: FaultPlan) -> Faults:
    """Do a story under faults, and roll back; then do it if it was not committed."""
    world, story = FaultyWorld(), STORIES[name]
    world.feed("a", b"more", b"third")
    before = sorted([b"base", b"more", b"third"])
    with plan.armed(world.faults):
        try:
            story(world)
        except BaseException:
            world.roll_back_all()
            raise
    where = world.faults.raised
    world.clock.advance(ms=60_000)  # the penalties end
    if world.queues["a"].flowfiles:
        assert sorted(world.contents("a")) == before, where
        story(world)
    assert sorted(world.contents("out")) == STORY_RESULTS[name], where
    assert not world.contents("a"), where
    world.check()
    return world.faults


def take_by_filter(world: FaultyWorld) -> None:
    session, transaction = world.begin()

    def accept(flowfile: FlowFile) -> FilterVerdict:
        return FilterVerdict.ACCEPT if flowfile.size == 4 else FilterVerdict.REJECT

    taken = session.get_where(world.faults.port(accept))
    assert len(taken) == 2
    (third,) = session.get_many(9)
    session.transfer([*taken, third], SUCCESS)
    transaction.commit()


def clone_parts(world: FaultyWorld) -> None:
    session, transaction = world.begin()
    for flowfile in session.get_many(9):
        part = session.clone(flowfile, 1, 2)
        session.append(part).close()
        session.transfer([flowfile, part, session.clone(flowfile)], SUCCESS)
    transaction.commit()


def import_and_export(world: FaultyWorld) -> None:
    session, transaction = world.begin()
    for number, flowfile in enumerate(session.get_many(9)):
        session.export_to(flowfile, f"/{number}.txt")
        session.import_from(flowfile, f"/{number}.txt")
        made = session.create(flowfile)
        session.import_from(made, iter([b"x" * 30, b"y" * 30]))
        session.transfer([flowfile, made], SUCCESS)
    transaction.commit(durable=True)


def change_attributes(world: FaultyWorld) -> None:
    session, transaction = world.begin()
    for flowfile in session.get_many(9):
        changed = session.put_attributes(flowfile, {"k": "v", "other": "w"})
        changed = session.remove_attributes(changed, ["other"])
        session.penalize(changed)
        session.transfer(changed, SUCCESS)
    transaction.commit()


def migrate(world: FaultyWorld) -> None:
    session, transaction = world.begin()
    other, others = world.begin()
    taken = session.get_many(9)
    with session.append(taken[0]) as out:
        out.write(b"-migrated")
    session.migrate(other, taken)
    other.transfer(taken, SUCCESS)
    others.commit()
    transaction.commit()


def checkpoint(world: FaultyWorld) -> None:
    session, transaction = world.begin(batching=True)
    while (flowfile := session.get()) is not None:
        session.write(flowfile, b"checked")
        session.transfer(flowfile, SUCCESS)
        session.checkpoint()
    transaction.flush()


FED = [b"base", b"more", b"third"]
Story = Callable[[FaultyWorld], None]
STORIES: Mapping[str, Story] = {
    one.__name__: one
    for one in (
        *(take_by_filter, clone_parts, import_and_export, change_attributes, migrate, checkpoint),
    )
}
STORY_RESULTS: Mapping[str, list[bytes]] = {
    "take_by_filter": FED,
    "clone_parts": sorted([*FED, *FED, *(one[1:3] for one in FED)]),
    "import_and_export": sorted([*FED, *[b"x" * 30 + b"y" * 30] * 3]),
    "change_attributes": FED,
    "migrate": sorted([b"base-migrated", b"more", b"third"]),
    "checkpoint": [b"checked"] * 3,
}


def check_case(name: str, plan: FaultPlan) -> Faults:
    if name != "work":
        return try_story_again(name, plan)
    if plan.inside:
        return try_again(plan.armed)
    return go_on(plan.armed, *plan.errors)


PAIRS = FaultCases(["work", *STORIES], check_case, calls=150, inside=INSIDE, inside_calls=1_200)


def test_what_a_session_commits_after_a_pair_of_caught_exceptions_is_whole() -> None:
    failures = PAIRS.sample(60)
    assert not failures, failures[0]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("name", STORIES)
def test_a_story_that_an_exception_ended_can_be_told_again(
    name: str, error: type[BaseException], after: bool
) -> None:
    assert count_single(lambda at: try_story_again(name, FaultPlan(error, at, after)).raised, 3)


def test_a_migration_that_memory_runs_out_in_leaves_each_flowfile_in_one_session() -> None:
    inside = ("penstock.flow.session.session_state",)
    assert count_single(
        lambda at: try_story_again("migrate", FaultPlan(MemoryError, at, inside=inside)).raised
    )


@pytest.mark.parametrize("error", FAULTS)
def test_a_session_whose_appended_content_could_not_be_finished_is_not_committed(
    world: SessionWorld, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    world.feed("a", b"base")
    session, transaction = world.begin()
    flowfile = session.get()
    assert flowfile is not None
    with session.append(flowfile) as out:
        out.write(b"-appended")
    with monkeypatch.context() as patched:
        patched.setattr(ContentWriter, "finish", _raising(error))
        with pytest.raises(error):
            session.read_all(flowfile)
    session.transfer(flowfile, SUCCESS)
    with pytest.raises(Unavailable, match="free disk space and try again"):
        transaction.commit()
    assert world.contents("a") == [b"base"]
    world.check()


def _raising(error: type[BaseException]) -> Callable[[ContentWriter], None]:
    def finish(_: ContentWriter) -> None:
        raise error("once")

    return finish
