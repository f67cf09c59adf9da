"""Raw rows that are brought together before the JVM computes give what they give one by one.

The groups are checked against a model in plain Python; that a real Spark makes the same of them is
checked with the files of streams that forbid it: by a filter that is random, or by a sketch.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from penstock.core.intervals import Granularity
from penstock.indexing.engine import PersistRequest, PersistResult, TopicRange
from penstock.indexing.specs import DataSchema
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.equal_row_groups import EqualRowGroups, groups_of
from penstock.spark.row_chunks import TimeLimits
from penstock.spark.spark_engine import SparkEngine, SparkEngineOptions
from penstock.spark.transforms.deterministic import DETERMINISTIC, is_deterministic
from tests.spark.conftest import MakeTopic
from tests.spark.fold_kit import (
    LONGS,
    METRICS,
    SMALL,
    TEXTS,
    Row,
    Value,
    as_read,
    messages,
    metric,
    rolling_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
FIELDS = ("place", "kind", "level", "whole", "wide", "narrow", "text")
LIMITS = TimeLimits(HOUR_MS // 2, 3 * HOUR_MS - 5)
RANDOM: JsonValue = {"type": "expression", "expression": "rand() < 2"}

DIMENSIONS: list[JsonValue] = ["place", {"type": "double", "name": "level"}]
TRANSFORMS: list[JsonValue] = [
    {"type": "expression", "name": "place", "expression": "upper(\"place\") || 'x'"},
    {"type": "expression", "name": "level", "expression": 'abs("level") * 2'},
]
# It reads the field of metrics, and one that nothing else reads; nulls fail it.
FILTER: JsonValue = {
    "type": "and",
    "fields": [
        {"type": "not", "field": {"type": "selector", "dimension": "whole", "value": "-3"}},
        {"type": "in", "dimension": "kind", "values": ["a", "b"]},
    ],
}


def make_schema(
    query: str = "hour",
    metrics: Sequence[JsonValue] = METRICS,
    transforms: Sequence[JsonValue] = TRANSFORMS,
    filter_: JsonValue = FILTER,
    **parts: JsonValue,
) -> DataSchema:
    computed: JsonValue = {"transforms": list(transforms), "filter": filter_}
    return rolling_schema(query, DIMENSIONS, metrics, transformSpec=computed, **parts)


def expression(text: str, name: str = "place") -> dict[str, JsonValue]:
    return {"type": "expression", "name": name, "expression": text}


def how(schema: DataSchema, limits: TimeLimits = LIMITS) -> EqualRowGroups:
    groups = groups_of(schema, limits)
    assert groups is not None
    return groups


LEVELS = st.sampled_from([None, 1.5, -0.0, 0.0, math.nan])
# The last is so large that a sum of floats would lose the small ones.
DOUBLES = st.none() | SMALL | st.sampled_from([math.nan, math.inf, -math.inf, 16_777_216.0])
NAMES = st.none() | st.sampled_from(["", "a", "b"])
LARGE = [(HOUR_MS, 16_777_216.0), (HOUR_MS + 1, 0.25)]
EDGES = [int(limit or 0) + n for limit in (LIMITS.min_time_ms, LIMITS.max_time_ms) for n in (-1, 0)]
TIMES = st.integers(-HOUR_MS, 4 * HOUR_MS) | st.sampled_from(EDGES)
ROWS = st.lists(
    st.tuples(TIMES, NAMES, NAMES, LEVELS, LONGS, DOUBLES, DOUBLES, TEXTS),
    min_size=1,
    max_size=40,
    unique_by=lambda row: row[0],
)


def exact(value: object) -> object:
    """A value that equals another one of the same bits alone."""
    return struct.pack("d", value) if isinstance(value, float) else value


def by_key(tables: Sequence[pa.RecordBatch], names: Sequence[str]) -> dict[object, list[Row]]:
    """Rows of (time in ms, the other columns) by the columns of these names."""
    found: dict[object, list[Row]] = defaultdict(list)
    for table in tables:
        times = table.column("__time").cast(pa.int64()).to_pylist()
        others = [name for name in table.schema.names if name not in {"__time", *names}]
        keys = [table.column(name).to_pylist() for name in names]
        values = []
        for name in others:
            column = table.column(name)
            is_time = pa.types.is_timestamp(column.type)
            values.append((column.cast(pa.int64()) if is_time else column).to_pylist())
        for at, micros in enumerate(times):
            key = (micros, *(exact(column[at]) for column in keys))
            found[key].append(tuple(column[at] for column in values))
    return found


def is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def least(values: Sequence[Value]) -> Value:
    """Of doubles; NaN is the greatest, as in Spark."""
    known = [value for value in values if value is not None]
    plain = [value for value in known if not is_nan(value)]
    return min(plain, default=known[0] if known else None)


def greatest(values: Sequence[Value]) -> Value:
    known = [value for value in values if value is not None]
    odd = [value for value in known if is_nan(value)]
    return odd[0] if odd else max(known, default=None)


def total(values: Sequence[Value]) -> Value:
    known = [value for value in values if value is not None]
    if not known:
        return None
    summed = sum(known)
    return (summed + 2**63) % 2**64 - 2**63 if isinstance(summed, int) else summed


def picked(pairs: Sequence[tuple[Value, Value]], *, last: bool) -> tuple[Value, Value]:
    known = [(time, value) for value, time in pairs if value is not None]
    if not known:
        return None, None
    time, value = (max if last else min)(known, key=lambda pair: pair[0])
    return value, time


def reduced(kind: str, values: list[Value], times: list[Value]) -> tuple[Value, ...]:
    """One metric of rows: its value, and the time of a first or last one."""
    if kind in {"first", "last"}:
        return picked(list(zip(values, times, strict=True)), last=kind == "last")
    if kind in {"min", "max"}:
        return ((least if kind == "min" else greatest)(values),)
    return (total(values),)


def modelled(rows: Sequence[Row], schema: DataSchema, keys: Sequence[str]) -> dict[object, object]:
    """What rows with equal keys are, by a loop over the rows."""
    cut = schema.query_granularity
    found: dict[object, list[Row]] = defaultdict(list)
    for row in rows:
        ms, fields = int(str(row[0])), dict(zip(FIELDS, row[1:], strict=True))
        late, early = ms < (LIMITS.min_time_ms or 0), ms >= (LIMITS.max_time_ms or 0)
        moment = 1 if late else 2 if early else None
        key = (cut.truncate(ms) * 1000, *(exact(fields[name]) for name in keys), moment)
        found[key].append(row)
    return {key: repr(metrics_of(part, schema)) for key, part in found.items()}


def metrics_of(rows: Sequence[Row], schema: DataSchema) -> list[tuple[Value, ...]]:
    times: list[Value] = [int(str(row[0])) * 1000 for row in rows]
    made: list[tuple[Value, ...]] = [(len(rows),)]
    for one in schema.metrics:
        values = [
            1 if one.field_name is None else row[1 + FIELDS.index(one.field_name)] for row in rows
        ]
        if one.value_type == "string":
            values = [v if v is None else str(v)[: one.string_bytes_max] for v in values]
        made.append(plain(reduced(one.kind, values, times)))
    return made


def merged(parts: Sequence[Row], schema: DataSchema) -> str:
    """What the groups of one key are together."""
    count = len(schema.metrics)
    made: list[tuple[Value, ...]] = [(sum(int(str(part[0])) for part in parts),)]
    time_at = 1 + count
    for at, one in enumerate(schema.metrics):
        values = [part[1 + at] for part in parts]
        times: list[Value] = [None] * len(parts)
        if one.kind in {"first", "last"}:
            times = [part[time_at] for part in parts]
            time_at += 1
        made.append(plain(reduced(one.kind, values, times)))
    return repr(made)


def plain(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(0.0 if isinstance(value, float) and value == 0 else value for value in values)


@given(ROWS, st.sampled_from(["none", "minute", "hour", "day", "all"]), st.integers(1, 15))
@example([(ms, "a", "a", 0.0, 1, 0.25, 0.25, "x") for ms in EDGES], "day", 3)
@example([(n, "a", "a", 0.0, 1, 1.0, large, "x") for n, large in LARGE], "day", 3)
@example([(HOUR_MS, "a", "a", zero, 1, 1.0, 1.0, "x") for zero in (0.0, -0.0, None)], "hour", 3)
def test_groups_are_what_a_loop_makes_of_the_rows(rows: list[Row], query: str, step: int) -> None:
    schema = make_schema(query)
    groups = how(schema)
    read = as_read(rows, FIELDS, schema)
    made = list(groups.gathered(read.slice(at, step) for at in range(0, len(rows), step)))
    keys = [name for name, _ in groups.fields]
    assert set(keys) == {"place", "kind", "level", "whole"}
    assert all(batch.schema.names == [name for name, _ in groups.columns] for batch in made)
    ours = {
        key: merged(parts, schema)
        for key, parts in by_key(made, [*keys, "__penstock_moment"]).items()
    }
    assert ours == modelled(rows, schema, keys)


def test_rows_are_brought_together_only_where_that_makes_them_few() -> None:
    schema = make_schema(metrics=METRICS[:1])
    same: list[Row] = [(HOUR_MS, "a", "a", 0.0, 1, 0.0, 0.0, "")] * 100
    other: list[Row] = [(HOUR_MS, str(n), "a", 0.0, 1, 0.0, 0.0, "") for n in range(100)]
    for first, second, expected in ((same, other, [101]), (other, same, [100, 100])):
        batches = [as_read(first, FIELDS, schema), as_read(second, FIELDS, schema)]
        made = list(how(schema).gathered(batches))
        assert [batch.num_rows for batch in made] == expected
        counts = [batch.column("__penstock_rows").to_pylist() for batch in made]
        assert sum(map(sum, counts)) == 200


def test_what_waits_is_bounded() -> None:
    """Keys that grow with the rows are handed on, and those that do not are kept."""
    schema = make_schema("none", metrics=METRICS[:1], transforms=(), filter_={"type": "true"})

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            times = pa.array([(number * 50_000 + n // 3) * 1000 for n in range(150_000)])
            texts = pa.array(["a"] * len(times))
            levels = pa.array([1.0] * len(times))
            columns = {"__time": times.cast(pa.timestamp("us", "UTC")), "place": texts}
            yield pa.RecordBatch.from_pydict(columns | {"level": levels})

    made = list(how(schema).gathered(batches()))
    assert len(made) > 1
    assert sum(batch.num_rows for batch in made) == 500_000
    counts = [sum(batch.column("__penstock_rows").to_pylist()) for batch in made]
    assert sum(counts) == 1_500_000


def test_times_stay_exact_where_they_are_read() -> None:
    cut = Granularity.parse("hour")
    assert how(make_schema()).fold.granularity == cut
    exactly = Granularity.parse("NONE")
    for text in ('hour("__time")', "hour(__TIME)", "date_trunc('hour', `__time`)"):
        assert how(make_schema(transforms=[expression(text)])).fold.granularity == exactly
    read: JsonValue = {"type": "interval", "dimension": "__time", "intervals": ["2013/2014"]}
    for filter_ in (read, {"type": "expression", "expression": '"__time" is not null'}):
        assert how(make_schema(filter_=filter_)).fold.granularity == exactly


def test_what_is_read_tells_rows_apart_and_what_is_only_measured_does_not() -> None:
    first = [metric("longSum", "kind", "whole")]
    groups = how(make_schema(metrics=first, transforms=(), filter_={"type": "true"}))
    assert [name for name, _ in groups.fields] == ["place", "level"]
    text: JsonValue = {"type": "expression", "expression": "WHOLE > 1 and \"kind\" = 'a'"}
    groups = how(make_schema(metrics=first, transforms=(), filter_=text))
    assert {name.lower() for name, _ in groups.fields} >= {"place", "level", "whole", "kind"}


@pytest.mark.parametrize(
    "schema",
    [
        make_schema(transforms=(), filter_=None),
        make_schema(transforms=[expression("rand() || place")]),
        make_schema(filter_={"type": "not", "field": RANDOM}),
        make_schema(filter_={"type": "or", "fields": [{"type": "true"}, RANDOM]}),
        make_schema(transforms=[expression("42", "__time")]),
        make_schema(transforms=[expression("1", "WHOLE")]),
        make_schema(metrics=[metric("longFirst", "x", "whole", timeColumn="when")]),
        make_schema(metrics=[metric("longSum", "x", "place")]),
        make_schema(metrics=[metric("thetaSketch", "x", "whole")]),
        make_schema(granularitySpec={"rollup": False}, metrics=[]),
        make_schema(dimensionsSpec={"useSchemaDiscovery": True}),
        make_schema(transforms=[expression("__penstock_rows")]),
    ],
)
def test_what_could_be_told_apart_is_not_brought_together(schema: DataSchema) -> None:
    assert groups_of(schema, LIMITS) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lower(place)", True),
        ("CASE WHEN (a = 1) THEN (2) ELSE (3) END", True),
        ("a IN ('x', 'y') AND (b OR NOT (c))", True),
        ("cast(a as decimal(10, 2))", True),
        ("transform(split(a, ','), x -> x || 'y')[0]", True),
        ("current_timestamp", True),
        ("rand()", False),
        ("`rand`()", False),
        ('"uuid"()', False),
        ("UUID /* here */ ()", False),
        ("lower(monotonically_increasing_id())", False),
        ("other.lower(place)", False),
        ("a_function_of_a_later_release(1)", False),
        ("a * (b) * length('*') * c", True),
        ("hash(*)", False),
        ("concat_ws('-', * )", False),
        ("struct(r.*)", False),
        ("hash(all *)", False),
        ("hash(* EXCEPT (a))", False),
        ('"all" * 2', True),
    ],
)
def test_only_known_functions_are_taken_to_repeat_themselves(text: str, *, expected: bool) -> None:
    assert is_deterministic(text) is expected


@pytest.mark.spark
def test_no_function_that_spark_calls_random_is_taken_to_repeat_itself(
    spark: SparkSession,
) -> None:
    known = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert known >= DETERMINISTIC

    def random_of(names: Iterable[str]) -> list[str]:
        """Return which of these Spark calls random."""
        return [
            name
            for name in names
            if "non-deterministic"
            in str(spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").toArrow().to_pylist())
        ]

    random = ["rand", "randn", "random", "uuid", "shuffle", "monotonically_increasing_id"]
    assert random_of(random) == random
    assert random_of(sorted(DETERMINISTIC)) == []
    # What Spark does not say: they change from row to row, from file to file or from call to call.
    unsaid = {"uniform", "randstr", "spark_partition_id", "input_file_name", "aes_encrypt"}
    assert unsaid <= known
    assert not (unsaid | {"reflect", "java_method"}) & DETERMINISTIC


def persist(
    sessions: SparkSessions,
    ranges: tuple[TopicRange, ...],
    schema: DataSchema,
    folder: Path,
    split_bytes: int,
) -> PersistResult:
    engine = SparkEngine(sessions, SparkEngineOptions(split_bytes_min=split_bytes, parallelism=2))
    out, bad = folder / "out", folder / "bad"
    limits = (LIMITS.min_time_ms, LIMITS.max_time_ms)
    made = engine.persist(
        PersistRequest("task", "things", ranges, schema, str(out), str(bad), *limits)
    )
    engine.close()
    return made


@pytest.mark.spark
@pytest.mark.parametrize("read_time", [False, True])
def test_files_of_groups_are_those_of_rows(
    sessions: SparkSessions, make_topic: MakeTopic, tmp_path: Path, *, read_time: bool
) -> None:
    """A random part of the filter, which is always true, forbids that rows come together."""
    rows: list[Row] = [
        (
            # Of equal times Spark takes the value of any row.
            i * 7919 % (5 * HOUR_MS // 997) * 997 - HOUR_MS // 2,
            (None, "a", "b")[i % 3],
            ("a", "b", "c", None)[i // 3 % 4],
            (1.5, -0.0, 0.0, None)[i % 4],
            (2**63 - 1, -i, None, -3)[i // 2 % 4],
            None if i % 5 == 0 else i / 4,
            -0.0 if i % 7 == 0 else 16_777_216.0 + i,
            f"{'x' * (i % 3)}{i}",
        )
        for i in range(600)
    ]
    assert len({row[0] for row in rows}) == len(rows)
    ranges = make_topic([*messages(rows, FIELDS), b"{", b"[]"])
    transforms = [*TRANSFORMS, expression('minute("__time")', "level")][1 - read_time :]
    transforms = [TRANSFORMS[0], transforms[-1]]
    together = make_schema(transforms=transforms)
    alone = make_schema(transforms=transforms, filter_={"type": "and", "fields": [FILTER, RANDOM]})
    # Metrics that Arrow does not fold have the JVM roll up all of them.
    sketch = [*METRICS, metric("thetaSketch", "sketch", "kind")]
    by_jvm = persist(
        sessions,
        ranges,
        make_schema(metrics=sketch, transforms=transforms),
        tmp_path / "jvm",
        1_000,
    )
    assert groups_of(together, LIMITS) is not None
    assert groups_of(alone, LIMITS) is None
    counts = by_jvm.counts
    assert counts.unparseable == 2
    assert min(counts.thrown_away_late, counts.thrown_away_early, counts.thrown_away_filtered) > 0
    for name, schema, split_bytes in (
        ("rows", alone, 1_000),
        ("two", together, 1_000),
        ("one", together, 1 << 20),
    ):
        made = persist(sessions, ranges, schema, tmp_path / name, split_bytes)
        assert made.counts == counts
        assert [f.columns for f in made.files] == [f.columns[:-1] for f in by_jvm.files]
        assert in_files(made) == in_files(by_jvm)


@pytest.mark.spark
def test_of_equal_times_the_order_of_the_messages_decides_whatever_came_together(
    sessions: SparkSessions, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Messages of two groups that become one row lie between each other."""
    rows: list[Row] = [
        (HOUR_MS, "aA"[n % 2], "a", 1.0, n or None, n or None, n or None, f"{n}" if n else None)
        for n in range(9)
    ]
    kinds: JsonValue = {"type": "in", "dimension": "kind", "values": ["a"]}
    schema = make_schema(filter_=kinds)
    [groups] = how(schema).gathered([as_read(rows, FIELDS, schema)])
    assert groups.num_rows == 2
    made = persist(sessions, make_topic(messages(rows, FIELDS)), schema, tmp_path, 1 << 20)
    [row] = pq.read_table(made.files[0].path).to_pylist()
    ends = ("n_first", "n_last", "dFirst", "dLast", "fFirst", "fLast", "t0", "t1")
    assert [row[name] for name in ends] == [1, 8, 1.0, 8.0, 1.0, 8.0, "1", "8"]


def in_files(made: PersistResult) -> list[str]:
    """All rows but their sketches; zeros are equal."""
    found = [row for file in made.files for row in pq.read_table(file.path).to_pylist()]
    return sorted(
        repr(sorted((k, 0.0 if v == 0 else v) for k, v in row.items() if k != "sketch"))
        for row in found
    )
