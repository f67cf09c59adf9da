"""Statements during which Spark ended: who is refused, for how long, and what others get."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import grpc
import pyarrow as pa
import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.indexing.engine import EngineFailure, EngineLost, EngineUnavailable
from penstock.services.host.restart_policy import ChildLife
from penstock.spark.connect import spark_sessions
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.sql.crash_suspects import (
    ENDS_MAX,
    SUSPECTS_MAX,
    TURN_WAIT_S,
    WINDOW_S,
    CrashSuspects,
)
from penstock.spark.sql.service import SqlOptions, SqlQuery, SqlResult, SqlService
from penstock.spark.tables import Tables, TableSource
from penstock.testing.clock import VirtualClock
from tests.fuzz.sql_canaries_kit import resolving

BOMB, GOOD, SLOW = "SELECT repeat('x', n)", "SELECT 1", "SELECT count(*) FROM large"


class Lost(Exception):
    """Spark ends while a statement runs."""


class Server:
    """A Spark that ends over one statement, and its suspects."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.suspects = CrashSuspects(self.clock)

    def run(self, sql: str, parameters: tuple[object, ...] = (), *, ends: bool) -> None:
        """Run a statement for a second, and end Spark then or succeed."""
        with self.suspects.admitted(sql, parameters):
            since_s = self.clock.monotonic_s()
            self.clock.advance(1.0)
            if ends:
                self.suspects.ended(sql, parameters, since_s)
                raise Lost

    def end_over(self, sql: str, parameters: tuple[object, ...] = ()) -> None:
        self.clock.advance(1.0)
        with pytest.raises(Lost):
            self.run(sql, parameters, ends=True)


def test_a_statement_that_ended_spark_twice_is_refused_for_ten_minutes() -> None:
    server = Server()
    for _ in range(ENDS_MAX):
        server.end_over(BOMB)
        server.run(GOOD, ends=False)
    with pytest.raises(InvalidRequest, match=r"refused for another 599 s.*--query-memory"):
        server.run(BOMB, ends=True)
    server.run(GOOD, ends=False)
    server.clock.advance(WINDOW_S)
    server.end_over(BOMB)


def test_parameters_are_part_of_a_statement() -> None:
    server = Server()
    for _ in range(ENDS_MAX):
        server.end_over(BOMB, (10**9,))
    server.run(BOMB, (1,), ends=False)
    with pytest.raises(InvalidRequest):
        server.run(BOMB, (10**9,), ends=True)


def test_a_statement_that_succeeds_is_cleared() -> None:
    server = Server()
    for _ in range(2 * ENDS_MAX):
        server.end_over(SLOW)
        server.run(SLOW, ends=False)


def test_requests_with_one_statement_count_once_for_each_end() -> None:
    server = Server()
    for _ in range(20):
        server.suspects.ended(BOMB, (), 0.0)
    server.end_over(BOMB)
    with pytest.raises(InvalidRequest):
        server.run(BOMB, ends=True)


def test_the_number_of_suspects_is_bounded() -> None:
    server = Server()
    server.end_over(BOMB)
    for number in range(SUSPECTS_MAX):
        server.suspects.ended(f"SELECT {number}", (), server.clock.monotonic_s())
    for _ in range(ENDS_MAX):  # the oldest was forgotten
        server.end_over(BOMB)


def in_thread(server: Server, sql: str) -> tuple[threading.Thread, list[object]]:
    """Run a statement on another thread, which waits for its turn; the list gets its error."""
    errors: list[object] = []

    def run() -> None:
        try:
            with server.suspects.admitted(sql):
                pass
        except (EngineUnavailable, InvalidRequest) as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    server.clock.wait_for_waiting(1)
    return thread, errors


def test_of_suspects_one_runs_at_a_time_and_the_next_end_is_attributed_to_it() -> None:
    server = Server()
    for sql in (BOMB, SLOW):  # both ran when Spark ended
        server.suspects.ended(sql, (), 0.0)
    server.clock.advance(5.0)
    with contextlib.suppress(Lost), server.suspects.admitted(BOMB):
        since_s = server.clock.monotonic_s()
        thread, errors = in_thread(server, SLOW)
        server.run(GOOD, ends=False)
        server.suspects.ended(BOMB, (), since_s)
        raise Lost
    thread.join(120)
    assert not errors
    with pytest.raises(InvalidRequest):
        server.run(BOMB, ends=True)
    server.run(SLOW, ends=False)


def test_a_suspect_waits_a_limited_time_for_its_turn() -> None:
    server = Server()
    for sql in (BOMB, SLOW):
        server.suspects.ended(sql, (), 0.0)
    with server.suspects.admitted(SLOW):
        thread, errors = in_thread(server, BOMB)
        server.clock.advance(TURN_WAIT_S)
        thread.join(120)
    assert isinstance(errors[0], EngineUnavailable)


def test_a_client_that_sends_one_statement_again_and_again_leaves_spark_to_others() -> None:
    """The launcher's back-off alone leaves a fifth of the time to others."""
    starts_s, hour_s = 10.0, 3_600.0

    def answered(ask: Callable[[Server], None]) -> tuple[float, int]:
        """Return the share of an hour in which Spark is up, and how often it ended."""
        server, life = Server(), ChildLife("queries")
        life.on_started(0.0)
        up_s, ends = 0.0, 0
        while (before_s := server.clock.monotonic_s()) < hour_s:
            try:
                ask(server)
            except Lost:
                ends += 1
                server.clock.advance(life.on_ended(server.clock.monotonic_s()))
                life.on_started(server.clock.monotonic_s())
                server.clock.advance(starts_s)
                continue
            except InvalidRequest:
                server.run(GOOD, ends=False)
            up_s += server.clock.monotonic_s() - before_s
        return up_s / hour_s, ends

    def without_limit(server: Server) -> None:
        server.clock.advance(1.0)
        raise Lost

    share, ends = answered(without_limit)
    assert share < 0.2
    assert ends > 150
    share, ends = answered(lambda server: server.run(BOMB, ends=True))
    assert share > 0.95
    assert ends <= ENDS_MAX * hour_s / WINDOW_S


class LosesSpark:
    """Tables of a Spark that is lost over each query."""

    reads = 0

    def tables(self) -> object:
        self.reads += 1
        raise EngineLost("Spark was lost")


def test_the_service_refuses_a_statement_over_which_spark_was_lost_twice() -> None:
    clock, source = VirtualClock(), LosesSpark()
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    service = SqlService(nowhere, cast("TableSource", source), clock)
    for _ in range(ENDS_MAX):
        clock.advance(1.0)
        with pytest.raises(EngineUnavailable, match="Spark was lost"):
            service.query(SqlQuery(GOOD))
    reads = source.reads
    with pytest.raises(InvalidRequest, match="ended 2 times"):
        service.query(SqlQuery(GOOD))
    assert source.reads == reads
    with pytest.raises(EngineUnavailable):
        service.query(SqlQuery(GOOD, is_probe=True))


LOST = EngineLost("Spark was lost: java.io.EOFException")
NO_MEMORY = EngineLost("Spark was lost: java.lang.OutOfMemoryError: Java heap space")


@pytest.mark.parametrize(("error", "without_wait"), [(LOST, False), (NO_MEMORY, True)])
def test_a_spark_whose_port_closes_a_moment_after_its_calls_failed_has_ended(
    error: EngineLost, without_wait: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only an error for lack of memory makes it wait without that time.
    monkeypatch.setattr(spark_sessions, "ENDING_S", 0.0 if without_wait else 120.0)
    monkeypatch.setattr(spark_sessions, "OUT_OF_MEMORY_S", 120.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def end() -> None:
            server.accept()[0].close()
            server.close()

        ended = pool.submit(end)
        sessions = SparkSessions(SparkSessionOptions(f"sc://127.0.0.1:{server.getsockname()[1]}"))
        assert sessions.has_ended(SystemClock(), error)
        ended.result()


def test_a_spark_whose_port_stays_open_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_sessions, "ENDING_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sessions = SparkSessions(SparkSessionOptions(f"sc://127.0.0.1:{server.getsockname()[1]}"))
        assert not sessions.has_ended(SystemClock(), LOST)


class PassingClock(VirtualClock):
    """A clock whose time passes while something waits."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        del condition
        self.advance(timeout_s or 0)
        return False


def test_an_end_of_spark_for_another_query_makes_no_suspect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another query ends Spark while the service waits for the end of Spark."""
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    clock = PassingClock()
    service = SqlService(
        nowhere,
        cast("TableSource", LosesSpark()),
        clock,
        SqlOptions(end_spark=lambda: None),
    )

    def end_for_another(*_: object) -> bool:
        clock.advance(0.5)
        service._end_spark(SqlQuery(BOMB), clock.monotonic_s())
        return True

    monkeypatch.setattr(SparkSessions, "has_ended", end_for_another)
    for _ in range(2 * ENDS_MAX):
        clock.advance(1.0)
        with pytest.raises(EngineUnavailable, match="another query did not stop"):
            service.query(SqlQuery(GOOD))


def test_a_query_that_was_stopped_is_no_suspect() -> None:
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))

    class Cancels:
        def tables(self) -> object:
            service.cancel("q")
            raise EngineLost("Spark was lost")

    clock = VirtualClock()
    service = SqlService(nowhere, cast("TableSource", Cancels()), clock)
    for _ in range(2 * ENDS_MAX):
        clock.advance(1.0)
        with pytest.raises(EngineFailure, match="it was cancelled"):
            service.query(SqlQuery(GOOD, query_id="q"))


def test_a_loss_of_a_session_alone_makes_no_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    monkeypatch.setattr(SparkSessions, "has_ended", lambda *_: False)
    clock = VirtualClock()
    service = SqlService(nowhere, cast("TableSource", LosesSpark()), clock)
    for _ in range(2 * ENDS_MAX):
        clock.advance(1.0)
        with pytest.raises(EngineUnavailable):
            service.query(SqlQuery(GOOD))


class TickingClock(VirtualClock):
    """Every look at it takes a millisecond."""

    def monotonic_s(self) -> float:
        self.advance(0.001)
        return super().monotonic_s()


def test_an_end_of_spark_counts_once_in_whichever_session_it_is_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSessions, "_connect", lambda _sessions: SimpleNamespace())
    monkeypatch.setattr(SparkSessions, "has_ended", lambda *_: True)

    class UsesEachSession:
        def tables(self) -> object:
            for sessions in used:
                with sessions.use() as spark:
                    if any(spark is one for one in ended):
                        raise grpc.RpcError
            raise InvalidRequest("the new Spark was reached")

    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    service = SqlService(nowhere, cast("TableSource", UsesEachSession()), TickingClock())
    used = [
        sessions
        for pair in (service._sessions, service._exact)
        for sessions in (resolving(pair), pair._sessions)
    ]
    ended = [sessions.get() for sessions in used]
    with pytest.raises(InvalidRequest, match="the new Spark was reached"):
        service.query(SqlQuery(BOMB))
    assert [one.ends for one in service._suspects._suspects.values()] == [1]


def test_a_loss_after_a_success_of_the_restarted_spark_is_not_blamed_on_the_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSessions, "has_ended", lambda *_: False)
    clock = PassingClock()
    spark = SimpleNamespace(addTag=lambda _: None, removeTag=lambda _: None)

    def run_in(asked: object, _case_variants: object) -> SqlResult:
        sql = asked.query.sql  # type: ignore[attr-defined]
        with asked.running.tagged(spark):  # type: ignore[attr-defined]
            clock.advance(1.0)
            if sql == BOMB:
                raise LOST
            if sql == SLOW:  # it succeeds, but had begun before the end
                service._end_spark(SqlQuery("SELECT another"), clock.monotonic_s())
        return SqlResult(pa.table({}), (), truncated=False)

    source = SimpleNamespace(tables=lambda: Tables(1, {}))
    service = SqlService(
        SparkSessions(SparkSessionOptions("sc://localhost:1")),
        cast("TableSource", source),
        clock,
        SqlOptions(end_spark=lambda: None),
    )
    monkeypatch.setattr(service, "_run_in", run_in)
    service.query(SqlQuery(SLOW))
    with pytest.raises(EngineUnavailable, match="another query did not stop"):
        service.query(SqlQuery(BOMB))
    service.query(SqlQuery(GOOD))
    with pytest.raises(EngineUnavailable, match=r"Spark was lost.*--query-memory"):
        service.query(SqlQuery(BOMB))


class Restarting:
    """A Spark that another query has ended or lost, and that starts again after some time.

    Attributes:
        service: Answers over it.
        clock: Time, which passes while something waits.
        up_s: When Spark can be reached.
        error: The error of a query meanwhile.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = PassingClock()
        self.up_s, self.error = 12.0, cast("EngineUnavailable", LOST)
        self.runs = 0
        patch.setattr(SparkSessions, "has_ended", lambda *_: True)
        patch.setattr(SparkSessions, "is_reachable", lambda _: self._is_up)
        self.service = SqlService(
            SparkSessions(SparkSessionOptions("sc://localhost:1")),
            cast("TableSource", SimpleNamespace(tables=lambda: Tables(1, {}))),
            self.clock,
            SqlOptions(end_spark=lambda: None),
        )
        patch.setattr(self.service, "_run_in", self._run)

    @property
    def _is_up(self) -> bool:
        return self.clock.monotonic_s() >= self.up_s

    def _run(self, _asked: object, _case_variants: object) -> SqlResult:
        self.runs += 1
        self.clock.advance(0.1)
        if not self._is_up:
            raise self.error
        return SqlResult(pa.table({}), (), truncated=False)

    def end(self) -> None:
        self.service._end_spark(SqlQuery("SELECT another"), self.clock.monotonic_s())


def test_queries_wait_while_spark_starts_that_was_ended_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Restarting(monkeypatch)
    rig.end()
    rig.service.query(SqlQuery(GOOD))
    assert 12.0 <= rig.clock.monotonic_s() < 13.0
    assert rig.runs == 3
    # The time limit of a query counts meanwhile, and a probe reports the state at once.
    rig.up_s = 1_000.0
    rig.end()
    with pytest.raises(EngineFailure, match="took longer than 5000 ms"):
        rig.service.query(SqlQuery(GOOD, timeout_ms=5_000, arrived_s=0.0))
    before_s = rig.clock.monotonic_s()
    with pytest.raises(EngineUnavailable, match="another query did not stop"):
        rig.service.query(SqlQuery(GOOD, is_probe=True))
    assert rig.clock.monotonic_s() - before_s < 1.0
    with pytest.raises(EngineUnavailable, match="another query did not stop"):
        rig.service.query(SqlQuery(GOOD))
    assert 59.0 < rig.clock.monotonic_s() - before_s < 62.0


def test_a_query_during_which_spark_ended_by_itself_is_not_tried_on_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Restarting(monkeypatch)
    with pytest.raises(EngineUnavailable, match="Spark was lost"):
        rig.service.query(SqlQuery(BOMB))
    assert rig.clock.monotonic_s() < 1.0
    # Another one, which comes while Spark is down, has not ended it.
    rig.error = EngineUnavailable("Spark cannot be reached")
    rig.service.query(SqlQuery(GOOD))
    assert 12.0 <= rig.clock.monotonic_s() < 13.0
