"""Commits to the catalog while others run, and while an overlord does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.core.errors import NotFound, StorageUnavailable, Unavailable
from penstock.services.api.error_forms import ICEBERG
from penstock.services.api.iceberg import catalog_commits
from penstock.services.api.iceberg.catalog_commits import (
    COMMITS_MAX,
    TABLE_COMMITS_MAX,
    CatalogCommits,
    CommitsFull,
)
from penstock.services.api.iceberg.catalog_routes import CatalogRoutes
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.services.json_client import JsonClient
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata
from tests.services.published_kit import PublishedWorld
from tests.spark.servers_kit import Served

TABLES = f"{ICEBERG}/namespaces/penstock/tables"
DAY = "2024-10-01/2024-10-02"


class Overlord(JsonClient):
    """An overlord that answers when it may; it knows no task until one is submitted."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Semaphore(0)
        self.is_down = False
        self.submitted: list[str] = []

    def request(self, method: str, path: str, *_given: object, **_more: object) -> Any:
        self.asked.release()
        assert self.may_answer.wait(60)
        if self.is_down:
            raise Unavailable("the overlord does not answer")
        if method == "POST":
            self.submitted.append(path)
            return {}
        raise NotFound("no such task")


class World(PublishedWorld):
    """A catalog with a table, whose overlord does not answer at times."""

    def __init__(self, folder: Path, store: MetadataStore, clock: VirtualClock) -> None:
        super().__init__(folder, store, clock)
        self.overlord = Overlord()
        self.tables = CatalogTables(self.source, store, self.deep_storage, clock)
        commits = CatalogCommits(
            self.tables, store, self.deep_storage, lambda: self.overlord, clock
        )
        self.served = Served(CatalogRoutes(self.tables, commits).routes()).__enter__()
        self.senders = ThreadPoolExecutor(COMMITS_MAX)

    def close(self) -> None:
        self.overlord.may_answer.set()
        self.senders.shutdown()
        self.served.__exit__(None, None, None)

    def commit(self, table: str = "clicks", snapshot_id: int = 1) -> httpx.Response:
        """Send a commit whose manifest list is not stored."""
        place = f"file://{self.deep_storage}/~iceberg/{table}/metadata/snap-none.avro"
        snapshot = {"snapshot-id": snapshot_id, "manifest-list": place, "timestamp-ms": 1}
        snapshot["summary"] = {"operation": "append"}  # type: ignore[assignment]
        reference = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
        updates = [
            {"action": "add-snapshot", "snapshot": snapshot},
            {**reference, "snapshot-id": snapshot_id},
        ]
        url = f"{self.served.url}{TABLES}/{table}"
        return httpx.post(url, json={"requirements": [], "updates": updates}, timeout=60)

    def begin(self, table: str, count: int) -> list[Future[httpx.Response]]:
        """Send commits of a table, and wait until the first one asks the overlord."""
        sent = [self.senders.submit(self.commit, table, number) for number in range(count)]
        assert self.overlord.asked.acquire(timeout=60)
        return sent


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = VirtualClock()
    with open_metadata(tmp_path, clock) as store, closing(World(tmp_path, store, clock)) as made:
        made.publish(DAY, 100)
        yield made


def refused(world: World, waiting: list[Future[httpx.Response]], table: str) -> httpx.Response:
    """Send commits until one is refused: those before may still be on their way to the router."""
    sent = set(waiting)
    for number in range(100, 100 + COMMITS_MAX - len(sent)):
        sent.add(world.senders.submit(world.commit, table, number))
        ended, sent = wait(sent, timeout=1, return_when=FIRST_COMPLETED)
        if ended:
            break
    else:
        ended, _ = wait(sent, timeout=60, return_when=FIRST_COMPLETED)
    answer = next(iter(ended)).result()
    assert answer.status_code == 503
    return answer


def test_commits_of_one_table_leave_room_for_others_and_for_reads(world: World) -> None:
    world.publish(DAY, 200, name="other")
    world.overlord.may_answer.clear()
    waiting = world.begin("clicks", TABLE_COMMITS_MAX)
    answer = refused(world, waiting, "clicks")
    assert answer.headers["Retry-After"] == str(CommitsFull.retry_after_s)
    assert answer.json()["error"]["type"] == "ServiceUnavailableException"
    assert "of this table" in answer.json()["error"]["message"]
    for name in ("clicks", "other"):
        assert httpx.get(f"{world.served.url}{TABLES}/{name}").status_code == 200
    other = world.begin("other", 1)
    world.overlord.may_answer.set()
    # A commit of `refused` may have taken the place of one that was still on its way.
    refusals = sum(one.result().status_code == 503 for one in waiting)
    assert refusals < TABLE_COMMITS_MAX
    assert other[0].result().status_code != 503
    assert world.commit().status_code != 503, "there is room again"


def test_an_overlord_that_does_not_answer_leaves_the_outcome_unknown(world: World) -> None:
    """The task of an earlier request with this commit may run."""
    world.overlord.is_down = True
    answer = world.commit()
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "CommitStateUnknownException"
    assert "an earlier request may have appended the rows" in answer.text


def test_a_deep_storage_that_does_not_answer_leaves_the_outcome_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_name: str) -> None:
        raise StorageUnavailable("the store does not answer")

    monkeypatch.setattr(world.tables, "version", fail)
    answer = world.commit()
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, 504)


def test_a_commit_whose_table_is_busy_for_long_is_told_when_to_try_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_commits, "TURN_S", 0.0)
    world.overlord.may_answer.clear()
    (first,) = world.begin("clicks", 1)
    answer = world.commit(snapshot_id=2)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    world.overlord.may_answer.set()
    assert first.result().status_code == 404, "its manifest list is not stored"
    assert world.overlord.submitted == []
