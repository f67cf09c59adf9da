"""Streams, replaces, drops and the janitor in any order, beside a model of what must be seen.

The model: a day of four parts. A stream of one stream partition appends sequences, one event each,
to the part or to whatever chunk is there; a replacing task reads what is visible under its lock and
writes it anew, by the part or by the day, while the stream goes on. An event is its offset, and its
time a part: of a row whose chunk is hidden there only, the event is hidden.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Text,
    cast,
    event,
    func,
    literal,
    select,
    union_all,
)

from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    CountsRow,
    MetadataStore,
    PendingRow,
    PublishBasis,
    PublishRequest,
    ReplaceLock,
    SegmentRow,
    TaskRow,
    schema,
    segment_id,
)
from penstock.storage.metadata.allocation import APPEND_VERSION
from penstock.storage.metadata.chunk_summaries import (
    chunks_of,
    enclosing_interval,
    not_hidden,
    visible_chunks,
)
from tests.harness.metadata_kit import open_metadata
from tests.storage.replacing_kit import left_for

DAY = Interval(0, 400)
PARTS = [Interval(start, start + 100) for start in range(0, 400, 100)]

operation = st.one_of(
    st.tuples(st.just("open"), st.integers(0, 3)),
    st.tuples(st.just("append"), st.integers(0, 2)),
    st.tuples(st.just("append"), st.just(0)),
    st.tuples(st.just("begin replace"), st.booleans()),
    st.tuples(st.just("end replace"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["fail replace", "janitor", "kill", "again"]), st.just(0)),
    st.tuples(st.just("drop"), st.just(0)),
)


def segment(interval, version, number, core, events, kind="numbered") -> SegmentRow:
    spec = {"type": kind, "partitionNum": number, "partitions": core}
    name = segment_id("d", interval, version, number)
    payload = {"events": events, "shardSpec": spec, "loadSpec": {"path": name}}
    return SegmentRow(name, "d", interval, version, number, core, payload)


@dataclass
class Replacing:
    """A replacing task: what it read, what the stream has appended since, and whether all was
    taken out of view since."""

    name: str
    version: str
    by_day: bool
    read: list[int]
    basis: PublishBasis
    dropped: bool = False
    appended: set[int] = field(default_factory=set)


class CommitsWorld:
    """A store and the model beside it."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.seen: set[int] = set()
        self.at = 0  # the committed offset
        self.open: list[tuple[Interval, str]] = []  # sequences that have places, in order
        self.part: dict[int, Interval] = {}  # the time of each event
        self.replacing: Replacing | None = None
        self.tasks = 0
        self.given: dict[str, str] = {}  # place -> sequence
        self.last: PublishRequest | None = None
        self.known = store.snapshot()
        store.begin_offsets("sup", {0: 0})
        store.tasks.insert_new([TaskRow("stream", "d", "index", "g", {})])

    def place(self, part: Interval, sequence: str) -> PendingRow | None:
        """Allocate as tasks do: in the chunk that is there, else by the part."""
        used = [row for row in self.visible() if row.interval.overlaps(part)]
        interval = used[0].interval if used else part
        if not used and any(p.interval == DAY for p in self.store.segments.pending("d")):
            interval = DAY
        request = AllocateRequest("d", interval, sequence, APPEND_VERSION, allocator_id="a")
        [found] = self.store.allocate_segments([request])
        if found is not None:
            assert self.given.setdefault(found.id, sequence) == sequence
            assert not self.store.segments.by_ids([found.id])
        return found

    def visible(self) -> list[SegmentRow]:
        rows = self.store.snapshot("d").segments
        if not rows:
            return []
        chunks = chunks_of(rows)
        shown = {
            (c.interval, c.version) for c in not_hidden(chunks.values(), enclosing_interval(rows))
        }
        return [
            row
            for row in rows
            if (row.interval, row.version) in shown and chunks[row.interval, row.version].complete
        ]

    def events(self) -> list[int]:
        """Return what a query finds, each as often as it finds it."""
        rows = self.store.snapshot("d").segments
        chunks = chunks_of(rows).values()
        shown = {
            part: {(chunk.interval, chunk.version) for chunk in visible_chunks(chunks, part)}
            for part in PARTS
        }
        return [
            e
            for row in rows
            for e in row.payload["events"]
            if (row.interval, row.version) in shown[self.part[e]]
        ]

    def do_open(self, number: int) -> None:
        if len(self.open) < 3:
            name = f"s{self.at + len(self.open)}"
            self.open.append((PARTS[number], name))
            self.place(PARTS[number], name)

    def do_append(self, which: int) -> None:
        if which >= len(self.open):
            return
        part, name = self.open[which]
        offset = int(name[1:])
        self.part[offset] = part
        pending = [p for p in self.store.segments.pending("d") if p.sequence_name == name]
        place = pending[0] if pending else self.place(part, name)
        if place is None:
            return
        row = segment(
            place.interval, place.version, place.partition_number, place.core_partitions, [offset]
        )
        covering = {}
        if self.replacing is not None:
            covering = {row.id: ReplaceLock(self.replacing.name, self.replacing.version)}
        request = PublishRequest(
            "stream",
            "d",
            (row,),
            "sup",
            {0: offset},
            {0: offset + 1},
            name,
            CountsRow(processed=1),
            kind="append",
            covering=covering,
        )
        outcome = self.store.publish(request)
        assert (outcome.ok, outcome.retryable) == (offset == self.at, offset > self.at)
        if outcome.ok:
            self.last = request
            self.at += 1
            self.open.pop(which)
            self.seen.add(offset)
            if self.replacing is not None:
                self.replacing.appended.add(offset)

    def do_begin_replace(self, by_day: bool) -> None:
        if self.replacing is not None:
            return
        self.tasks += 1
        version = f"2020-{self.tasks:04}"
        name = f"r{self.tasks}"
        listed = {row.id for row in self.store.segments.used("d", replaced_by=name)}
        shown = {row.id for row in self.visible()}
        basis = PublishBasis((DAY,), shown, listed - shown)
        self.replacing = Replacing(name, version, by_day, self.events(), basis)
        self.store.tasks.insert_new([TaskRow(self.replacing.name, "d", "compact", "g", {})])

    def do_end_replace(self, pieces: int) -> None:
        task = self.replacing
        if task is None:
            return
        rows = []
        for interval in [DAY] if task.by_day else PARTS:
            mine = [e for e in task.read if interval in (DAY, self.part[e])]
            kind = "numbered" if mine else "tombstone"
            core = pieces + 1 if mine else 0
            for number in range(max(core, 1)):
                events = mine[number :: max(core, 1)]
                rows.append(segment(interval, task.version, number, core, events, kind))
        request = PublishRequest(
            task.name, "d", tuple(rows), sequence_name=task.name, kind="replace", basis=task.basis
        )
        outcome = self.store.publish(request)
        if outcome.ok:
            self.last = request
            assert not (task.dropped and task.read)
            self.seen = {*task.read, *task.appended}
            self.store.tasks.set_status(task.name, "SUCCESS")
            self.replacing = None
        elif outcome.outdated_by:
            assert task.dropped
            self.do_fail_replace(0)
        else:
            assert not task.by_day
            assert "finer granularity" in outcome.reason
            self.do_fail_replace(0)

    def do_fail_replace(self, _: int) -> None:
        if self.replacing is not None:
            self.store.tasks.set_status(self.replacing.name, "FAILED")
            assert left_for(self.store, self.replacing.name) == set()
            self.replacing = None

    def do_drop(self, _: int) -> None:
        self.store.segments.mark_unused_within("d")
        self.seen = set()
        if self.replacing is not None:
            self.replacing.appended = set()
            self.replacing.dropped = True

    def do_janitor(self, _: int) -> None:
        snapshot = self.store.snapshot()
        if snapshot.segments:
            chunks = chunks_of(snapshot.segments)
            shown = {
                (c.interval, c.version)
                for c in not_hidden(chunks.values(), enclosing_interval(snapshot.segments))
            }
            hidden = [r.id for r in snapshot.segments if (r.interval, r.version) not in shown]
            self.store.segments.mark_overshadowed_unused(hidden, snapshot.segments_revision)

    def do_kill(self, _: int) -> None:
        rows = self.store.segments.unused(changed_before_ms=2**62)
        free = self.store.segments.kill([row.id for row in rows]).files_free
        left = {str(r.payload["loadSpec"]) for r in self.store.segments.every()}
        assert not left & {str(r.payload["loadSpec"]) for r in free}

    def do_again(self, _: int) -> None:
        if self.last is not None:
            assert self.store.publish(self.last).already_published

    def check(self) -> None:
        assert Counter(self.events()) == Counter(self.seen)
        self.known = self.store.snapshot(known=self.known)
        assert self.known == self.store.snapshot()
        assert self.store.offsets("sup") == {0: self.at}
        assert self.store.counts("sup").processed == self.at
        for row in self.store.segments.every():
            spec = row.payload["shardSpec"]
            assert (spec["partitionNum"], spec["partitions"]) == (
                row.partition_number,
                row.core_partitions,
            )


def play(store: MetadataStore, operations) -> None:
    world = CommitsWorld(store)
    for kind, argument in operations:
        getattr(world, f"do_{kind.replace(' ', '_')}")(argument)
        world.check()


@given(st.lists(operation, max_size=30))
def test_any_order_of_commits_shows_each_event_once(operations) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        open_metadata(folder) as store,
    ):
        play(store, operations)


def test_a_chunk_that_shows_again_beside_its_copy_shows_no_event_twice(tmp_path) -> None:
    """A drop takes tombstones out of view; the day's chunk then shows beside a part's newer one."""
    story = [
        *[("open", 0), ("open", 0), ("begin replace", True), ("open", 0), ("end replace", 0)],
        *[("drop", 0), ("append", 0), ("begin replace", False), ("end replace", 0), ("drop", 0)],
        *[("append", 0), ("drop", 0), ("append", 0)],
    ]
    with open_metadata(tmp_path) as store:
        play(store, story)


@pytest.mark.postgres
@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_commits_shows_each_event_once_on_postgres(postgres, seed) -> None:
    rng = random.Random(seed)
    kinds = [
        ("open", 4),
        ("append", 2),
        ("append", 1),
        ("append", 1),
        ("begin replace", 2),
        ("end replace", 3),
        ("janitor", 1),
        ("drop", 1),
        ("kill", 1),
        ("again", 1),
    ]
    operations = [(kind, rng.randrange(top)) for kind, top in rng.choices(kinds, k=120)]
    with MetadataStore.open(postgres.empty_database()) as store:
        play(store, operations)


# crash: every transaction cut before each of its statements


class Cut(BaseException):
    """The process is gone."""


@functools.cache
def all_rows() -> CompoundSelect:
    """Return the statement that reads the rows of all tables, each as the name and one text."""

    def text_of(column) -> ColumnElement[str]:
        return func.coalesce(cast(column, Text), literal("no value"))

    return union_all(
        *(
            select(
                literal(table.name),
                functools.reduce(lambda row, one: row + "|" + one, map(text_of, table.columns)),
            )
            for table in schema.tables.sorted_tables
        )
    )


def dump(store: MetadataStore):
    return store._database.read(lambda c: sorted(map(tuple, c.execute(all_rows()).all())))


def cut_everywhere(store: MetadataStore, action) -> int:
    """Do an action, cut before its first statement, then its second, until it goes through."""
    before = dump(store)
    left = [0]

    def count(*_arguments) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Cut

    for cut in range(1000):
        left[0] = cut
        event.listen(store._database._engine, "before_cursor_execute", count)
        try:
            action()
        except Cut:
            assert cut_is_clean(store, before, count)
        else:
            event.remove(store._database._engine, "before_cursor_execute", count)
            assert dump(store) != before
            return cut
    raise AssertionError("it never went through")


def cut_is_clean(store, before, listener) -> bool:
    event.remove(store._database._engine, "before_cursor_execute", listener)
    return dump(store) == before


def test_a_cut_transaction_leaves_nothing(store) -> None:
    for name in ("stream", "r1", "r2"):
        store.tasks.insert_new([TaskRow(name, "d", "x", "g", {})])
    store.begin_offsets("sup", {0: 0})
    requests = [
        AllocateRequest("d", PARTS[n], f"s{n}", APPEND_VERSION, allocator_id="a") for n in (0, 1)
    ]
    assert cut_everywhere(store, lambda: store.allocate_segments(requests)) > 3
    store.announce("stream", "d", "s0", [AnnouncedFile("/f", DAY, 3)])
    append = PublishRequest(
        "stream",
        "d",
        (segment(PARTS[0], APPEND_VERSION, 0, 0, [0]),),
        "sup",
        {0: 0},
        {0: 1},
        "s0",
        CountsRow(1),
        kind="append",
        covering={segment_id("d", PARTS[0], APPEND_VERSION, 0): ReplaceLock("r1", "2020")},
    )
    assert cut_everywhere(store, lambda: store.publish(append)) > 8
    anew = PublishRequest(
        "r1", "d", (segment(DAY, "2020", 0, 1, []),), sequence_name="r1", kind="replace"
    )
    assert cut_everywhere(store, lambda: store.publish(anew)) > 8
    insert = replace(
        anew,
        task_id="r2",
        sequence_name="r2",
        kind="insert",
        segments=(segment(DAY, "2021", 0, 1, []), segment(DAY, "2022", 0, 1, [])),
    )
    cut_everywhere(store, lambda: store.publish(insert))
    cut_everywhere(store, lambda: store.segments.mark_unused_within("d"))
    cut_everywhere(store, lambda: store.segments.mark_used_within("d"))
    store.segments.mark_unused_within("d")
    cut_everywhere(store, lambda: store.segments.kill([row.id for row in store.segments.every()]))
    cut_everywhere(store, lambda: store.tasks.set_status("r1", "SUCCESS"))
    cut_everywhere(store, lambda: store.rules.put("d", [{"type": "loadForever"}]))
    cut_everywhere(store, lambda: store.terms.take("overlord", "a", 1000))


def test_what_an_unused_core_set_left_behind_is_seen(store) -> None:
    """A stream has its place beside a core set that a user drops before the stream publishes."""
    store.publish(PublishRequest("t", "d", tuple(segment(DAY, "v", n, 2, [n]) for n in (0, 1))))
    [place] = store.allocate_segments([AllocateRequest("d", DAY, "s0", "v")])
    assert (place.partition_number, place.core_partitions) == (2, 2)
    store.segments.mark_unused_within("d")
    row = segment(DAY, "v", 2, 2, [2])
    store.publish(PublishRequest("t", "d", (row,), kind="append"))
    [found] = store.snapshot().segments
    assert (found.core_partitions, found.payload["shardSpec"]["partitions"]) == (0, 0)
