"""Principals whose statements end Spark: refusals, their durations, and the effect on others."""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.indexing.engine import EngineLost, EngineUnavailable
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.sql.crash_principals import (
    CAUSED_MAX,
    LEFT_S,
    MEMORY_S,
    PRINCIPALS_MAX,
    REFUSED_S,
    REFUSED_S_MAX,
    TURN_WAIT_S,
    PrincipalSuspects,
    SparkEndsRefused,
)
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.spark.tables import TableSource
from penstock.testing.clock import VirtualClock

EVE, BOB, ANN = "user:eve", "user:bob", "user:ann"


class Lost(Exception):
    """Spark ends while a statement runs."""


class ImpatientClock(VirtualClock):
    """Waits for a turn end without one."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        self.advance(timeout_s)
        return False


class Server:
    def __init__(self) -> None:
        self.clock = ImpatientClock()
        self.suspects = PrincipalSuspects(self.clock)

    def run(self, principal: str) -> None:
        with self.suspects.admitted(principal):
            self.clock.advance(1.0)

    def end_over(self, principal: str, *, beside: tuple[str, ...] = ()) -> None:
        """End Spark over a statement, while statements of others run, too."""
        self.clock.advance(1.0)
        with contextlib.suppress(Lost), contextlib.ExitStack() as running:
            self.suspects.found(is_up=True)
            for name in (principal, *beside):
                running.enter_context(self.suspects.admitted(name))
            since_s = self.clock.monotonic_s()
            self.clock.advance(1.0)
            for name in (principal, *beside):
                self.suspects.ended(name, since_s)
            raise Lost

    def is_refused(self, principal: str) -> bool:
        try:
            self.run(principal)
        except SparkEndsRefused:
            return True
        return False


def test_who_ends_spark_alone_is_refused_for_a_time_that_grows() -> None:
    server = Server()
    for _ in range(CAUSED_MAX):
        server.end_over(EVE)
    with pytest.raises(SparkEndsRefused, match=r"ended 3 times over your statements.*60 s") as got:
        server.run(EVE)
    assert got.value.retry_after_s == REFUSED_S
    server.run(BOB)
    waits_s = []
    for _ in range(9):
        began_s = server.clock.monotonic_s()
        while server.is_refused(EVE):
            server.clock.advance(10.0)
        waits_s.append(server.clock.monotonic_s() - began_s)
        server.end_over(EVE)
    assert waits_s == sorted(waits_s)
    assert waits_s[1] == pytest.approx(2 * REFUSED_S, abs=20)
    assert waits_s[-1] == pytest.approx(REFUSED_S_MAX, abs=20)


def test_an_end_long_ago_is_forgotten() -> None:
    server = Server()
    for _ in range(3 * CAUSED_MAX):
        server.end_over(EVE)
        server.clock.advance(2 * MEMORY_S)
    assert not server.is_refused(EVE)


def test_the_only_one_who_was_present_each_time_is_the_cause() -> None:
    server = Server()
    server.end_over(EVE, beside=(BOB,))
    for name in (ANN, "user:cid", "user:dan"):
        server.end_over(EVE, beside=(name,))
    assert server.is_refused(EVE)
    for name in (BOB, ANN, "user:cid", "user:dan"):
        assert not server.is_refused(name)


def test_those_who_were_present_take_turns_so_that_the_next_end_tells_them_apart() -> None:
    server = Server()
    server.end_over(EVE, beside=(BOB,))
    with server.suspects.admitted(EVE):
        began_s = server.clock.monotonic_s()
        with pytest.raises(EngineUnavailable, match="take turns"):
            server.run(BOB)
        assert server.clock.monotonic_s() - began_s == TURN_WAIT_S
        server.run(EVE)  # her own statements may run at once
        server.run(ANN)  # was not present
    server.run(BOB)
    for _ in range(CAUSED_MAX):
        server.end_over(EVE)
    assert server.is_refused(EVE)
    assert not server.is_refused(BOB)


def test_who_is_refused_because_of_two_others_is_released_by_the_next_end() -> None:
    """Two who take part in turn make the bystander the only one who was present each time."""
    server = Server()
    server.suspects.ended(BOB, server.clock.monotonic_s())
    others = ("user:eve", "user:mallory")
    for number in range(2 * CAUSED_MAX):
        server.clock.advance(2_000.0)  # nobody takes turns any more
        server.end_over(others[number % 2], beside=(BOB,))
        if server.is_refused(BOB):
            break
    assert server.is_refused(BOB)
    server.suspects._suspects[BOB].is_alone = False  # as if somebody else had run at the first end
    server.end_over("user:mallory")
    assert not server.is_refused(BOB)


def test_a_statement_that_was_cancelled_just_before_counts_as_present() -> None:
    server = Server()
    for _ in range(CAUSED_MAX):
        with contextlib.suppress(EngineUnavailable), server.suspects.admitted(EVE):
            raise EngineUnavailable("cancelled")
        server.clock.advance(LEFT_S / 2)
        server.end_over(BOB)
        server.clock.advance(LEFT_S)
    assert not server.is_refused(BOB)


def test_who_finds_spark_down_is_not_blamed_for_a_cancelled_statement() -> None:
    server = Server()
    server.end_over(EVE, beside=(BOB,))
    for _ in range(CAUSED_MAX):
        server.clock.advance(200.0)
        server.suspects.found(is_up=True)
        with contextlib.suppress(EngineUnavailable), server.suspects.admitted(EVE):
            raise EngineUnavailable("cancelled")
        for _ in range(2):
            server.clock.advance(1.0)
            server.suspects.found(is_up=False)
            with server.suspects.admitted(BOB):
                server.suspects.ended(BOB, server.clock.monotonic_s())
    assert not server.is_refused(BOB)
    assert server.is_refused(EVE)


def test_a_statement_that_was_wrong_does_not_count_as_present() -> None:
    server = Server()
    for _ in range(CAUSED_MAX):
        with contextlib.suppress(InvalidRequest), server.suspects.admitted(BOB):
            raise InvalidRequest("no such column")
        server.end_over(EVE)
    assert server.is_refused(EVE)


def test_who_does_not_stop_planning_is_the_cause_whoever_runs_beside() -> None:
    server = Server()
    for _ in range(CAUSED_MAX):
        server.clock.advance(400.0)
        server.suspects.found(is_up=True)
        with server.suspects.admitted(BOB):
            since_s = server.clock.monotonic_s()
            server.clock.advance(1.0)
            server.suspects.ended(EVE, since_s, is_cause=True)
            server.suspects.ended(BOB, since_s)
    assert server.is_refused(EVE)
    assert not server.is_refused(BOB)


def test_the_owner_of_the_server_is_never_refused() -> None:
    server = Server()
    for _ in range(5 * CAUSED_MAX):
        server.end_over("")
    server.run("")


def test_the_number_of_principals_is_bounded() -> None:
    server = Server()
    for number in range(PRINCIPALS_MAX + 10):
        server.clock.advance(1.0)
        server.suspects.found(is_up=True)
        server.suspects.ended(f"user:{number}", server.clock.monotonic_s())
    assert len(server.suspects._suspects) <= PRINCIPALS_MAX


def test_a_waiting_suspect_runs_once_the_turn_ends() -> None:
    clock = VirtualClock()
    suspects = PrincipalSuspects(clock)
    clock.advance(1.0)
    with contextlib.suppress(Lost), suspects.admitted(EVE), suspects.admitted(BOB):
        suspects.ended(EVE, clock.monotonic_s())
        raise Lost
    ran: list[str] = []

    def run() -> None:
        with suspects.admitted(BOB):
            ran.append(BOB)

    thread = threading.Thread(target=run)
    with suspects.admitted(EVE):
        thread.start()
        clock.wait_for_waiting(1)
        # The next statement of hers waits behind his.
        later = threading.Thread(target=lambda: suspects.admitted(EVE).__enter__())
        later.start()
        clock.wait_for_waiting(2)
        assert not ran
    thread.join(120)
    later.join(120)
    assert ran == [BOB]


@dataclass
class Client:
    """A client that sends statements of `take_s` with pauses of `pause_s`; bombs end Spark.

    `cancels`: the client leaves three seconds before its bomb ends Spark.
    """

    name: str
    take_s: tuple[int, int]
    pause_s: tuple[int, int]
    is_bomb: bool = False
    cancels: bool = False
    next_s: float = 0.0
    until_s: float = 0.0
    since_s: float = 0.0
    running: contextlib.ExitStack | None = None
    refused_s: float = 0.0
    denied_s: float = 0.0
    answers: int = 0


@dataclass
class Installation:
    """A Spark that ends over bombs and needs 15 seconds to start, and its clients."""

    clients: list[Client]
    rng: random.Random
    server: Server = field(default_factory=Server)
    ends: int = 0
    down_s: float = 0.0
    up_at_s: float = 0.0

    def run(self, seconds: float) -> None:
        clock = self.server.clock
        while clock.monotonic_s() < seconds:
            for client in self.rng.sample(self.clients, len(self.clients)):
                self._step(client)
            clock.advance(1.0)

    def _step(self, client: Client) -> None:
        now_s = self.server.clock.monotonic_s()
        if client.cancels and client.running is not None and now_s >= client.until_s - 3:
            with contextlib.suppress(EngineLost), client.running:
                raise EngineLost("it was cancelled")
            client.running = None
        if client.until_s:
            if now_s >= client.until_s:
                if client.is_bomb:
                    self._end()
                elif client.running is not None:
                    client.running.close()
                    client.running = None
                    client.answers += 1
                client.until_s = 0.0
                client.next_s = now_s + self.rng.randint(*client.pause_s)
            return
        if now_s < client.next_s:
            return
        is_up = now_s >= self.up_at_s
        if self.server.suspects.is_watching:
            self.server.suspects.found(is_up=is_up)
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(self.server.suspects.admitted(client.name))
        except SparkEndsRefused:
            client.refused_s += 1.0
            return
        except EngineUnavailable:
            client.denied_s += TURN_WAIT_S
            return
        if not is_up:
            with contextlib.suppress(EngineLost), stack:
                self.server.suspects.ended(client.name, now_s)
                raise EngineLost("Spark was lost")
            client.next_s = now_s + self.rng.randint(1, 5)
            return
        client.running = stack
        client.since_s = self.server.clock.monotonic_s()
        client.until_s = client.since_s + self.rng.randint(*client.take_s)

    def _end(self) -> None:
        self.ends += 1
        ran = [client for client in self.clients if client.running is not None]
        self.server.clock.advance(0.1)
        for client in self.rng.sample(ran, len(ran)):
            self.server.suspects.ended(client.name, client.since_s)
        for client in self.clients:
            client.until_s = 0.0
        for client in ran:
            assert client.running is not None
            with contextlib.suppress(EngineLost), client.running:
                raise EngineLost("Spark was lost")
            client.running = None
        self.up_at_s = self.server.clock.monotonic_s() + 15.0
        self.down_s += 15.0


HOUR_S = 3_600.0
takes = st.tuples(st.integers(1, 5), st.integers(5, 40))
pauses = st.tuples(st.integers(0, 5), st.integers(5, 60))


@settings(max_examples=8, deadline=None)
@given(
    bomb=takes,
    rests=st.sampled_from([(0, 1), (0, 300), (125, 130)]),
    cancels=st.booleans(),
    others=st.lists(st.tuples(takes, pauses), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_one_attacker_ends_spark_a_few_times_and_bystanders_go_on(
    bomb: tuple[int, int],
    rests: tuple[int, int],
    cancels: bool,
    others: list[tuple[tuple[int, int], tuple[int, int]]],
    seed: int,
) -> None:
    """Without suspects among principals, Spark ends more than 250 times in three hours."""
    eve = Client(EVE, bomb, rests, is_bomb=True, cancels=cancels)
    bystanders = [Client(f"user:{n}", *times) for n, times in enumerate(others)]
    installation = Installation([eve, *bystanders], random.Random(seed))
    installation.run(3 * HOUR_S)
    # An end over a cancelled statement is found only by a statement that comes before the restart.
    assert installation.ends <= (40 if cancels else 18)
    assert installation.down_s < (0.06 if cancels else 0.03) * 3 * HOUR_S
    for client in bystanders:
        assert client.refused_s <= 2 * REFUSED_S
        assert client.denied_s < 0.1 * 3 * HOUR_S
        assert client.answers > 50


class LosesSpark:
    """Tables of a Spark that is lost over each query."""

    def tables(self) -> object:
        raise EngineLost("Spark was lost")


def test_the_service_refuses_a_principal_with_a_new_text_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSessions, "has_ended", lambda *_: True)
    monkeypatch.setattr(SparkSessions, "is_reachable", lambda _: True)
    clock = VirtualClock()
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    service = SqlService(nowhere, cast("TableSource", LosesSpark()), clock)

    def ask(sql: str, principal: str = "") -> None:
        clock.advance(1.0)
        with pytest.raises(EngineUnavailable, match="Spark was lost"):
            service.query(SqlQuery(sql, principal=principal))

    for number in range(CAUSED_MAX):
        ask(f"SELECT {number}", EVE)
    with pytest.raises(SparkEndsRefused):
        service.query(SqlQuery("SELECT 99", principal=EVE))
    ask("SELECT 100", BOB)
    ask("SELECT 101")
