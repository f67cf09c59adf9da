"""Druid's expressions, translated, give on a real Spark what they give in Druid."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import JsonValue

from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from tests.spark.spark_batch_kit import inline, request, rows_of

pytestmark = pytest.mark.spark


def ms(text: str) -> str:
    moment = dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
    return str(round(moment.timestamp() * 1000))


# `s`, `q`, `e` and `z` are text, `n` and `m` whole numbers, `d` is a decimal; `z` is null.
ROW: dict[str, JsonValue] = {
    "at": "2013-05-17T13:45:30.250Z",
    "s": "Hello World",
    "q": "42",
    "e": "",
    "z": None,
    "n": 7,
    "m": -3,
    "d": 2.5,
}
CASES: dict[str, str | None] = {
    # text
    "strlen(s)": "11",
    "concat(lower(s), strlen(s))": "hello world11",
    "concat(s, z) + strlen(s)": None,
    "'<' + s + strlen(e)": "<Hello World0",
    "strpos(s, 'World')": "6",
    "strpos(s, 'none')": "-1",
    "contains_string(s, 'World')": "1",
    "contains_string(s, 'world')": "0",
    "icontains_string(s, 'world')": "1",
    "if(strlen(s) > 3, substring(s, 1, 3), '')": "ell",
    "if(strlen(s) > 3, substring(s, 6, -1), '')": "World",
    "if(notnull(s), upper(trim(concat(' ', s, ' '))), '')": "HELLO WORLD",
    "if(notnull(s), replace(s, 'World', 'there'), '')": "Hello there",
    "if(notnull(s), lpad(q, 4, '0') + rpad(q, 4, 'x'), '')": "004242xx",
    "if(notnull(s), left(s, 2) + right(s, 2), '')": "Held",
    "if(notnull(s), reverse(q) + repeat('a', 3), '')": "24aaa",
    "if(notnull(s), regexp_extract(s, '(W[a-z]+)', 1), '')": "World",
    "if(notnull(s), regexp_replace(s, '[aeiou]', '_'), '')": "H_ll_ W_rld",
    "like(s, 'Hello%') && strlen(s) > 0": "1",
    "regexp_like(s, '^W') || strlen(s) < 0": "0",
    # null
    "notnull(z)": "0",
    "notnull(e)": "1",
    "isnull(z) && n > 1": "1",
    "nvl(z, 'none') + strlen(s)": "none11",
    "coalesce(z, 'a', q) + strlen(s)": "a11",
    "n > 5 && z == 'a'": None,
    "n < 5 && z == 'a'": "0",
    # choices
    "case_searched(n > 5, 'big', n > 3, 'middle', 'small')": "big",
    "case_searched(n > 9, 'big', n > 8, 'middle')": None,
    "case_simple(n, 7, 'seven', 'other')": "seven",
    "if(n > 5 && d < 3, 'yes', 'no')": "yes",
    "!(n > 5 && d < 3)": "0",
    # numbers
    "cast(d, 'LONG')": "2",
    "cast(n, 'DOUBLE')": "7.0",
    "cast(q, 'LONG') + 1": "43",
    "cast(s, 'LONG')": None,
    "cast(n, 'STRING')": "7",
    "parse_long(q)": "42",
    "parse_long(s)": None,
    "remainder(cast(n, 'LONG'), 4)": "3",
    "remainder(cast(m, 'LONG'), 2)": "-1",
    "bitwiseAnd(n, 3)": "3",
    "bitwiseOr(n, 8)": "15",
    "bitwiseXor(n, 2)": "5",
    "cast(n, 'LONG') / 2": "3",
    "cast(n, 'DOUBLE') / 2": "3.5",
    "cast(n, 'LONG') * m - 1": "-22",
    "-cast(n, 'LONG') % 4": "-3",
    "div(cast(n, 'LONG'), 2)": "3",
    "abs(cast(m, 'LONG')) + greatest(cast(n, 'LONG'), 9)": "12",
    "round(cast(d, 'DOUBLE')) + sqrt(cast(q, 'DOUBLE') - 6)": "9.0",
    # times, which are milliseconds
    "timestamp_floor(__time, 'PT1H')": ms("2013-05-17T13:00"),
    "timestamp_floor(__time, 'P1D')": ms("2013-05-17"),
    "timestamp_floor(__time, 'P1W')": ms("2013-05-13"),
    "timestamp_floor(__time, 'P1M')": ms("2013-05-01"),
    "timestamp_floor(__time, 'P3M')": ms("2013-04-01"),
    "timestamp_floor(__time, 'P1Y')": ms("2013-01-01"),
    "timestamp_floor(__time, 'P2D', '2013-05-16')": ms("2013-05-16"),
    "timestamp_ceil(__time, 'PT1H')": ms("2013-05-17T14:00"),
    "timestamp_ceil(__time, 'P1M')": ms("2013-06-01"),
    "timestamp_ceil(timestamp_floor(__time, 'P1Y'), 'P1Y')": ms("2013-01-01"),
    "timestamp_shift(__time, 'P1D', 2)": ms("2013-05-19T13:45:30.250"),
    "timestamp_shift(__time, 'P1M', -3)": ms("2013-02-17T13:45:30.250"),
    "timestamp_format(__time)": "2013-05-17T13:45:30.250Z",
    "timestamp_format(__time, 'yyyy/MM/dd HH')": "2013/05/17 13",
    "timestamp_parse('2013-01-01T00:00:00Z')": ms("2013-01-01"),
    "timestamp_parse('05/17/2013', 'MM/dd/yyyy')": ms("2013-05-17"),
    "timestamp_parse(s)": None,
    "(__time + 750) / 1000 + strlen(e)": str(int(ms("2013-05-17T13:45:31")) // 1000),
} | {
    f"timestamp_extract(__time, '{unit}')": value
    for unit, value in {
        "EPOCH": str(int(ms("2013-05-17T13:45:30")) // 1000),
        "MILLISECOND": "250",
        "SECOND": "30",
        "MINUTE": "45",
        "HOUR": "13",
        "DAY": "17",
        "DOW": "5",
        "ISODOW": "5",
        "DOY": "137",
        "WEEK": "20",
        "MONTH": "5",
        "QUARTER": "2",
        "YEAR": "2013",
        "ISOYEAR": "2013",
    }.items()
}
TYPED: list[JsonValue] = [
    {"type": "long", "name": "n"},
    {"type": "long", "name": "m"},
    {"type": "double", "name": "d"},
]


@pytest.fixture(scope="module")
def batch(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    engine = SparkBatchEngine(sessions)
    yield engine
    engine.close()


def test_every_translation_gives_what_druid_gives(batch: SparkBatchEngine, tmp_path: Path) -> None:
    names = {f"x{i}": expression for i, expression in enumerate(CASES)}
    transforms: JsonValue = [
        {"type": "expression", "name": name, "expression": text} for name, text in names.items()
    ]
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": [*TYPED, *names]},
        "transformSpec": {"transforms": transforms},
    }
    (row,) = rows_of(batch.write(request(tmp_path / "out", inline(ROW), parts)))
    found = {text: row[name] for name, text in names.items()}
    assert {t: v for t, v in found.items() if v != CASES[t]} == {}


def test_a_transform_of_the_time_and_typed_results(batch: SparkBatchEngine, tmp_path: Path) -> None:
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {
            "dimensions": [
                {"type": "long", "name": "size"},
                {"type": "double", "name": "part"},
                {"type": "float", "name": "flag"},
            ]
        },
        "transformSpec": {
            "transforms": [
                {"type": "expression", "name": name, "expression": text}
                for name, text in {
                    "__time": "timestamp_ceil(__time, 'P1M')",
                    "size": "strlen(s) * 2",
                    "part": "strlen(s) / 2.0",
                    "flag": "n > 1 && n < 3",
                }.items()
            ]
        },
    }
    wanted = request(tmp_path / "out", inline(ROW), parts)
    (row,) = rows_of(batch.write(wanted))
    assert row == {
        "__time": dt.datetime(2013, 6, 1, tzinfo=dt.UTC),
        "size": 22,
        "part": 5.5,
        "flag": 0.0,
    }


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("n > 2 && strlen(s) == 1", [3, 4]),
        ("(n < 2 && n > 0) || s == 'bb'", [1, 2]),
        ("notnull(s) && like(s, 'b%')", [2]),
        ("timestamp_extract(__time, 'DAY') >= 3 && !(n == 4)", [3, 5]),
        ("s = 'a' OR n BETWEEN 3 AND 4", [1, 3, 4]),
        ("1 = 2", []),
        ("__time > TIMESTAMP '2013-01-03'", [4, 5]),
    ],
)
def test_expressions_as_filters(
    batch: SparkBatchEngine, tmp_path: Path, expression: str, kept: list[int]
) -> None:
    texts = ["a", "bb", "c", "d", None]
    rows: list[dict[str, JsonValue]] = [
        {"at": f"2013-01-0{n}", "n": n, "s": s} for n, s in enumerate(texts, 1)
    ]
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["s", {"type": "long", "name": "n"}]},
        "transformSpec": {"filter": {"type": "expression", "expression": expression}},
    }
    result = batch.write(request(tmp_path / "out", inline(*rows), parts))
    assert [row["n"] for row in rows_of(result)] == kept
    assert result.counts.thrown_away_filtered == len(rows) - len(kept)
