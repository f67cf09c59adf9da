"""Size of the files that a query may read, which a quota limits. Pure.

Owns the estimate: all files of the datasources that a statement names, with their sizes as written,
without those outside of the times that it selects. These times are known if the statement is one
SELECT of one datasource, and a condition of its WHERE, joined by AND, compares `__time` with a
fixed time. So the estimate is never too small, except that Spark reads a file once for each time
that a statement names its datasource.

Spark may read less: only the columns that a statement uses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from penstock.core.byte_sizes import format_size
from penstock.core.errors import InvalidRequest, TooLargeForQuota
from penstock.core.instants import parse_time
from penstock.core.sql import tree
from penstock.core.sql.checked_query import CheckedQuery, tables_of
from penstock.core.sql.shapes import conjuncts, unwrapped
from penstock.spark.tables.table_files import TableFile
from penstock.spark.topic.row_shape import TIME_COLUMN

_ALWAYS: Final = (-(1 << 63), (1 << 63) - 1)
# By the operator: the index in the pair of first and last time that it narrows.
_NARROWED: Final = {">": 0, ">=": 0, "<": 1, "<=": 1}


def check_read_size(
    query: CheckedQuery | None,
    names: Sequence[str],
    files: Mapping[str, Sequence[TableFile]],
    bytes_max: int | None,
) -> None:
    """Return if a query may read its files.

    Args:
        query: The query; None: it has none, and reads nothing.
        names: The datasources that it names.
        files: Files by datasource.
        bytes_max: Maximum size of the files; None: no limit.

    Raises:
        TooLargeForQuota: They are larger.
    """
    if bytes_max is None:
        return
    size = read_size(query, names, files)
    if size > bytes_max:
        raise TooLargeForQuota(
            f"the query would read files of {format_size(size)}, and the quota query_bytes allows"
            f" {format_size(bytes_max)}: select a shorter time of one datasource, such as WHERE"
            f" {TIME_COLUMN} >= TIMESTAMP '2026-01-01' AND …, or ask an administrator for a larger"
            " quota"
        )


def read_size(
    query: CheckedQuery | None, names: Sequence[str], files: Mapping[str, Sequence[TableFile]]
) -> int:
    """Return the size of the files that a query may read, in bytes."""
    first_ms, last_ms = _ALWAYS
    if query is not None and len(names) == 1:
        first_ms, last_ms = selected_times(query.root, names[0])
    return sum(
        file.size_bytes
        for name in names
        for file in files[name]
        if file.interval.end_ms > first_ms and file.interval.start_ms <= last_ms
    )


def selected_times(query: tree.Query, datasource: str) -> tuple[int, int]:
    """Return the first and the last time that a query may select, in epoch milliseconds."""
    select, tables = query.body, tables_of(query)
    if not isinstance(select, tree.Select) or len(tables) != 1 or select.source is not tables[0]:
        return _ALWAYS
    if tables[0].parts[-1].lower() != datasource.lower() or select.where is None:
        return _ALWAYS
    qualifier = (tables[0].alias or datasource).lower()
    first_ms, last_ms = _ALWAYS
    for condition in conjuncts(select.where):
        low_ms, high_ms = _times_of(
            unwrapped(condition), {(TIME_COLUMN,), (qualifier, TIME_COLUMN)}
        )
        first_ms, last_ms = max(first_ms, low_ms), min(last_ms, high_ms)
    return first_ms, last_ms


def _times_of(condition: tree.Expression, names: Collection[tuple[str, ...]]) -> tuple[int, int]:
    """Return the first and the last time that a condition allows."""
    match condition:
        case tree.Predicate(operator="BETWEEN", is_negated=False, operand=tree.Name() as column):
            low, high = map(_time, condition.others)
            times = (_ALWAYS[0] if low is None else low, _ALWAYS[1] if high is None else high)
        case tree.Operation(operators=(operator,), operands=(tree.Name() as column, literal)):
            time = _time(literal)
            if time is None or operator not in {*_NARROWED, "=", "=="}:
                return _ALWAYS
            bounds = [time, time]
            if operator in _NARROWED:
                bounds[1 - _NARROWED[operator]] = _ALWAYS[1 - _NARROWED[operator]]
            times = (bounds[0], bounds[1])
        case _:
            return _ALWAYS
    return times if tuple(map(str.lower, column.parts)) in names else _ALWAYS


def _time(literal: tree.Expression) -> int | None:
    """Return the time of a literal; None: it is another expression."""
    if isinstance(literal, tree.TypedText) and literal.type in {"DATE", "TIMESTAMP"}:
        literal = literal.text
    if not isinstance(literal, tree.Text) or literal.value is None:
        return None
    try:
        return parse_time(literal.value.replace(" ", "T", 1))
    except InvalidRequest:  # narrow: restores nothing
        return None
