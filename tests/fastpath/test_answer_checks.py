"""Checks of the embedded engine's answers: which are chosen, when they give way, what differs."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.clock import pause
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.sql import tree
from penstock.core.sql.checked_query import checked_query
from penstock.fastpath import answer_checks
from penstock.fastpath.answer_checks import AnswerChecks, PinnedTables
from penstock.fastpath.comparison import answer_shape, difference
from penstock.fastpath.compiled_query import CompiledQuery
from penstock.fastpath.engine_pool import EngineCall, EngineRequest
from penstock.fastpath.snapshot_relations import answer_schema
from penstock.fastpath.sql_service import FastOptions, FastSqlService
from penstock.indexing.engine import EngineFailure
from penstock.spark.sql.service import RegisteredQuery, SqlOptions, SqlQuery, SqlResult
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.testing.clock import VirtualClock
from tests.fastpath.engine_kit import CLOCK, COLUMNS, N
from tests.spark.table_kit import GivenTables

SQL = "SELECT count(*) AS n FROM clicks"
FILE = TableFile("/data/a.parquet", COLUMNS, Interval(0, 86_400_000), size_bytes=1_000)
NEWER = TableFile("/data/b.parquet", COLUMNS, Interval(0, 86_400_000), size_bytes=1_000)


class StubSpark:
    """Answers with `number`, after `work`; notes what it was asked."""

    def __init__(self) -> None:
        self.queries: list[SqlQuery] = []
        self.number = 7
        self.cancelled = threading.Event()
        self.work: Callable[[], object] = lambda: None

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        yield RegisteredQuery(lambda: self._run(query), self.cancelled.set)

    def _run(self, query: SqlQuery) -> SqlResult:
        self.queries.append(query)
        self.work()
        if self.cancelled.is_set():
            raise EngineFailure("the query did not end: it was cancelled")
        rows = pa.table({"n": pa.array([self.number], pa.int64())})
        return SqlResult(rows, ("bigint",), truncated=False)

    def timeout_ms(self, query: SqlQuery) -> int:
        return query.timeout_ms or 300_000

    def cancel(self, query_id: str) -> bool:
        raise AssertionError(query_id)


class StubEngines:
    def new_call(self) -> EngineCall:
        return EngineCall(threading.Condition())

    def run(self, request: EngineRequest, until_s: float, call: EngineCall) -> pa.Table:
        del until_s, call
        return pa.table({"n": pa.array([7], pa.int64())}, schema=request.schema)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.clock, self.spark, self.checking = VirtualClock(), StubSpark(), StubSpark()
        self.tables = GivenTables({"clicks": (FILE,), "other": (FILE,)})
        self.pinned = PinnedTables(self.tables)
        self.folder = folder / "differences"
        self.alerts: list[tuple[str, Mapping[str, str]]] = []
        self.depends_on_time = False
        self.checks = AnswerChecks(
            *(self.checking, self.pinned, self.folder),
            lambda text, data: self.alerts.append((text, data)),
            self.clock,
        )
        self.service = FastSqlService(
            *(self.spark, self.tables, StubEngines(), self.compile_query, self.clock),
            FastOptions(SqlOptions(row_limit=50), checks=self.checks),
        )

    def compile_query(
        self, query: tree.Query, name: str, columns: Columns, values: Sequence[object], now_us: int
    ) -> CompiledQuery:
        del query, columns, values
        parameters = (now_us,) if self.depends_on_time else ()
        return CompiledQuery(name, "SELECT count(*) AS c0 FROM rows", parameters, COLUMNS, N)

    def ask(self, engine: str = "auto", count: int = 1, sql: str = SQL) -> None:
        for _ in range(count):
            with self.service.registered(SqlQuery(sql, engine=engine)) as registered:
                registered.run()

    def until(self, **counts: int) -> None:
        """Wait until the checks have these outcomes."""
        until_s = CLOCK.monotonic_s() + 120
        while self.counts() != counts:
            assert CLOCK.monotonic_s() < until_s, self.counts()
            pause(CLOCK, 0.005)

    def counts(self) -> dict[str, int]:
        return {
            sample.labels[0][1]: int(sample.value)
            for sample in self.checks.samples()
            if isinstance(sample.value, float) and sample.value
        }


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(answer_checks, "CHECKED_ONE_IN", 3)
    made = Rig(tmp_path)
    made.checks.start()
    yield made
    made.checks.stop()


def test_one_in_some_answers_is_asked_of_spark_over_the_same_files(rig: Rig) -> None:
    rig.ask()
    rig.until(equal=1)
    (query,) = rig.checking.queries
    assert (query.sql, query.engine, query.query_id) == (SQL, "", "")
    assert rig.pinned.tables().files == {"clicks": (FILE,)}
    assert rig.spark.queries == []

    rig.clock.advance(answer_checks.REST_S)
    rig.tables.files["clicks"] = (FILE, NEWER)
    rig.ask(count=2)
    assert rig.counts() == {"equal": 1}
    assert rig.pinned.tables().files == {"clicks": (FILE,)}
    rig.ask()
    rig.until(equal=2)
    assert rig.pinned.tables().files == {"clicks": (FILE, NEWER)}
    assert not rig.folder.exists()
    assert rig.alerts == []


def test_a_difference_is_reported_once_and_both_answers_are_kept(rig: Rig) -> None:
    rig.checking.number = 8
    rig.ask()
    rig.until(different=1)
    ((text, data),) = rig.alerts
    assert "clicks differently" in text
    (kept,) = rig.folder.iterdir()
    assert data == {"dataSource": "clicks", "kept": str(kept)}
    record = json.loads((kept / "statement.json").read_text())
    assert (record["sql"], record["files"]) == (SQL, [FILE.path])
    assert "rows" in record["difference"]
    for name, number in (("fast.arrow", 7), ("spark.arrow", 8)):
        with pa.memory_map(str(kept / name)) as file:
            assert pa.ipc.open_file(file).read_all().to_pylist() == [{"n": number}]
    modes = {path.stat().st_mode & 0o777 for path in (rig.folder, kept)}
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}

    rig.clock.advance(answer_checks.REST_S)
    rig.ask(count=3)
    rig.until(different=2)
    assert len(rig.alerts) == 1
    assert len(list(rig.folder.iterdir())) == 1


def test_an_error_of_spark_alone_is_a_difference(rig: Rig) -> None:
    def overflow() -> None:
        raise InvalidRequest("[ARITHMETIC_OVERFLOW] long overflow")

    rig.checking.work = overflow
    rig.ask()
    rig.until(different=1)
    (kept,) = rig.folder.iterdir()
    assert "long overflow" in json.loads((kept / "statement.json").read_text())["difference"]
    assert sorted(path.name for path in kept.iterdir()) == ["fast.arrow", "statement.json"]


def test_the_oldest_differences_are_deleted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_checks, "KEPT_MAX", 2)
    rig.checking.number = 8
    for number in range(1, 5):
        rig.ask(sql=f"{SQL} WHERE amount > {number}", count=1 if number == 1 else 3)
        rig.until(different=number)
        rig.clock.advance(answer_checks.REST_S)
    kept = sorted(rig.folder.iterdir())
    assert [json.loads((one / "statement.json").read_text())["sql"][-1] for one in kept] == [
        "3",
        "4",
    ]


def test_a_query_of_spark_cancels_a_check_and_keeps_others_away(rig: Rig) -> None:
    began = threading.Event()

    def wait() -> None:
        began.set()
        assert rig.checking.cancelled.wait(120)

    rig.checking.work = wait
    rig.ask()
    assert began.wait(120)
    rig.spark.work = lambda: rig.until(interrupted=1)
    rig.ask("spark")

    def offer() -> None:
        rig.clock.advance(answer_checks.REST_S)
        rig.ask(count=3)

    rig.spark.work = offer
    rig.ask("spark")
    assert rig.counts() == {"interrupted": 1, "busy": 1}
    assert len(rig.checking.queries) == 1


def test_a_check_begins_neither_beside_another_nor_right_after_it(rig: Rig) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        assert goes_on.wait(120)

    rig.checking.work = wait
    rig.ask()
    assert began.wait(120)
    rig.ask(count=3)
    assert rig.counts() == {"busy": 1}
    goes_on.set()
    rig.until(equal=1, busy=1)
    rig.ask(count=3)
    assert rig.counts() == {"equal": 1, "busy": 2}


def test_failures_and_large_answers_are_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise EngineFailure("a file was deleted during the query")

    rig.checking.work = fail
    rig.ask()
    rig.until(failed=1)
    rig.clock.advance(answer_checks.REST_S)
    monkeypatch.setattr(answer_checks, "ROWS_MAX", 0)
    rig.ask(count=3)
    rig.until(failed=1, large=1)
    assert rig.alerts == []


def test_the_current_time_is_not_checked(rig: Rig) -> None:
    rig.depends_on_time = True
    rig.ask(count=3)
    assert rig.counts() == {}
    assert rig.checking.queries == []


def test_a_stop_cancels_the_check(rig: Rig) -> None:
    began = threading.Event()

    def wait() -> None:
        began.set()
        assert rig.checking.cancelled.wait(120)

    rig.checking.work = wait
    rig.ask()
    assert began.wait(120)
    rig.checks.stop()
    assert rig.counts() == {"interrupted": 1}


VALUES: Columns = (("a", "bigint"), ("b", "double"))


def table(*rows: tuple[object, object], types: Columns = VALUES) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), ()]
    schema = answer_schema(types)
    arrays = [pa.array(one, type_) for one, type_ in zip(columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)


@pytest.mark.parametrize(
    ("sql", "fast", "slow", "differs"),
    [
        ("SELECT a, b FROM t", [(1, 0.1 + 0.2), (2, None)], [(2, None), (1, 0.3)], False),
        ("SELECT a, b FROM t", [(1, 1.0)], [(1, 1.0 + 1e-9)], True),
        ("SELECT a, b FROM t", [(1, math.nan), (2, -0.0)], [(2, 0.0), (1, math.nan)], False),
        (
            "SELECT a, b FROM t",
            [(1, 1.0), (1, 1.0), (2, 1.0)],
            [(1, 1.0), (2, 1.0), (2, 1.0)],
            True,
        ),
        ("SELECT a, b FROM t", [(1, 1.0)], [(1, 1.0), (1, 1.0)], True),
        ("SELECT a, b FROM t ORDER BY a", [(1, 2.0), (2, 1.0)], [(2, 1.0), (1, 2.0)], True),
        ("SELECT a, b FROM t ORDER BY 1", [(1, 2.0), (1, 1.0)], [(1, 1.0), (1, 2.0)], False),
        ("SELECT a, b FROM t ORDER BY a, 2", [(1, 2.0), (1, 1.0)], [(1, 1.0), (1, 2.0)], True),
        ("SELECT a, b FROM t ORDER BY a + 1", [(2, 1.0), (1, 1.0)], [(1, 1.0), (2, 1.0)], False),
        # Any of the rows with the last key.
        (
            "SELECT a, b FROM t ORDER BY a LIMIT 2",
            [(1, 1.0), (2, 5.0)],
            [(1, 1.0), (2, 6.0)],
            False,
        ),
        (
            "SELECT a, b FROM t ORDER BY a LIMIT 3",
            [(0, 0.0), (1, 1.0), (2, 5.0)],
            [(0, 0.0), (1, 9.0), (2, 5.0)],
            True,
        ),
        ("SELECT a, b FROM t LIMIT 1", [(1, 1.0)], [(2, 6.0)], False),
        ("SELECT a, b FROM t LIMIT 1", [(1, 1.0)], [], True),
        ("SELECT approx_count_distinct(x) AS a, b FROM t", [(1000, 1.0)], [(900, 1.0)], False),
        ("SELECT approx_count_distinct(x) AS a, b FROM t", [(1000, 1.0)], [(500, 1.0)], True),
        # Each number is nearly the same as those beside it.
        (
            "SELECT approx_count_distinct(x) AS a, b FROM t",
            [(5, 1.0), (3, 1.0), (1, 1.0)],
            [(3, 1.0), (1, 1.0), (5, 1.0)],
            False,
        ),
        ("SELECT a, b FROM t HAVING approx_count_distinct(x) > 3", [(1, 1.0)], [], False),
    ],
)
def test_what_is_equal(
    sql: str, fast: list[tuple[object, object]], slow: list[tuple[object, object]], *, differs: bool
) -> None:
    compiled = CompiledQuery("t", "", (), (), VALUES)
    shape = answer_shape(checked_query(sql).root, compiled)
    assert bool(difference(shape, table(*fast), table(*slow))) == differs


def test_other_names_and_types_differ() -> None:
    compiled = CompiledQuery("t", "", (), (), VALUES)
    shape = answer_shape(checked_query("SELECT a, b FROM t").root, compiled)
    exact: Columns = (("a", "bigint"), ("b", "decimal(3,1)"))
    for types in ((("a", "bigint"), ("B", "double")), (("a", "int"), ("b", "double"))):
        assert difference(shape, table((1, 1.0)), table((1, 1.0), types=types))
    assert difference(shape, table((1, 1.0)), table((1, Decimal(1)), types=exact))
