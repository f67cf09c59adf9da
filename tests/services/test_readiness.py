"""Readiness: false until every check has succeeded, and again while one fails or hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.core.clock import SystemClock
from penstock.core.errors import Dependency, PenstockError, StorageUnavailable, Unavailable
from penstock.services import readiness
from penstock.services.api import overview as overview_module
from penstock.services.api.overview import ProcessOverview
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import Check, Readiness, ReadyState
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata
from tests.services.places_kit import FixedPlaces
from tests.services.start_kit import Start
from tests.spark.servers_kit import Served


class Part:
    """A part of a duty; whether it works is the test's."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.tries = 0
        self.let_go = threading.Event()
        self.let_go.set()

    def attempt(self) -> None:
        self.tries += 1
        self.let_go.wait(120)
        if self.error is not None:
            raise self.error


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # the checks run on threads of their own


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "EVERY_S", 0.01)
    monkeypatch.setattr(readiness, "AGAIN_S", 0.01)


def test_it_turns_true_when_all_work_and_false_when_one_does_not() -> None:
    storage, query = Part(StorageUnavailable("503")), Part(Unavailable("no session"))
    start = Start()
    made = Readiness(
        "router",
        [
            Check("reach the store", Dependency.STORAGE, storage.attempt),
            Check("answer a query", Dependency.SPARK, query.attempt),
        ],
        SystemClock(),
        start,
    )
    assert not made.state().ready, "nothing was tried yet"
    assert made.state().is_starting
    made.start()
    try:
        until(lambda: [one.tries > 2 for one in made.state().reasons] == [True, True])
        found = {one.dependency: one.error for one in made.state().reasons}
        assert found == {Dependency.STORAGE: "503", Dependency.SPARK: "no session"}
        assert any("deep storage since" in text and "503" in text for text in start.reasons)
        query.error = None
        until(lambda: len(made.state().reasons) == 1)
        assert not start.is_ready.is_set()
        storage.error = None
        until(lambda: made.state().ready)
        until(start.is_ready.is_set)
        assert not made.state().is_starting
        first_ms = SystemClock().now_ms()
        storage.error = ValueError("a bug")
        until(lambda: not made.state().ready)
        assert not made.state().is_starting, "it was ready before"
        (reason,) = made.state().reasons
        assert reason.dependency is Dependency.STORAGE
        assert "a bug" in reason.error
        assert reason.since_ms >= first_ms
        samples = {one.name: one.value for one in made.samples() if one.name == "penstock_ready"}
        assert samples == {"penstock_ready": 0.0}
        storage.error = None
        until(lambda: made.state().ready)
    finally:
        made.stop()
    assert not made.state().ready, "a process that stops takes no new work"


def test_a_report_of_readiness_that_raised_is_repeated() -> None:
    class Failing(Start):
        reports = 0

        def ready(self) -> None:
            self.reports += 1
            if self.reports == 1:
                raise MemoryError

    start = Failing()
    check = Check("read the metadata", Dependency.METADATA, Part().attempt)
    made = Readiness("router", [check], SystemClock(), start)
    made._try(check)
    with pytest.raises(MemoryError):
        made._report()
    made._report()
    made._report()
    assert start.reports == 2


def test_a_start_has_a_time_limit() -> None:
    clock = VirtualClock()
    check = Check("read the metadata", Dependency.METADATA, Part().attempt)
    made = Readiness("router", [check], clock, Start())
    clock.advance(readiness.START_S)
    assert made.state().to_json()["starting"] is True
    clock.advance(1)
    assert made.state().to_json()["starting"] is False


def test_a_process_that_does_not_answer_is_starting_for_a_limited_time(tmp_path: Path) -> None:
    clock, own = VirtualClock(), [ReadyState("router")]
    store = open_metadata(tmp_path, clock)
    store.leases.renew("router", "r", host="127.0.0.1", port=8888, ttl_ms=600_000)
    # Nothing listens at the address of the broker.
    broker = FixedPlaces(HostPort("127.0.0.1", 1))
    overview = ProcessOverview(
        *(LeaseDirectory(store.leases), "127.0.0.1:8888", broker),  # type: ignore[arg-type]
        *(lambda: own[0], clock, lambda: ""),
    )

    def starting() -> list[bool]:
        status = overview.to_json()
        services = status["services"]
        assert isinstance(services, list)
        return [bool(status["starting"]), *(one["starting"] for one in services)]

    assert starting() == [True, False, True]
    own[0] = ReadyState("router", pending=("its disk is full",))
    assert starting() == [False, False, True], "the router was ready before"
    own[0] = ReadyState("router", pending=("not tried yet",), is_young=True)
    assert starting() == [True, True, True]
    clock.advance(readiness.START_S + 1)
    assert starting() == [False, True, False]
    store.close()


def test_a_process_that_ends_after_all_were_ready_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_module, "SERVICES", ("router",))
    clock, own = VirtualClock(), ReadyState("router")
    store = open_metadata(tmp_path, clock)
    store.leases.renew("router", "r", host="127.0.0.1", port=8888, ttl_ms=600_000)

    def ready(_request: Request) -> Response:
        return JSONResponse(ReadyState("broker").to_json())

    with Served([Route("/status/ready", ready)]) as broker:
        place = HostPort("127.0.0.1", int(broker.url.rpartition(":")[2]))
        overview = ProcessOverview(
            *(LeaseDirectory(store.leases), "127.0.0.1:8888", FixedPlaces(place)),  # type: ignore[arg-type]
            *(lambda: own, clock, lambda: ""),
        )
        assert overview.to_json()["ready"]
    found = overview.to_json()
    assert (found["ready"], found["starting"]) == (False, False)
    store.close()


def test_what_was_not_tried_yet_and_a_stop_are_no_waits() -> None:
    made = Readiness(
        "router",
        [Check("read the metadata", Dependency.METADATA, Part().attempt)],
        SystemClock(),
        Start(),
    )
    document = made.state().to_json()
    assert document == {
        "ready": False,
        "starting": True,
        "role": "router",
        "reasons": ["not tried yet: read the metadata"],
        "waits": [],
    }
    assert {one.value for one in made.samples()} == {0.0}, "nothing failed"
    made.stop()
    assert made.state().to_json() == {
        **document,
        "starting": False,
        "reasons": ["the process stops"],
    }


def test_a_check_that_hangs_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part()
    made = Readiness(
        "worker",
        [Check("reach Spark", Dependency.SPARK, part.attempt)],
        SystemClock(),
        Start(),
    )
    made.start()
    try:
        until(lambda: made.state().ready)
        part.let_go.clear()
        monkeypatch.setattr(readiness, "ANSWER_S", 0.05)
        until(lambda: not made.state().ready)
        (reason,) = made.state().reasons
        assert (reason.dependency, reason.work) == (Dependency.SPARK, "reach Spark")
        assert "no answer for" in reason.error
        part.let_go.set()
        until(lambda: made.state().ready)
    finally:
        part.let_go.set()
        made.stop()


def test_errors_of_penstock_and_bugs_alike_are_reasons_never_an_end() -> None:
    part = Part(PenstockError("odd"))
    made = Readiness("flow", [Check("x", Dependency.DISK, part.attempt)], SystemClock(), Start())
    made.start()
    try:
        until(lambda: part.tries > 2)
        part.error = RuntimeError("worse")
        until(lambda: any("worse" in one.error for one in made.state().reasons))
        part.error = None
        until(lambda: made.state().ready)
    finally:
        made.stop()
