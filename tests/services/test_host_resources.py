"""`/penstock/v1/resources`: what the data folder uses, and what the host has."""

from __future__ import annotations

from pathlib import Path

from penstock.services.api.asgi import application
from penstock.services.api.host_resources import (
    RESOURCES,
    WALK_EVERY_S,
    HostResourceRoutes,
    folder_use,
)
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import with_token
from tests.services.overlord_kit import Api


def fill(folder: Path) -> None:
    for name, size in (("topics/a/1", 300), ("topics/b", 200), ("segments/x", 50), ("own", 7)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_parts_of_the_folder_are_added_up(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "topics" / "link").symlink_to("/")
    link = (tmp_path / "topics" / "link").lstat().st_size
    found = folder_use(tmp_path, VirtualClock(), 1.0)
    assert found.parts == {"topics": 500 + link, "segments": 50, "other files": 7}
    assert found.is_complete
    assert [one["name"] for one in found.to_json()] == ["topics", "segments", "other files"]


def test_a_walk_that_takes_too_long_ends_and_says_so(tmp_path: Path) -> None:
    class Slow(VirtualClock):
        def monotonic_s(self) -> float:
            self.advance(1)
            return super().monotonic_s()

    folder = tmp_path / "topics"
    folder.mkdir()
    for number in range(600):
        (folder / str(number)).write_bytes(b"x")
    fill(tmp_path / "other")
    found = folder_use(tmp_path, Slow(), 1.0)
    assert not found.is_complete
    assert found.parts["topics"] < 600
    assert found.parts["other"] == 557  # a large part does not hide a small one


def test_the_answer_has_disk_and_memory(tmp_path: Path) -> None:
    fill(tmp_path)
    clock = VirtualClock()
    api = Api(application(HostResourceRoutes(tmp_path, clock).routes(), access=with_token(None)))
    found = api.get(RESOURCES).json()
    assert found["disk"]["totalBytes"] >= found["disk"]["freeBytes"] > 0
    assert found["memory"]["totalBytes"] > found["memory"]["availableBytes"] > 0
    assert found["parts"][0] == {"name": "topics", "bytes": 500}
    # A walk may be long, so it is not repeated at once.
    (tmp_path / "topics" / "b").unlink()
    assert api.get(RESOURCES).json()["parts"][0]["bytes"] == 500
    clock.advance(WALK_EVERY_S)
    assert api.get(RESOURCES).json()["parts"][0]["bytes"] == 300
    api.close()


def test_a_router_without_a_data_folder_has_the_memory(tmp_path: Path) -> None:
    routes = HostResourceRoutes(None, VirtualClock()).routes()
    api = Api(application(routes, access=with_token(None)))
    found = api.get(RESOURCES).json()
    api.close()
    assert (found["disk"], found["parts"]) == (None, [])
    assert found["memory"]["totalBytes"] > 0
