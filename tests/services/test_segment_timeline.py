"""The segment timeline of a datasource, beside a model that looks at each instant."""

from __future__ import annotations

import queue
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypedDict, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.errors import Unavailable
from penstock.core.intervals import Interval, parse_time
from penstock.core.timeline.chunks import OVERWRITE_START, RootRange
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.services.api.coordinator import segment_sums, segment_timeline
from penstock.services.api.coordinator.segment_sums import SegmentSums
from penstock.services.api.coordinator.segment_timeline import (
    CONSOLE_CELLS,
    RETRY_S,
    SegmentTimelineRoutes,
    TimelineRefresher,
)
from penstock.storage.metadata import AnnouncedFile, MetadataStore, PublishRequest, SegmentGroup
from penstock.storage.metadata.segment_overview import SegmentOverview
from penstock.testing.clock import VirtualClock
from tests.services.overlord_kit import Api, OverlordWorld, noop, routed

HOUR_MS = 3_600_000
STATES = ("visible", "overshadowed", "incomplete", "unused")
names = count()


class Sums(TypedDict):
    """Sums of a state."""

    segments: int
    bytes: int
    rows: int


class Cell(TypedDict):
    """A cell of an answer, with all states."""

    start: str
    segments: int
    hiddenBy: str | None
    visible: Sums
    overshadowed: Sums
    incomplete: Sums
    unused: Sums


class Listed(TypedDict):
    """A single segment of an answer."""

    version: str
    partition: int
    state: str
    hiddenBy: list[dict[str, str]]
    task: str | None
    published: str | None


class Answer(TypedDict):
    """The fields of an answer that are compared."""

    range: str
    interval: str
    cellMs: int
    segments: int
    cells: list[Cell]
    segmentList: list[Listed] | None
    fileList: list[dict[str, object]]


@dataclass(frozen=True)
class Chunk:
    """Segments of one interval and version."""

    start: int
    length: int
    version: str
    core: int
    numbers: frozenset[int]
    unused: frozenset[int]

    @property
    def end(self) -> int:
        return self.start + self.length

    def segment(self, datasource: str, number: int) -> Segment:
        return Segment(
            datasource,
            Interval(self.start, self.end),
            self.version,
            {"type": "local", "path": f"/{self.version}/{self.start}/{number}"},
            ShardSpec(number, self.core),
            size=size_of(number),
            total_rows=rows_of(number),
        )


def size_of(number: int) -> int:
    return 1_000 * (number + 1)


def rows_of(number: int) -> int:
    return 10 + number


@st.composite
def chunks(draw: st.DrawFn) -> list[Chunk]:
    """Chunks of which those of one version do not overlap, as the lockbox allows."""
    found: list[Chunk] = []
    for _ in range(draw(st.integers(1, 6))):
        core = draw(st.integers(0, 2))
        numbers = draw(st.frozensets(st.integers(0, 2), min_size=1)) | set(range(core))
        made = Chunk(
            draw(st.integers(0, 20)),
            draw(st.integers(1, 12)),
            draw(st.sampled_from("abcd")),
            core,
            numbers,
            draw(st.frozensets(st.sampled_from(sorted(numbers)))),
        )
        if not any(
            one.version == made.version and one.start < made.end and made.start < one.end
            for one in found
        ):
            found.append(made)
    return found


class Model:
    """The states of segments, one instant after the other."""

    def __init__(self, chunks: Sequence[Chunk], *, marked: bool) -> None:
        self.unused = [(one, sorted(one.unused)) for one in chunks if marked and one.unused]
        self.used = [
            (one, sorted(one.numbers - one.unused if marked else one.numbers)) for one in chunks
        ]
        self.used = [(one, numbers) for one, numbers in self.used if numbers]
        self.complete = [one for one, numbers in self.used if set(range(one.core)) <= set(numbers)]

    def shown(self, at: int) -> Chunk | None:
        there = (one for one in self.complete if one.start <= at < one.end)
        return max(there, key=lambda one: one.version, default=None)

    def state(self, chunk: Chunk, at: int) -> str:
        if chunk in self.complete:
            return "visible" if self.shown(at) == chunk else "overshadowed"
        over = [self.shown(at) for at in range(chunk.start, chunk.end)]
        hidden = all(one is not None and one.version > chunk.version for one in over)
        return "overshadowed" if hidden else "incomplete"

    def cell(self, low: int, high: int) -> dict[str, object]:
        """Return the cell of an interval as the answer has it, with sizes as fractions."""
        sums: dict[str, dict[str, float]] = {}
        hiders: set[str] = set()
        every = [(one, numbers, True) for one, numbers in self.used]
        every += [(one, numbers, False) for one, numbers in self.unused]
        there = [one for one in every if one[0].start < high and low < one[0].end]
        for one, numbers, used in there:
            seen: set[str] = set()
            for at in range(max(low, one.start), min(high, one.end)):
                state = self.state(one, at) if used else "unused"
                found = sums.setdefault(state, {"segments": 0, "bytes": 0, "rows": 0})
                found["bytes"] += sum(map(size_of, numbers)) / one.length
                found["rows"] += sum(map(rows_of, numbers)) / one.length
                if state not in seen:
                    found["segments"] += len(numbers)
                seen.add(state)
                shown = self.shown(at)
                if state == "overshadowed" and shown is not None:
                    hiders.add(shown.version)
        versions = {one.version for one, _, used in there if used}
        return {
            "segments": sum(len(numbers) for _, numbers, _ in there),
            "versions": len(versions),
            "newestVersion": max(versions, default=None),
            "hiddenBy": max(hiders, default=None),
            **sums,
        }

    def visible(self) -> tuple[int, int, int]:
        """Return number, bytes and rows of the segments that queries read."""
        found = [0, 0, 0]
        for one, numbers in self.used:
            shown = sum(self.shown(at) == one for at in range(one.start, one.end))
            if shown:
                found[0] += len(numbers)
                found[1] += round(sum(map(size_of, numbers)) * (shown / one.length))
                found[2] += round(sum(map(rows_of, numbers)) * (shown / one.length))
        return found[0], found[1], found[2]

    def listed(self, low: int, high: int) -> list[tuple[str, int, str, set[str]]]:
        """Return version, number, state and hiding versions of the segments of an interval.

        The state is that of the whole segment; versions hide parts in the interval.
        """
        found = []
        for one, numbers in self.used:
            times = range(max(low, one.start), min(high, one.end))
            states = {self.state(one, at) for at in range(one.start, one.end)}
            over = {shown.version for at in times if (shown := self.shown(at)) is not None}
            hiders = {version for version in over if version > one.version}
            state = states.pop() if len(states) == 1 else "partlyVisible"
            if times:
                waits = state == "incomplete"
                found += [(one.version, n, state, set() if waits else hiders) for n in numbers]
        for one, numbers in self.unused:
            if one.start < high and low < one.end:
                found += [(one.version, n, "unused", set()) for n in numbers]
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path_factory.mktemp("timeline")).start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def router(world: OverlordWorld) -> Iterator[Api]:
    with routed(world, None) as made:  # type: ignore[arg-type]
        yield made


def publish(world: OverlordWorld, *segments: Segment, overwritten: Sequence[str] = ()) -> None:
    name, rows = segments[0].datasource, tuple(one.to_row() for one in segments)
    request = PublishRequest(f"task{next(names)}", name, rows, overwritten=tuple(overwritten))
    assert world.metadata.publish(request).ok


def timeline(router: Api, datasource: str, query: str = "") -> Answer:
    answer = router.get(f"/penstock/v1/datasources/{datasource}/segments/timeline{query}")
    assert answer.status_code == 200, answer.text
    return cast("Answer", answer.json())


def ms_of(interval: object) -> tuple[int, int]:
    start, _, end = str(interval).partition("/")
    return parse_time(start), parse_time(end)


def check(found: Answer, model: Model) -> None:
    """Compare an answer with the model: all of its cells, and each segment."""
    cells: dict[int, Mapping[str, object]] = {
        parse_time(one["start"]): one for one in found["cells"]
    }
    low, high = ms_of(found["interval"])
    length = found["cellMs"]
    for start in range(low, high, length):
        wanted = model.cell(start, start + length)
        cell = cells.pop(start, None)
        if cell is None:
            assert wanted["segments"] == 0
            continue
        for field in ("segments", "versions", "newestVersion", "hiddenBy"):
            assert cell[field] == wanted[field], (field, cell)
        for state in STATES:
            sums, given = wanted.get(state), cell.get(state)
            assert (sums is None) == (given is None), (state, cell)
            assert given == (sums and pytest.approx(sums, abs=0.51))
    assert cells == {}
    listed = [
        (one["version"], one["partition"], one["state"], {h["version"] for h in one["hiddenBy"]})
        for one in found["segmentList"] or ()
    ]
    assert sorted(listed, key=repr) == sorted(model.listed(low, high), key=repr)


@settings(max_examples=25)
@given(chunks(), st.integers(1, 40), st.tuples(st.integers(0, 31), st.integers(1, 32)))
def test_each_part_has_its_state(
    world: OverlordWorld,
    router: Api,
    chunks: list[Chunk],
    cells: int,
    sight: tuple[int, int],
) -> None:
    name = f"d{next(names)}"
    for one in chunks:  # a publish marks its own hidden segments unused
        publish(world, *(one.segment(name, n) for n in one.numbers))
    check(timeline(router, name, f"?cells={cells}"), Model(chunks, marked=False))
    marked = [str(one.segment(name, n).id) for one in chunks for n in one.unused]
    world.metadata.segments.mark_unused(marked)
    model = Model(chunks, marked=True)
    check(timeline(router, name, f"?cells={cells}"), model)
    if sight[0] < sight[1]:
        query = f"?interval={Interval(*sight)}&cells={cells}"
        check(timeline(router, name, query), model)
    world.metadata.segments.kill(marked)
    model.unused = []
    if model.used:
        check(timeline(router, name, f"?cells={cells}"), model)


def whole(start: int, length: int, version: str) -> Chunk:
    return Chunk(start, length, version, 1, frozenset({0}), frozenset())


@settings(max_examples=25)
@given(chunks())
@example([whole(0, 4, "a"), whole(0, 2, "b"), whole(2, 2, "b")])  # both hide the first
def test_visible_sums_follow_each_change(world: OverlordWorld, chunks: list[Chunk]) -> None:
    name, others = f"d{next(names)}", SegmentSums(world.metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_sums, "KEPT_MIN", 0)  # its columns are kept
        kept = SegmentSums(world.metadata)

        def check_sums(chunks: list[Chunk], *, marked: bool) -> None:
            model = Model(chunks, marked=marked)
            assert sums_of(kept, name) == model.visible()

        for at, one in enumerate(chunks, 1):
            publish(world, *(one.segment(name, n) for n in one.numbers))
            check_sums(chunks[:at], marked=False)
        for at, one in enumerate(chunks, 1):
            marked = [str(one.segment(name, n).id) for n in one.unused]
            world.metadata.segments.mark_unused(marked)
            left = [replace(later, unused=frozenset()) for later in chunks[at:]]
            check_sums([*chunks[:at], *left], marked=True)
            world.metadata.segments.kill(marked)
        check_sums(chunks, marked=True)
        late = whole(0, 40, "z")
        publish(world, late.segment(name, 0))
        check_sums([*chunks, late], marked=True)
    assert sums_of(others, name) == sums_of(kept, name)


def sums_of(sums: SegmentSums, name: str) -> tuple[int, int, int]:
    found = sums.totals([name]).get(name)
    return (0, 0, 0) if found is None else (found.count, found.bytes, found.rows)


def test_only_what_has_changed_is_added_up_again(
    world: OverlordWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, Collection[int] | None]] = []
    groups = SegmentOverview.groups

    def spied(
        overview: SegmentOverview, datasource: str, starts: Collection[int] | None = None
    ) -> Iterator[Sequence[SegmentGroup]]:
        read.append((datasource, starts))
        return groups(overview, datasource, starts)

    monkeypatch.setattr(SegmentOverview, "groups", spied)
    monkeypatch.setattr(segment_sums, "KEPT_MIN", 3)
    for start in range(3):
        publish(world, whole(start, 1, "a").segment("wide", 0))
    publish(world, whole(0, 1, "a").segment("narrow", 0))
    sums, every = SegmentSums(world.metadata), ["wide", "narrow"]
    assert sums.totals(every)["wide"].count == 3
    assert sorted(read) == [("narrow", None), ("wide", None)]
    publish(world, whole(1, 1, "b").segment("wide", 0))
    assert sums.totals(every)["wide"].count == 3
    assert read[2:] == [("wide", {1})]
    publish(world, whole(1, 1, "b").segment("narrow", 0))
    assert sums.totals(every)["narrow"].count == 2
    assert sums.totals(every)["narrow"].count == 2
    assert read[3:] == [("narrow", None)]
    # A kill deletes segments that no sum counts.
    hidden = [str(whole(1, 1, "a").segment("wide", 0).id)]
    world.metadata.segments.mark_unused(hidden)
    assert sums.totals(every)["wide"].count == 3
    world.metadata.segments.kill(hidden)
    publish(world, whole(2, 1, "b").segment("wide", 0))
    assert sums.totals(every)["wide"].count == 3
    assert None not in [starts for _, starts in read[4:]]


def test_segments_that_rewrite_others_of_their_version(world: OverlordWorld, router: Api) -> None:
    made = Chunk(0, 10, "a", 3, frozenset({0, 1, 2}), frozenset())
    publish(world, *(made.segment("rewritten", n) for n in made.numbers))
    roots = RootRange(0, 2, minor_version=1, group_size=2)
    group = [
        Segment(
            *("rewritten", Interval(0, 10), "a", {"type": "local", "path": f"/over/{number}"}),
            ShardSpec.overwrite(OVERWRITE_START + number, roots),
            size=50,
            total_rows=5,
        )
        for number in range(2)
    ]
    publish(world, *group, overwritten=[str(made.segment("rewritten", n).id) for n in range(2)])
    found = timeline(router, "rewritten", "?cells=1")
    (cell,) = found["cells"]
    assert cell["visible"] == {"segments": 3, "bytes": 100 + size_of(2), "rows": 10 + rows_of(2)}
    assert cell["overshadowed"]["segments"] == 2
    assert cell["hiddenBy"] == "a"
    states = [(one["partition"], one["state"]) for one in found["segmentList"] or ()]
    assert states == [
        *((0, "overshadowed"), (1, "overshadowed"), (2, "visible")),
        *((OVERWRITE_START, "visible"), (OVERWRITE_START + 1, "visible")),
    ]
    # Without one of the group, the rewritten ones are visible again.
    world.metadata.segments.mark_unused([str(group[0].id)])
    (cell,) = timeline(router, "rewritten", "?cells=1")["cells"]
    assert [cell[state]["segments"] for state in ("visible", "incomplete", "unused")] == [3, 1, 1]


def test_large_datasources_are_kept_ready(
    world: OverlordWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, Collection[int] | None]] = []
    groups = SegmentOverview.groups

    def spied(
        overview: SegmentOverview, datasource: str, starts: Collection[int] | None = None
    ) -> Iterator[Sequence[SegmentGroup]]:
        read.append((datasource, starts))
        return groups(overview, datasource, starts)

    monkeypatch.setattr(SegmentOverview, "groups", spied)
    monkeypatch.setattr(segment_timeline, "REFRESHED_MIN", 12)
    hours = [Chunk(start, 1, "a", 1, frozenset({0}), frozenset()) for start in range(13)]
    publish(world, *(one.segment("large", 0) for one in hours[:12]))
    publish(world, hours[0].segment("small", 0))
    routes = SegmentTimelineRoutes(world.metadata, SegmentSums(world.metadata))
    routes.refresh()
    assert [one for one in read if one[0] in ("large", "small")] == [("large", None)]
    assert routes.answer("large", None, CONSOLE_CELLS)["segments"] == 12
    publish(world, hours[12].segment("large", 0))
    routes.refresh()
    assert read[-1] == ("large", {12}), "only the time that changed"
    read.clear()
    routes.refresh()
    assert routes.answer("large", None, CONSOLE_CELLS)["segments"] == 13
    assert read == []


def test_the_refresher_tries_again_until_it_is_stopped() -> None:
    clock, tried = VirtualClock(), queue.SimpleQueue[float]()

    class Unreadable(SegmentTimelineRoutes):
        def refresh(self) -> None:
            tried.put(clock.monotonic_s())
            raise Unavailable("the metadata cannot be read")

    nothing = cast("MetadataStore", None)
    refresher = TimelineRefresher(Unreadable(nothing, SegmentSums(nothing)), clock)
    refresher.start()
    first = tried.get(timeout=60)
    clock.wait_for_waiting(1)
    clock.advance(RETRY_S)
    assert tried.get(timeout=60) == first + RETRY_S
    refresher.stop()
    assert tried.empty()


def test_files_of_running_tasks(world: OverlordWorld, router: Api) -> None:
    file = AnnouncedFile("/made", Interval(0, 4), 8, {"bytes": 400})
    assert world.metadata.announce("reader", "running", "s", [file])
    found = timeline(router, "running", f"?interval={Interval(2, 4)}&cells=1")
    assert found["cells"] == [
        {
            "start": "1970-01-01T00:00:00.002Z",
            "end": "1970-01-01T00:00:00.004Z",
            "segments": 0,
            "versions": 0,
            "newestVersion": None,
            "hiddenBy": None,
            "running": {"files": 1, "bytes": 200, "rows": 4},
        }
    ]
    assert found["fileList"] == [
        {"task": "reader", "interval": str(Interval(0, 4)), "bytes": 400, "rows": 8}
    ]
    assert found["range"] == str(Interval(0, 4))


def test_segments_have_the_task_that_published_them_and_tasks_their_segments(
    world: OverlordWorld, router: Api
) -> None:
    task = noop("writer", "linked")
    assert world.api.post("/druid/indexer/v1/task", json=task).status_code == 200
    world.runs("writer")
    rows = tuple(Chunk(at, at + 10, "a", 1, frozenset({0}), frozenset()) for at in (0, 10))
    for number, one in enumerate(rows):
        request = PublishRequest("writer", "linked", (one.segment("linked", 0).to_row(),))
        assert world.metadata.publish(replace(request, sequence_name=f"s{number}")).ok
    listed = timeline(router, "linked")["segmentList"] or ()
    assert [one["task"] for one in listed] == ["writer"] * 2
    assert all(one["published"] for one in listed)
    path = "/druid/indexer/v1/task/writer/segments"
    found = world.api.get(path).json()
    assert (found["count"], len(found["publishes"])) == (2, 2)
    names = [str(one.segment("linked", 0).id) for one in rows]
    assert sorted(one["segment"] for one in found["segments"]) == sorted(names)
    assert found["segments"][0]["used"]
    world.metadata.segments.mark_unused(names)
    world.end("writer")
    world.until(lambda: world.state("writer") == "NONE")
    assert [one["used"] for one in world.api.get(path).json()["segments"]] == [False, False]
    assert world.api.get("/druid/indexer/v1/task/nobody/segments").status_code == 404


def test_answers_are_bounded(world: OverlordWorld, router: Api) -> None:
    one = Chunk(0, HOUR_MS, "a", 0, frozenset(range(301)), frozenset())
    publish(world, *(one.segment("many", n) for n in one.numbers))
    found = timeline(router, "many", "?cells=100000")
    assert (found["segments"], found["segmentList"]) == (301, None)
    assert len(found["cells"]) == 360  # of ten seconds
    whole = timeline(router, "many", "?interval=0001-01-01/9999-12-31&cells=400")
    assert [cell["segments"] for cell in whole["cells"]] == [301]
    assert timeline(router, "many", "?interval=2030/2031")["cells"] == []


def test_a_segment_without_time_is_left_out(world: OverlordWorld, router: Api) -> None:
    one = Chunk(5, 0, "a", 0, frozenset({0}), frozenset())
    publish(world, one.segment("timeless", 0))
    found = timeline(router, "timeless")
    assert (found["cells"], found["segmentList"]) == ([], [])
    publish(world, Chunk(0, 10, "b", 0, frozenset({0}), frozenset()).segment("timeless", 0))
    found = timeline(router, "timeless", "?cells=1")
    assert [cell["segments"] for cell in found["cells"]] == [1]


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("interval=nonsense", "interval"),
        ("interval=2024-01-01/2024-01-01", "interval"),
        ("cells=0", "cells"),
        ("cells=x", "cells"),
    ],
)
def test_wrong_parameters(router: Api, query: str, place: str) -> None:
    answer = router.get(f"/penstock/v1/datasources/many/segments/timeline?{query}")
    assert answer.status_code == 400
    assert place in answer.json()["error"]
