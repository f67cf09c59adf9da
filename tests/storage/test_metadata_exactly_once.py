"""Publishers, replicas and latecomers in any order: every event is seen once, none is lost.

The model: a stream of two stream partitions, cut into sequences of fixed ends. Tasks announce parts
of sequences and publish them, each whenever it likes, as often as it likes. An event is a pair
(stream partition, offset); segments and announced files say in their payload which they hold.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    CountsRow,
    MetadataStore,
    PublishRequest,
    SegmentRow,
    TaskRow,
)
from tests.harness.metadata_kit import open_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = Interval(0, 86_400_000)
ENDS = [(0, 0), (3, 1), (3, 4), (8, 4), (9, 9)]
SEQUENCES = len(ENDS) - 1
TASKS = ["t0", "t1", "t2"]

sequence = st.integers(0, SEQUENCES - 1)
task = st.sampled_from(TASKS)
operation = st.one_of(
    st.tuples(st.just("publish"), task, sequence),
    st.tuples(st.just("publish"), task, sequence),
    st.tuples(st.just("announce"), task, sequence, st.integers(0, 9)),
    st.tuples(st.just("odd start"), task, st.tuples(st.integers(0, 9), st.integers(0, 9))),
    st.tuples(st.just("fail"), task),
    st.tuples(st.just("forget"), task),
)


def offsets(at: tuple[int, int]) -> dict[int, int]:
    return dict(enumerate(at))


def events_between(start, end) -> list[list[int]]:
    return [[p, n] for p in (0, 1) for n in range(start[p], end[p])]


class Run:
    """A store and the model beside it."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.published = 0  # sequences, always a prefix
        self.alive = set(TASKS)
        for name in TASKS:
            store.tasks.insert_new([TaskRow(name, "d", "index", "g", {})])
        store.begin_offsets("sup", offsets(ENDS[0]))

    def publish(self, name: str, number: int) -> None:
        [place] = self.store.allocate_segments([AllocateRequest("d", DAY, f"s{number}", "v")])
        assert place is not None
        events = events_between(ENDS[number], ENDS[number + 1])
        row = SegmentRow(
            f"d_{place.version}_{place.partition_number}",
            "d",
            DAY,
            place.version,
            place.partition_number,
            0,
            {"events": events},
        )
        outcome = self.store.publish(
            PublishRequest(
                name,
                "d",
                (row,),
                "sup",
                offsets(ENDS[number]),
                offsets(ENDS[number + 1]),
                f"s{number}",
                CountsRow(processed=len(events)),
            )
        )
        alive = name in self.alive
        assert outcome.ok == (alive and number == self.published)
        assert outcome.retryable == (alive and number > self.published)
        assert outcome.already_published == (number < self.published)
        self.published += outcome.ok

    def announce(self, name: str, number: int, share: int) -> None:
        events = events_between(ENDS[number], ENDS[number + 1])
        events = events[: len(events) * share // 9]
        files = [
            AnnouncedFile(f"/{name}/{number}/{n}", DAY, 1, {"events": [event]})
            for n, event in enumerate(events)
        ]
        shown = self.store.announce(name, "d", f"s{number}", files)
        assert shown == (number >= self.published and name in self.alive)

    def odd_start(self, name: str, start: tuple[int, int]) -> None:
        if start in ENDS[:-1] or start == (9, 9):
            return
        row = SegmentRow("odd", "d", DAY, "v", 999, 0, {"events": [[0, 0]]})
        outcome = self.store.publish(
            PublishRequest(name, "d", (row,), "sup", offsets(start), {0: 20, 1: 20}, "odd")
        )
        committed = ENDS[self.published]
        ahead = any(mine > theirs for mine, theirs in zip(start, committed, strict=True))
        assert (outcome.ok, outcome.retryable) == (False, ahead and name in self.alive)

    def end(self, name: str, how: str) -> None:
        if how == "fail":
            self.store.tasks.set_status(name, "FAILED")
            self.alive.discard(name)
        else:
            for number in range(self.published, SEQUENCES):
                self.store.announce(name, "d", f"s{number}", [])

    def check(self) -> None:
        snapshot = self.store.snapshot()
        seen = Counter(tuple(event) for event in self._events(snapshot.segments))
        committed = ENDS[self.published]
        assert self.store.offsets("sup") == offsets(committed)
        assert seen == Counter(map(tuple, events_between((0, 0), committed)))
        assert self.store.counts("sup") == CountsRow(processed=seen.total())
        seen.update(tuple(e) for e in self._events(row.file for row in snapshot.announced))
        assert not seen or max(seen.values()) == 1

    def _events(self, rows) -> Iterator[list[int]]:
        return (event for row in rows for event in row.payload["events"])


def play(store: MetadataStore, operations) -> None:
    run = Run(store)
    for kind, name, *rest in operations:
        match kind:
            case "publish":
                run.publish(name, *rest)
            case "announce":
                run.announce(name, *rest)
            case "odd start":
                run.odd_start(name, *rest)
            case _:
                run.end(name, kind)
        run.check()


@settings(max_examples=50)
@given(st.lists(operation, max_size=25))
def test_any_order_of_publishers_counts_each_event_once(operations) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        open_metadata(folder) as store,
    ):
        play(store, operations)


@pytest.mark.postgres
@pytest.mark.parametrize("seed", range(2))
def test_any_order_counts_each_event_once_on_postgres(postgres, seed) -> None:
    rng = random.Random(seed)
    operations = [
        rng.choice(
            [
                ("publish", rng.choice(TASKS), rng.randrange(SEQUENCES)),
                ("publish", rng.choice(TASKS), rng.randrange(SEQUENCES)),
                ("announce", rng.choice(TASKS), rng.randrange(SEQUENCES), rng.randrange(10)),
                ("odd start", rng.choice(TASKS), (rng.randrange(10), rng.randrange(10))),
                ("forget", rng.choice(TASKS)),
                ("fail", rng.choice(TASKS[1:])),
            ]
        )
        for _ in range(60)
    ]
    with MetadataStore.open(postgres.empty_database()) as store:
        play(store, operations)
