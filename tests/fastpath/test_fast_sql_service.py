"""Which engine answers a query: the choice, its reasons, and what a principal may not see."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.access.row_rules import RowRules
from penstock.core.errors import (
    InvalidRequest,
    PenstockError,
    StorageUnavailable,
    TooLargeForQuota,
    Unavailable,
)
from penstock.core.intervals import Interval
from penstock.core.sql import tree
from penstock.fastpath import sql_service
from penstock.fastpath.compiled_query import CompiledQuery, NotCompiled
from penstock.fastpath.engine_pool import EngineCall, EngineRefusal, EngineRequest
from penstock.fastpath.sql_service import PATTERNS_MAX, FastOptions, FastSqlService
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.indexing.specs.rows.declared_projections import DeclaredProjections
from penstock.segments.segment_cache import SegmentCache
from penstock.spark.projections.selector import ProjectionOptions
from penstock.spark.sql.answer_files import AnswerFolder
from penstock.spark.sql.limited_tables import SqlReader
from penstock.spark.sql.service import (
    LargeAnswer,
    RegisteredQuery,
    SqlOptions,
    SqlQuery,
    SqlResult,
)
from penstock.spark.tables.local_segments import LocalSegments
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.testing.clock import VirtualClock
from tests.fastpath.engine_kit import COLUMNS, N
from tests.spark.table_kit import GivenTables

SQL = "SELECT count(*) AS n FROM clicks"
PATTERN = "REGEXP_EXTRACT('2026', '^[0-9]+$', 0)"
OPEN = RowRules()
DAY = Interval(0, 86_400_000)


def table_file(
    path: str = "/data/a.parquet", columns: Columns = COLUMNS, **more: object
) -> TableFile:
    return TableFile(path, columns, DAY, size_bytes=1_000, **more)  # type: ignore[arg-type]


class StubSpark:
    """Answers everything, unless the query was stopped."""

    def __init__(self) -> None:
        self.queries: list[SqlQuery] = []
        self.stopped: set[str] = set()
        self.is_large = False

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        yield RegisteredQuery(lambda: self._run(query), lambda: self.stopped.add(query.query_id))

    def _run(self, query: SqlQuery) -> SqlResult | LargeAnswer:
        self.queries.append(query)
        if query.query_id in self.stopped:
            raise EngineFailure("the query did not end: it was cancelled")
        answer = SqlResult(pa.table({"n": ["of Spark"]}), ("string",), truncated=False)
        return LargeAnswer(lambda: answer) if self.is_large else answer

    def timeout_ms(self, query: SqlQuery) -> int:
        return query.timeout_ms or 300_000

    def cancel(self, query_id: str) -> bool:
        self.stopped.add(query_id)
        return True


class StubEngines:
    """Answers with numbers, or refuses; `work` runs first."""

    def __init__(self) -> None:
        self.requests: list[EngineRequest] = []
        self.limits_s: list[float] = []
        self.reason = ""
        self.rows = 1
        self.work: Callable[[EngineCall], object] = lambda _call: None

    def new_call(self) -> EngineCall:
        return EngineCall(threading.Condition())

    def run(self, request: EngineRequest, until_s: float, call: EngineCall) -> pa.Table:
        self.requests.append(request)
        self.limits_s.append(until_s)
        self.work(call)
        if call.is_cancelled:
            raise EngineRefusal("interrupted")
        if self.reason:
            raise EngineRefusal(self.reason)
        numbers = list(range(min(self.rows, request.rows_max)))
        return pa.table({"n": pa.array(numbers, pa.int64())}, schema=request.schema)


class Rig:
    def __init__(self, answers: AnswerFolder | None = None) -> None:
        self.spark, self.engines, self.clock = StubSpark(), StubEngines(), VirtualClock()
        self.tables = GivenTables({"clicks": (table_file(),), "other": (table_file(),)})
        self.compiled: list[tuple[str, Columns, Sequence[object]]] = []
        self.not_compiled = ""
        self.service = FastSqlService(
            *(self.spark, self.tables, self.engines, self.compile_query, self.clock),
            FastOptions(SqlOptions(row_limit=50), answers),
        )

    def compile_query(
        self,
        query: tree.Query,
        name: str,
        columns: Columns,
        parameters: Sequence[object],
        now_us: int,
    ) -> CompiledQuery:
        assert isinstance(query, tree.Query)
        assert now_us == self.clock.now_ms() * 1_000
        self.compiled.append((name, columns, parameters))
        if self.not_compiled:
            raise NotCompiled(self.not_compiled)
        return CompiledQuery(name, "SELECT count(*) AS c0 FROM rows", (), (), N)

    def ask(self, sql: str = SQL, engine: str = "auto", **more: Any) -> SqlResult:
        more.setdefault("uses_cache", False)
        query = SqlQuery(sql, query_id="q", engine=engine, **more)
        with self.service.registered(query) as registered:
            found = registered.run()
        return found.run() if isinstance(found, LargeAnswer) else found

    def counts(self) -> dict[str, float]:
        return {
            one.labels[0][1]: one.value
            for one in self.service.samples()
            if one.labels and isinstance(one.value, float | int) and one.value
        }


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_an_eligible_query_never_reaches_spark(rig: Rig) -> None:
    recorded: list[Sequence[str]] = []
    answer = rig.ask(
        "SELECT count(*) AS n FROM CLICKS WHERE amount > ?", parameters=[5], on_read=recorded.append
    )
    assert (answer.engine, answer.table.to_pylist()) == ("fast", [{"n": 0}])
    assert (answer.column_types, answer.truncated) == (("bigint",), False)
    assert rig.compiled == [("clicks", COLUMNS, [5])]
    assert recorded == [["clicks"]]
    assert rig.spark.queries == []
    assert rig.counts() == {"fast": 1}


def test_spark_answers_if_it_is_named(rig: Rig) -> None:
    assert rig.ask(engine="spark").engine == "spark"
    assert rig.engines.requests == []
    assert rig.counts() == {"spark": 1}


@pytest.mark.parametrize(("default", "engine"), [("spark", "spark"), ("auto", "fast")])
def test_the_default_answers_if_no_engine_is_named(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, default: str, engine: str
) -> None:
    assert sql_service.DEFAULT_ENGINE in {"spark", "auto"}
    monkeypatch.setattr(sql_service, "DEFAULT_ENGINE", default)
    assert rig.ask(engine="").engine == engine


@pytest.mark.parametrize(
    ("sql", "more", "reason"),
    [
        ("SELECT 1", {}, "no datasource"),
        ("SELECT LOOKUP(page, 'names') FROM clicks", {}, "lookup"),
        ("SELECT * FROM clicks JOIN lookup.names ON page = k", {}, "lookup"),
        ("SELECT * FROM clicks, other", {}, "several datasources"),
        ("SELECT * FROM clicks, nothing", {}, "no datasource"),
        ("EXPLAIN SELECT * FROM clicks", {}, "no query"),
        ("SHOW TABLES", {}, "no query"),
        (SQL, {"projections": ProjectionOptions(force=True)}, "projection required"),
        (f"SELECT {', '.join([PATTERN] * (PATTERNS_MAX + 1))} FROM clicks", {}, "size"),
    ],
)
def test_everything_else_is_sparks_with_a_reason(
    rig: Rig, sql: str, more: dict[str, Any], reason: str
) -> None:
    assert rig.ask(sql, **more).engine == "spark"
    assert rig.counts() == {reason: 1, "spark": 1}
    with pytest.raises(InvalidRequest, match=reason) as error:
        rig.ask(sql, "fast", **more)
    assert error.value.place == "context.engine"
    assert rig.engines.requests == []
    assert len(rig.spark.queries) == 1


def test_many_rows_of_a_datasource_with_projections_are_sparks(rig: Rig) -> None:
    rig.tables.files["clicks"] = (table_file(rows=6_000_000), table_file("/b", rows=4_000_000))
    rig.tables.declared["clicks"] = (DeclaredProjections({"name": "by city"}),)
    assert rig.ask().engine == "fast"
    rig.tables.files["clicks"] += (table_file("/c", rows=1),)
    assert rig.ask().engine == "spark"
    assert rig.counts()["projections"] == 1
    assert rig.ask(engine="fast").engine == "fast"
    assert rig.ask(projections=ProjectionOptions(none=True)).engine == "fast"
    rig.tables.declared.clear()
    assert rig.ask().engine == "fast"


@pytest.mark.parametrize("more", [{"is_probe": True}, {"is_large": True}])
def test_probes_and_large_answers_are_sparks(rig: Rig, more: dict[str, Any]) -> None:
    assert rig.ask(**more).engine == "spark"


class StubStore:
    """A deep storage with one file."""

    is_up = True

    def fetch(self, relative: str, write: Callable[[bytes], object]) -> str:
        if not self.is_up:
            raise StorageUnavailable(f"{relative}: no answer")
        write(b"PAR1" + b"." * 992 + b"PAR1")
        return ""


def test_files_of_a_remote_store_are_copied_and_kept_while_they_are_read(tmp_path: Path) -> None:
    store, rig = StubStore(), Rig()
    rig.tables = GivenTables({"clicks": (table_file("s3://lake/a.parquet"),)})
    cache = SegmentCache(tmp_path, 1_000, "s3://lake", store, lambda: (), rig.clock)
    cache.start()
    rig.service = FastSqlService(
        *(rig.spark, rig.tables, rig.engines, rig.compile_query, rig.clock),
        FastOptions(segments=LocalSegments(cache)),
    )

    def read(_call: EngineCall) -> None:
        cache.delete_unneeded()  # nothing names the file any longer
        for part in rig.engines.requests[-1].relation.parts:
            assert [Path(path).stat().st_size for path in part.paths] == [1_000]

    rig.engines.work = read
    try:
        assert rig.ask(engine="fast").engine == "fast"
        cache.delete_unneeded()
        assert not list(tmp_path.glob("*.parquet"))
        store.is_up = False
        assert rig.ask().engine == "spark"
        assert rig.counts() == {"fast": 1, "spark": 1, "deep storage": 1}
    finally:
        cache.stop()


def test_a_large_answer_of_spark_is_counted_when_it_was_made(rig: Rig) -> None:
    rig.spark.is_large, rig.not_compiled = True, "join"
    assert rig.ask().engine == "spark"
    assert rig.counts() == {"join": 1, "spark": 1}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ((table_file("s3://bucket/a.parquet"),), "place of a file"),
        ((table_file("/data/[a]/a.parquet"),), "place of a file"),
        ((table_file(columns=(("a", "string"), ("A", "string"))),), "case of columns"),
        ((), "no rows"),
    ],
)
def test_files_that_the_engine_cannot_read_are_sparks(
    rig: Rig, files: tuple[TableFile, ...], reason: str
) -> None:
    rig.tables.files["clicks"] = files
    assert rig.ask().engine == "spark"
    assert rig.counts()[reason] == 1


@pytest.mark.parametrize("reason", ["ended", "hung", "busy", "engine starts", "engine memory"])
def test_a_failed_engine_is_replaced_by_spark_or_reported(rig: Rig, reason: str) -> None:
    rig.engines.reason = reason
    assert rig.ask().engine == "spark"
    rig.clock.advance(600)
    with pytest.raises(EngineUnavailable, match=reason):
        rig.ask(engine="fast")
    rig.clock.advance(600)
    rig.engines.reason = "engine error"
    with pytest.raises(InvalidRequest, match="engine error"):
        rig.ask(engine="fast")
    assert rig.counts() == {reason: 2, "engine error": 1, "spark": 1}


def reader(rows: dict[str, RowRules]) -> SqlReader:
    return SqlReader(json.dumps(sorted(rows)), rows.get)


def test_a_principal_sees_no_more_than_with_spark(rig: Rig) -> None:
    everything = reader({"clicks": OPEN})
    assert rig.ask(reader=everything).engine == "fast"
    # Datasources that it may not read do not exist: Spark has the error.
    assert rig.ask("SELECT * FROM other", reader=everything).engine == "spark"
    assert rig.ask(reader=reader({})).engine == "spark"
    with pytest.raises(PenstockError):
        rig.ask(reader=reader({}), engine="fast")
    for limit in (RowRules("amount > 5"), RowRules("", (("city", "NULL"),))):
        assert rig.ask(reader=reader({"clicks": limit})).engine == "spark"
        with pytest.raises(InvalidRequest, match="row filter or mask"):
            rig.ask(reader=reader({"clicks": limit}), engine="fast")
    assert len(rig.engines.requests) == 1


def test_quotas_apply(rig: Rig) -> None:
    assert rig.ask(quota_bytes=999).engine == "spark"
    with pytest.raises(TooLargeForQuota):
        rig.ask(quota_bytes=999, engine="fast")
    assert rig.ask(quota_bytes=1_000).engine == "fast"
    rig.ask(timeout_ms=3_000)
    rig.ask(timeout_ms=200_000)
    now_s = rig.clock.monotonic_s()
    assert rig.engines.limits_s[1:] == [now_s + 3, now_s + 20]
    rig.ask(engine="fast")
    turns_s = [one.turn_until_s for one in rig.engines.requests]
    assert (turns_s[-2], turns_s[-1]) == (now_s + 5, math.inf)


def test_the_row_limit_cuts_the_answer(rig: Rig) -> None:
    rig.engines.rows = 100
    answer = rig.ask(row_limit=7)
    assert (answer.table.num_rows, answer.truncated) == (7, True)
    answer = rig.ask(row_limit=1_000)
    assert (answer.table.num_rows, answer.truncated) == (50, True)
    rig.engines.rows = 50
    assert not rig.ask().truncated


def test_a_large_answer_is_in_files(tmp_path: Path) -> None:
    folder = AnswerFolder(tmp_path)
    rig = Rig(folder)
    rig.engines.rows = 200_000
    rig.service = FastSqlService(
        *(rig.spark, rig.tables, rig.engines, rig.compile_query, rig.clock),
        FastOptions(answers=folder),
    )
    answer = rig.ask()
    assert answer.is_in_files
    assert answer.rows.num_rows == 200_000
    answer.close()
    folder.close()


def test_a_statement_that_is_not_valid_has_sparks_error(rig: Rig) -> None:
    assert rig.ask("SELECT nonsense(((").engine == "spark"
    with pytest.raises(InvalidRequest):
        rig.ask("SELECT nonsense(((", engine="fast")


@pytest.mark.parametrize("engine", ["auto", "fast"])
def test_a_cancelled_query_ends_with_its_own_error(rig: Rig, engine: str) -> None:
    came, ended = threading.Event(), threading.Event()

    def work(call: EngineCall) -> None:
        came.set()
        assert ended.wait(120)

    rig.engines.work = work
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(rig.ask, engine=engine)
        assert came.wait(120)
        assert rig.service.cancel("q")
        ended.set()
        with pytest.raises(EngineFailure, match="it was cancelled"):
            running.result(120)


def test_a_query_that_is_late_is_left_to_spark(rig: Rig) -> None:
    rig.engines.reason = "interrupted"
    assert rig.ask().engine == "spark"
    with pytest.raises(InvalidRequest, match="time limit"):
        rig.ask(engine="fast")
    # After the time limit of the query, Spark has the error.
    rig.engines.work = lambda _call: rig.clock.advance(9)
    assert rig.ask(engine="fast", timeout_ms=5_000).engine == "spark"


def test_a_relation_is_kept_while_its_files_are_the_same(rig: Rig) -> None:
    for _ in range(2):
        rig.ask()
    rig.tables.files = {name: (*files,) for name, files in rig.tables.files.items()}
    rig.ask()
    rig.tables.files["clicks"] = (table_file("/data/b.parquet"),)
    rig.ask()
    tokens = [one.token for one in rig.engines.requests]
    assert tokens[0] == tokens[1] == tokens[2] != tokens[3]


def test_an_answer_is_kept_while_its_files_are_the_same(rig: Rig) -> None:
    for _ in range(3):
        assert rig.ask(uses_cache=True).engine == "fast"
    assert len(rig.engines.requests) == 1
    rig.ask()
    rig.ask(uses_cache=True, row_limit=3)
    rig.tables.files["clicks"] = (table_file("/data/b.parquet"),)
    rig.ask(uses_cache=True)
    assert len(rig.engines.requests) == 4
    # The rights are checked before.
    with pytest.raises(PenstockError):
        rig.ask(reader=reader({}), engine="fast", uses_cache=True)
    assert rig.counts()["fast"] == 6


def test_a_count_of_whole_files_asks_no_engine(rig: Rig) -> None:
    rig.tables.files["clicks"] = (table_file(rows=5), table_file("/data/b.parquet", rows=7))
    answer = rig.ask()
    assert (answer.engine, answer.table.to_pylist()) == ("fast", [{"n": 12}])
    assert rig.engines.requests == []


@pytest.mark.parametrize(
    ("principal", "reason", "asked"),
    [("ada", "ended", 3), ("ada", "engine memory", 3), ("ada", "busy", 9), ("", "ended", 9)],
)
def test_a_principal_ends_few_processes(rig: Rig, principal: str, reason: str, asked: int) -> None:
    rig.engines.reason = reason
    for number in range(9):
        rig.ask(row_limit=number + 1, principal=principal)
    assert len(rig.engines.requests) == asked
    assert {one.principal for one in rig.engines.requests} == {principal}
    rig.engines.reason = ""
    assert rig.ask(row_limit=20, principal="grace").engine == "fast"
    if asked == 3:
        with pytest.raises(InvalidRequest, match="ended the engine often"):
            rig.ask(row_limit=20, principal=principal, engine="fast")
        rig.clock.advance(600)
        assert rig.ask(row_limit=20, principal=principal).engine == "fast"


@pytest.mark.parametrize(
    ("reason", "later"),
    [
        *((one, "ended the engine before") for one in ("ended", "hung")),
        *((one, "ended the engine before") for one in ("engine memory", "engine failed")),
        ("values", "values"),
    ],
)
def test_a_query_that_ended_a_process_or_met_values_is_sparks_for_a_while(
    rig: Rig, reason: str, later: str
) -> None:
    rig.engines.reason = reason
    for _ in range(3):
        assert rig.ask().engine == "spark"
    rig.tables.files["clicks"] = (table_file("/data/b.parquet"),)
    assert rig.ask().engine == "spark"  # other files do not change the query
    assert len(rig.engines.requests) == 1
    rig.engines.reason = ""
    assert rig.ask(row_limit=3).engine == "fast"
    assert rig.ask().engine == "spark"
    with pytest.raises(InvalidRequest, match=later):
        rig.ask(engine="fast")
    rig.clock.advance(600)
    assert rig.ask().engine == "fast"


def test_first_requests_read_the_newest_files_of_each_datasource(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [Interval(number * DAY.end_ms, (number + 1) * DAY.end_ms) for number in range(150)]
    rig.tables.files = {
        "many": tuple(TableFile(f"/{day.start_ms}.parquet", COLUMNS, day) for day in days),
        'a "b"': (table_file(),),
        "not local": (table_file("s3://bucket/a.parquet"),),
    }
    many, other = rig.service.first_requests()
    assert many.relation.newest[0] == f"/{days[-1].start_ms}.parquet"
    assert many.relation.file_count == 100
    assert other.relation.file_count == 1
    assert [name for name, *_ in rig.compiled] == ["many", 'a "b"', "not local"]

    def fail() -> None:
        raise Unavailable("the metadata cannot be read")

    monkeypatch.setattr(rig.tables, "tables", fail)
    assert list(rig.service.first_requests()) == []
