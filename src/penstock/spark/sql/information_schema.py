"""Rows of `INFORMATION_SCHEMA`: schemas, tables, columns and functions.

Owns Druid's names for types. Tables and columns are those of one revision of the metadata, as the
principal of the query sees them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.sql.call_check import REFUSED_FUNCTIONS
from penstock.core.sql.druid_functions import DRUID_AGGREGATES, DRUID_FUNCTIONS
from penstock.core.sql.functions import AGGREGATES, FUNCTIONS
from penstock.core.sql.lookup_calls import FUNCTION, LOOKUP_SCHEMA
from penstock.core.sql.metadata_tables import (
    CATALOG,
    DRUID_SCHEMA,
    INFORMATION_SCHEMA,
    METADATA_TABLES,
    SCHEMAS,
)
from penstock.spark.topic.row_shape import TIME_COLUMN

if TYPE_CHECKING:
    from penstock.core.sql.metadata_reads import MetadataRead
    from penstock.spark.sql.lookup_tables import LookupSource
    from penstock.spark.sql.metadata_rows import MetadataRows, MetadataSource
    from penstock.spark.tables.table_columns import KnownColumns
    from penstock.spark.tables.table_files import Columns, TableFile

_ROWS_AT_ONCE: Final = 1_000


class _Type(NamedTuple):
    """Druid's name of a type, its code in `java.sql.Types`, and the digits of a number."""

    name: str
    jdbc: int
    precision: int | None = None
    scale: int | None = None


# By the name in Spark SQL, without parameters. Digits as in Druid: 15 for floating point.
_TYPES: Final[Mapping[str, _Type]] = {
    "string": _Type("VARCHAR", 12),
    "bigint": _Type("BIGINT", -5, 19, 0),
    "int": _Type("INTEGER", 4, 10, 0),
    "smallint": _Type("SMALLINT", 5, 5, 0),
    "tinyint": _Type("TINYINT", -6, 3, 0),
    "float": _Type("FLOAT", 6, 15),
    "double": _Type("DOUBLE", 8, 15),
    "decimal": _Type("DECIMAL", 3, 19),
    "boolean": _Type("BOOLEAN", 16),
    "timestamp": _Type("TIMESTAMP", 93),
    "timestamp_ntz": _Type("TIMESTAMP", 93),
    "date": _Type("DATE", 91),
    "array": _Type("ARRAY", 2003),
}
_OTHER: Final = _Type("OTHER", 1111)
_TIMES: Final[Mapping[str, int]] = {"TIMESTAMP": 3, "DATE": 0}


class InformationSchema:
    """`MetadataSource` of `INFORMATION_SCHEMA`, and of other tables through another source.

    Args:
        files: The datasources that exist for the principal of a query, with their files.
        known: The columns of datasources.
        others: The source of the other tables.
        lookups: The lookups that exist for the principal.
    """

    def __init__(
        self,
        files: Mapping[str, tuple[TableFile, ...]],
        known: KnownColumns,
        others: MetadataSource,
        lookups: LookupSource,
    ) -> None:
        self._files = files
        self._known = known
        self._others = others
        self._lookups = lookups

    def collect(self, read: MetadataRead, rows: MetadataRows) -> None:
        """Append the rows that a query needs. Raises as `MetadataSource.collect`."""
        if read.table.schema != INFORMATION_SCHEMA:
            self._others.collect(read, rows)
            return
        found = {
            "SCHEMATA": _schemata,
            "TABLES": lambda: self._tables(read.keys),
            "COLUMNS": lambda: self._columns(read.keys),
            "ROUTINES": _routines,
        }[read.table.name]()
        names = [column.name for column in read.table.columns]
        while batch := list(islice(found, _ROWS_AT_ONCE)):
            columns = zip(*batch, strict=True)
            rows.append(dict(zip(names, columns, strict=True)), len(batch))

    def _names(self, keys: frozenset[str] | None) -> Iterator[str]:
        for name in sorted(self._files):
            if self._files[name] and (keys is None or name in keys):
                yield name

    def _tables(self, keys: frozenset[str] | None) -> Iterator[Sequence[object]]:
        for name in self._names(keys):
            yield CATALOG, DRUID_SCHEMA, name, "TABLE", "YES", "NO"
        for name in self._lookups.names():
            if keys is None or name in keys:
                yield CATALOG, LOOKUP_SCHEMA, name, "TABLE", "YES", "YES"
        for one in METADATA_TABLES.values():
            if keys is None or one.name in keys:
                yield CATALOG, one.schema, one.name, "SYSTEM_TABLE", "YES", "NO"

    def _columns(self, keys: frozenset[str] | None) -> Iterator[Sequence[object]]:
        for name in self._names(keys):
            columns = self._known.of(name, self._files[name])
            yield from _columns_of(DRUID_SCHEMA, name, columns)
        for name, own in self._lookups.described():
            if keys is None or name in keys:
                yield from _columns_of(LOOKUP_SCHEMA, name, own, own[0][0])
        for one in METADATA_TABLES.values():
            if keys is None or one.name in keys:
                fixed = ((column.name, column.spark_type) for column in one.columns)
                yield from _columns_of(one.schema, one.name, tuple(fixed))


def _schemata() -> Iterator[Sequence[object]]:
    for schema in SCHEMAS:
        yield CATALOG, schema, None, None, None, None, None


def _columns_of(
    schema: str, table: str, columns: Columns, never_null: str = TIME_COLUMN
) -> Iterator[Sequence[object]]:
    for at, (name, spark_type) in enumerate(columns):
        kind = _TYPES.get(spark_type.partition("(")[0].partition("<")[0], _OTHER)
        is_text, is_number = kind.name == "VARCHAR", kind.precision is not None
        yield (
            *(CATALOG, schema, table, name, at, ""),
            "NO" if name == never_null else "YES",
            *(kind.name, None, None),
            *(kind.precision, 10 if is_number else None, kind.scale, _TIMES.get(kind.name)),
            *(("UTF-8", "UTF8_BINARY") if is_text else (None, None)),
            kind.jdbc,
        )


def _routines() -> Iterator[Sequence[object]]:
    names = {name.upper() for name in FUNCTIONS - REFUSED_FUNCTIONS.keys()}
    aggregates = {name.upper() for name in AGGREGATES} | DRUID_AGGREGATES
    for name in sorted(names | DRUID_FUNCTIONS | {FUNCTION}):
        is_aggregate = name in aggregates
        yield (
            *(CATALOG, INFORMATION_SCHEMA, name, "FUNCTION"),
            "YES" if is_aggregate else "NO",
            None,
        )
