"""Projections made, kept and used on a real Spark: answers stay the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.core.intervals import Interval
from penstock.core.sql.checked_query import checked_query
from penstock.indexing.engine import EngineFailure
from penstock.indexing.specs.rows.declared_projections import DeclaredProjections, config_name, dump
from penstock.segments.layout import projection_file
from penstock.services.roles.router import SqlParts, sql_parts
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.projections.build_job import ProjectionFolder, make_files
from penstock.spark.projections.file_store import UNNEEDED_S
from penstock.spark.projections.plan import GroupingKey, Measure, ProjectionPlan
from penstock.spark.projections.projection_builder import BuilderOptions
from penstock.spark.projections.relation import stored_columns
from penstock.spark.projections.selector import ProjectionChoice, ProjectionOptions
from penstock.spark.sql.answer_files import AnswersFull
from penstock.spark.sql.fetcher import FetchedAnswer, Fetcher
from penstock.spark.sql.service import SqlQuery, SqlResult
from penstock.spark.tables.visible_files import DECLARED_FOR_S, VisibleFiles
from penstock.testing.clock import VirtualClock
from tests.spark.data_folder_kit import FEBRUARY, JANUARY, DataFolder, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

NAN, INF = float("nan"), float("inf")
BY_DAY = {
    "type": "aggregate",
    "name": "by day",
    "virtualColumns": [
        {"type": "expression", "name": "day", "expression": "timestamp_floor(__time, 'P1D')"}
    ],
    "groupingColumns": ["day", "name"],
    "aggregators": [
        {"type": "longSum", "name": "total", "fieldName": "n"},
        {"type": "doubleMax", "name": "most", "fieldName": "price"},
    ],
}
BY_NAME = {
    "type": "aggregate",
    "name": "by name",
    "groupingColumns": ["name"],
    "aggregators": [{"type": "longSum", "name": "total", "fieldName": "n"}],
}
ASKED = (
    "SELECT name, date_trunc('DAY', __time) AS day, COUNT(*) AS many, SUM(n) AS total,"
    " MAX(price) AS p FROM sales GROUP BY name, date_trunc('DAY', __time) ORDER BY 1, 2"
)
ASKED_BY_NAME = (
    "SELECT name, SUM(n) AS total, SUM(n) / COUNT(n) AS mean FROM sales GROUP BY name ORDER BY 1"
)
ROWS = ProjectionOptions(none=True)
FORCED = ProjectionOptions(force=True)
EACH_FILE = BuilderOptions(file_bytes_min=0)


def sales(month: int, salt: int = 0, rows: int = 300) -> pa.Table:
    """Rows of some days of a month, with nulls."""
    times = [f"2013-{month:02}-{1 + i % 9:02}T{i % 24:02}:00:00Z" for i in range(rows)]
    name = pa.array([None if i % 7 == 0 else "abc"[(i + salt) % 3] for i in range(rows)])
    n = pa.array([None if i % 11 == 0 else i * 3 + salt for i in range(rows)], pa.int64())
    price = pa.array([None if i % 5 == 0 else i / 4 for i in range(rows)], pa.float64())
    return table(times, name=name, n=n, price=price)


class RouterWorld:
    """A data folder and a router over it, whose maker works when it is told."""

    def __init__(self, folder: Path, sessions: SparkSessions) -> None:
        self.clock = VirtualClock()
        self.data = DataFolder(folder)
        self.routers: list[SqlParts] = []
        self._sessions = sessions
        self.declare(BY_DAY)
        self.router()

    @property
    def last(self) -> SqlParts:
        return self.routers[-1]

    def router(self, options: BuilderOptions = EACH_FILE) -> SqlParts:
        """A router that was started just now."""
        tables = VisibleFiles(self.data.store, self.data.deep_storage, self.clock)
        made = sql_parts(self._sessions, tables, self.data.deep_storage, self.clock, options)
        self.routers.append(made)
        return made

    def declare(self, *projections: dict) -> None:
        name = config_name("sales")
        kept = dump([DeclaredProjections(one, ("n",)) for one in projections])
        assert self.data.store.config.compare_and_set(name, self.data.store.config.get(name), kept)
        self.clock.advance(DECLARED_FOR_S)

    def ask(self, sql: str = ASKED, wish: ProjectionOptions | None = None) -> SqlResult:
        return self.last.sql.query(SqlQuery(sql, projections=wish or ProjectionOptions()))

    def check(self, used: str, sql: str = ASKED, wish: ProjectionOptions | None = None) -> None:
        """Ask with and without: the answers are equal, and of the projection that is told."""
        found, rows = self.ask(sql, wish), self.ask(sql, ROWS)
        assert rows.projection == ""
        assert found.projection == used
        assert found.table.num_rows > 0
        assert (found.table.to_pylist(), found.column_types) == (
            rows.table.to_pylist(),
            rows.column_types,
        )
        assert found.table.column_names == rows.table.column_names

    def make(self, sql: str = ASKED) -> None:
        """Have what a query asks for made."""
        self.ask(sql)
        self.last.maker.work()

    def files(self) -> list[Path]:
        folder = Path(self.data.deep_storage) / "~projections"
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def close(self) -> None:
        for router in self.routers:
            router.maker.stop()
            router.maker.close()
            router.projections.close()
            router.sql.close()
        self.data.close()


@pytest.fixture
def world(tmp_path: Path, sessions: SparkSessions) -> Iterator[RouterWorld]:
    made = RouterWorld(tmp_path, sessions)
    yield made
    made.close()


def test_none_made_some_made_all_made(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.check("")
    world.check("by day", wish=FORCED)  # summed up on the fly
    world.last.maker.work()
    assert len(world.files()) == 1
    world.check("by day")
    # Half and more of it is made; what is not is summed up in the same query.
    world.data.publish("sales", sales(2, 1, rows=250), FEBRUARY)
    world.check("by day")
    world.last.maker.work()
    assert len(world.files()) == 2
    world.check("by day")
    assert world.last.maker.made.value == 2
    assert world.last.projections.used.value == 4


@pytest.mark.parametrize("sql", ["reflect('java.lang.System', 'getenv', 'PATH')", "`c1`"])
def test_expressions_are_checked_as_spark_understood_them(world: RouterWorld, sql: str) -> None:
    """The check of texts is not the only wall; plans of wide datasources are not cut."""
    rows = Measure("rows", "", "__p_rows")
    plan = ProjectionPlan("p", (GroupingKey("k", sql),), (rows,), (f"{sql} IS NOT NULL",), "0" * 16)
    columns = tuple((f"c{number}", "string") for number in range(60))
    is_refused = sql.startswith("reflect")
    for sessions in (world.last.projections._sessions, world.last.maker._sessions):
        with sessions.use() as spark:
            if is_refused:
                with pytest.raises(InvalidRequest, match=r"its plan contains reflect\("):
                    stored_columns(spark, plan, columns)
                with pytest.raises(EngineFailure, match=r"its plan contains reflect\("):
                    make_files(spark, plan, columns, [], ProjectionFolder("", ""))
            else:
                assert dict(stored_columns(spark, plan, columns)) == {
                    "k": "string",
                    "__p_rows": "bigint",
                }


def test_parameters_limits_and_names_of_columns_stay(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.make()
    sql = (
        "SELECT name, SUM(n), SUM(n) FROM sales"
        " WHERE name >= ? AND __time >= TIMESTAMP '2013-01-03'"
        " GROUP BY name HAVING COUNT(*) > ? ORDER BY name LIMIT ?"
    )

    def asked(wish: ProjectionOptions) -> SqlResult:
        return world.last.sql.query(SqlQuery(sql, ("b", 5, 10), row_limit=1, projections=wish))

    found, rows = asked(ProjectionOptions()), asked(ROWS)
    assert (found.projection, rows.projection) == ("by day", "")
    assert found.table.column_names == rows.table.column_names == ["name", "sum(n)", "sum(n)"]
    assert [column.to_pylist() for column in found.table.columns] == [
        column.to_pylist() for column in rows.table.columns
    ]
    assert found.truncated
    assert rows.truncated


def test_less_than_half_is_no_reason_to_use_it(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1, rows=50), JANUARY)
    world.make()
    world.data.publish("sales", sales(2, rows=3000), FEBRUARY)
    world.check("")
    world.check("by day", wish=FORCED)


def test_a_segment_that_is_replaced_or_clipped_counts_as_it_is_now(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.make()
    world.check("by day")
    # Two days of January are written anew: of the old file only the rest counts, of rows.
    days = Interval.parse("2013-01-03/2013-01-05")
    world.data.publish("sales", table(
        ["2013-01-03T01:00:00Z", "2013-01-04T01:00:00Z"],
        name=pa.array(["a", "z"]), n=pa.array([5, 6], pa.int64()), price=pa.array([0.25, 8.0]),
    ), days, version="v2")  # fmt: skip
    world.check("by day", wish=FORCED)
    world.check("")
    world.data.publish("sales", sales(1, 2), JANUARY, version="v3")
    world.make()
    world.check("by day")
    world.clock.advance(DECLARED_FOR_S)
    world.last.maker.delete_unneeded()
    world.clock.advance(UNNEEDED_S)
    assert len(world.files()) == 3
    world.last.maker.delete_unneeded()
    assert len(world.files()) == 1
    world.check("by day")


def test_what_tasks_announce_is_summed_up_on_the_fly(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.make()
    world.data.announce("sales", sales(2, rows=100), FEBRUARY)
    world.check("by day")
    world.last.maker.work()
    assert len(world.files()) == 1


def test_columns_that_change_their_type_or_come_later(world: RouterWorld) -> None:
    world.declare(BY_DAY, BY_NAME)
    world.data.publish("sales", sales(1), JANUARY)
    world.make(ASKED_BY_NAME)
    world.check("by name", ASKED_BY_NAME)
    rows = sales(2)
    halves = pa.array([None if v is None else v / 2 for v in rows["n"].to_pylist()])
    changed = rows.set_column(2, "n", halves).append_column("more", rows["name"])
    world.data.publish("sales", changed, FEBRUARY)
    # Sums are doubles now: other files, of both segments.
    world.check("", ASKED_BY_NAME)
    world.last.maker.work()
    world.check("by name", ASKED_BY_NAME)
    assert len(world.files()) == 3
    world.declare({**BY_NAME, "groupingColumns": ["more"]})
    more = ASKED_BY_NAME.replace("name", "more")
    world.make(more)
    world.check("by name", more)


def test_the_newest_is_made_first(world: RouterWorld) -> None:
    world.data.publish("sales", sales(2), FEBRUARY)
    world.data.publish("sales", sales(1), JANUARY)
    one = world.router(BuilderOptions(file_bytes_min=0, queued_files=1))
    world.make()
    newest = max(world.data.source.tables().of("sales"), key=lambda file: file.interval.start_ms)
    assert [path.name for path in world.files()] == [projection_file(newest.path)]
    assert one.maker.dropped.value == 1


def test_the_coarsest_that_fits_answers(world: RouterWorld) -> None:
    world.declare(BY_DAY, BY_NAME)
    world.data.publish("sales", sales(1), JANUARY)
    world.make(ASKED)
    world.check("by day", ASKED_BY_NAME)  # nothing of the other is made
    world.last.maker.work()
    world.check("by name", ASKED_BY_NAME)
    world.check("by day", ASKED_BY_NAME, ProjectionOptions(use="by day"))


def test_a_query_that_insists_is_told_why_none_fits(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.data.publish("other", sales(1), JANUARY)
    for sql, wish, text in (
        ("SELECT name, n FROM sales", FORCED, "forceProjections: no projection .*'by day' of sal"),
        (
            ASKED,
            ProjectionOptions(use="none"),
            "useProjection: the projection 'none' does not answer",
        ),
        ("SELECT COUNT(*) FROM other", FORCED, "forceProjections: no projection answers"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            world.ask(sql, wish)
    # It is about queries of rows alone.
    assert world.ask("DESCRIBE sales", FORCED).table.num_rows == 4
    shown = world.ask("SHOW TABLES").table.to_pylist()
    assert {row["tableName"] for row in shown} == {"sales", "other"}


@pytest.mark.parametrize(
    ("moment", "damages"),
    [
        ("used before", ("cut", "empty", "gone", "overwritten", "a folder")),
        ("after a restart", ("cut", "gone")),
    ],
)
def test_a_damaged_file_counts_as_not_made(
    world: RouterWorld, moment: str, damages: tuple[str, ...]
) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.data.publish("sales", sales(2), FEBRUARY)
    world.make()
    world.check("by day")
    for damage in damages:
        path, _ = world.files()
        whole = path.read_bytes()
        if damage in {"gone", "a folder"}:
            path.unlink()
        if damage == "a folder":
            path.mkdir()
        elif damage != "gone":
            left = {"cut": whole[:-9], "empty": b"", "overwritten": b"x" * len(whole)}[damage]
            path.write_bytes(left)
        if moment == "after a restart":
            world.router()
            world.ask()
            world.last.maker.work()  # it looks for files
        # Its rows are read in the same query.
        world.check("by day", wish=FORCED)
        if damage == "a folder":
            continue  # it stays for whoever made it
        world.make()
        world.check("by day")
        assert len(world.files()) == 2
        assert all(path.stat().st_size > 100 for path in world.files())


def test_two_routers_make_the_same(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.data.publish("sales", sales(2), FEBRUARY)
    first, second = world.last, world.router()
    for router in (first, second):
        router.sql.query(SqlQuery(ASKED))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(router.maker.work) for router in (first, second)]:
            done.result()
    assert len(world.files()) == 2
    # One that starts later finds them, and makes none.
    third = world.router()
    world.check("")
    third.maker.work()
    assert third.maker.made.value == 0
    for router in (first, second, third):
        world.routers.append(router)
        world.check("by day")
    del world.routers[3:]


def test_a_file_without_rows_that_count_has_a_file_too(world: RouterWorld) -> None:
    only = {"type": "equals", "column": "name", "matchValueType": "STRING", "matchValue": "z"}
    world.declare({**BY_NAME, "filter": only})
    world.data.publish("sales", sales(1), JANUARY)
    some = sales(2)
    z = pa.array(["z"] * some.num_rows)
    world.data.publish("sales", some.set_column(1, "name", z), FEBRUARY)
    asked = "SELECT SUM(n) AS total FROM sales WHERE name = 'z'"
    world.make(asked)
    assert len(world.files()) == 2
    world.check("by name", asked)
    world.ask(asked)
    world.last.maker.work()
    assert world.last.maker.made.value == 2


def test_a_damaged_segment_does_not_keep_others_from_it(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    bad = world.data.publish("sales", sales(2), FEBRUARY)
    world.ask()
    path = world.data.file(bad)
    whole = path.read_bytes()
    path.write_bytes(b"x" * len(whole))
    world.last.maker.work()
    assert (world.last.maker.made.value, world.last.maker.failed.value) == (1, 1)
    path.write_bytes(whole)
    # What failed is left alone for a while.
    world.make()
    assert world.last.maker.made.value == 1
    world.clock.advance(EACH_FILE.pause_s)
    world.make()
    assert world.last.maker.made.value == 2
    world.check("by day")


def test_queries_while_files_are_made_and_segments_replaced(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.data.publish("sales", sales(2), FEBRUARY)
    right = world.ask(ASKED, ROWS).table.to_pylist()
    ended = threading.Event()

    def until_ended(work: Callable[[], object]) -> None:
        while not ended.is_set():
            work()

    def asked() -> set[str]:
        used = set()
        for _ in range(6):
            found = world.ask()
            assert found.table.to_pylist() == right
            used.add(found.projection)
        return used

    with ThreadPoolExecutor(4) as pool:
        making = pool.submit(until_ended, world.last.maker.work)
        asking = [pool.submit(asked) for _ in range(2)]
        # The same rows again, as a compaction writes them.
        for version in ("v2", "v3"):
            world.data.publish("sales", sales(1), JANUARY, version=version)
        seen = set().union(*(one.result() for one in asking))
        ended.set()
        making.result()
    world.make()
    world.check("by day")
    assert seen <= {"", "by day"}


def test_a_making_is_stopped_with_the_router(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.ask()
    world.last.maker.start()
    world.last.maker.stop()
    world.last.maker.close()
    # Whatever it came to, the next router goes on.
    world.router()
    world.make()
    world.check("by day")


ODD = table(
    [f"2013-01-01T{hour:02}:00:00Z" for hour in range(12)],
    text=pa.array(["", None, "é", "e", "E", "a\nb", "", "Ω", " ", None, "z", "z"]),
    long=pa.array([None, 0, -1, 2**62, 2**62, 1, 1, 0, -(2**63), 5, 5, 5], pa.int64()),
    real=pa.array([0.0, -0.0, None, NAN, NAN, INF, -INF, 0.1, 1e300, 5e-324, 1.0, 1.0]),
    flat=pa.array([0.5, -0.0, 0.0, NAN, None, INF, 0.5, 0.25, 1.5, 2.5, 3.5, 0.5], pa.float32()),
    flag=pa.array([True, None, False, True, True, None, False, False, True, True, None, False]),
)


def test_values_of_every_type_survive_the_file(world: RouterWorld) -> None:
    keys = {
        "__time": "long",
        "text": "string",
        "long": "long",
        "real": "double",
        "flat": "float",
        "flag": "string",
    }
    kinds = {"real": ("doubleMin", "doubleMax"), "flat": ("floatMin", "floatMax")}
    aggregators = [
        {"type": kind, "name": kind, "fieldName": name}
        for name, both in kinds.items()
        for kind in both
    ]
    aggregators.append({"type": "longMax", "name": "most", "fieldName": "long"})
    world.declare(
        *(
            {
                "type": "aggregate",
                "name": f"by {key}",
                "groupingColumns": [key if key == "__time" else {"type": type_, "name": key}],
                "aggregators": aggregators,
            }
            for key, type_ in keys.items()
        )
    )
    world.data.publish("sales", ODD, JANUARY)
    for key in keys:
        asked = (
            f"SELECT {key}, COUNT(*) AS many, MIN(real) AS a, MAX(real) AS b, MIN(flat) AS c,"
            f" MAX(flat) AS d, MAX(long) AS e FROM sales GROUP BY {key} ORDER BY {key}"
        )
        rows = world.ask(asked, ROWS)
        for insisting in (FORCED, None):
            found = world.ask(asked, insisting or ProjectionOptions())
            if insisting is None:
                assert found.projection == f"by {key}"
            # As text: NaN is not itself, and -0.0 is no other number than 0.0.
            assert str(found.table.to_pylist()) == str(rows.table.to_pylist())
            assert found.column_types == rows.column_types
            if insisting:
                world.last.maker.work()


def test_a_lost_session_is_made_again(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.make()
    world.check("by day")
    for sessions in (world.last.projections._sessions, world.last.maker._sessions):
        sessions.get().stop()
    assert world.ask().table.to_pylist() == world.ask(ASKED, ROWS).table.to_pylist()
    world.check("by day")
    world.data.publish("sales", sales(2), FEBRUARY)
    world.make()
    world.clock.advance(EACH_FILE.pause_s)
    world.make()
    assert len(world.files()) == 2


def test_a_query_over_a_projection_is_cancelled_as_others_are(world: RouterWorld) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.make()
    sql, answered = world.last.sql, world.last.projections.answered
    begun: list[str] = []

    def cancelled(choice: ProjectionChoice, *given: object) -> object:
        begun.append(choice.plan.name)
        assert sql.cancel("mine")
        return answered(choice, *given)  # type: ignore[arg-type]

    world.last.projections.answered = cancelled  # type: ignore[method-assign, assignment]
    with pytest.raises(EngineFailure, match="did not end: it was cancelled"):
        sql.query(SqlQuery(ASKED, query_id="mine"))
    assert begun == ["by day"]
    del world.last.projections.answered
    world.check("by day")


def test_who_is_slow_does_not_show_what_was_there_before(world: RouterWorld) -> None:
    """Queries share a view: one that asked earlier and comes later must not set it back."""
    world.data.publish("sales", sales(1), JANUARY)
    world.make()
    projections = world.last.projections
    slow = projections.choice(checked_query(ASKED), FORCED, ["sales"], world.data.source.tables())
    assert slow is not None
    world.data.publish("sales", sales(2), FEBRUARY)
    world.check("by day", wish=FORCED)
    wanted = world.ask(wish=ROWS)
    found = projections.answered(
        slow, (), lambda rows: FetchedAnswer(rows.toArrow()), wanted.column_types, RunningCall()
    )
    assert found is not None
    assert isinstance(found.rows, pa.Table)
    assert found.rows.to_pylist() == wanted.table.to_pylist()


def test_an_answer_that_cannot_be_kept_is_not_computed_again_from_the_rows(
    world: RouterWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.make()
    errors: list[PenstockError] = [
        AnswersFull("no room"),
        EngineFailure("too large"),
        Unavailable("not written"),
    ]
    for error in errors:
        fetched: list[DataFrame] = []

        def fails(
            _: Fetcher,
            rows: DataFrame,
            fetched: list[DataFrame] = fetched,
            error: PenstockError = error,
        ) -> FetchedAnswer:
            fetched.append(rows)
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(Fetcher, "fetch", fails)
            with pytest.raises(type(error), match=str(error)):
                world.ask()
        assert len(fetched) == 1
    assert not [text for text in caplog.messages if "projection" in text]
    world.check("by day")


def test_a_query_that_is_at_fault_itself_costs_no_projection(
    world: RouterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.data.publish("sales", sales(1), JANUARY)
    world.make()
    world.check("by day")
    wrong = "SELECT name, SUM(n) / (COUNT(*) - COUNT(*)) AS x FROM sales GROUP BY name"
    for wish in (ProjectionOptions(), FORCED, ROWS):
        with pytest.raises((InvalidRequest, EngineFailure), match=r"(?i)divi.* by zero"):
            world.ask(wrong, wish)
    world.check("by day")
    assert not [text for text in caplog.messages if "projection" in text]
