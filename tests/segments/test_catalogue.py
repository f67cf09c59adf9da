"""From snapshots to visible pieces, and storage's small rule against the timeline."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.intervals import ETERNITY, Interval
from penstock.core.timeline.chunks import PartitionChunk, RootRange
from penstock.core.timeline.timeline import Timeline
from penstock.segments.catalog import Catalog, CatalogView
from penstock.segments.segment import Segment, ShardSpec
from penstock.segments.shard_spec import ShardKind
from penstock.storage.metadata import AnnouncedFile, AnnouncedRow, SegmentRow, Snapshot
from penstock.storage.metadata.chunk_summaries import ChunkSummary as UsedChunk
from penstock.storage.metadata.chunk_summaries import visible_chunks
from tests.harness.call_faults_kit import Faults


def row(
    start: int,
    end: int,
    version: str,
    number: int = 0,
    *,
    datasource: str = "d",
    core: int = 0,
    kind: ShardKind = "numbered",
    changed_ms: int = 0,
    path: str = "/x",
) -> SegmentRow:
    segment = Segment(
        datasource,
        Interval(start, end),
        version,
        {"type": "local", "path": path},
        ShardSpec(number, core, kind),
    )
    made = segment.to_row()
    return SegmentRow(
        made.id,
        datasource,
        made.interval,
        version,
        number,
        core,
        made.payload,
        used_changed_ms=changed_ms,
    )


def snapshot(
    revision: int,
    *rows: SegmentRow,
    announced: tuple[AnnouncedRow, ...] = (),
    segments_revision: int | None = None,
) -> Snapshot:
    return Snapshot(
        revision, revision if segments_revision is None else segments_revision, rows, announced
    )


def text(view: CatalogView, datasource: str = "d", interval: Interval = ETERNITY) -> str:
    return " ".join(
        f"[{p.interval.start_ms},{p.interval.end_ms}){p.segment.version}{'*' if p.clipped else ''}"
        for p in view.visible(datasource, interval)
    )


def test_pieces_are_clipped_to_what_is_visible_and_asked() -> None:
    view = Catalog().view(snapshot(1, row(1, 10, "v1"), row(4, 6, "v2"), row(4, 6, "v2", 1)))
    assert text(view) == "[1,4)v1* [4,6)v2 [4,6)v2 [6,10)v1*"
    assert text(view, interval=Interval(5, 7)) == "[5,6)v2* [5,6)v2* [6,7)v1*"
    assert text(view, interval=Interval(10, 12)) == ""
    assert text(view, "other") == ""


def test_datasources_do_not_hide_each_other() -> None:
    announced = AnnouncedRow("t", "f", "s", AnnouncedFile("/a", Interval(0, 9), 1))
    view = Catalog().view(
        snapshot(1, row(0, 9, "v1"), row(0, 9, "v2", datasource="e"), announced=(announced,))
    )
    assert view.datasources() == ["d", "e", "f"]
    assert (text(view), text(view, "e")) == ("[0,9)v1", "[0,9)v2")
    assert (view.announced("f"), view.announced("d")) == ((announced,), ())


def test_tombstones_hide_without_being_read() -> None:
    view = Catalog().view(snapshot(1, row(0, 9, "v1"), row(3, 5, "v2", kind="tombstone")))
    assert text(view) == "[0,3)v1* [5,9)v1*"


def test_what_is_appended_beside_a_tombstone_shows_without_it() -> None:
    rows = [row(0, 9, "v1"), row(3, 5, "v2", kind="tombstone"), row(3, 5, "v2", 1)]
    catalogue = Catalog()
    assert text(catalogue.view(snapshot(1, *rows))) == "[0,3)v1* [3,5)v2 [5,9)v1*"
    assert text(catalogue.view(snapshot(2, *rows[:2]))) == "[0,3)v1* [5,9)v1*"
    assert catalogue.view(snapshot(3, rows[1])).datasources() == []


def test_a_view_stays_as_it_was() -> None:
    catalogue = Catalog()
    old = catalogue.view(snapshot(1, row(0, 9, "v1")))
    new = catalogue.view(snapshot(2, row(0, 9, "v2")))
    assert (text(old), text(new)) == ("[0,9)v1", "[0,9)v2")
    assert catalogue.view(snapshot(2)) is new


def test_announcements_alone_leave_the_pieces_as_they_are() -> None:
    catalogue = Catalog()
    first = snapshot(1, row(0, 9, "v1"))
    old = catalogue.view(first)
    new = catalogue.view(snapshot(2, *first.segments, segments_revision=1))
    assert new.visible_timelines is old.visible_timelines
    assert new.revision == 2


def test_an_interval_may_be_cut_anew_with_its_version() -> None:
    catalogue = Catalog()
    catalogue.view(snapshot(1, row(0, 9, "v1")))
    view = catalogue.view(snapshot(2, row(0, 4, "v1"), row(4, 9, "v1")))
    assert text(view) == "[0,4)v1 [4,9)v1"
    assert catalogue.view(snapshot(3)).datasources() == []


def test_a_datasource_that_did_not_change_is_left_alone() -> None:
    catalogue = Catalog()
    first = snapshot(1, row(0, 9, "v1"), row(0, 9, "v1", datasource="e"))
    old = catalogue.view(first)
    new = catalogue.view(snapshot(2, *first.segments, row(3, 5, "v2")))
    assert new.visible_timelines["e"] is old.visible_timelines["e"]
    assert (text(old), text(new)) == ("[0,9)v1", "[0,3)v1* [3,5)v2 [5,9)v1*")
    # The same rows as other objects, as a snapshot that was read from nothing has them.
    again = snapshot(3, row(0, 9, "v1"), row(3, 5, "v2"), row(0, 9, "v1", datasource="e"))
    assert catalogue.view(again).visible_timelines["d"] is new.visible_timelines["d"]


def test_half_of_a_set_is_not_shown() -> None:
    catalogue = Catalog()
    first = row(0, 9, "v1")
    half = snapshot(1, first, row(0, 9, "v2", 0, core=2))
    assert text(catalogue.view(half)) == "[0,9)v1"
    whole = snapshot(2, *half.segments, row(0, 9, "v2", 1, core=2))
    assert text(catalogue.view(whole)) == "[0,9)v2 [0,9)v2"


def test_a_row_that_was_published_again_under_its_id_counts_as_it_is_now() -> None:
    catalogue = Catalog()
    catalogue.view(snapshot(1, row(0, 9, "v1")))
    changed = row(0, 9, "v1", changed_ms=5, path="/y")
    [piece] = catalogue.view(snapshot(2, changed)).visible("d")
    assert piece.segment.load_spec == {"type": "local", "path": "/y"}


def twins(*, core: int = 1) -> tuple[SegmentRow, SegmentRow]:
    """What was appended in an hour, and its copy under a replacement of the day."""
    appended = row(3, 4, "v0", 7, path="/hour")
    copy = structs.replace(
        appended,
        id="copy",
        interval=Interval(0, 24),
        version="v1",
        partition_number=1,
        core_partitions=core,
        upgraded_from=appended.id,
    )
    return appended, copy


def paths(view: CatalogView, interval: Interval = ETERNITY) -> list[str]:
    return [str(piece.segment.load_spec["path"]) for piece in view.visible("d", interval)]


def test_a_file_under_two_ids_is_read_once_before_and_after_the_replacement() -> None:
    appended, copy = twins(core=2)
    catalogue = Catalog()
    # The replacement is half there: its copy must not count beside what it was copied from.
    assert paths(catalogue.view(snapshot(1, appended, copy))) == ["/hour"]
    view = catalogue.view(snapshot(2, appended, copy, row(0, 24, "v1", core=2, path="/day")))
    assert paths(view) == ["/day", "/hour"]
    assert {piece.segment.version for piece in view.visible("d")} == {"v1"}
    [(_, second)] = [view.visible("d")]
    assert (second.segment.interval, second.segment.shard_spec) == (
        Interval(0, 24),
        ShardSpec(1, 2),
    )
    assert [s.version for s in catalogue.overshadowed()] == ["v0"]
    # The replacement goes: what was appended is still there.
    assert paths(catalogue.view(snapshot(3, appended))) == ["/hour"]


def test_a_file_taken_over_twice_counts_once() -> None:
    appended, copy = twins(core=0)
    again = structs.replace(copy, id="copy2", partition_number=2)
    assert paths(Catalog().view(snapshot(1, appended, copy, again))) == ["/hour"]


def test_a_chunk_with_minor_versions_shows_what_was_overwritten_once() -> None:
    specs = [
        ShardSpec(0),
        ShardSpec(1),
        ShardSpec.overwrite(32768, RootRange(0, 2, 1, 2)),
        ShardSpec.overwrite(32769, RootRange(0, 2, 1, 2)),
    ]
    rows = [
        Segment("d", Interval(0, 9), "v1", {"type": "local", "path": f"/{n}"}, spec).to_row()
        for n, spec in enumerate(specs)
    ]
    catalogue = Catalog()
    assert paths(catalogue.view(snapshot(1, *rows[:3]))) == ["/0", "/1"]
    assert paths(catalogue.view(snapshot(2, *rows))) == ["/2", "/3"]
    assert [s.shard_spec.partition_number for s in catalogue.overshadowed()] == [0, 1]


def test_overshadowed_segments_are_told() -> None:
    catalogue = Catalog()
    catalogue.view(snapshot(1, row(0, 9, "v1"), row(0, 9, "v1", 1), row(0, 10, "v2")))
    assert [(s.version, s.shard_spec.partition_number) for s in catalogue.overshadowed()] == [
        ("v1", 0),
        ("v1", 1),
    ]


def test_a_payload_that_cannot_be_read_names_its_segment() -> None:
    catalogue = Catalog()
    good = snapshot(1, row(0, 9, "v1"))
    catalogue.view(good)
    bad = SegmentRow("broken", "d", Interval(0, 9), "v2", 0, 0, {"dataSource": 5})
    with pytest.raises(InvalidRequest, match="'broken'"):
        catalogue.view(snapshot(2, *good.segments, bad))
    assert text(catalogue.view(snapshot(3, *good.segments))) == "[0,9)v1"


def test_a_view_that_memory_did_not_suffice_for_is_made_anew() -> None:
    """Its rows were noted and its view was not, so the next one lacked what had changed."""
    announced = AnnouncedRow("t", "f", "s", AnnouncedFile("/a", Interval(0, 9), 1))
    rows = (row(0, 9, "v1"), row(0, 9, "v1", datasource="e"))
    changed = (rows[0], row(3, 5, "v2"), row(0, 9, "v1", datasource="g"))
    before, after = snapshot(1, *rows, announced=(announced,)), snapshot(2, *changed)
    later = snapshot(3, *changed, segments_revision=2)
    wanted = [*map(Catalog().view, (before, after, later))]
    modules = ["penstock.segments.catalog", "penstock.core.timeline"]
    faults = Faults()
    for at in itertools.count():
        catalogue = Catalog()
        catalogue.view(before)
        with faults.armed_inside(modules, MemoryError, at):
            catalogue.view(after)
        if not faults.raised:
            break
        for one, view in zip((later, before, after), (*wanted[2:], *wanted[:2]), strict=True):
            found = catalogue.view(one)
            assert (found.revision, found.announced_rows) == (view.revision, view.announced_rows)
            assert [text(found, name) for name in "defg"] == [text(view, name) for name in "defg"]
    assert at > 50


versions = st.integers(1, 4)
sets = st.dictionaries(
    st.tuples(st.integers(0, 9), st.integers(1, 4), versions),
    st.sets(st.integers(0, 2), min_size=1),
    max_size=8,
)


@given(sets, st.integers(0, 9), st.integers(1, 5))
def test_storage_sees_the_same_chunks_as_the_timeline(
    sets: Mapping[tuple[int, int, int], set[int]], start: int, length: int
) -> None:
    timeline: Timeline[tuple[int, int, int]] = Timeline()
    chunks = []
    for (at, long, version), numbers in sets.items():
        interval, core = Interval(at, at + long), version - 1
        try:
            for number in numbers:
                timeline.add(
                    interval, str(version), PartitionChunk(number, core, (at, long, version))
                )
        except Conflict:
            continue
        chunks.append(UsedChunk.of(interval, str(version), numbers, core))
    asked = Interval(start, start + length)
    expected = {(p.true_interval, p.version) for p in timeline.lookup(asked)}
    assert {(c.interval, c.version) for c in visible_chunks(chunks, asked)} == expected
