"""Who leads: stories of an election over terms, of failures to lead, of clocks that jump."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import create_autospec

import httpx
import pytest
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.core.errors import Dependency, Fenced, Unavailable
from penstock.core.http_errors import error_of_answer
from penstock.core.waits import WaitTable
from penstock.indexing.overlord import Overlord
from penstock.services.api.asgi import application
from penstock.services.api.leader_only import LeaderOnly
from penstock.services.emitter.events import AlertEvent
from penstock.services.host.process import listen
from penstock.services.json_client import COMMAND_LINE
from penstock.services.membership.election import (
    TERM_TTL_MS,
    LeaderSelector,
    SelectorOptions,
    TermContest,
    refuses,
)
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.services.roles.overlord import _led
from penstock.storage.metadata import MetadataStore, TaskRow, Term
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import rules_with, with_token
from tests.harness.event_kit import KeptEvents
from tests.harness.metadata_kit import open_metadata
from tests.kits.ports_kit import kept_port

pytestmark = pytest.mark.anyio

A, B = "http://a:1", "http://b:2"


class Jumping(VirtualClock):
    """A clock whose wall time can be set wrong."""

    jump_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms


class Story:
    """A listener that writes down what it is told, and waits for it without a clock."""

    def __init__(self, fails: list[str] | None = None) -> None:
        self.told: list[str] = []
        self.fails = fails or []
        self.changed = threading.Condition()
        self.term: Term | None = None

    def become_leader(self, term: Term) -> None:
        self.term = term
        self._tell(f"+{term.number}", "begin")

    def stop_being_leader(self) -> None:
        self._tell("-", "stop")

    def _tell(self, what: str, kind: str) -> None:
        failing = kind in self.fails
        if failing:
            self.fails.remove(kind)
        with self.changed:
            self.told.append(what + ("!" if failing else ""))
            self.changed.notify_all()
        if failing:
            raise RuntimeError(f"cannot {kind}")

    def until(self, *told: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.told == list(told), 120), self.told


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Jumping:
    return Jumping()


@pytest.fixture
def store(tmp_path: Path, clock: Jumping) -> Iterator[MetadataStore]:
    with open_metadata(tmp_path, clock) as opened:
        yield opened


Make = Callable[..., LeaderSelector]


@pytest.fixture
def make(store: MetadataStore, clock: Jumping) -> Iterator[Make]:
    made: list[LeaderSelector] = []

    def build(
        holder: str,
        listener: Story,
        *,
        alerts: KeptEvents | None = None,
        broken: Callable[[], None] = lambda: None,
    ) -> LeaderSelector:
        contest = TermContest(store.terms, "overlord", holder, clock)
        options = SelectorOptions(renew_every_s=2, seek_every_s=1, rest_min_s=3, rest_max_s=3)
        selector = LeaderSelector(contest, listener, clock, alerts or KeptEvents(), broken, options)
        made.append(selector)
        return selector

    yield build
    for one in made:
        one.stop()


def run(clock: VirtualClock, seconds: float, threads: int) -> None:
    """Let time pass step by step, each after all election threads have come to rest."""

    def at_rest() -> bool:
        due = [at for at, _ in clock._waiters]
        now_us = clock.monotonic_s() * 1_000_000
        return len(due) >= threads and all(at is None or at > now_us for at in due)

    clock.wait_until(at_rest)
    for _ in range(round(seconds * 2)):
        clock.advance(0.5)
        clock.wait_until(at_rest)


def test_one_leads_and_the_other_follows_when_it_resigns(make: Make, clock: Jumping) -> None:
    first, second = Story(), Story()
    a, b = make(A, first), make(B, second)
    a.start()
    first.until("+1")
    b.start()
    run(clock, 20, 2)
    assert (a.is_leader, b.is_leader) == (True, False)
    assert a.leader() == b.leader() == A
    a.stop()
    first.until("+1", "-")
    run(clock, 2, 1)
    second.until("+2")
    assert b.is_leader
    assert b.leader() == B


def test_a_deposed_leader_stops_and_its_writes_are_refused(
    make: Make, clock: Jumping, store: MetadataStore
) -> None:
    story = Story()
    a = make(A, story)
    a.start()
    story.until("+1")
    clock.wait_for_waiting(1)
    assert story.term is not None
    deposed: list[str] = []
    mine = store.under(story.term, on_fenced=lambda: deposed.append("deposed"))
    # The other's process takes over while this one is stopped.
    now = store.terms.current("overlord")
    other = store.terms.take("overlord", B, 60_000, instead_of=now)
    assert other is not None
    with pytest.raises(Fenced):
        mine.tasks.insert_new([TaskRow("t", "d", "noop", "g", {})])
    assert deposed == ["deposed"]
    a.poll()
    story.until("+1", "-")
    assert not a.is_leader
    assert a.leader() == B
    assert store.tasks.list(active=True) == []


def test_one_that_cannot_renew_is_no_leader_when_its_time_is_over(
    make: Make, clock: Jumping, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story()
    a = make(A, story)
    a.start()
    story.until("+1")

    def fails(_term: Term) -> Term:
        raise Unavailable("the database is away")

    monkeypatch.setattr(store.terms, "renew", fails)
    clock.wait_for_waiting(1)
    clock.advance(TERM_TTL_MS / 1_000 - 0.5)
    assert a.is_leader
    clock.advance(0.5)
    assert not a.is_leader  # before its thread has even noticed
    run(clock, 3, 1)
    story.until("+1", "-", "+2")


def test_one_that_cannot_begin_says_so_rests_and_stands_again(make: Make, clock: Jumping) -> None:
    story, alerts = Story(["begin"]), KeptEvents()
    a = make(A, story, alerts=alerts)
    a.start()
    story.until("+1!", "-")
    (alert,) = alerts.events
    assert isinstance(alert, AlertEvent)
    assert alert.data["exceptionMessage"] == "cannot begin"
    run(clock, 2.5, 1)
    assert not a.is_leader
    assert story.told == ["+1!", "-"]
    run(clock, 2, 1)
    story.until("+1!", "-", "+2")
    assert a.is_leader


def test_while_one_rests_another_leads(make: Make, clock: Jumping) -> None:
    story, other = Story(["begin"]), Story()
    make(A, story).start()
    story.until("+1!", "-")
    clock.wait_for_waiting(1)  # it has resigned, and rests
    make(B, other).start()
    other.until("+2")
    run(clock, 10, 2)
    assert story.told == ["+1!", "-"]


def test_one_that_cannot_stop_ends_its_process(make: Make) -> None:
    story, alerts, broken = Story(["stop"]), KeptEvents(), threading.Event()
    a = make(A, story, alerts=alerts, broken=broken.set)
    a.start()
    story.until("+1")
    a.stop()
    assert broken.is_set()
    assert story.told == ["+1", "-!"]
    assert len(alerts.events) == 1


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_wall_clocks_that_jump_keep_no_dead_leader_in_office(
    make: Make, clock: Jumping, store: MetadataStore, jump_ms: int
) -> None:
    clock.jump_ms = jump_ms
    assert store.terms.take("overlord", A, TERM_TTL_MS) is not None  # and dies
    clock.jump_ms = 0
    story = Story()
    make(B, story).start()
    run(clock, 8, 1)
    story.until("+2")


def test_a_follower_whose_clock_is_behind_leaves_a_living_leader_alone(
    make: Make, clock: Jumping, store: MetadataStore
) -> None:
    clock.jump_ms = 3_600_000
    term = store.terms.take("overlord", A, TERM_TTL_MS)
    assert term is not None
    story = Story()
    make(B, story).start()
    for _ in range(10):
        clock.jump_ms = 3_600_000
        term = store.terms.renew(term)
        clock.jump_ms = 0
        run(clock, 2, 1)
    assert story.told == []


def test_a_leader_whose_clock_is_behind_stays_and_is_found(
    make: Make, clock: Jumping, store: MetadataStore
) -> None:
    clock.jump_ms = -18_000
    term = store.terms.take("overlord", A, TERM_TTL_MS)
    assert term is not None
    story = Story()
    follower = make(B, story)
    clock.jump_ms = 0
    follower.start()
    for _ in range(10):
        clock.jump_ms = -18_000
        term = store.terms.renew(term)
        clock.jump_ms = 0
        assert follower.leader() == A
        run(clock, 2, 1)
    assert story.told == []


def test_one_that_was_gone_long_ago_is_succeeded_at_the_first_look(
    clock: Jumping, store: MetadataStore
) -> None:
    assert store.terms.take("overlord", A, TERM_TTL_MS) is not None
    clock.advance(60)
    hanging = TermContest(store.terms, "overlord", B, clock)
    assert hanging.seek() is None
    contest = TermContest(store.terms, "overlord", B, clock, refuses=lambda _url: True)
    taken = contest.seek()
    assert taken is not None
    assert taken.number == 2


def test_a_leader_that_refuses_connections_is_succeeded_sooner(
    clock: Jumping, store: MetadataStore
) -> None:
    dead: list[str] = []
    contest = TermContest(store.terms, "overlord", B, clock, refuses=lambda url: url in dead)
    assert store.terms.take("overlord", A, TERM_TTL_MS) is not None
    assert contest.seek() is None
    clock.advance(2.5)
    assert contest.seek() is None  # it may hang, and come back
    dead.append(A)
    taken = contest.seek()
    assert taken is not None
    assert taken.number == 2


def test_only_a_closed_port_refuses() -> None:
    listener = listen(HostPort("127.0.0.1", 0), "--http")
    with listener:
        assert not refuses(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with kept_port() as port:
        assert refuses(f"http://127.0.0.1:{port}")
    assert not refuses("nonsense")


def test_the_directory_finds_the_leader_among_overlords(store: MetadataStore) -> None:
    for port in (1, 2):
        store.leases.renew("overlord", f"o{port}", host="h", port=port, ttl_ms=9_000)
    term = store.terms.take("overlord", "http://h:1", 9_000)
    assert term is not None
    directory = LeaseDirectory(store.leases, terms=store.terms)
    assert directory.find("overlord") == HostPort("h", 1)
    store.terms.resign(term)
    with pytest.raises(Unavailable, match="no overlord leads: start one"):
        directory.find("overlord")


def test_who_cannot_write_to_the_store_names_that_as_the_cause_of_no_leader(
    store: MetadataStore, clock: Jumping
) -> None:
    waits = WaitTable(clock)
    full = Unavailable("metadata.db: the disk is full", dependency=Dependency.METADATA)
    waits.failed("renew the lease", full)
    directory = LeaseDirectory(store.leases, terms=store.terms, waits=waits.all)
    with pytest.raises(Unavailable) as raised:
        directory.find("overlord")
    assert str(raised.value).startswith("no overlord leads, because of metadata store since ")
    remedy = "start one, or wait for the election"
    assert str(raised.value).endswith(f": metadata.db: the disk is full: {remedy}")
    assert raised.value.dependency is Dependency.METADATA


def test_readiness_names_the_cause_when_the_term_expired_on_a_full_disk(
    make: Make, clock: Jumping, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story()
    a = make(A, story)
    a.start()
    run(clock, 2, 1)
    story.until("+1")
    overlord = create_autospec(Overlord, instance=True)
    _led(overlord, a, A)

    def full(*_given: object, **_more: object) -> Term:
        raise Unavailable("metadata.db: the disk is full", dependency=Dependency.METADATA)

    with monkeypatch.context() as broken:
        for name in ("take", "renew", "resign"):
            broken.setattr(store.terms, name, full)
        run(clock, TERM_TTL_MS / 1_000 + 2, 1)
        story.until("+1", "-")
        clock.wait_until(lambda: bool(a.waits.all()))
        assert a.leader() == A  # The row of the expired term.
        with pytest.raises(Unavailable, match=r"no overlord leads, because of.*disk is full"):
            _led(overlord, a, A)
    run(clock, 5, 1)
    _led(overlord, a, A)


class Leadership:
    is_leader = False

    def __init__(self) -> None:
        self.url: str | None = None
        self.knows = True
        self.waits = WaitTable(VirtualClock())

    def leader(self) -> str | None:
        if not self.knows:
            raise Unavailable("the database is away", dependency=Dependency.METADATA)
        return self.url


async def test_only_the_leader_answers_and_the_others_say_who_does() -> None:
    def answer(request: Request) -> Response:
        return PlainTextResponse(request.url.path)

    leadership = Leadership()
    routes = [
        Route("/druid/indexer/v1/{rest:path}", answer, methods=["GET", "POST"]),
        Route("/penstock/v1/{rest:path}", answer),
    ]
    app = application(
        routes,
        access=with_token(None),
        rules=rules_with(routes),
        inside=[Middleware(LeaderOnly, leadership=leadership, address=A)],
    )
    transport = httpx.ASGITransport(app)

    async with httpx.AsyncClient(transport=transport, base_url=A) as client:

        async def status(path: str) -> int:
            return (await client.get(f"/druid/indexer/v1{path}")).status_code

        for url, knows in ((None, True), (A, True), (B, False)):
            leadership.url, leadership.knows = url, knows
            refused = await client.get("/druid/indexer/v1/tasks")
            assert refused.status_code == 503
            named = "overlord" if knows else "metadata store"
            assert refused.json()["dependency"] == named
            cause = "" if knows else ", because of metadata store: the database is away"
            text = f"no overlord leads now{cause}: try again in some seconds"
            assert refused.json()["error"].endswith(text)
        leadership.knows = True
        leadership.url = None
        full = Unavailable("metadata.db: the disk is full", dependency=Dependency.METADATA)
        leadership.waits.failed("elect the leader", full)
        refused = await client.get("/druid/indexer/v1/tasks")
        assert refused.json()["dependency"] == "metadata store"
        cause = "(elect the leader): metadata.db: the disk is full"
        assert refused.json()["error"].endswith(f"{cause}: try again in some seconds")
        assert await status("/leader") == 404
        leadership.url = B
        sent = await client.get("/penstock/v1/locks")
        assert sent.headers["location"] == f"{B}/penstock/v1/locks"
        sent = await client.post("/druid/indexer/v1/supervisor/a%2Fb/reset?x=1&y=%20")
        assert sent.status_code == 307
        assert sent.headers["location"] == f"{B}/druid/indexer/v1/supervisor/a%2Fb/reset?x=1&y=%20"
        assert (await client.get("/druid/indexer/v1/leader")).text == B
        assert await status("/isLeader") == 404
        assert (await client.get("/status/health")).status_code == 200
        leadership.is_leader = True
        assert await status("/tasks") == 200
        is_leader = await client.get("/druid/indexer/v1/isLeader")
        assert (is_leader.status_code, is_leader.json()) == (200, {"leader": True})


def test_who_asks_the_wrong_overlord_may_ask_again() -> None:
    body = b'{"error": "ask h:2", "errorCode": "notLeader"}'
    error = error_of_answer(307, body, "POST /action", remedies=COMMAND_LINE)
    assert isinstance(error, Unavailable)
    assert str(error) == "ask h:2"


def test_an_error_that_nobody_foresaw_ends_the_term_but_not_the_election(
    make: Make, clock: Jumping, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object, **_more: object) -> Term:
        raise RuntimeError("a bug")

    story, alerts = Story(), KeptEvents()
    a = make(A, story, alerts=alerts)
    with monkeypatch.context() as broken:
        broken.setattr(store.terms, "take", fails)
        a.start()
        run(clock, 3, 1)
        assert a.faults > 1
        assert story.told == []
    run(clock, 2, 1)
    story.until("+1")
    with monkeypatch.context() as broken:
        broken.setattr(store.terms, "renew", fails)
        run(clock, TERM_TTL_MS / 1_000 + 2, 1)
        story.until("+1", "-", "+2")
    run(clock, 5, 1)
    assert a.is_leader
    assert len(alerts.events) == a.faults


@pytest.mark.usefixtures("deaths")
def test_one_whose_leading_cannot_begin_is_no_leader_and_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the leader for others until its term ran out, and never stood again."""
    story, broken = Story(), threading.Event()
    a = make(A, story, broken=broken.set)

    def fail(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(a._leading, "submit", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    a.start()
    assert broken.wait(120)
    assert not a.is_leader
    assert story.told == []


def test_without_a_thread_to_lead_nobody_stands(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It won the election, and then could not lead."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Unavailable, match=r"'leading' \(can't start new thread\)"):
        make(A, Story())
