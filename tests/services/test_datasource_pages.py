"""`/penstock/v1/datasources`: pages of the list, sums of intervals, and what rules would drop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import Conflict
from penstock.core.intervals import Interval
from penstock.indexing.overlord.duties.retention import RetentionDuty
from penstock.segments.catalog import Catalog, VisiblePiece
from penstock.segments.segment import Segment
from penstock.segments.segment_groups import SegmentGroups
from penstock.services.api.asgi import application
from penstock.services.api.coordinator.datasource_pages import DatasourcePageRoutes
from penstock.services.api.coordinator.segment_sums import SegmentSums
from penstock.storage.metadata import AnnouncedFile, MetadataStore, PublishRequest
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal, with_token
from tests.harness.metadata_kit import open_metadata
from tests.services.overlord_kit import Api

OWN, RULES = "/penstock/v1/datasources", "/rules/preview"
LOAD, DROP = {"type": "loadForever"}, {"type": "dropForever"}
DAY_MS = 86_400_000
names = count()


def days(first: int, last: int) -> Interval:
    return Interval(first * DAY_MS, last * DAY_MS)


class World:
    """A metadata store with its routes."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store: MetadataStore = open_metadata(folder, self.clock)
        self.routes = DatasourcePageRoutes(self.store, self.clock, SegmentSums(self.store)).routes()
        self.api = Api(application(self.routes, access=with_token(None)))
        self.today = self.clock.now_ms() // DAY_MS

    def put(self, name: str, interval: Interval, rows: int = 10, version: str = "v1") -> str:
        one = Segment(
            name,
            interval,
            version,
            {"type": "local", "path": "/none"},
            size=100 * rows,
            total_rows=rows,
        ).to_row()
        assert self.store.publish(PublishRequest(f"p{next(names)}", name, (one,))).ok
        return one.id

    def close(self) -> None:
        self.api.close()
        self.store.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("pages"))
    made.put("clicks", days(1, 2))
    made.put("clicks", days(2, 3), rows=20)
    gone = made.put("clicks", days(5, 6), rows=40)
    made.store.segments.mark_unused([gone])
    made.put("views", days(1, 2))
    file = AnnouncedFile("/f", days(7, 8), 5, {"bytes": 1})
    made.store.announce("task", "fresh", "s0", (file,))
    yield made
    made.close()


def test_a_page_of_the_list_has_sums_and_times(world: World) -> None:
    found = world.api.get(OWN, params={"limit": 2}).json()
    assert found["found"] == 3
    clicks, fresh = found["datasources"]
    assert world.api.get(f"{OWN}/clicks").json() == clicks
    assert world.api.get(f"{OWN}/none").status_code == 404
    assert clicks.pop("publishedTime")
    assert clicks == {
        "name": "clicks",
        "isLimited": False,
        "segments": 2,
        "bytes": 3_000,
        "rows": 30,
        "runningRows": 0,
        "minTime": "1970-01-02T00:00:00.000Z",
        "maxTime": "1970-01-04T00:00:00.000Z",
        "newestRow": None,
    }
    assert fresh["runningRows"] == 5
    assert fresh["publishedTime"] is None
    assert fresh["maxTime"] == "1970-01-09T00:00:00.000Z"
    rest = world.api.get(OWN, params={"skip": 2}).json()["datasources"]
    assert [one["name"] for one in rest] == ["views"]
    some = world.api.get(OWN, params={"search": "IC"}).json()
    assert [one["name"] for one in some["datasources"]] == ["clicks"]
    assert world.api.get(OWN, params={"search": "%"}).json() == {"found": 0, "datasources": []}


@pytest.mark.parametrize("order", ["name", "newest", "oldest", "bytes"])
@pytest.mark.parametrize("sums", ["true", "false"])
def test_each_page_lists_the_same_datasources(world: World, order: str, sums: str) -> None:
    found = world.api.get(OWN, params={"order": order, "sums": sums}).json()
    by_name = {one["name"]: one for one in found["datasources"]}
    assert by_name.keys() == {"clicks", "views", "fresh"}
    assert by_name["fresh"] == world.api.get(f"{OWN}/fresh").json()
    assert found["found"] == 3
    assert sums == "false" or found["sums"]["datasources"] == 3


def test_sums_that_are_kept_follow_each_change(world: World) -> None:
    def rows() -> object:
        return world.api.get(f"{OWN}/moves").json().get("rows")

    assert rows() is None
    one = world.put("moves", days(1, 2))
    assert rows() == 10
    world.put("moves", days(2, 3))
    assert rows() == 20
    world.store.segments.mark_unused([one])
    assert rows() == 10
    # The page is still there, so that they can be used again.
    world.store.segments.mark_unused_within("moves")
    assert rows() == 0
    assert world.api.get(f"{OWN}/moves").json()["maxTime"] is None
    assert "moves" not in world.api.get(OWN).text


def test_sums_count_what_queries_read_as_soon_as_it_is_published(world: World) -> None:
    for day in (1, 2):
        world.put("compacted", days(day, day + 1))
    world.put("compacted", days(1, 3), rows=20, version="v2")
    one = world.api.get(f"{OWN}/compacted").json()
    assert (one["segments"], one["bytes"], one["rows"]) == (1, 2_000, 20)
    for query in ("", "sums=true", "order=bytes"):
        listed = world.api.get(f"{OWN}?search=compacted&{query}").json()["datasources"]
        assert listed == [one]
    sums = world.api.get(f"{OWN}/compacted/sums").json()
    assert (sums["visible"]["rows"], sums["used"]["rows"]) == (20, 40)
    params = {"interval": "1970-01-02/1970-01-03"}
    part = world.api.get(f"{OWN}/compacted/sums", params=params).json()
    assert (part["visible"]["rows"], part["used"]["rows"]) == (0, 10)
    preview = world.api.post(f"{OWN}/compacted{RULES}", json=[DROP]).json()
    assert preview["dropped"] == {"segments": 1, "bytes": 2_000, "rows": 20}
    assert [run["rows"] for run in preview["intervals"]] == [20]
    assert preview["kept"]["rows"] == 0
    # A segment that is hidden in part counts evenly over its interval.
    world.put("compacted", days(2, 3), rows=1, version="v3")
    one = world.api.get(f"{OWN}/compacted").json()
    assert (one["segments"], one["rows"]) == (2, 11)
    world.store.segments.mark_unused_within("compacted")


def test_used_segments_count_if_the_visible_ones_cannot_be_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that they can be marked unused, which is the remedy."""

    def refuse(*_given: object, **_named: object) -> None:
        raise Conflict("two segments exclude each other")

    monkeypatch.setattr(SegmentGroups, "read", refuse)
    sums = world.api.get(f"{OWN}/clicks/sums").json()
    assert sums["visible"] == sums["used"] == {"segments": 2, "bytes": 3_000, "rows": 30}
    rules = [{"type": "dropByInterval", "interval": "1970-01-02/1970-01-03"}, LOAD]
    preview = world.api.post(f"{OWN}/clicks{RULES}", json=rules).json()
    assert preview["dropped"] == {"segments": 1, "bytes": 1_000, "rows": 10}
    assert preview["kept"] == {"segments": 1, "bytes": 2_000, "rows": 20}
    assert world.api.post(f"{OWN}/_default{RULES}", json=[DROP]).json()["dropped"]["segments"] >= 3


def test_a_preview_keeps_what_a_dropped_segment_hid(world: World) -> None:
    world.put("revealed", days(1, 3), rows=20)
    world.put("revealed", days(1, 2), rows=5, version="v2")
    world.put("revealed", days(2, 3), rows=7, version="v2")
    rules = [{"type": "dropByInterval", "interval": "1970-01-02/1970-01-03"}, LOAD]
    found = world.api.post(f"{OWN}/revealed{RULES}", json=rules).json()
    assert found["dropped"] == {"segments": 1, "bytes": 500, "rows": 5}
    # The first day of the old segment, which the rule does not drop, is read again.
    assert found["kept"] == {"segments": 2, "bytes": 700 + 1_000, "rows": 7 + 10}
    world.store.segments.mark_unused_within("revealed")


def test_sums_are_of_segments_within_an_interval(world: World) -> None:
    every = world.api.get(f"{OWN}/clicks/sums").json()
    assert every["used"] == every["visible"] == {"segments": 2, "bytes": 3_000, "rows": 30}
    assert every["unused"] == {"segments": 1, "bytes": 4_000, "rows": 40}
    params = {"interval": "1970-01-01T12:00/1970-01-03"}
    part = world.api.get(f"{OWN}/clicks/sums", params=params).json()
    assert part["used"] == {"segments": 1, "bytes": 1_000, "rows": 10}
    assert part["unused"]["segments"] == 0
    params = {"interval": "1970-01-02T12:00/1970-01-04"}
    cut = world.api.get(f"{OWN}/clicks/sums", params=params).json()
    assert [one["overlapping"] for one in (every, part, cut)] == [0, 0, 1]


def test_a_principal_with_a_row_filter_sees_that_the_datasource_exists(
    world: World, tmp_path: Path
) -> None:
    roles = (
        '[roles.part]\nallow = ["read datasource:clicks"]\nrow_filters.clicks = "region = \'eu\'"\n'
    )
    kit = AccessFolderKit(tmp_path / "access", roles)
    api = Api(application(world.routes, access=kit.control))
    headers = as_principal(kit.control, "user:eve", "part")
    found = api.get(OWN, headers=headers).json()
    assert found == {"found": 1, "datasources": [{"name": "clicks", "isLimited": True}]}
    fresh = api.get(f"{OWN}?order=newest&sums=true", headers=headers).json()
    sums = {"datasources": 1, "segments": 0, "bytes": 0, "newestRow": None}
    assert fresh == {**found, "sums": sums}
    assert api.get(f"{OWN}/clicks", headers=headers).json() == found["datasources"][0]
    assert api.get(f"{OWN}/views", headers=headers).status_code == 403
    assert api.get(f"{OWN}/clicks/sums", headers=headers).status_code == 403
    assert api.post(f"{OWN}/clicks{RULES}", headers=headers, json=[]).status_code == 403
    api.close()


def test_a_preview_has_the_intervals_that_would_be_dropped(world: World) -> None:
    rules = [{"type": "loadByInterval", "interval": "1970-01-03/1970-01-04"}, DROP]
    found = world.api.post(f"{OWN}/clicks{RULES}", json=rules).json()
    assert found["dropped"] == {"segments": 1, "bytes": 1_000, "rows": 10}
    assert found["kept"] == {"segments": 1, "bytes": 2_000, "rows": 20}
    (run,) = found["intervals"]
    assert run["interval"] == "1970-01-02T00:00:00.000Z/1970-01-03T00:00:00.000Z"
    assert run["datasource"] == "clicks"
    # Touching days are one interval.
    every = world.api.post(f"{OWN}/clicks{RULES}", json=[DROP]).json()
    assert (every["intervalCount"], every["dropped"]["segments"]) == (1, 2)


def test_a_preview_of_the_default_is_of_all_datasources(world: World) -> None:
    world.store.rules.put("views", [LOAD], author="a", comment="")
    found = world.api.post(f"{OWN}/_default{RULES}", json=[DROP]).json()
    assert {one["datasource"] for one in found["intervals"]} == {"clicks"}
    assert found["kept"]["segments"] == 1  # views has a rule of its own
    world.store.rules.put("views", [], author="a", comment="")


def test_rules_that_are_invalid_are_refused_with_their_places(world: World) -> None:
    answer = world.api.post(f"{OWN}/clicks{RULES}", json=[{"type": "dropByPeriod"}])
    assert answer.status_code == 400
    assert "period" in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", f"{RULES}?", [{"type": "dropByPeriod"}]), ("GET", "/sums?interval=x", None)],
)
def test_an_invalid_input_is_an_answer_to_a_check(
    world: World, method: str, path: str, body: object
) -> None:
    refused = world.api(method, f"{OWN}/clicks{path}", json=body)
    assert refused.status_code == 400
    reported = world.api(method, f"{OWN}/clicks{path}&reportInvalid=true", json=body)
    assert (reported.status_code, reported.json()) == (200, refused.json())
    assert refused.json()["errorCode"] == "invalidInput"


def visible_rows(world: World, name: str) -> dict[str, int]:
    """Return the rows of each segment that queries read, as its visible days are of all."""
    pieces: dict[str, list[VisiblePiece]] = {}
    for piece in Catalog().view(world.store.snapshot()).visible(name):
        pieces.setdefault(str(piece.segment.id), []).append(piece)
    return {
        segment: round(
            found[0].segment.total_rows
            * (sum(one.interval.length_ms for one in found) / found[0].segment.interval.length_ms)
        )
        for segment, found in pieces.items()
    }


Rules = st.lists(
    st.sampled_from(
        [
            LOAD,
            DROP,
            {"type": "dropBeforeByPeriod", "period": "P5D"},
            {"type": "loadByPeriod", "period": "P3D"},
            {"type": "loadByPeriod", "period": "P8D", "includeFuture": False},
            {"type": "dropByInterval", "interval": "1970-01-01/3000-01-01"},
        ]
    ),
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(Rules, Rules, st.lists(st.tuples(st.integers(-12, 3), st.integers(1, 4)), min_size=1))
def test_the_overlord_drops_what_the_preview_said(
    world: World,
    own: list[dict[str, object]],
    default: list[dict[str, object]],
    chunks: list[tuple[int, int]],
) -> None:
    name = f"d{next(names)}"
    for number, (start, length) in enumerate(chunks):
        first = world.today + start
        world.put(name, days(first, first + length), rows=number + 1, version=f"v{number:03}")
    world.store.rules.put("_default", default, author="a", comment="")
    seen = visible_rows(world, name)
    said = world.api.post(f"{OWN}/{name}{RULES}", json=own).json()
    world.store.rules.put(name, own, author="a", comment="")
    RetentionDuty(world.store, world.clock).run()
    left = {row.id for row in world.store.segments.used(name)}
    gone = [rows for segment, rows in seen.items() if segment not in left]
    assert (said["dropped"]["segments"], said["dropped"]["rows"]) == (len(gone), sum(gone))
    after = visible_rows(world, name).values()
    assert (said["kept"]["segments"], said["kept"]["rows"]) == (len(after), sum(after))
    sums = world.api.get(f"{OWN}/{name}/sums").json()
    assert sums["visible"] == said["kept"]
    for stored in (name, "_default"):
        world.store.rules.put(stored, [], author="a", comment="")
    world.store.segments.mark_unused_within(name)
