"""Answers over groups are those over rows, on a real Spark: any rows, projections and queries.

What a query asks is put together at random from what the grammar takes, and from some that it does
not. Whatever is rewritten must give the same columns, of the same types, with the same values;
numbers are quarters, or whole and below 2^63 in sum, so that no digit may differ.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.core.sql.checked_query import checked_query
from penstock.indexing.specs.rows.projections import Projection
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.ddl import ddl
from penstock.spark.projections.grouped_query import EXTRACTED, PARTS
from penstock.spark.projections.matcher import matched_query, why_not
from penstock.spark.projections.plan import GroupingKey, ProjectionPlan
from penstock.spark.projections.projection_catalog import plans
from penstock.spark.projections.relation import summed
from penstock.spark.projections.rewriter import nests
from penstock.spark.sql.service import SQL_CONF
from penstock.spark.tables.table_files import Columns
from tests.spark.projection_kit import aggregator, virtual

pytestmark = pytest.mark.spark

TYPES = {
    "__time": ("timestamp", pa.timestamp("us", "UTC")),
    "carrier": ("string", pa.string()),
    "city": ("string", pa.string()),
    "n": ("bigint", pa.int64()),
    "big": ("bigint", pa.int64()),
    "d": ("double", pa.float64()),
    "f": ("float", pa.float32()),
    "flag": ("boolean", pa.bool_()),
    "payload": ("string", pa.string()),
    "count": ("bigint", pa.int64()),
}
COLUMNS: Columns = tuple((name, type_) for name, (type_, _) in TYPES.items())
TEXTS = ["", " ", "UA", "ua", "Ua ", "O'Hare", "ß", "SS", "İ", "i̇", "\0", "5", "-0.0", "𝄞x", None]
QUARTERS = [0.25 * quarter for quarter in range(-6, 7)] + [-0.0] * 5 + [math.inf, math.nan, None]
TIMES = [
    "1969-12-31T23:59:59.999999",
    "1970-01-01T00:00:00.000000",
    "1970-01-05T00:00:00.000000",
    "2023-12-31T23:59:59.999999",
    "2024-01-01T00:00:00.000000",
    "2024-01-01T00:00:00.000001",
    "2024-01-01T00:04:59.999000",
    "2024-01-01T00:05:00.000000",
    "2024-01-01T01:00:00.000000",
    "2024-01-02T00:00:00.000000",
    "2024-01-07T23:59:59.999999",
    "2024-01-08T00:00:00.000000",
    "2024-02-01T00:00:00.000000",
    "2024-02-29T12:30:30.500000",
    "2024-04-01T00:00:00.000000",
    "2024-12-31T00:00:00.000000",
    "2025-01-01T00:00:00.000000",
]
CUTS = ["PT1S", "PT5M", "PT1H", "PT6H", "P1D", "P1W", "P1M", "P3M", "P1Y"]
UNITS = ["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"]
FILTERS = {
    "carrier = 'UA'": {"type": "equals", "column": "carrier", "matchValue": "UA"},
    "n >= -1": {"type": "range", "column": "n", "matchValueType": "LONG", "lower": -1},
    "city IS NULL": {"type": "null", "column": "city"},
    "d <= 0.5": {"type": "expression", "expression": "d <= 0.5"},
    "flag": {"type": "expression", "expression": "flag"},
}
VIRTUAL = {
    "lower(city)": 'lower("city")',
    "n + 1": "n + 1",
    "get_json_object(payload, '$.a')": "get_json_object(payload, '$.a')",
    "concat(carrier, '-', city)": "concat(carrier, '-', city)",
}
# Of a group's expressions, by the column that they need.
OF_COLUMN = {
    "carrier": [
        "carrier",
        '"CARRIER"',
        "Flights.carrier",
        "upper(carrier)",
        "carrier || 'x'",
        "length(carrier)",
        "CASE WHEN carrier = 'UA' THEN 'a' ELSE carrier END",
        "substr(carrier, 1, 1)",
        "carrier IS NULL",
        "COALESCE(carrier, '?')",
        "carrier IN ('UA', '')",
        "carrier LIKE 'U%' OR carrier > 'b'",
    ],
    "city": ["city", "upper(city)", "NULLIF(city, '')", "concat(city, city)"],
    "n": ["n", "n % 3", "abs(n)", "CAST(n AS STRING)", "n BETWEEN 0 AND 2", "-n", "n * 2 + 1"],
    "d": [*("d",) * 9, "CAST(d AS STRING)", "(d) || ''", "d * 2"],
    "f": [*("f",) * 6, "(f) RLIKE '^-'", "CAST(f AS STRING)"],
    "flag": ["flag", "NOT flag", "flag IS NULL"],
    "count": ["count", "count + 0"],
}
AGGREGATES = [
    "COUNT(*)",
    "count(1)",
    "COUNT(n)",
    "COUNT(d)",
    "COUNT(carrier)",
    "COUNT(flag)",
    *("SUM(n)", "SUM(big)", "SUM(d)", "sum(f)", "SUM(count)", "AVG(d)", "mean(f)"),
    *("MIN(n)", "MAX(big)", "MIN(d)", "MAX(d)", "MIN(carrier)", "MAX(carrier)", "MAX(__time)"),
    "SUM(n) / COUNT(*)",
    "COALESCE(SUM(d), 0) + 1",
    "ROUND(AVG(d), 3)",
    "CASE WHEN COUNT(*) > 2 THEN 'many' ELSE CAST(MAX(n) AS STRING) END",
]
ALL_AGGREGATORS = [
    *(aggregator("longSum", name) for name in ("n", "big", "count")),
    *(aggregator("doubleSum", name) for name in ("d", "f")),
    *(aggregator("longMin", name) for name in ("n", "carrier", "__time")),
    *(aggregator("longMax", name) for name in ("n", "big", "carrier", "__time")),
    *(aggregator("doubleMin", "d"), aggregator("doubleMax", "d")),
]


@dataclass
class Told:
    """How many queries were asked and were rewritten, over all examples."""

    asked: int = 0
    rewritten: int = 0
    refused: list[str] = field(default_factory=list)
    refused_by_spark: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def ansi(sessions: SparkSessions) -> Iterator[SparkSession]:
    """A Spark session with the settings of queries."""
    own = sessions.with_conf(SQL_CONF)
    yield own.get()
    own.close()


def some_rows(random: Random) -> pa.Table:
    def values(name: str, count: int) -> list[object]:
        choices = {
            "carrier": TEXTS,
            "city": TEXTS,
            "n": [*range(-3, 5), None],
            "big": [2**58, -(2**58), 2**58 - 1, 7, None],
            "d": QUARTERS,
            "f": QUARTERS,
            "flag": [True, False, None],
            "payload": ['{"a": "x"}', '{"a": 5}', "{}", "no JSON", None],
            "count": [1, 2, 3],
        }
        if name == "__time":
            texts = random.choices(TIMES, k=count)
            return [dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) for text in texts]
        few = random.sample(choices[name], k=min(len(choices[name]), random.randint(1, 6)))
        return list(random.choices(few, k=count))

    count = random.choice([0, 1, 2, 12, 30])
    return pa.table({name: pa.array(values(name, count), t) for name, (_, t) in TYPES.items()})


def some_projection(random: Random) -> tuple[ProjectionPlan, list[str]]:
    """Return a plan, and conditions that a query must have."""
    columns = ["carrier", "city", "n", "d", "f", "flag", "count"]
    grouping = random.sample(columns, k=random.choice([0, 1, 1, 2, 2, 3]))
    made: list[dict[str, object]] = []
    if random.random() < 0.5:
        made.append(virtual("cut", f"timestamp_floor(__time, '{random.choice(CUTS)}')"))
    elif random.random() < 0.5:
        grouping.append("__time")
    for number, expression in enumerate(VIRTUAL.values()):
        if random.random() < 0.3:
            made.append(virtual(f"v{number}", expression))
    names = [str(one["name"]) for one in made]
    wanted = random.sample(list(FILTERS), k=random.choice([0, 0, 0, 1, 2]))
    parts = {"type": "and", "fields": [FILTERS[one] for one in wanted]}
    aggregators = random.sample(ALL_AGGREGATORS, k=random.randint(8, len(ALL_AGGREGATORS)))
    spec = Projection.model_validate(
        {
            "type": "aggregate",
            "name": "p",
            "groupingColumns": grouping + names,
            "virtualColumns": made,
            "aggregators": aggregators,
            "filter": parts if wanted else None,
        }
    )
    (plan,) = plans([spec], (), COLUMNS)
    return plan, wanted


@dataclass
class Asked:
    """A query, the values of its parameters, and whether the order of its rows is told."""

    sql: str
    parameters: list[object]
    ordered: bool


def some_query(random: Random, plan: ProjectionPlan, wanted: list[str]) -> Asked:
    keys = [one for key in plan.keys for one in expressions(random, key)]
    # A few that the projection most likely has not.
    others = [sql for some in OF_COLUMN.values() for sql in some]
    groups = random.sample(keys, k=min(len(keys), random.choice([0, 1, 2, 2, 3])))
    if random.random() < 0.05:
        groups.append(random.choice(others))
    groups = list(dict.fromkeys(groups))
    possible = AGGREGATES if random.random() < 0.2 else measured(plan)
    aggregates = random.sample(possible, k=min(len(possible), random.randint(1, 3)))
    names = [f"x{number}" for number in range(len(groups))]
    named = random.random() < 0.5
    if shadows := named and random.random() < 0.3:
        names = random.sample(["__time", "City", "n", "payload", '"carrier"'], k=len(groups))
    items = [f"{sql} AS {n}" for sql, n in zip(groups, names, strict=True)] if named else groups
    items = [*items, *(f"{sql} a{number}" for number, sql in enumerate(aggregates))]
    parameters: list[object] = []
    table = random.choice(["flights", "FLIGHTS", '"flights"', "flights AS f"])
    sql = f"SELECT {', '.join(items)} FROM {table}"
    if where := some_conditions(random, keys, wanted, parameters):
        sql += f" WHERE {' AND '.join(where)}"
    if groups:
        by = [str(number + 1) for number in range(len(groups))]
        ways = [by, groups, ["ALL"], *([names] if named and not shadows else [])]
        sql += f" GROUP BY {', '.join(random.choice(ways))}"
    if random.random() < 0.3:
        having = ["COUNT(*) > 1", *(f"{one} IS NOT NULL" for one in aggregates)]
        sql += f" HAVING {random.choice(having)}"
    ordered = random.random() < 0.3
    if ordered:
        terms = [str(number + 1) for number in range(len(items))]
        terms[: len(groups)] = names if shadows else terms[: len(groups)]
        places = [f"{term} {random.choice(['ASC', 'DESC NULLS LAST'])}" for term in terms]
        sql += f" ORDER BY {', '.join(places)} LIMIT {random.randint(1, 9)}"
    return Asked(sql, parameters, ordered)


def measured(plan: ProjectionPlan) -> list[str]:
    """Return the aggregates that the plan most likely has, and those made of them."""
    kinds = {(m.kind, m.column) for m in plan.measures}
    found = ["COUNT(*)", "count(1)", "COUNT(*) * 2"]
    found += [
        f"{kind.upper()}({column})" for kind, column in kinds if kind in {"sum", "min", "max"}
    ]
    for column in (column for kind, column in kinds if kind == "values"):
        found.append(f'COUNT("{column}")')
        if column in {"d", "f"}:
            found += [f"AVG({column})", f"ROUND(AVG({column}) * 4, 1)"]
    for key in plan.keys:
        if key.stored in OF_COLUMN:
            found += [f"COUNT({key.stored})"]
            found += (
                [] if key.stored in {"d", "f"} else [f"MIN({key.stored})", f"MAX({key.stored})"]
            )
    return sorted(found)


def expressions(random: Random, key: GroupingKey) -> list[str]:
    """Return what a query may ask of a key, most of it not finer than the key."""
    if key.stored in OF_COLUMN:
        return OF_COLUMN[key.stored]
    if "__time" not in key.sql:
        return [key.sql, key.sql.replace("`", "")]
    found = {f"date_trunc('{unit}', __time)": unit for unit in UNITS}
    found |= {f"{part}(__time)": PARTS[part.upper()] for part in PARTS}
    found |= {f"EXTRACT({part} FROM __time)": EXTRACTED[part] for part in EXTRACTED}
    found |= {"CAST(__time AS DATE)": "DAY"}
    if key.stored == "__time":
        return ["__time", *found]
    fitting = [sql for sql, unit in found.items() if key.time and nests(key.time, unit)]
    return random.sample(fitting, k=min(4, len(fitting))) + random.sample(list(found), k=1)


def some_conditions(
    random: Random, keys: list[str], wanted: list[str], parameters: list[object]
) -> list[str]:
    found = [one for one in wanted if random.random() < 0.9]
    plain = [one for one in keys if one == "carrier"]
    if plain and random.random() < 0.3:
        found.append("carrier <> ?")
        parameters.append(random.choice(["UA", ""]))
    if any("__time" in one for one in keys) and random.random() < 0.5:
        start = random.choice(
            ["'2024-01-01'", "TIMESTAMP '2024-01-08T00:00:00Z'", "DATE '2024-04-01'"]
        )
        unaligned = "'2024-01-01 00:00:00.5'"
        literal = unaligned if random.random() < 0.1 else start
        ways = ["__time >= {}", "__time < {}", "NOT (__time >= {})"]
        found.append(random.choice(ways).format(literal))
    if keys and random.random() < 0.3:
        found.append(f"({random.choice(keys)}) IS NOT NULL")
    random.shuffle(found)
    return found


def answer(
    spark: SparkSession, sql: str, asked: Asked
) -> tuple[list[str], list[tuple[object, ...]]]:
    rows = spark.sql(sql, args=list(asked.parameters) or None)
    types = [one.dataType.simpleString() for one in rows.schema.fields]
    found = [
        tuple(map(comparable, row.values()))
        for row in rows.toArrow()
        .rename_columns([str(number) for number in range(len(types))])
        .to_pylist()
    ]
    return types, found if asked.ordered else sorted(found, key=repr)


def comparable(value: object) -> object:
    """Return a value that equals another if they are told alike; the sign of zero is not."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def frame(spark: SparkSession, table: pa.Table, schema: str) -> DataFrame:
    # Of an empty table Spark does not look at the types.
    return spark.createDataFrame(table, schema) if table else spark.createDataFrame([], schema)


def check(spark: SparkSession, random: Random, told: Told) -> None:
    rows = some_rows(random)
    plan, wanted = some_projection(random)
    frame(spark, rows, ddl(COLUMNS)).createOrReplaceTempView("flights")
    half = [random.random() < 0.5 for _ in range(rows.num_rows)]
    made = []
    for side in (True, False):
        file = rows.filter(pa.array([one is side for one in half], pa.bool_()))
        groups = summed(frame(spark, file, ddl(COLUMNS)), plan)
        stored = ddl([(one.name, one.dataType.simpleString()) for one in groups.schema.fields])
        made.append(groups.toArrow())
    frame(spark, pa.concat_tables(made), stored).createOrReplaceTempView("groups")
    for _ in range(6):
        asked = some_query(random, plan, wanted)
        told.asked += 1
        query = checked_query(asked.sql)
        sql = matched_query(query, "flights", plan, COLUMNS, "groups")
        if sql is None:
            told.refused.append(why_not(query, "flights", plan, COLUMNS))
            continue
        told.rewritten += 1
        try:
            expected = answer(spark, asked.sql, asked)
        except PySparkException as error:
            told.refused_by_spark.append(f"{asked.sql}: {error}")
            continue
        assert answer(spark, sql, asked) == expected, f"{asked.sql}\n{sql}\n{plan}"


def test_most_random_queries_are_rewritten() -> None:
    """Otherwise the answers of too few of them would be compared. On average 66 % are."""
    asked = rewritten = 0
    for seed in range(100):
        random = Random(seed)
        plan, wanted = some_projection(random)
        for _ in range(6):
            query = checked_query(some_query(random, plan, wanted).sql)
            asked += 1
            rewritten += matched_query(query, "flights", plan, COLUMNS, "groups") is not None
    assert rewritten >= 0.6 * asked


def test_answers_over_groups_are_those_over_rows(ansi: SparkSession) -> None:
    told = Told()

    @settings(
        max_examples=settings.default.max_examples // 3,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32))
    def any_of_them(seed: int) -> None:
        check(ansi, Random(seed), told)

    any_of_them()
    # Otherwise this test would say nothing. Of 30 random queries, 23 to 97 % are rewritten; one run
    # in twenty is below half, and one in several thousand below a quarter.
    assert told.rewritten >= told.asked / 4, told
    assert len(told.refused_by_spark) <= told.rewritten / 10, told.refused_by_spark
