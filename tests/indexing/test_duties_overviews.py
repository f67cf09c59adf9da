"""Duties that read segments range by range give the same results as one read of all segments."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.intervals import Granularity, Interval
from penstock.core.timeline.chunks import RootRange
from penstock.indexing.overlord.compaction.planner import (
    CompactionUnits,
    WantedState,
    plan_compaction,
)
from penstock.indexing.overlord.duties.janitor import OvershadowedSegments
from penstock.indexing.specs.batch.task import aligned
from penstock.indexing.specs.compaction import CompactionConfig, parse_compaction
from penstock.segments.catalog import Catalog
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.storage.metadata import segment_overview as overview_module
from penstock.storage.metadata.rows.segments import SegmentText
from penstock.storage.metadata.segment_overview import SegmentOverview
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata

HOUR_MS = 3_600_000
AS_WISHED = {
    "partitionsSpec": parse_compaction({"dataSource": "d"}).tuning.partitions.model_dump(
        mode="json", by_alias=True, exclude_none=True
    ),
    "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
}
SPECS = (
    ShardSpec(0, 1),
    ShardSpec(0, 2),
    ShardSpec(1, 2),
    ShardSpec.linear(3),
    ShardSpec.tombstone(),
    ShardSpec.overwrite(32_768, RootRange(0, 2, 1, 1)),
)


def _texts_of(segment: Segment, overviews: SegmentOverview) -> list[SegmentText]:
    found = overviews.texts("d", segment.interval)
    return [row for row in found if row.id == str(segment.id)]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_module, "RANGE_SEGMENTS", 3)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    start = draw(st.integers(0, 60))
    hours = draw(st.sampled_from([1, 1, 1, 2, 5, 24, 40]))
    number = draw(st.integers(0, 1_000))
    return Segment(
        "d",
        Interval(start * HOUR_MS, (start + hours) * HOUR_MS),
        draw(st.sampled_from(["v1", "v2", "v3"])),
        {"type": "local", "path": f"/{number}"},
        draw(st.sampled_from(SPECS)),
        size=number,
        last_compaction_state=draw(st.sampled_from([None, AS_WISHED, {"partitionsSpec": {}}])),
    )


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(segments(), min_size=1, max_size=12)),
        st.tuples(st.just("hide"), st.integers(0, 50)),
        st.tuples(st.just("show"), st.integers(0, 50)),
        st.tuples(st.just("kill"), st.integers(0, 50)),
    ),
    min_size=1,
    max_size=6,
)
granularities = st.sampled_from([None, "hour", "day", "week"])


def take(store: MetadataStore, number: int, step: tuple[str, int | list[Segment]]) -> None:
    what, of = step
    ids = sorted(row.id for row in store.segments.every())
    if what == "publish":
        assert isinstance(of, list)
        for at, segment in enumerate(one for rewrite in of for one in with_rewritten(rewrite)):
            try:
                publish(store, f"t{number}-{at}", segment)
            except (Conflict, InvalidRequest):
                continue  # What it rewrites has been rewritten, or is of another kind.
            hide_if_excluded(store, [str(segment.id)])
        return
    assert isinstance(of, int)
    some = ids[of % len(ids) :][:4] if ids else []
    if what == "show":
        for one in some:
            store.segments.mark_used([one])
            hide_if_excluded(store, [one])
        return
    store.segments.mark_unused(some)
    if what == "kill":
        store.segments.kill(some)


def hide_if_excluded(store: MetadataStore, ids: list[str]) -> None:
    try:
        Catalog().view(store.snapshot())
    except Conflict:
        store.segments.mark_unused(ids)


def publish(store: MetadataStore, task: str, *published: Segment) -> None:
    rewritten = tuple(str(old.id) for one in published for old in with_rewritten(one)[:-1])
    rows = tuple(one.to_row() for one in published)
    store.publish(PublishRequest(task, "d", rows, overwritten=rewritten))


def with_rewritten(segment: Segment) -> list[Segment]:
    """Return the segments that one rewrites, and itself."""
    if segment.shard_spec.kind != "numbered_overwrite":
        return [segment]
    return [*(replace(segment, shard_spec=ShardSpec(number, 2)) for number in (0, 1)), segment]


def naive_units(store: MetadataStore, config: CompactionConfig) -> list[tuple[object, ...]]:
    """Return what the units are, out of all that is visible."""
    named = config.granularity_spec.segment_granularity
    wanted = WantedState(config)
    found: list[tuple[Interval, list[tuple[int, bool, Interval]]]] = []
    for piece in Catalog().view(store.snapshot()).visible("d"):
        whole = piece.segment.interval
        if named is not None:
            whole = aligned(whole, Granularity.parse(named))
        (row,) = store.segment_overviews.read(partial(_texts_of, piece.segment))
        state = b"" if piece.segment.last_compaction_state is None else _state_of(row.payload)
        one = (piece.segment.size, not piece.clipped and wanted.is_met(state), piece.interval)
        if found and found[-1][0].overlaps(whole):
            both = found[-1][0], whole
            joined = Interval(min(i.start_ms for i in both), max(i.end_ms for i in both))
            found[-1] = joined, [*found[-1][1], one]
        else:
            found.append((whole, [one]))
    return [
        (
            whole.start_ms,
            whole.end_ms,
            max(interval.end_ms for *_, interval in ones),
            sum(size for size, *_ in ones),
            len(ones),
            all(as_wanted for _, as_wanted, _ in ones),
        )
        for whole, ones in found
    ]


def _state_of(payload: str) -> bytes:
    return orjson.dumps(orjson.loads(payload)["lastCompactionState"])


@given(steps, granularities)
def test_units_follow_what_changes(
    some_steps: Sequence[tuple[str, int | list[Segment]]], granularity: str | None
) -> None:
    config = parse_compaction(
        {"dataSource": "d", "granularitySpec": {"segmentGranularity": granularity}}
    )
    with tempfile.TemporaryDirectory() as folder:
        clock = VirtualClock()
        with open_metadata(folder, clock) as store:
            units = CompactionUnits(config, store.segment_overviews)
            for number, step in enumerate(some_steps):
                take(store, number, step)
                units.refresh()
                assert units.table.tolist() == naive_units(store, config)


@given(steps)
def test_what_newer_segments_hide_is_marked(
    some_steps: Sequence[tuple[str, int | list[Segment]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = VirtualClock()
        with open_metadata(folder, clock) as store:
            overshadowed = OvershadowedSegments(store)
            for number, step in enumerate(some_steps):
                take(store, number, step)
                catalogue = Catalog()
                catalogue.view(store.snapshot())
                hidden = {str(segment.id) for segment in catalogue.overshadowed()}
                before = used(store)
                assert overshadowed.mark() == len(hidden)
                assert used(store) == before - hidden


def used(store: MetadataStore) -> set[str]:
    return {row.id for row in store.segments.every() if row.used}


def test_one_payload_that_cannot_be_read_keeps_no_other_from_being_marked(tmp_path: Path) -> None:
    with open_metadata(tmp_path, VirtualClock()) as store:
        for version in ("v1", "v2"):
            good = Segment("d", Interval(48 * HOUR_MS, 72 * HOUR_MS), version, {}).to_row()
            row = Segment("d", Interval(0, 24 * HOUR_MS), version, {}).to_row()
            bad = structs.replace(row, payload={**row.payload, "size": "large"})
            store.publish(PublishRequest(version, "d", (good, bad)))
        assert OvershadowedSegments(store).mark() == 1


def test_a_plan_names_the_newest_of_very_many(tmp_path: Path) -> None:
    with open_metadata(tmp_path, VirtualClock()) as store:
        hours = [Interval(n * HOUR_MS, (n + 1) * HOUR_MS) for n in range(60)]
        publish(store, "t", *(Segment("d", one, "v1", {}, size=1) for one in hours))
        config = parse_compaction({"dataSource": "d"})
        units = CompactionUnits(config, store.segment_overviews)
        units.refresh()
        plan = plan_compaction(config, units.table, [Interval(0, HOUR_MS + 1)])
        # The last day is too new.
        assert plan.due == tuple(reversed(hours[2:36]))
        assert (plan.awaiting.intervals, plan.skipped.segments) == (36, 24)
