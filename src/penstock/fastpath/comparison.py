"""Comparison of two engines' answers to one statement. Pure.

Owns the meaning of equal: the same names and types; the same rows in any order; in the order of the
sort keys where the statement orders; floating numbers within 1e-12 of each other; approximate
numbers of values within five of Spark's stated errors. The proof of the fast path and the checks of
a running service both use it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa

from penstock.core.sql import tree
from penstock.fastpath.compiled_query import CompiledQuery
from penstock.fastpath.snapshot_relations import arrow_type
from penstock.spark.tables.table_files import Columns

Row = tuple[object, ...]
Rows = Sequence[Row]

TOLERANCE: Final = 1e-12
"""Relative difference of floating numbers that are equal: engines add in different orders."""
APPROXIMATE: Final = 0.05
"""Relative standard deviation of Spark's `approx_count_distinct`."""

_DEVIATIONS: Final = 5
_FEW: Final = 2  # difference of small approximate numbers
_APPROXIMATE_NAMES: Final = ("approx_", "ds_")
_SHOWN_CHARACTERS_MAX: Final = 600


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """Properties of a statement that decide when two answers to it are equal.

    Attributes:
        columns: Names and Spark types of the result.
        sorted_by: Positions of the columns by which the rows are sorted, without those that come
            after a sort key that is not a column.
        is_sorted_wholly: Whether `sorted_by` has all sort keys.
        approximate: Positions of columns with an approximate number in them.
        is_limited: Whether there may be more rows, so that equal rows are not known.
        chooses_approximately: Whether an approximate number decides which rows there are.
    """

    columns: Columns
    sorted_by: tuple[int, ...] = ()
    is_sorted_wholly: bool = True
    approximate: frozenset[int] = frozenset()
    is_limited: bool = False
    chooses_approximately: bool = False


def answer_shape(query: tree.Query, compiled: CompiledQuery) -> AnswerShape:
    """Return the properties of a statement that was compiled."""
    body = query.body
    assert isinstance(body, tree.Select)
    keys = query.sorts[0].items if query.sorts else ()
    has_star = any(isinstance(item, tree.Star) for item in body.items)
    items = () if has_star else tuple(map(_value, body.items))
    sorted_by: list[int] = []
    for key in keys:
        at = _position(key.value, items, compiled.columns)
        if at is None:
            break
        sorted_by.append(at)
    approximate = frozenset(at for at, item in enumerate(items) if _is_approximate(item))
    is_limited = query.limit is not None or query.offset is not None
    others = [key.value for key in keys] if is_limited else []
    others += [] if body.having is None else [body.having]
    return AnswerShape(
        compiled.columns,
        tuple(sorted_by),
        len(sorted_by) == len(keys),
        approximate,
        is_limited,
        any(map(_is_approximate, others))
        or (is_limited and not approximate.isdisjoint(sorted_by))
        or (body.having is not None and bool(approximate)),  # HAVING may name a result
    )


def _value(item: tree.Expression) -> tree.Expression:
    return item.value if isinstance(item, tree.Aliased) else item


def _is_approximate(node: tree.Node) -> bool:
    return any(
        isinstance(one, tree.Call) and one.name[-1].lower().startswith(_APPROXIMATE_NAMES)
        for one in tree.walk(node)
    )


def _position(
    key: tree.Expression, items: Sequence[tree.Expression], columns: Columns
) -> int | None:
    """Return the column that a sort key is; None: it is another value, or not known to be one."""
    if isinstance(key, tree.Number):
        at = int(key.text) - 1
        return at if 0 <= at < len(columns) else None
    if isinstance(key, tree.Name) and len(key.parts) == 1:
        named = [at for at, (name, _) in enumerate(columns) if name.lower() == key.parts[0].lower()]
        if named:
            return named[0] if len(named) == 1 else None
    return items.index(key) if key in items else None


def difference(
    shape: AnswerShape,
    fast: pa.Table,
    slow: pa.Table,
    every: Callable[[], pa.Table] | None = None,
) -> str:
    """Return how the answers of the embedded engine and of Spark differ; empty: they are equal.

    Args:
        shape: The properties of the statement.
        fast: The answer of the embedded engine.
        slow: Spark's answer.
        every: Returns the rows of Spark without the limit of the statement; None: they are not
            known, so that rows that the limit chose among equal ones are not compared.
    """
    for engine, table in (("the fast engine", fast), ("Spark", slow)):
        found = tuple((one.name, one.type) for one in table.schema)
        wanted = tuple((name, arrow_type(type_)) for name, type_ in shape.columns)
        if found != wanted:
            return _shortened(f"names and types of {engine}: {found} instead of {wanted}")
    if shape.chooses_approximately:
        return ""
    if fast.num_rows != slow.num_rows:
        return f"{fast.num_rows} rows instead of {slow.num_rows}"
    mine, theirs = _rows(fast), _rows(slow)
    is_ordered = shape.is_sorted_wholly
    for at in shape.sorted_by:
        for one, other in zip(mine, theirs, strict=True):
            if not _alike(one[at], other[at], approximate=at in shape.approximate):
                if shape.approximate:
                    return ""  # sorted by an approximate number
                return _shortened(f"order by column {at}: {one[at]!r} instead of {other[at]!r}")
        if _has_near_ties(mine, at) or _has_near_ties(theirs, at):
            is_ordered = False
            break  # the next key decides in one engine only
    left = _without(theirs, mine, shape.approximate)
    if left and shape.is_limited:
        if every is not None:
            left = _without(mine, _rows(every()), shape.approximate)
        elif not is_ordered or not shape.sorted_by:
            left = []
        else:
            # Rows with the keys of the last or the first row are some of those with these keys.
            mine, theirs = _inner(mine, shape.sorted_by), _inner(theirs, shape.sorted_by)
            left = _without(theirs, mine, shape.approximate)
    if not left:
        return ""
    return _shortened(f"rows {left[:2]}, of {mine[:3]} instead of {theirs[:3]}")


def _shortened(text: str) -> str:
    return text[:_SHOWN_CHARACTERS_MAX]


def _inner(rows: Rows, keys: Sequence[int]) -> Rows:
    """Return the rows whose sort keys are neither those of the first row nor of the last."""
    ends = {_key(tuple(row[at] for at in keys)) for row in (rows[0], rows[-1])}
    return [row for row in rows if _key(tuple(row[at] for at in keys)) not in ends]


def _rows(table: pa.Table) -> Rows:
    columns: list[list[object]] = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())  # noqa: PLW2901
        elif pa.types.is_date(column.type):
            column = column.cast(pa.int32())  # noqa: PLW2901
        elif pa.types.is_string(column.type):
            column = column.cast(pa.binary())  # noqa: PLW2901 - it may not be UTF-8
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


def _alike(one: object, other: object, *, approximate: bool = False) -> bool:
    if approximate and isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= max(_FEW, _DEVIATIONS * APPROXIMATE * max(one, other))
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other or abs(one - other) <= TOLERANCE * max(abs(one), abs(other))
    return one == other and type(one) is type(other)


def _has_near_ties(rows: Rows, at: int) -> bool:
    """Return whether two rows one after the other have nearly the same floating number."""
    pairs = ((one[at], other[at]) for one, other in pairwise(rows))
    return any(
        one != other and _alike(one, other) and not (isinstance(one, float) and math.isnan(one))
        for one, other in pairs
    )


def _key(row: Row) -> Row:
    """Return a row for a lookup: floating numbers are close if their first digits are."""
    return tuple(_shown(value) for value in row)


def _shown(value: object) -> object:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value + 0.0:.10e}"
    return value


def _unequal(rows: Rows, others: Rows) -> list[Row]:
    """Return the rows without those that are identical to one of the others, each to one."""
    counts = Counter(map(repr, others))
    found = []
    for row in rows:
        if counts[repr(row)] > 0:
            counts[repr(row)] -= 1
        else:
            found.append(row)
    return found


def _without(rows: Rows, others: Rows, approximate: frozenset[int]) -> Rows:
    """Return the rows that the others do not have."""
    if not approximate:
        counts = Counter(map(_key, others))
        counts.subtract(map(_key, rows))
        missing = {key for key, count in counts.items() if count < 0}
        if not missing:
            return []
        rows = [row for row in rows if _key(row) in missing]
    # Identical rows first: a row that is nearly the same as two others must not take the wrong one.
    rows, left = _unequal(rows, others), _unequal(others, rows)
    found: list[Row] = []
    for row in rows:
        for at, other in enumerate(left):
            if all(
                _alike(one, value, approximate=number in approximate)
                for number, (one, value) in enumerate(zip(row, other, strict=True))
            ):
                del left[at]
                break
        else:
            found.append(row)
    return found
