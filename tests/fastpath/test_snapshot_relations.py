"""The relation of the embedded engine has the rows that the files have for Spark.

`parquet_reader` reads a file as Spark's view does; its own tests compare it with Spark.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.intervals import Interval
from penstock.fastpath import engine_process, snapshot_relations
from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.engine_process import Engine
from penstock.fastpath.engine_protocol import (
    UNKNOWN_RELATION,
    EngineQuery,
    EngineSettings,
    Relation,
)
from penstock.fastpath.snapshot_relations import (
    SnapshotRelations,
    answer_schema,
    arrow_type,
    relation_of,
)
from penstock.spark.tables.parquet_reader import read_file
from penstock.spark.tables.table_columns import union_columns
from penstock.spark.tables.table_files import Columns, TableFile
from tests.fastpath.engine_kit import COLUMNS, N, compiled, times, written

HOUR_MS = 3_600_000
VALUES: dict[str, st.SearchStrategy[object]] = {
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3),
    "double": st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf]),
    "float": st.floats(width=32),
    "boolean": st.booleans(),
    "string": st.text(max_size=5),
}
NAMES = ("a", "b", "Straße", 'quo"te', "per'cent %", "rows")


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[Columns, pa.Table, Interval | None]]:
    """Draw files of one datasource: columns, rows and row cuts differ."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
        columns: list[tuple[str, str]] = [("__time", "timestamp")]
        rows = draw(st.integers(0, 5))
        at = draw(st.lists(st.integers(0, 24 * HOUR_MS - 1), min_size=rows, max_size=rows))
        arrays = [times(*at)]
        for name in names:
            type_ = draw(st.sampled_from(sorted(VALUES)))
            columns.append((name, type_))
            value = st.none() | VALUES[type_]
            values = draw(st.lists(value, min_size=rows, max_size=rows))
            arrays.append(pa.array(values, arrow_type(type_)))
        clip = None
        if draw(st.booleans()):
            first, last = sorted(draw(st.tuples(*[st.integers(0, 24)] * 2)))
            clip = Interval(first * HOUR_MS, last * HOUR_MS) if first < last else None
        found.append((tuple(columns), pa.table(arrays, [name for name, _ in columns]), clip))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("relations")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine(EngineSettings((str(folder),), 256 << 20, 1 << 30, 1))


def counted(rows: pa.Table) -> Counter[str]:
    """Count rows as text, in which NaN, the sign of zero and types show."""
    return Counter(repr(tuple(row.values())) for row in rows.to_pylist())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=tables(), number=st.integers(0, 1 << 62))
def test_a_relation_has_the_rows_of_its_files(
    engine: Engine, folder: Path, made: list[tuple[Columns, pa.Table, Interval | None]], number: int
) -> None:
    files = [
        written(folder / f"{number}-{at}.parquet", rows, columns, clip)
        for at, (columns, rows, clip) in enumerate(made)
    ]
    try:
        columns = union_columns(files)
        try:
            relation = relation_of(columns, files)
        except NotCompiled:  # a number beside a text: their texts could differ
            return
        token = f"{number} {files!r}"
        query = EngineQuery(1, token, "SELECT * FROM rows", (), 1_000, relation)
        answer = engine.answer(query)
        assert not answer.reason, answer.text
        schema = answer_schema(columns)
        found = pa.ipc.open_stream(answer.content).read_all().cast(schema)
        batches = [batch for file in files for batch in read_file(file, schema)]
        assert counted(found) == counted(pa.Table.from_batches(batches, schema))
    finally:
        for file in files:
            Path(file.path).unlink()


def test_ranges_of_values_in_files_leave_out_nan(engine: Engine, folder: Path) -> None:
    values = pa.array([1.0, math.nan], pa.float32())
    columns: Columns = (("__time", "timestamp"), ("a", "float"))
    file = written(
        folder / "nan.parquet", pa.table([times(0, 1), values], ["__time", "a"]), columns
    )
    sql = "SELECT max(a) AS m, count(*) FILTER (WHERE isnan(a)) AS n FROM rows WHERE a > 2"
    for condition in ("", " AND isnan(a)"):
        query = EngineQuery(1, "nan", f"{sql}{condition}", (), 9, relation_of(columns, [file]))
        answer = engine.answer(query)
        (row,) = pa.ipc.open_stream(answer.content).read_all().to_pylist()
        assert math.isnan(row["m"])
        assert row["n"] == 1


def test_times_are_in_utc_whatever_the_zone_of_the_host(engine: Engine, folder: Path) -> None:
    columns: Columns = (("__time", "timestamp"),)
    file = written(folder / "zone.parquet", pa.table([times(0)], ["__time"]), columns)
    query = EngineQuery(1, "zone", "SELECT * FROM rows", (), 9, relation_of(columns, [file]))
    found = pa.ipc.open_stream(engine.answer(query).content).read_all()
    assert found.schema.types == [arrow_type("timestamp")]


def of_day(day: int, columns: Columns = COLUMNS, clip: Interval | None = None) -> TableFile:
    interval = Interval(day * 24 * HOUR_MS, (day + 1) * 24 * HOUR_MS)
    return TableFile(f"/data/{day}.parquet", columns, interval, clip)


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "days"),
    [
        (None, None, [0, 1, 2]),
        (24 * HOUR_MS, None, [1, 2]),
        (24 * HOUR_MS - 1, None, [0, 1, 2]),
        (None, 24 * HOUR_MS, [0]),
        (None, 24 * HOUR_MS + 1, [0, 1]),
        (25 * HOUR_MS, 26 * HOUR_MS, [1]),
        (99 * 24 * HOUR_MS, None, []),
    ],
)
def test_files_outside_of_the_time_are_not_read(
    start_ms: int | None, end_ms: int | None, days: list[int]
) -> None:
    query = compiled("SELECT 1", N, (), (), start_ms, end_ms)
    _, relation = SnapshotRelations().of(query, [of_day(day) for day in range(3)])
    paths = [path for part in relation.parts for path in part.paths]
    assert paths == [f"/data/{day}.parquet" for day in reversed(days)]
    assert relation.newest == tuple(paths)


def test_a_row_cut_outside_of_the_time_is_not_read() -> None:
    query = compiled("SELECT 1", N, (), (), 12 * HOUR_MS)
    file = of_day(0, clip=Interval(0, 12 * HOUR_MS))
    assert SnapshotRelations().of(query, [file])[1].parts == ()


def test_kept_relations_have_a_bound(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    relations = SnapshotRelations()
    queries = [compiled("SELECT 1", N, (), (), None, day * 24 * HOUR_MS) for day in (1, 2, 3)]
    files = [of_day(day) for day in range(3)]
    monkeypatch.setattr(snapshot_relations, "FILES_MAX", 4)
    tokens = [relations.of(query, files)[0] for query in queries]  # one, two and three files
    assert relations.of(queries[2], files)[0] == tokens[2]
    assert relations.of(queries[0], files)[0] != tokens[0]
    monkeypatch.setattr(snapshot_relations, "FILES_MAX", 2)
    with pytest.raises(NotCompiled, match="number of files"):
        SnapshotRelations().of(queries[2], files)
    monkeypatch.setattr(engine_process, "FILES_MAX", 0)
    empty = Relation((("a", "BIGINT"),), ())
    for token in ("first", "second"):
        asked = EngineQuery(1, token, "SELECT count(*) FROM rows", (), 9, empty)
        assert not engine.answer(asked).reason
    monkeypatch.setattr(engine_process, "_RELATIONS_MAX", 1)
    assert not engine.answer(EngineQuery(2, "third", "FROM rows", (), 9, empty)).reason
    again = engine.answer(EngineQuery(3, "first", "FROM rows", (), 9))
    assert again.reason == UNKNOWN_RELATION


@pytest.mark.parametrize(
    ("own", "type_"),
    [
        ("double", "string"),
        ("float", "string"),
        ("timestamp", "string"),
        ("date", "string"),
        ("bigint", "int"),
        ("array<bigint>", "array<bigint>"),
        ("binary", "binary"),
    ],
)
def test_casts_and_types_with_another_meaning_are_not_compiled(own: str, type_: str) -> None:
    with pytest.raises(NotCompiled):
        relation_of((("x", type_),), [of_day(0, (("x", own),))])
    # Other columns of the same file do not matter.
    assert relation_of(COLUMNS, [of_day(0, (*COLUMNS, ("x", own)))]).parts


def test_equal_names_in_another_case_are_one_column() -> None:
    relation = relation_of((("City", "string"),), [of_day(0, (("city", "string"),))])
    assert relation.parts[0].columns[0].own_name == "city"
    for columns in ((("x", "string"), ("X", "string")), (("É", "string"), ("é", "string"))):
        with pytest.raises(NotCompiled, match="case of columns"):
            relation_of((columns[0],), [of_day(0, columns)])
