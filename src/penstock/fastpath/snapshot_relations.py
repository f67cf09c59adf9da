"""Relations of the embedded engine: the visible files of a datasource, as its queries read them.

Owns the types that both engines share, the choice of files by time, and the tokens under which the
engine's processes know relations. A relation has the same rows as Spark's view (`spark.views`):
columns that a file lacks are NULL, values are cast to the datasource's types, and row cuts are
conditions. Queries of files that could differ are refused.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

import pyarrow as pa

from penstock.core.column_case import ColumnNames, case_variants_in
from penstock.core.intervals import Interval
from penstock.fastpath.compiled_query import CompiledQuery, NotCompiled
from penstock.fastpath.engine_protocol import FILES_MAX, PartColumn, Relation, RelationPart
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE

# By Spark's name: the engine's name, and the type in Arrow.
_TYPES: Final = {
    "string": ("VARCHAR", pa.string()),
    "bigint": ("BIGINT", pa.int64()),
    "int": ("INTEGER", pa.int32()),
    "smallint": ("SMALLINT", pa.int16()),
    "tinyint": ("TINYINT", pa.int8()),
    "double": ("DOUBLE", pa.float64()),
    "float": ("FLOAT", pa.float32()),
    "boolean": ("BOOLEAN", pa.bool_()),
    "date": ("DATE", pa.date32()),
    "timestamp": ("TIMESTAMP WITH TIME ZONE", TIME_TYPE),
}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
# Casts with the same outcome in both engines. Texts of fractions and times differ.
_SAME_CASTS: Final = frozenset(
    {
        *(("bigint", "double"), ("float", "double"), ("boolean", "string")),
        *((type_, "string") for type_ in ("bigint", "int", "smallint", "tinyint")),
    }
)
# The engine reads a path with these characters as a pattern.
_PATTERN: Final = re.compile(r"[*?\[\]{}]|://")
_RELATIONS_MAX: Final = 256
# Files whose footers show since when there are how many rows.
_NEWEST_FILES_MAX: Final = 8


def engine_type(type_: str) -> str | None:
    """Return the engine's name of a Spark type; None: it has no equal one."""
    if (found := _TYPES.get(type_)) is not None:
        return found[0]
    decimal = _DECIMAL.fullmatch(type_)
    return f"DECIMAL({decimal[1]},{decimal[2]})" if decimal else None


def arrow_type(type_: str) -> pa.DataType | None:
    """Return the Arrow type of a Spark type in answers; None: the engine has no equal one."""
    if (found := _TYPES.get(type_)) is not None:
        return found[1]
    decimal = _DECIMAL.fullmatch(type_)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else None


def answer_schema(columns: Columns) -> pa.Schema:
    """Return the schema of an answer with columns of Spark types.

    Raises:
        NotCompiled: The engine has no equal type.
    """
    fields = []
    for name, type_ in columns:
        arrow = arrow_type(type_)
        if arrow is None:
            raise NotCompiled("type of a result")
        fields.append(pa.field(name, arrow))
    return pa.schema(fields)


class SnapshotRelations:
    """The relations that queries read, kept while the files of their datasource do not change.

    Any thread; the mutex is held while an entry is looked up or replaced.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._numbers = itertools.count(1)
        # For each datasource its files, and the number of this state of them.
        self._states: dict[str, tuple[Sequence[TableFile], int]] = {}
        self._known: OrderedDict[object, tuple[str, Relation]] = OrderedDict()
        self._files = 0  # of all known relations

    def keep(self, datasources: Collection[str]) -> None:
        """Forget the files of all other datasources."""
        with self._mutex:
            for gone in self._states.keys() - datasources:
                del self._states[gone]

    def of(self, query: CompiledQuery, files: Sequence[TableFile]) -> tuple[str, Relation]:
        """Return the token and the files of the relation of a query.

        Args:
            query: The query.
            files: All visible files of its datasource.

        Raises:
            NotCompiled: The engine could read the files in another way than Spark.
        """
        chosen = tuple(at for at, file in enumerate(files) if is_read(file, query))
        with self._mutex:
            state = self._states.get(query.datasource)
            if state is None or (state[0] is not files and state[0] != files):
                state = files, next(self._numbers)
            self._states[query.datasource] = files, state[1]
            read = query.read or ((TIME_COLUMN, "timestamp"),)
            key = query.datasource, state[1], read, chosen
            if (found := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return found
        if len(chosen) > FILES_MAX:
            raise NotCompiled("number of files")
        relation = relation_of(read, [files[at] for at in chosen])
        with self._mutex:
            self._files += len(chosen)
            while self._known and (len(self._known) >= _RELATIONS_MAX or self._files > FILES_MAX):
                self._files -= self._known.popitem(last=False)[1][1].file_count
            made = f"{next(self._numbers)}", relation
            if (old := self._known.pop(key, None)) is not None:
                self._files -= old[1].file_count
            self._known[key] = made
            return made


def rows_read(query: CompiledQuery, files: Sequence[TableFile]) -> int:
    """Return how many rows the files have that a query reads; those of unknown ones do not count.

    Args:
        query: The query.
        files: All visible files of its datasource.
    """
    return sum(file.rows for file in files if is_read(file, query))


def is_read(file: TableFile, query: CompiledQuery) -> bool:
    """Return whether a file may have rows of the times that a query selects."""
    interval = file.clip or file.interval
    return (query.start_ms is None or interval.end_ms > query.start_ms) and (
        query.end_ms is None or interval.start_ms < query.end_ms
    )


def relation_of(read: Columns, files: Sequence[TableFile]) -> Relation:
    """Return the relation of some columns and files.

    Args:
        read: Names and Spark types of the datasource's columns.
        files: The files.

    Raises:
        NotCompiled: The engine could read the files in another way than Spark.
    """
    columns = tuple((name, _engine_type(type_)) for name, type_ in read)
    if case_variants_in(name for name, _ in read):
        raise NotCompiled("case of columns")
    # The engine reads files in this order, and skips older ones once it has enough newer rows.
    files = sorted(files, key=lambda one: (one.clip or one.interval).end_ms, reverse=True)
    # Most files have the same columns, so they are looked up once.
    known: dict[Columns, tuple[PartColumn, ...]] = {}
    groups: dict[tuple[tuple[PartColumn, ...], Interval | None], list[TableFile]] = {}
    for file in files:
        if _PATTERN.search(file.path):
            raise NotCompiled("place of a file")
        own = known.get(file.columns)
        if own is None:
            own = known[file.columns] = _own_columns(file.columns, read)
        groups.setdefault((own, file.clip), []).append(file)
    parts = tuple(
        RelationPart(
            tuple(one.path for one in group),
            tuple(one.size_bytes for one in group),
            own,
            None if clip is None else clip.start_ms,
            None if clip is None else clip.end_ms,
        )
        for (own, clip), group in groups.items()
    )
    has_time = any(name == TIME_COLUMN for name, _ in read)
    newest = tuple(one.path for one in files[:_NEWEST_FILES_MAX]) if has_time else ()
    return Relation(columns, parts, newest)


def _own_columns(columns: Columns, read: Columns) -> tuple[PartColumn, ...]:
    if case_variants_in(name for name, _ in columns):
        raise NotCompiled("case of columns")
    names = ColumnNames({name: (name, type_) for name, type_ in columns}, exact=False)
    found = []
    for name, type_ in read:
        own_name, own_type = names.get(name) or ("", type_)
        if own_type != type_ and (own_type, type_) not in _SAME_CASTS:
            raise NotCompiled("types of files")
        found.append(PartColumn(own_name, _engine_type(own_type)))
    return tuple(found)


def _engine_type(type_: str) -> str:
    found = engine_type(type_)
    if found is None:
        raise NotCompiled("type of a column")
    return found
