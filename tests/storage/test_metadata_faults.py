"""Exceptions of every kind at every statement of every transaction of the metadata store."""

from __future__ import annotations

import copy
import itertools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import pytest
from sqlalchemy import select

from penstock.core.errors import Conflict, Fenced, NotFound
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    AuditRow,
    LockRow,
    MetadataStore,
    PublishRequest,
    SegmentRow,
    TaskRow,
    Term,
    schema,
    segment_id,
)
from penstock.storage.metadata.sql_database import Database
from penstock.storage.metadata.tables.lookups import LookupContent, LookupRow
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import FaultCases, FaultPlan, count_single

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from penstock.storage.metadata.sql_database import Transactions
    from tests.storage.conftest import HandClock

T = TypeVar("T")

DAY = Interval(0, 86_400_000)
NEXT_DAY = Interval(86_400_000, 172_800_000)
Rows = Mapping[str, Sequence[tuple[object, ...]]]


class FaultyTransactions:
    """The transactions of a database, whose statements a test can make fail."""

    def __init__(self, database: Transactions, faults: Faults) -> None:
        self._database = database
        self._faults = faults

    def now_ms(self) -> int:
        return self._database.now_ms()

    def read(self, work: Callable[[Connection], T]) -> T:
        return self._database.read(lambda c: work(self._faults.port(c)))

    def write(self, work: Callable[[Connection], T], *, unlimited: bool = False) -> T:
        return self._database.write(lambda c: work(self._faults.port(c)), unlimited=unlimited)

    def close(self) -> None:
        self._database.close()


def row(number: int, interval: Interval = DAY) -> SegmentRow:
    name = segment_id("flights", interval, "v1", number)
    payload = {"loadSpec": {"type": "local", "path": f"/{number}"}, "size": 7}
    return SegmentRow(name, "flights", interval, "v1", number, 0, payload)


def publish(store: MetadataStore) -> object:
    return store.publish(
        PublishRequest(
            task_id="t1",
            datasource="flights",
            segments=(row(0), row(1)),
            supervisor_id="s",
            start_offsets={0: 0},
            end_offsets={0: 10},
            sequence_name="s_0",
        )
    )


def allocate(store: MetadataStore) -> object:
    return store.allocate_segments(
        [
            AllocateRequest(
                datasource="flights",
                interval=NEXT_DAY,
                sequence_name=f"s_{number}",
                version="v2",
                allocator_id="a",
            )
            for number in range(3)
        ]
    )


TERM = Term("overlord", "o1", 1, expires_ms=0, ttl_ms=9_000)
LOCK = LockRow("t1", "flights", "timeChunk", "EXCLUSIVE", "g", DAY, "v1", 50)

CONTENT, NEW_CONTENT = LookupContent(b"rows", 2, 10), LookupContent(b"new rows", 3, 20)


def claim_of(store: MetadataStore) -> LookupRow:
    """Return the lookup as its last claim left it."""
    found = store.lookups.find("l")
    assert found is not None
    return found


# In this order: most need what those before them have stored.
OPERATIONS: Mapping[str, Callable[[MetadataStore], object]] = {
    "insert tasks": lambda s: s.tasks.insert_new(
        [TaskRow(f"t{n}", "flights", "noop", "g", {}) for n in range(3)]
    ),
    "set statuses": lambda s: s.tasks.set_statuses(
        [("t1", "RUNNING", {"worker": "w"}), ("t2", "FAILED", {"errorMsg": "no"})]
    ),
    "put a supervisor": lambda s: s.supervisors.put_all({"s": {"a": 1}, "u": {"a": 2}}),
    "begin offsets": lambda s: s.begin_offsets("s", {0: 0}, "topic"),
    "apply locks": lambda s: s.locks.apply([LOCK], [], []),
    "allocate": allocate,
    "announce": lambda s: s.announce("t1", "flights", "s_0", [AnnouncedFile("/f", DAY, 5)]),
    "publish": publish,
    "move offsets": lambda s: s.move_offsets("s", {0: 5}),
    "reset offsets": lambda s: s.reset_offsets("s", {0: 1}, "topic"),
    "mark unused": lambda s: s.segments.mark_unused([row(0).id]),
    "mark used": lambda s: s.segments.mark_used([row(0).id]),
    "mark unused within": lambda s: s.segments.mark_unused_within("flights", DAY),
    "kill": lambda s: s.segments.kill([row(1).id]),
    "add upgrades": lambda s: s.upgrades.add("t1", {row(0).id: "v9"}),
    "forget upgrades": lambda s: s.upgrades.forget(["t1"]),
    "delete pending": lambda s: s.segments.delete_pending("flights", allocator_id="a"),
    "change locks": lambda s: s.locks.apply([], [], [LOCK]),
    "terminate": lambda s: s.supervisors.terminate_all(["s"]),
    "release": lambda s: s.supervisors.release("s"),
    "put rules": lambda s: s.rules.put("flights", [{"type": "loadForever"}], author="me"),
    "set a config": lambda s: s.config.compare_and_set(
        "c", s.config.get("c"), b"1", entry=AuditRow("c", "c", "me", "", {})
    ),
    "put a lookup": lambda s: s.lookups.put(
        "l", {"a": 1}, CONTENT, 0, entry=AuditRow("l", "lookup", "me", "", {})
    ),
    "claim a lookup": lambda s: s.lookups.claim(1 << 40),
    "refresh a lookup": lambda s: s.lookups.refreshed(claim_of(s), NEW_CONTENT, 1 << 41),
    "note a failure": lambda s: s.lookups.failed(claim_of(s), "no", 1 << 42),
    "delete a lookup": lambda s: s.lookups.delete("l", entry=AuditRow("l", "lookup", "", "", {})),
    "take a term": lambda s: s.terms.take("overlord", "o1", 1_000),
    "renew a term": lambda s: s.terms.renew(TERM),
    "resign": lambda s: s.terms.resign(TERM),
    "renew a lease": lambda s: s.leases.renew("broker", "b", host="h", port=1, ttl_ms=9),
    "drop a lease": lambda s: s.leases.drop("broker", "b"),
    "register a root": lambda s: s.roots.register("w", "/tasks", ["t1"]),
    "delete complete": lambda s: s.tasks.delete_complete(ended_before_ms=1 << 50),
}


def everything(store: MetadataStore) -> Rows:
    """Return the rows of all tables."""

    def work(connection: Connection) -> Rows:
        return {
            name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for name, table in schema.tables.tables.items()
        }

    return store._database.read(work)


def fail_at_every_statement(
    store: MetadataStore, clock: HandClock, *, after: bool, kinds: int
) -> None:
    """Do each operation with an error at each of its statements, then without.

    Args:
        store: An empty store.
        clock: Its clock.
        after: Raise when a statement has taken effect.
        kinds: Kinds of errors that are raised at each statement; the next statement has others.
    """
    faults = Faults()
    faulty = MetadataStore(FaultyTransactions(store._database, faults))
    turns = itertools.cycle(FAULTS)
    for name, operation in OPERATIONS.items():
        clock.ms += 1
        before = everything(store)
        at, raised = 0, True
        while raised:
            for error in itertools.islice(turns, kinds):
                if not raised:
                    break
                with faults.armed(error, at, after=after):
                    operation(faulty)
                raised = bool(faults.raised)
                if raised:
                    where = f"{name}: {error.__name__} at statement {at}"
                    assert everything(store) == before, where
            at += 1
        assert at > 1, name
        assert everything(store) != before, f"{name} changes nothing: it tests nothing"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_no_exception_at_any_statement_leaves_half_of_a_transaction(
    store: MetadataStore, clock: HandClock, *, after: bool
) -> None:
    fail_at_every_statement(store, clock, after=after, kinds=1)


def test_an_operation_whose_answer_was_lost_does_no_harm_when_it_is_repeated(
    store: MetadataStore, clock: HandClock
) -> None:
    """As after an exception between the commit and the answer."""
    for name, operation in OPERATIONS.items():
        clock.ms += 1
        with suppress(Fenced):  # The term was taken twice, and is another one.
            operation(store)
        first = {**everything(store)}
        try:
            operation(store)
        except (Conflict, Fenced, NotFound):
            assert everything(store) == first, name
        segments = [one.id for one in store.segments.every()]
        assert len(segments) == len(set(segments)), name


class FaultyConnection:
    """A connection whose statements, start and end are ports."""

    def __init__(self, connection: Connection, faults: Faults) -> None:
        self._connection = connection
        self._faults = faults
        self._statements = faults.port(connection)

    def __getattr__(self, name: str) -> object:
        known = name in ("dialect", "execution_options")
        return getattr(self._connection if known else self._statements, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._faults.call("close", self.close)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def begin(self) -> Iterator[None]:
        transaction = self._faults.call("begin", self._connection.begin)
        try:
            yield
            self._faults.call("commit", transaction.commit)
        except BaseException:
            if transaction.is_active:
                self._faults.call("rollback", transaction.rollback)
            raise


class FaultyEngine:
    """An engine whose connections are ports."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self._engine = engine
        self._faults = faults
        self._connections: list[Connection] = []

    def connect(self) -> FaultyConnection:
        def connect() -> Connection:
            self._connections.append(self._engine.connect())
            return self._connections[-1]

        return FaultyConnection(self._faults.call("connect", connect), self._faults)

    def collect(self) -> None:
        """Close connections whose closing raised, as the garbage collector does."""
        while self._connections:
            self._connections.pop().close()


class MetadataWorld:
    """A database file in the state before an operation, with ports above and below its store."""

    def __init__(self, folder: str, content: bytes) -> None:
        self.faults = Faults()
        self.path = Path(folder, f"{next(NUMBERS)}.db")
        self.path.write_bytes(content)
        clock = VirtualClock()
        clock.advance(ms=1)
        self.store = MetadataStore.open(f"sqlite:///{self.path}", clock=clock)
        owner = self.store._database
        assert isinstance(owner, Database)
        faulty = copy.copy(owner)
        self.engine = FaultyEngine(owner._engine, self.faults)
        vars(faulty)["_engine"] = self.engine
        vars(faulty)["_clock"] = self.faults.port(clock)
        self.faulty = MetadataStore(faulty)
        self.rows = everything(self.store)

    def close(self) -> None:
        self.store.close()
        self.path.unlink()


NUMBERS = itertools.count()


class MetadataWorlds:
    """The world before each operation; one in which nothing was changed is used again."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-faults")
        self._contents: dict[str, bytes] = {}
        self._idle: dict[str, MetadataWorld] = {}

    def take(self, name: str) -> MetadataWorld:
        if not self._contents:
            self._prepare()
        return self._idle.pop(name, None) or MetadataWorld(self._folder.name, self._contents[name])

    def give_back(self, name: str, world: MetadataWorld) -> None:
        self._idle[name] = world

    def _prepare(self) -> None:
        path = Path(self._folder.name, "prepared.db")
        with (
            MetadataStore.open(f"sqlite:///{path}", clock=VirtualClock()) as store,
            closing(sqlite3.connect(path)) as copied,
        ):
            for name, operation in OPERATIONS.items():
                self._contents[name] = copied.serialize()
                operation(store)


WORLDS = MetadataWorlds()
INSIDE = ("penstock.storage.metadata",)


def check(name: str, plan: FaultPlan) -> Faults:
    """Do an operation under faults: all of it is in the database, or nothing; then do it."""
    world, operation = WORLDS.take(name), OPERATIONS[name]
    is_done = False
    with plan.armed(world.faults):
        operation(world.faulty)
        is_done = True
    world.engine.collect()
    where, rows = world.faults.raised, everything(world.store)
    if rows == world.rows:
        assert not is_done, where
        WORLDS.give_back(name, world)
        return world.faults
    world.close()
    # Of the transactions that raised, only one whose commit took effect exists.
    first = where.partition(", ")[0]
    is_committed = first == "close" or (first == "commit" and plan.after) or plan.inside
    assert is_done or is_committed, where
    check_whole(name, rows, where)
    return world.faults


def check_whole(name: str, rows: Rows, where: str) -> None:
    """Check that the rows are those after an operation without a fault."""
    if name not in WHOLE:
        world = WORLDS.take(name)
        OPERATIONS[name](world.store)
        WHOLE[name] = everything(world.store)
        world.close()
    assert rows == WHOLE[name], where


WHOLE: dict[str, Rows] = {}
PAIRS = FaultCases(OPERATIONS, check, calls=32, inside=INSIDE, inside_calls=600)


def test_no_pair_of_exceptions_at_connections_statements_or_clock_leaves_half_a_transaction() -> (
    None
):
    failures = PAIRS.sample(3)
    assert not failures, failures[0]


def test_no_memory_error_in_a_function_leaves_half_of_a_transaction() -> None:
    stride = 29  # `make soak` has all calls of all operations
    for name in ("publish", "allocate"):
        assert count_single(
            lambda at: check(name, FaultPlan(MemoryError, at, inside=INSIDE)).raised,  # noqa: B023
            stride,
        )
