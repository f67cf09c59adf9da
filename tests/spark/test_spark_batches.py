"""Batches of streaming queries: each is published once, whatever is killed and repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import WriterCommitMessage

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import InvalidRequest, PenstockError, StorageUnavailable, Unavailable
from penstock.indexing.engine import EngineFailure
from penstock.spark.router_requests import RouterAddress
from penstock.spark.sink import router_client
from tests.indexing.batch_kit import Cut
from tests.spark.sink_kit import Rows, SinkWorld, schema_of

QUERY, OTHER = "0d6b1a52-0000-4000-8000-000000000001", "0d6b1a52-0000-4000-8000-000000000002"
ONE, TWO = "2026-01-01T01:00:00", "2026-01-02T01:00:00"
ACTIONS = ("lockTryAcquire", "segmentAllocate", "segmentTransactionalAppend")
POINTS = [f"{when} {action}" for action in ACTIONS for when in ("before", "after")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkWorld]:
    with SinkWorld(tmp_path_factory.mktemp("sink")) as made:
        yield made


@pytest.fixture
def world(shared: SinkWorld) -> Iterator[SinkWorld]:
    shared.begin()
    yield shared
    shared.at = lambda _kind: None


def reports(world: SinkWorld, number: int, query: str = QUERY) -> list[WriterCommitMessage | None]:
    """The reports of the workers of a batch with two rows."""
    partitions: list[Rows] = [[(ONE, "x", number)], [(TWO, "y", number)]]
    return world.written(partitions, query)


def numbers(world: SinkWorld) -> list[int]:
    """The batches whose rows queries see, each twice."""
    return sorted(row[2] for row in world.rows())


def test_batches_are_appended(world: SinkWorld) -> None:
    for number in range(3):
        world.commit(reports(world, number), number)
    assert numbers(world) == [0, 0, 1, 1, 2, 2]
    assert [spec["batch"] for spec in world.specs] == [
        {"queryId": QUERY, "batchId": number} for number in range(3)
    ]


def test_a_repeated_commit_is_already_published(world: SinkWorld) -> None:
    messages = reports(world, 0)
    world.commit(messages, 0)
    # The driver was killed before Spark recorded the commit; it writes the batch again.
    world.commit(reports(world, 0), 0)
    assert numbers(world) == [0, 0]
    assert len(world.specs) == 2
    world.commit(reports(world, 1), 1)
    assert numbers(world) == [0, 0, 1, 1]


def test_the_report_of_the_task_says_so(world: SinkWorld) -> None:
    world.commit(reports(world, 0), 0)
    world.commit(reports(world, 0), 0)
    report = world.peons[-1].report()
    first = world.specs[0]["id"]
    assert report.more["alreadyPublished"] == (
        f"batch 0 of the Spark query {QUERY} was published before, by task {first}"
    )
    assert (report.more["segmentsPublished"], report.more["rowsWritten"]) == (0, 0)


def test_queries_and_datasources_are_counted_apart(world: SinkWorld) -> None:
    world.commit(reports(world, 5), 5)
    world.commit(reports(world, 0, OTHER), 0)
    world.commit(world.written([[(ONE, "x", 7)]], QUERY, datasource="e"), 0, datasource="e")
    assert numbers(world) == [0, 0, 5, 5]
    assert [row[2] for row in world.rows("e")] == [7]


def test_a_batch_before_the_last_one_is_refused(world: SinkWorld) -> None:
    world.commit(reports(world, 7), 7)
    with pytest.raises(EngineFailure, match="is before its batch 7"):
        world.commit(reports(world, 6), 6)
    assert numbers(world) == [7, 7]
    world.commit(reports(world, 9), 9)  # batches without rows are not published
    assert numbers(world) == [7, 7, 9, 9]


def test_a_batch_without_rows_needs_no_task(world: SinkWorld) -> None:
    world.commit(world.written([[], []], QUERY), 0)
    assert world.specs == []


def test_the_query_must_be_known(world: SinkWorld) -> None:
    with pytest.raises(InvalidRequest, match="do not know the streaming query of batch 0"):
        world.commit(world.written([[(ONE, "x", 1)]], ""), 0)
    assert world.rows() == []


@pytest.mark.parametrize(("complete", "option"), [(True, ""), (False, "all")])
def test_a_query_only_appends(world: SinkWorld, complete: bool, option: str) -> None:
    source = world.source(**({"overwrite": option} if option else {}))
    with pytest.raises(InvalidRequest, match="can only append"):
        source.streamWriter(schema_of(), complete)


@pytest.mark.parametrize("point", POINTS)
def test_a_peon_that_dies_anywhere_publishes_once(world: SinkWorld, point: str) -> None:
    """Its next attempt goes on in its folder."""
    deaths = iter([point])

    def die(at: str) -> None:
        if at == point and next(deaths, None) is not None:
            raise Cut

    world.at = die
    world.commit(reports(world, 0), 0)
    assert numbers(world) == [0, 0]
    world.commit(reports(world, 0), 0)
    assert numbers(world) == [0, 0]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_client, "_PAUSES", RetryPolicy(1, 1))
    monkeypatch.setattr(router_client, "_POLLS", RetryPolicy(1, 1))


class Requests:
    """Counts the requests of the sink, and raises an error at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.at = -1
        self.after = False
        self.error: BaseException = Cut()
        send = RouterAddress.ask

        def counted(client: RouterAddress, *given: object, **named: object) -> object:
            number, self.count = self.count, self.count + 1
            if number == self.at and not self.after:
                raise self.error
            found = send(client, *given, **named)  # type: ignore[arg-type]
            if number == self.at:
                raise self.error
            return found

        patch.setattr(RouterAddress, "ask", counted)

    def fail(self, at: int, error: BaseException, *, after: bool) -> None:
        self.count, self.at, self.error, self.after = 0, at, error, after


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("after", [False, True])
def test_a_driver_that_dies_at_any_request_writes_each_row_once(
    world: SinkWorld, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    requests = Requests(monkeypatch)
    world.commit(reports(world, 0), 0)
    for number in range(1, requests.count + 1):
        requests.fail(number - 1, Cut(), after=after)
        with pytest.raises(Cut):
            world.commit(reports(world, number), number)
        requests.fail(-1, Cut(), after=after)
        world.commit(reports(world, number), number)
    assert len(numbers(world)) == 2 * (requests.count + 1)
    assert len(set(world.rows())) == len(world.rows())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("after", [False, True])
def test_a_lost_request_or_answer_is_repeated(
    world: SinkWorld, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    requests = Requests(monkeypatch)
    world.commit(reports(world, 0), 0)
    for number in range(1, requests.count + 1):
        requests.fail(number - 1, Unavailable("the router does not answer"), after=after)
        world.commit(reports(world, number), number)
        assert len(numbers(world)) == 2 * (number + 1)
    assert len(world.specs) == number + 1


@pytest.mark.usefixtures("quick")
def test_a_deep_storage_that_fails_once_loses_nothing(
    world: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, failures = world.deep_store.put_in_attempt, iter([StorageUnavailable("gone"), None])

    def failing(*given: str) -> int:
        if (error := next(failures, None)) is not None:
            raise error
        return put(*given)

    monkeypatch.setattr(world.deep_store, "put_in_attempt", failing)
    world.commit(reports(world, 0), 0)
    assert numbers(world) == [0, 0]
    assert not list((world.folder / "tmp").glob("*"))


def test_batches_with_kills_have_each_row_once(world: SinkWorld) -> None:
    """The driver is killed before, during or after a commit, and the peon anywhere."""
    run_with_kills(world, batches=30, kills=10, seed=1)


def run_with_kills(world: SinkWorld, *, batches: int, kills: int, seed: int) -> None:
    """Write batches while some are killed at some step, and compare all rows at the end."""
    chance = random.Random(seed)
    killed = set(chance.sample(range(batches), kills))
    for number in range(batches):
        if number in killed:
            _killed_batch(world, number, chance)
        world.commit(reports(world, number), number)
    assert numbers(world) == sorted([*range(batches), *range(batches)])


def _killed_batch(world: SinkWorld, number: int, chance: random.Random) -> None:
    """A try of a batch that ends early: of its workers, of its commit, or after its commit."""
    step = chance.choice(["workers", "peon", "answer"])
    messages = reports(world, number)
    if step == "workers":
        return
    if step == "answer":
        world.commit(messages, number)
        return
    point, alive = chance.choice(POINTS), [True]

    def die(at: str) -> None:
        if alive[0] and at == point:
            alive[0] = False
            raise Cut

    world.at = die
    try:
        world.commit(messages, number)
    except PenstockError:
        pass
    finally:
        world.at = lambda _kind: None


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
def test_a_server_that_is_no_router_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(RouterAddress, "ask", lambda *_given: body)
    monkeypatch.setattr(router_client, "pause", lambda *_given: pytest.fail("it is asked again"))
    with pytest.raises(Unavailable, match="is not a router of Penstock"):
        router_client.RouterClient(RouterAddress("http://127.0.0.1:1")).form("clicks")
