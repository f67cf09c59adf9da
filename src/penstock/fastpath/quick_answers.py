"""Answers that need no engine: numbers of rows from the metadata, and answers that are kept.

Owns which queries are counts of whole files, and the bounded memory of kept answers. Both are used
only after the rights of the principal were checked, for datasources that it sees as a whole.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.core.sql import tree
from penstock.fastpath.compiled_query import CompiledQuery, FastValue
from penstock.spark.tables.table_files import TableFile
from penstock.spark.topic.row_shape import TIME_COLUMN

KEPT_ANSWERS_BYTES_MAX: Final = 32 << 20
"""Memory of all kept answers."""
ANSWER_BYTES_MAX: Final = 1 << 20
"""Size of an answer that is kept."""
# Memory of an answer, and of each of its columns, beside values and names.
_ENTRY_BYTES: Final = 2_048
_COLUMN_BYTES: Final = 1_024
# A character of a name, with one outside of the Basic Multilingual Plane.
_CHARACTER_BYTES: Final = 4
_MICROS_PER_MS: Final = 1_000


def count_from_metadata(
    query: tree.Query, compiled: CompiledQuery, files: Sequence[TableFile]
) -> int | None:
    """Return the answer to `SELECT count(*)`, maybe of some time; None: rows must be read.

    That is if each file that may have rows of the time has only such rows, and their number is in
    the metadata.

    Args:
        query: The tree of the query.
        compiled: The compiled query, which has the times.
        files: All visible files of its datasource.
    """
    if not _counts_rows_of_a_time(query):
        return None
    if any(not isinstance(one, int) or one % _MICROS_PER_MS for one in compiled.parameters):
        return None
    start_ms, end_ms, total = compiled.start_ms, compiled.end_ms, 0
    for file in files:
        interval = file.interval
        if (start_ms is not None and interval.end_ms <= start_ms) or (
            end_ms is not None and interval.start_ms >= end_ms
        ):
            continue
        is_within = (start_ms is None or interval.start_ms >= start_ms) and (
            end_ms is None or interval.end_ms <= end_ms
        )
        if not is_within or file.clip is not None or file.announced or not file.rows:
            return None
        total += file.rows
    return total


def _counts_rows_of_a_time(query: tree.Query) -> bool:
    """Return whether a query is one count of all rows from a time until another one."""
    body = query.body
    if not isinstance(body, tree.Select) or len(body.items) != 1 or body.is_distinct:
        return False
    if not isinstance(body.source, tree.Table):
        return False
    parts = (query.limit, query.offset, body.groups, body.having, body.qualify)
    if query.definitions or query.sorts or any(part is not None for part in parts):
        return False
    item = body.items[0]
    value = item.value if isinstance(item, tree.Aliased) else item
    if not isinstance(value, tree.Call) or [one.lower() for one in value.name] != ["count"]:
        return False
    if value.is_distinct or value.condition is not None or value.over is not None:
        return False
    star = value.arguments[0] if len(value.arguments) == 1 else None
    if not isinstance(star, tree.Star) or star.qualifier or star.without:
        return False
    return body.where is None or all(map(_is_time_bound, _conjunction(body.where)))


def _conjunction(condition: tree.Expression) -> Sequence[tree.Expression]:
    is_and = isinstance(condition, tree.Operation) and set(condition.operators) == {"AND"}
    return condition.operands if is_and and isinstance(condition, tree.Operation) else (condition,)


def _is_time_bound(condition: tree.Expression) -> bool:
    """Return whether a condition is `__time >= TIMESTAMP '…'` or `__time < TIMESTAMP '…'`."""
    if not isinstance(condition, tree.Operation) or condition.operators not in {(">=",), ("<",)}:
        return False
    column, time = condition.operands
    is_time = isinstance(column, tree.Name) and column.parts == (TIME_COLUMN,)
    return is_time and isinstance(time, tree.TypedText) and time.type.upper() == "TIMESTAMP"


def count_table(number: int, schema: pa.Schema) -> pa.Table:
    """Return a number as an answer."""
    # Not from a Python list: Arrow would import pandas, which takes the router 0.4 s and 40 MB.
    value = pa.py_buffer(struct.pack("<q", number))
    return pa.table([pa.Array.from_buffers(pa.int64(), 1, [None, value])], schema=schema)


def query_key(*parts: object) -> bytes:
    """Return a key of 32 bytes: texts and values of a query may have a megabyte."""
    # By the text of the values, because 1, 1.0 and true are equal in Python.
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).digest()


def _kept_bytes(answer: pa.Table) -> int:
    names = answer.schema.names
    beside = _ENTRY_BYTES + _COLUMN_BYTES * len(names) + _CHARACTER_BYTES * sum(map(len, names))
    values: int = answer.nbytes
    return values + beside


class KeptAnswers:
    """Answers to earlier queries, the ones that were not used for the longest time given up first.

    A query is known by its relation, which changes with the files, its compiled text and its
    values: names of functions such as the current time are values there. Any thread; the mutex is
    held while an entry is looked up or added.
    """

    def __init__(self, bytes_max: int = KEPT_ANSWERS_BYTES_MAX) -> None:
        self._mutex = threading.Lock()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._answers: OrderedDict[bytes, pa.Table] = OrderedDict()

    @staticmethod
    def key(
        token: str, sql: str, parameters: tuple[FastValue, ...], schema: pa.Schema, rows_max: int
    ) -> bytes:
        """Return the key of an answer."""
        columns = tuple((column.name, str(column.type)) for column in schema)
        return query_key(token, sql, parameters, columns, rows_max)

    def get(self, key: bytes) -> pa.Table | None:
        """Return a kept answer."""
        with self._mutex:
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
            return found

    def keep(self, key: bytes, answer: pa.Table) -> None:
        """Keep an answer, unless it is too large."""
        size = _kept_bytes(answer)
        if size > min(ANSWER_BYTES_MAX, self._bytes_max):
            return
        with self._mutex:
            if (old := self._answers.pop(key, None)) is not None:
                self._bytes -= _kept_bytes(old)
            self._answers[key] = answer
            self._bytes += size
            while self._bytes > self._bytes_max:
                _, dropped = self._answers.popitem(last=False)
                self._bytes -= _kept_bytes(dropped)
