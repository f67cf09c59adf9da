"""`/penstock/v1/datasources` with sums and in any order: how new the data is, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.core.intervals import Interval
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.services.api.asgi import application
from penstock.services.api.coordinator import freshness
from penstock.services.api.coordinator.datasource_pages import DatasourcePageRoutes
from penstock.services.api.coordinator.freshness import SIZE_RESTS
from penstock.services.api.coordinator.segment_sums import SegmentSums
from penstock.storage.metadata import (
    AnnouncedFile,
    MetadataStore,
    PublishRequest,
    SegmentTotals,
)
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal, with_token
from tests.harness.metadata_kit import open_metadata
from tests.services.overlord_kit import Api

PATH = "/penstock/v1/datasources"
RULES = """
[roles.reader]
allow = ["read datasource:b"]
"""


class CountedSums(SegmentSums):
    """Sums that record what is added up, and may take time."""

    def __init__(self, store: MetadataStore, clock: VirtualClock) -> None:
        super().__init__(store)
        self.taken: list[str] = []
        self.takes_s = 0.0
        self._clock = clock

    def totals(self, names: Sequence[str]) -> dict[str, SegmentTotals]:
        self.taken += names
        self._clock.advance(self.takes_s)
        return super().totals(names)


class World:
    """A metadata store on virtual time, and the route over it."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store: MetadataStore = open_metadata(folder, self.clock)
        self.added = CountedSums(self.store, self.clock)
        self.routes = DatasourcePageRoutes(self.store, self.clock, self.added)
        self.api = Api(application(self.routes.routes(), access=with_token(None)))

    def publish(self, datasource: str, day: int, number: int = 0, size: int = 100) -> str:
        row = Segment(
            datasource,
            Interval.parse(f"2024-01-{day:02}/2024-01-{day + 1:02}"),
            "v1",
            {"type": "local", "path": f"/{datasource}/{day}/{number}"},
            ShardSpec(number),
            size=size,
        ).to_row()
        assert self.store.publish(PublishRequest(row.id, datasource, (row,))).ok
        return row.id

    def ask(self, query: str = "") -> dict[str, object]:
        answer = self.api.get(f"{PATH}?sums=true&{query}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def sums(self, query: str = "") -> dict[str, object]:
        sums = self.ask(query)["sums"]
        assert isinstance(sums, dict)
        return sums

    def page(self, query: str = "") -> list[dict[str, object]]:
        page = self.ask(query)["datasources"]
        assert isinstance(page, list)
        return page


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.api.close()
    made.store.close()


def names(page: list[dict[str, object]]) -> list[object]:
    return [one["name"] for one in page]


def test_data_is_dated_by_event_and_by_publish(world: World) -> None:
    world.publish("a", 5)
    world.clock.advance(60)
    world.publish("a", 2)  # late data
    (found,) = world.page()
    assert found["maxTime"] == "2024-01-06T00:00:00.000Z"
    published = found["publishedTime"]
    assert (found["segments"], found["bytes"], found["newestRow"]) == (2, 200, None)
    world.clock.advance(60)
    world.publish("a", 7)
    (found,) = world.page()
    assert found["maxTime"] == "2024-01-08T00:00:00.000Z"
    assert str(found["publishedTime"]) > str(published)


def test_rows_of_running_tasks_count_before_they_are_published(world: World) -> None:
    world.publish("a", 5)
    for name, newest_ms in (("a", 1_000), ("only", 2_000)):
        file = AnnouncedFile(f"/{name}", Interval(0, 3_600_000), 7, {"maxTimeMs": newest_ms})
        world.store.announce(f"task-{name}", name, f"task-{name}_0", [file])
    found = {one["name"]: one for one in world.page()}
    assert found["a"]["newestRow"] == "1970-01-01T00:00:01.000Z"
    assert found["only"]["newestRow"] == "1970-01-01T00:00:02.000Z"
    assert found["only"]["publishedTime"] is None
    # That of all datasources, whichever are in the page.
    assert world.sums("order=bytes&limit=1")["newestRow"] == "1970-01-01T00:00:02.000Z"
    world.clock.advance(1)
    world.publish("newer", 1)
    assert names(world.page("order=newest"))[2] == "newer"
    assert names(world.page("order=oldest"))[0] == "newer"


def test_unused_segments_do_not_count(world: World) -> None:
    first, second = world.publish("a", 5), world.publish("a", 6)
    world.page()
    world.store.segments.mark_unused([second])
    world.clock.advance(1)
    (found,) = world.page()
    assert (found["segments"], found["bytes"]) == (1, 100)
    assert found["maxTime"] == "2024-01-06T00:00:00.000Z"
    world.store.segments.mark_unused([first])
    assert world.page() == []


def test_sizes_of_many_segments_are_added_up_seldom(world: World) -> None:
    world.publish("a", 5)
    world.added.takes_s = 2
    world.page()
    # The first sums read everything, so the time that they take does not delay later ones.
    world.publish("a", 6)
    assert world.page()[0]["bytes"] == 200
    world.publish("a", 7)
    (found,) = world.page()
    assert (found["segments"], found["bytes"]) == (2, 200)
    assert world.added.taken == ["a", "a"]
    world.clock.advance(2 * SIZE_RESTS)
    (found,) = world.page()
    assert (found["segments"], found["bytes"]) == (3, 300)
    assert world.added.taken == ["a", "a", "a"]
    world.clock.advance(2 * SIZE_RESTS)
    world.page()
    assert world.added.taken == ["a", "a", "a"]  # nothing has changed


def test_the_first_answer_does_not_wait_for_the_sizes_of_very_many_segments(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "SIZED_AT_ONCE_MAX", 1)
    world.publish("few", 5)
    for number in range(2):
        world.publish("many", 5, number)
    assert [one["bytes"] for one in world.page()] == [100, None]
    assert world.sums()["bytes"] == 300
    assert [one["bytes"] for one in world.page()] == [100, 200]


def test_a_page_is_a_part_of_all(world: World) -> None:
    for number, name in enumerate(("a", "ab", "b", "c")):
        world.publish(name, 5, size=100 - number)
    found = world.ask("limit=1&search=A&order=bytes")
    sums = world.sums("limit=1&search=A&order=bytes")
    assert (sums["datasources"], found["found"]) == (4, 2)
    assert sums["bytes"] == 100 + 99 + 98 + 97
    assert names(world.page("limit=1&search=A&order=bytes")) == ["a"]
    assert world.api.get(f"{PATH}?order=size").json()["error"].startswith("order: invalid order")


def test_a_principal_sees_the_datasources_that_it_may_read(world: World, tmp_path: Path) -> None:
    kit = AccessFolderKit(tmp_path / "access", RULES)
    guarded = Api(application(world.routes.routes(), access=kit.control))
    for name in ("a", "b"):
        world.publish(name, 5)
    answer = guarded.get(
        f"{PATH}?sums=true", headers=as_principal(kit.control, "user:x", "reader")
    ).json()
    guarded.close()
    assert (answer["sums"]["datasources"], answer["sums"]["bytes"]) == (1, 100)
    assert names(answer["datasources"]) == ["b"]


def test_entries_are_those_of_the_plain_list(world: World) -> None:
    for name in ("a", "b", "c"):
        world.publish(name, 5)
        world.clock.advance(1)
    file = AnnouncedFile("/b", Interval(0, 3_600_000), 7, {"maxTimeMs": 1_000})
    world.store.announce("task", "b", "task_0", [file])
    plain = world.api.get(f"{PATH}?skip=1&limit=2").json()
    assert world.page("skip=1&limit=2") == plain["datasources"]
    assert "sums" not in plain
    assert names(world.page("order=newest")) == ["b", "c", "a"]
    assert plain["datasources"][0]["newestRow"] == "1970-01-01T00:00:01.000Z"
