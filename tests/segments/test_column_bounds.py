"""Bounds of columns: a file with a matching row is never skipped, and others often are."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.intervals import Interval
from penstock.segments.iceberg import column_bounds
from penstock.segments.iceberg.column_bounds import FooterBounds
from penstock.segments.iceberg.scan_filters import ScanFilter
from penstock.testing.clock import VirtualClock

NAMES = itertools.count()
INTERVAL = Interval(0, 86_400_000)
TYPES: Mapping[str, pa.DataType] = {
    "long": pa.int64(),
    "short": pa.int16(),
    "double": pa.float64(),
    "float": pa.float32(),
    "text": pa.string(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "ntz": pa.timestamp("ns"),
    "at": pa.timestamp("us", tz="UTC"),
}
FEW = st.integers(-3, 3)
DAYS = FEW.map(lambda n: dt.date(2024, 1, 5) + dt.timedelta(n))
NOON = dt.datetime.fromisoformat("2024-01-05T12:00:00.000500")
TIMES = FEW.map(lambda n: NOON + dt.timedelta(microseconds=n))
TEXTS = st.text("a\u00e9\ud7ff\uffff\U0010ffff", max_size=20) | st.sampled_from(
    ["a" * 16, "a" * 17, "\U0010ffff" * 18, "a" * 15 + "\ud7ff" + "b", ""]
)
FLOATS = st.sampled_from([math.nan, -0.0, 0.0, 0.1, -0.1, 1e-45, math.inf, -math.inf, 2.5]) | FEW
VALUES: Mapping[str, st.SearchStrategy[object]] = {
    "long": FEW | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1]),
    "short": FEW,
    "double": FLOATS.map(float) | st.just(float(2**53)),
    "float": FLOATS.map(float),
    "text": TEXTS,
    "flag": st.booleans(),
    "day": DAYS,
    "ntz": TIMES,
    "at": TIMES.map(lambda one: one.replace(tzinfo=dt.UTC)),
}


def literal(value: object) -> object:
    """Return a value in the JSON form of the catalog's protocol."""
    return value.isoformat() if isinstance(value, dt.date) else value


def equal(name: str, value: object, other: object) -> bool:
    return not less(name, value, other) and not less(name, other, value)


def less(name: str, value: object, other: object) -> bool:
    """Compare as engines do: NaN is greater than all numbers, and literals may be rounded."""
    if name in {"double", "float"}:
        assert isinstance(value, float | int)
        assert isinstance(other, float | int)
        one, two = float(value), float(other)
        if math.isnan(one) or math.isnan(two):
            return not math.isnan(one)
        return one < two
    return value < other  # type: ignore[operator, no-any-return]


MATCHES: Mapping[str, Callable[[str, object, object], bool]] = {
    "eq": equal,
    "lt": less,
    "gt": lambda name, value, other: less(name, other, value),
    "lt-eq": lambda name, value, other: not less(name, other, value),
    "gt-eq": lambda name, value, other: not less(name, value, other),
    "not-eq": lambda name, value, other: not equal(name, value, other),
    "starts-with": lambda _name, value, other: str(value).startswith(str(other)),
}


def write(folder: Path, columns: Mapping[str, pa.Array], rows_per_group: int = 100) -> str:
    path = folder / f"{next(NAMES)}.parquet"
    pq.write_table(pa.table(dict(columns)), path, row_group_size=rows_per_group)
    return str(path)


def may_match(
    file: str, condition: object, columns: Sequence[str], *, is_case_sensitive: bool = True
) -> bool:
    chosen = ScanFilter(condition, columns, "__time", is_case_sensitive=is_case_sensitive)
    bounds = FooterBounds(VirtualClock()).of(file, chosen.columns, math.inf)
    assert bounds is not None
    return chosen.may_match(bounds, INTERVAL)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(TYPES)), st.data())
def test_a_file_with_a_matching_row_is_never_skipped(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    values = data.draw(st.lists(VALUES[name] | st.none(), max_size=4))
    file = write(tmp_path_factory.getbasetemp(), {name: pa.array(values, TYPES[name])}, 2)
    stored = pq.read_table(file).column(0).to_pylist()
    finite = VALUES[name].filter(lambda one: not isinstance(one, float) or math.isfinite(one))
    kinds = [one for one in MATCHES if one != "starts-with" or name == "text"]
    kind = data.draw(st.sampled_from(kinds))
    other = data.draw(finite)
    condition: object = {"type": kind, "term": name, "value": literal(other)}
    if data.draw(st.booleans()) and kind == "eq":
        more = data.draw(st.lists(finite, max_size=2))
        condition = {"type": "in", "term": name, "values": list(map(literal, [other, *more]))}
    compared = [
        # Engines may round the literal to the type of the column.
        (one, two)
        for one in stored
        if one is not None
        for two in {other, pa.scalar(other, TYPES[name]).as_py()}
    ]
    if name == "ntz":
        compared = [(one.to_pydatetime(), other) for one, _ in compared]
    matching = [one for one, two in compared if MATCHES[kind](name, one, two)]
    if matching:
        assert may_match(file, condition, [name])
    for kind_of_null, is_found in (
        ("is-null", any(one is None for one in stored)),
        ("not-null", any(one is not None for one in stored)),
    ):
        if is_found:
            assert may_match(file, {"type": kind_of_null, "term": name}, [name])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    values = {
        "n": pa.array([5, 9, None]),
        "page": pa.array(["/b" + "x" * 40, "/d", "/c"]),
        "ratio": pa.array([0.5, math.nan, 1.5]),
        "empty": pa.array([None, None, None], pa.int64()),
        "tags": pa.array([["a"], [], None]),
        "inner": pa.array([{"n": 1}, None, None]),
        "price": pa.array([1, 2, 3], pa.decimal128(10, 2)),
        "full": pa.array([1, 2, 3]),
        "day": pa.array([dt.date(2024, 1, 5)] * 3),
    }
    return write(tmp_path_factory.mktemp("bounds"), values)


SKIPPED = [
    {"type": "eq", "term": "n", "value": 4},
    {"type": "gt", "term": "n", "value": 9},
    {"type": "lt-eq", "term": "n", "value": 4},
    {"type": "in", "term": "n", "values": [1, 2, 10]},
    {"type": "in", "term": "n", "values": []},
    {"type": "eq", "term": "page", "value": "/a"},
    {"type": "gt", "term": "page", "value": "/dd"},
    {"type": "starts-with", "term": "page", "value": "/e"},
    {"type": "starts-with", "term": "page", "value": "/a"},
    {"type": "lt", "term": "ratio", "value": 0.5},
    {"type": "eq", "term": "ratio", "value": 0.25},
    {"type": "not-null", "term": "empty"},
    {"type": "eq", "term": "missing", "value": 1},
    {"type": "is-null", "term": "full"},
    {"type": "eq", "term": "day", "value": "2024-01-06"},
    {"type": "lt", "term": "__time", "value": "1970-01-01T00:00:00+00:00"},
    {"type": "and", "left": {"type": "eq", "term": "n", "value": 4}, "right": {"type": "true"}},
    {
        "type": "or",
        "left": {"type": "eq", "term": "n", "value": 4},
        "right": {"type": "gt", "term": "__time", "value": "1970-01-02T00:00:00+00:00"},
    },
    {"type": "false"},
    False,
]
KEPT = [
    {"type": "eq", "term": "n", "value": 7},
    {"type": "eq", "term": "n", "value": "4"},
    {"type": "eq", "term": "n", "value": 4.5},
    {"type": "eq", "term": "n", "value": True},
    {"type": "not", "child": {"type": "eq", "term": "n", "value": 4}},
    {"type": "gt", "term": "ratio", "value": 99},
    {"type": "is-nan", "term": "ratio"},
    {"type": "not-eq", "term": "empty", "value": 1},
    {"type": "is-null", "term": "missing"},
    {"type": "is-null", "term": "n"},
    {"type": "eq", "term": "tags", "value": "z"},
    {"type": "eq", "term": "inner", "value": 5},
    {"type": "eq", "term": "inner.n", "value": 5},
    {"type": "eq", "term": "price", "value": "99"},
    {"type": "eq", "term": "unknown", "value": 1},
    {"type": "eq", "term": {"type": "transform", "transform": "day", "term": "n"}, "value": 1},
    {"type": "eq", "term": "day", "value": 5},
    {"type": "starts-with", "term": "page", "value": "/bxxxxxxxxxxxxxxxxxxx"},
    {"type": "lt", "term": "__time", "value": "1970-01-01T00:00:00.0000001+00:00"},
    {"type": "or", "left": {"type": "eq", "term": "n", "value": 4}},
    {"type": ["eq"], "term": "n", "value": 4},
    {"type": "eq", "term": "n"},
    {"type": "eq"},
    {},
    None,
    "n = 4",
]
COLUMNS = [
    *("n", "page", "ratio", "empty", "tags", "inner", "price", "full", "day", "missing", "__time"),
]


@pytest.mark.parametrize("condition", SKIPPED)
def test_conditions_that_no_row_of_the_file_fulfils(file: str, condition: object) -> None:
    assert not may_match(file, condition, COLUMNS)


@pytest.mark.parametrize("condition", KEPT)
def test_conditions_that_keep_the_file(file: str, condition: object) -> None:
    assert may_match(file, condition, COLUMNS)


@pytest.mark.parametrize(
    ("in_table", "in_file", "term", "is_case_sensitive", "is_kept"),
    [
        (["page"], ["page"], "page", True, False),
        (["page"], ["Page"], "page", True, False),  # one column whose producer changed its case
        (["page"], ["page"], "Page", True, True),  # the table has no such column
        (["page"], ["page"], "PAGE", False, False),
        (["page", "Page"], ["page"], "page", True, False),
        (["page", "Page"], ["page"], "Page", True, True),  # some engines read it all the same
        (["page", "Page"], ["page", "Page"], "page", True, True),
        (["page", "Page"], ["page"], "PAGE", False, True),
        (["page"], ["page", "Page"], "page", True, True),
    ],
)
def test_names_that_differ_in_case_alone(
    tmp_path: Path,
    in_table: list[str],
    in_file: list[str],
    term: str,
    *,
    is_case_sensitive: bool,
    is_kept: bool,
) -> None:
    found = write(tmp_path, {name: pa.array(["b"]) for name in in_file})
    condition = {"type": "eq", "term": term, "value": "a"}
    assert may_match(found, condition, in_table, is_case_sensitive=is_case_sensitive) is is_kept


def test_footers_are_read_once_and_only_before_the_deadline(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    bounds = FooterBounds(clock)
    late = clock.monotonic_s()
    assert bounds.of(file, ["n"], late) is None
    assert bounds.of(str(tmp_path / "none.parquet"), ["n"], math.inf) is None
    (tmp_path / "x.parquet").write_bytes(b"x")
    assert bounds.of(str(tmp_path / "x.parquet"), ["n"], math.inf) is None
    assert bounds.of(file, ["N"], bounds.deadline(1.0)) is not None
    found = bounds.of(file, ["n"], late)
    assert found is not None
    assert found.columns["n"].low == 5
    assert bounds.of(file, ["n", "page"], late) is None
    # Another footer takes the place of this one.
    monkeypatch.setattr(column_bounds, "COLUMNS_KEPT_MAX", 2)
    other = write(tmp_path, {"n": pa.array([1])})
    assert bounds.of(other, ["n"], math.inf) is not None
    assert bounds.of(file, ["n"], late) is None
