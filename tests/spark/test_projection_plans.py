"""What projections hold: told exactly in Spark SQL, or not at all.

A key that means something else in a file than in a query, or a digest that stays when what is read
changes its type, would give wrong sums without a word.
"""

from __future__ import annotations

import pytest

from penstock.core.intervals import Granularity
from penstock.indexing.specs.rows.projections import Projection
from penstock.spark.projections.projection_catalog import plans
from tests.spark.projection_kit import COLUMNS, METRICS, aggregator, plan, projection, virtual


def keys(*grouping: str, **more: object) -> dict[str, str]:
    return {key.stored: key.sql for key in plan(*grouping, **more).keys}


def has_plan(*grouping: str, **more: object) -> bool:
    return bool(plans([projection(*grouping, **more)], METRICS, COLUMNS))


def conditions(**filter_: object) -> tuple[str, ...] | None:
    made = plans([projection("carrier", filter=filter_)], METRICS, COLUMNS)
    return made[0].conditions if made else None


# keys


def test_columns_are_keys_by_the_names_that_the_datasource_gives_them() -> None:
    made = plan("__time", "city", "n")
    assert [(k.stored, k.sql) for k in made.keys] == [
        ("__time", "`__time`"),
        ("City", "`City`"),
        ("n", "`n`"),
    ]
    assert [k.time for k in made.keys] == [Granularity.parse("NONE"), None, None]


@pytest.mark.parametrize(
    ("expression", "sql", "cut"),
    [
        ("timestamp_floor(__time, 'PT1H')", "date_trunc('HOUR', `__time`)", "HOUR"),
        ("timestamp_floor(__time, 'PT60M')", "date_trunc('HOUR', `__time`)", "HOUR"),
        ("timestamp_floor(\"__time\", 'P1D')", "date_trunc('DAY', `__time`)", "DAY"),
        ("timestamp_floor(__time, 'P1W')", "date_trunc('WEEK', `__time`)", "WEEK"),
        ("timestamp_floor(__time, 'P3M')", "date_trunc('QUARTER', `__time`)", "QUARTER"),
        ("timestamp_floor(__time, 'P1Y')", "date_trunc('YEAR', `__time`)", "YEAR"),
        ("date_trunc('month', __time)", "date_trunc('MONTH', `__time`)", "MONTH"),
        (
            "timestamp_floor(__time, 'PT5M')",
            "timestamp_millis(unix_millis(`__time`) - pmod(unix_millis(`__time`) - 0L, 300000L))",
            "FIVE_MINUTE",
        ),
    ],
)
def test_the_time_is_cut(expression: str, sql: str, cut: str) -> None:
    (key,) = plan("__gran", virtual=[virtual("__gran", expression)]).keys
    assert (key.sql, key.time) == (sql, Granularity.parse(cut))
    assert key.stored.startswith("__penstock_")


def test_what_looks_like_a_cut_time_and_is_none() -> None:
    floor = "timestamp_floor(__time, 'PT1H', '2024-01-01T00:30:00Z')"
    (key,) = plan("g", virtual=[virtual("g", floor)]).keys
    assert key.time is None
    assert "1704069000000L" in key.sql
    for expression in (
        "timestamp_floor(__time, 'PT1H', 'UTC')",  # UTC is no origin
        "timestamp_floor(__time, 'PT1H', null, 'Europe/Berlin')",
        "timestamp_floor(__time, 'P2M')",
        "timestamp_floor(n, 'PT1H', null, n)",
    ):
        assert not has_plan("g", virtual=[virtual("g", expression)])
    (key,) = plan("g", virtual=[virtual("g", "timestamp_floor(n, 'PT1H')")]).keys
    assert key.time is None


def test_computed_columns_are_put_into_each_other() -> None:
    columns = [
        virtual("lower", 'lower("city")'),
        virtual("both", "concat(lower, carrier)"),
        virtual("sum", "a + n"),
        virtual("a", "n * 2"),
    ]
    assert list(keys("both", "sum", virtual=columns).values()) == [
        "concat((lower(`City`)), `carrier`)",
        "(`n` * 2) + `n`",
    ]
    # Druid's own are translated first; its names stand in quotes, so none is a word of Spark.
    made = keys("x", virtual=[virtual("x", "if(strlen(city) > 2, carrier, 'none')")])
    assert "LENGTH(`City`)" in next(iter(made.values()))


def test_a_part_of_a_nested_column_is_an_expression_or_no_key() -> None:
    part = "get_json_object(payload, '$.a')"
    assert list(keys("v", virtual=[virtual("v", part)]).values()) == [
        "get_json_object(`payload`, '$.a')"
    ]
    nested = {"type": "nested-field", "columnName": "payload", "outputName": "v", "path": "$.a"}
    assert not has_plan("v", virtual=[nested])


@pytest.mark.parametrize(
    "expression",
    [
        "nowhere + 1",
        "rand() + n",
        "uuid()",
        "unix_millis(now())",
        "date_trunc('DAY', current_timestamp())",
        "current_date",
        "unix_timestamp() - n",
        "datediff(date('today'), __time)",
        "datediff(' Yesterday ', __time)",
        "datediff(date('t\\u006fday'), __time)",
        "lookup(carrier, 'names')",
        "timestamp_shift(__time, 'P1D', n)  -- text",
    ],
)
def test_what_is_not_the_same_whenever_it_is_computed_is_no_key(expression: str) -> None:
    assert not has_plan("x", virtual=[virtual("x", expression)])


def test_columns_that_are_not_there_or_cannot_be_grouped_give_no_plan() -> None:
    for name in ("nowhere", "sketch", "tags"):
        assert not has_plan(name)
    assert not has_plan("carrier", aggregators=[aggregator("longSum", "nowhere")])
    assert not has_plan("City", "city")


def test_expressions_that_grow_without_end_give_no_plan() -> None:
    columns = [virtual("v0", "carrier")]
    columns += [virtual(f"v{i}", f"concat(v{i - 1}, v{i - 1})") for i in range(1, 60)]
    assert not has_plan("v59", virtual=columns)
    assert has_plan("v3", virtual=columns)
    chain = [virtual("v0", "n"), *(virtual(f"v{i}", f"v{i - 1} + 1") for i in range(1, 3_000))]
    assert not has_plan("v2999", virtual=chain)


# measures


def measures(*aggregators: dict[str, object]) -> set[tuple[str, str]]:
    return {(m.kind, m.column) for m in plan("carrier", aggregators=aggregators).measures}


def test_sums_come_with_how_many_there_are() -> None:
    assert measures(aggregator("longSum", "n"), aggregator("doubleSum", "N", "again")) == {
        ("rows", ""),
        ("sum", "n"),
        ("values", "n"),
    }
    assert measures(aggregator("doubleMin", "d"), aggregator("longMax", "__time")) == {
        ("rows", ""),
        ("min", "d"),
        ("max", "__time"),
    }


def test_a_metric_is_summed_up_under_its_own_name() -> None:
    # Its field is one of the events, which the datasource has no more.
    gone = aggregator("longSum", "delay", "delays")
    assert measures(gone) == {("rows", ""), ("sum", "delays"), ("values", "delays")}
    counted = {"type": "count", "name": "count"}
    assert measures(counted) == {("rows", ""), ("sum", "count"), ("values", "count")}
    assert measures({"type": "count", "name": "another"}) == {("rows", "")}


def test_what_cannot_be_put_together_is_no_measure() -> None:
    sketch = {"type": "HLLSketchMerge", "name": "sketch", "fieldName": "sketch"}
    others = (aggregator("longFirst", "n"), aggregator("longSum", "carrier"))
    assert measures(sketch, *others) == {("rows", "")}
    computed = plan(
        "carrier", virtual=[virtual("x", "n + 1")], aggregators=[aggregator("longSum", "x")]
    )
    assert [m.kind for m in computed.measures] == ["rows"]


def test_names_of_what_is_stored_are_none_of_the_datasource() -> None:
    made = plan("carrier", "x", virtual=[virtual("x", "lower(city)")])
    stored = [*(k.stored for k in made.keys), *(m.stored for m in made.measures)]
    assert len({name.lower() for name in stored}) == len(stored)
    assert {name for name in stored if not name.startswith("__penstock_")} == {"carrier"}
    columns = (*COLUMNS, ("__penstock_key_1", "string"))
    assert plans([projection("__penstock_key_1")], METRICS, columns) == ()


# filters


@pytest.mark.parametrize(
    ("filter_", "sql"),
    [
        ({"type": "true"}, ()),
        ({"type": "equals", "column": "CARRIER", "matchValue": "U'A"}, (r"`carrier` = 'U\'A'",)),
        ({"type": "selector", "dimension": "n", "value": "5"}, ("`n` = 5",)),
        ({"type": "selector", "dimension": "carrier", "value": None}, ("`carrier` IS NULL",)),
        ({"type": "null", "column": "d"}, ("`d` IS NULL",)),
        (
            {"type": "not", "field": {"type": "null", "column": "d"}},
            ("`d` IS NOT NULL",),
        ),
        (
            {"type": "in", "dimension": "carrier", "values": ["a", "b"]},
            ("`carrier` IN ('a', 'b')",),
        ),
        (
            {
                "type": "and",
                "fields": [
                    {
                        "type": "range",
                        "column": "n",
                        "matchValueType": "LONG",
                        "lower": -1,
                        "upper": 5,
                        "upperOpen": True,
                    },
                    {"type": "range", "column": "city", "lower": "a", "lowerOpen": True}
                    | {"matchValueType": "STRING"},
                ],
            },
            ("`n` >= -1", "`n` < 5", "`City` > 'a'"),
        ),
        ({"type": "expression", "expression": "n > 3"}, ("`n` > 3",)),
    ],
)
def test_filters_that_a_comparison_tells_exactly(
    filter_: dict[str, object], sql: tuple[str, ...]
) -> None:
    assert conditions(**filter_) == sql


@pytest.mark.parametrize(
    "filter_",
    [
        {"type": "false"},
        {"type": "selector", "dimension": "n", "value": "05"},
        {"type": "selector", "dimension": "d", "value": "0.5"},
        {"type": "selector", "dimension": "n", "value": "9223372036854775808"},
        {"type": "equals", "column": "n", "matchValue": "5"},
        {"type": "equals", "column": "carrier", "matchValueType": "LONG", "matchValue": 5},
        {"type": "equals", "column": "f", "matchValueType": "FLOAT", "matchValue": 0.1},
        {"type": "equals", "column": "d", "matchValueType": "DOUBLE", "matchValue": 0.5},
        {"type": "equals", "column": "nowhere", "matchValue": "x"},
        {"type": "in", "dimension": "carrier", "values": ["a", None]},
        {"type": "in", "dimension": "carrier", "values": []},
        {"type": "bound", "dimension": "city", "lower": "a"},
        {"type": "like", "dimension": "carrier", "pattern": "a%"},
        {"type": "not", "field": {"type": "equals", "column": "carrier", "matchValue": "a"}},
        {"type": "interval", "dimension": "__time", "intervals": ["2024/2025"]},
        {"type": "expression", "expression": "__time > now()"},
        {"type": "expression", "expression": "\"lower\"(carrier) = 'x'"},
        {"type": "expression", "expression": "carrier COLLATE UNICODE = 'x'"},
        {"type": "expression", "expression": "exists(array(n), x -> x > 1)"},
        {"type": "expression", "expression": "other.carrier = 'x'"},
        {"type": "expression", "expression": "n::int = 1"},
    ],
)
def test_other_filters_give_no_plan(filter_: dict[str, object]) -> None:
    assert conditions(**filter_) is None


# digests


def test_a_digest_is_of_all_that_a_file_holds() -> None:
    first = plan("carrier", "n")
    assert first.digest == plan("carrier", "n").digest
    assert len(first.digest) == 16
    wider = tuple((c, "double" if c == "n" else t) for c, t in COLUMNS)
    unread = tuple((c, "string" if c == "big" else t) for c, t in COLUMNS)
    a = {"type": "equals", "column": "carrier", "matchValue": "a"}
    others = [
        plan("n", "carrier"),
        plan("carrier", "n", columns=wider),
        plan("carrier", "n", filter=a),
        plan("carrier", "n", aggregators=[aggregator("longMax", "n")]),
        plan("carrier", "n", name="q"),
        plan("carrier", "n", "x", virtual=[virtual("x", "n + 1")]),
        plan("carrier", "n", "x", virtual=[virtual("x", "n + 2")]),
    ]
    assert len({first.digest, *(one.digest for one in others)}) == len(others) + 1
    assert plan("carrier", "n", columns=unread).digest == first.digest


def test_plans_keep_the_order_of_the_spec_and_leave_out_the_rest() -> None:
    specs: list[Projection] = [
        projection("carrier", name="a"),
        projection("nowhere", name="b"),
        projection("n", name="c"),
    ]
    assert [one.name for one in plans(specs, METRICS, COLUMNS)] == ["a", "c"]
