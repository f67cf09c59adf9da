"""Visible segments of earlier revisions: a model of random changes, and single cases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval
from penstock.segments.catalog import Catalog, VisiblePiece
from penstock.segments.past_segments import changes_between, visible_at
from penstock.segments.segment import Segment, ShardSpec
from penstock.storage.metadata import MetadataStore, PublishRequest
from tests.harness.metadata_kit import open_metadata

HOURS = 6


def publish(
    store: MetadataStore, start: int, end: int, version: int, number: int = 0, origin: str = ""
) -> str:
    segment = Segment(
        "d",
        Interval(start, end),
        f"v{version}",
        {"type": "local", "path": "/x"},
        ShardSpec(number, 0, "numbered"),
        upgraded_from=origin,
    )
    outcome = store.publish(
        PublishRequest("t", "d", segments=(segment.to_row(),), kind="insert", sequence_name="")
    )
    assert outcome.ok, outcome.reason
    return str(segment.id)


def rows_of(pieces: Iterable[VisiblePiece]) -> set[tuple[str, int]]:
    """Return (file, time) of each row, as if each file had one row in each unit of time."""
    found: set[tuple[str, int]] = set()
    for piece in pieces:
        file = piece.segment.upgraded_from or str(piece.segment.id)
        rows = {(file, ms) for ms in range(piece.interval.start_ms, piece.interval.end_ms)}
        assert not rows & found, "a row is visible once"
        found |= rows
    return found


def visible_now(store: MetadataStore) -> set[tuple[str, int]]:
    return rows_of(Catalog().view(store.snapshot()).visible("d"))


step = st.one_of(
    st.tuples(
        st.just("publish"),
        st.integers(0, HOURS - 1),
        st.integers(1, HOURS),
        st.integers(1, 4),
    ),
    st.tuples(st.sampled_from(["unused", "used", "kill", "copy"]), st.integers(0, 12)),
    st.tuples(st.just("unused within"), st.integers(0, HOURS - 1), st.integers(1, HOURS)),
    st.tuples(st.just("overshadowed")),
)


class History:
    """A store that changes, and what was visible at each of its revisions."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.ids: list[str] = []
        self.at: dict[int, set[tuple[str, int]]] = {0: set()}
        self._numbers: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._places: dict[str, tuple[int, int, int]] = {}

    def take(self, what: tuple[str | int, ...]) -> None:
        """Change the store and note what is visible then."""
        kind, *values = what
        numbers = [int(value) for value in values]
        segments = self.store.segments
        if kind == "publish":
            start, length, version = numbers
            self._publish(start, length, version)
        elif kind == "unused within":
            start, length = numbers
            segments.mark_unused_within("d", Interval(start, start + length))
        elif kind == "overshadowed":
            catalog = Catalog()
            snapshot = self.store.snapshot()
            catalog.view(snapshot)
            hidden = [str(one.id) for one in catalog.overshadowed()]
            segments.mark_overshadowed_unused(hidden, snapshot.revision)
        elif self.ids:
            name = self.ids[numbers[0] % len(self.ids)]
            if kind == "unused":
                # Twice, as one call may name very many segments.
                segments.mark_unused([name, *self.ids[:2]])
            elif kind == "used":
                segments.mark_used([name])
            elif kind == "kill":
                segments.kill([name])
            else:
                self._copy(name)
        self.at[self.store.revision()] = visible_now(self.store)

    def _publish(self, start: int, length: int, version: int, origin: str = "") -> None:
        place = (start, min(HOURS, start + length), version)
        others = [p for p in self._numbers if p[2] == version and p != place]
        if any(p[0] < place[1] and p[1] > place[0] for p in others):
            return  # Two time chunks of a version must not overlap.
        number = self._numbers[place]
        self._numbers[place] += 1
        name = publish(self.store, *place, number, origin)
        self._places[name] = place
        self.ids.append(name)

    def _copy(self, name: str) -> None:
        """List a segment again under a newer version, as a replacement does."""
        start, end, version = self._places[name]
        rows = {row.id: row for row in self.store.segments.by_ids([name])}
        if name in rows and version < 9 and not rows[name].upgraded_from:
            self._publish(start, end - start, version + 5, name)


@settings(max_examples=60, deadline=None)
@given(st.lists(step, max_size=25), st.data())
def test_each_kept_revision_has_what_was_visible_then(
    steps: list[tuple[str | int, ...]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder, open_metadata(folder) as store:
        history = History(store)
        for one in steps:
            history.take(one)
        oldest = store.history.oldest("d")
        kept = [revision for revision in history.at if revision >= oldest]
        for revision in kept:
            assert rows_of(visible_at(store, "d", revision)) == history.at[revision]
        after = data.draw(st.sampled_from(kept))
        to = data.draw(st.sampled_from([one for one in kept if one >= after]))
        changes = changes_between(store, "d", after, to)
        added, removed = rows_of(changes.added), rows_of(changes.removed)
        assert added == history.at[to] - history.at[after]
        assert removed == history.at[after] - history.at[to]


def test_a_replaced_segment_is_visible_at_the_revision_before(tmp_path: Path) -> None:
    with open_metadata(tmp_path) as store:
        old = publish(store, 0, 6, 1)
        before = store.revision()
        new = publish(store, 2, 4, 2)
        now = store.revision()
        assert shown(visible_at(store, "d", before)) == {old: ["0-6"]}
        assert shown(visible_at(store, "d", now)) == {old: ["0-2", "4-6"], new: ["2-4"]}
        changes = changes_between(store, "d", before, now)
        assert shown(changes.added) == {new: ["2-4"]}
        assert shown(changes.removed) == {old: ["2-4"]}
        assert visible_at(store, "other", now) == []


def test_a_copy_of_a_file_changes_no_rows(tmp_path: Path) -> None:
    with open_metadata(tmp_path) as store:
        old = publish(store, 0, 6, 1)
        before = store.revision()
        new = publish(store, 0, 6, 2)
        publish(store, 0, 6, 2, 1, origin=old)
        changes = changes_between(store, "d", before, store.revision())
        assert (shown(changes.added), changes.removed) == ({new: ["0-6"]}, [])


def test_a_revision_that_is_not_kept_is_refused_with_the_oldest_one(tmp_path: Path) -> None:
    with open_metadata(tmp_path) as store:
        name = publish(store, 0, 6, 1)
        before = store.revision()
        store.segments.mark_unused([name])
        marked = store.revision()
        assert shown(visible_at(store, "d", before)) == {name: ["0-6"]}
        store.segments.kill([name])
        with pytest.raises(
            NotFound, match=rf"revision {before} .*use revision {marked} or a later"
        ):
            visible_at(store, "d", before)
        with pytest.raises(NotFound, match=rf"use revision {marked}"):
            changes_between(store, "d", before, marked)
        assert visible_at(store, "d", marked) == []
        assert visible_at(store, "other", before) == []


@pytest.mark.parametrize(("after", "revision"), [(0, 99), (-1, 0), (1, 0)])
def test_revisions_that_do_not_exist_are_refused(tmp_path: Path, after: int, revision: int) -> None:
    with open_metadata(tmp_path) as store:
        publish(store, 0, 6, 1)
        with pytest.raises(InvalidRequest, match="revision"):
            changes_between(store, "d", after, revision)


def shown(pieces: Iterable[VisiblePiece]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for piece in pieces:
        text = f"{piece.interval.start_ms}-{piece.interval.end_ms}"
        found.setdefault(str(piece.segment.id), []).append(text)
    return found
