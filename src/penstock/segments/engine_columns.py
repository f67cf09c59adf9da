"""Columns of segments as table formats describe them to other engines. Pure.

Owns the types that engines of Iceberg and Delta read from the files of segments, and the rule that
makes one column of them: a column is left out, with the reason, if an engine could not read it in
each file, because engines allow a file's type to be narrower than the table's only for the pairs of
`_PROMOTED` and for decimals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

Columns = Sequence[tuple[str, str]]
"""(name, Spark SQL type) pairs."""

# Iceberg's names of types by Spark's. The narrow whole numbers are 32 bits wide in Parquet.
_TYPES: Final = {
    "string": "string",
    "bigint": "long",
    "int": "int",
    "smallint": "int",
    "tinyint": "int",
    "double": "double",
    "float": "float",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "binary": "binary",
}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_ARRAY: Final = re.compile(r"array<(.+)>")
_PROMOTED: Final = frozenset({("int", "long"), ("float", "double")})


def engine_type(type_: str) -> str | None:
    """Return Iceberg's name of a type of Spark SQL; None: it has none, or has elements."""
    if (found := _TYPES.get(type_)) is not None:
        return found
    decimal = _DECIMAL.fullmatch(type_)
    return f"decimal({decimal[1]}, {decimal[2]})" if decimal else None


def element_type(type_: str) -> str | None:
    """Return the type of the elements of an array, None for another type."""
    array = _ARRAY.fullmatch(type_)
    return array[1] if array else None


def depth(type_: str) -> int:
    """Return the number of arrays around the innermost type."""
    element = element_type(type_)
    return 0 if element is None else 1 + depth(element)


def innermost(type_: str) -> str:
    """Return the type inside all arrays."""
    element = element_type(type_)
    return type_ if element is None else innermost(element)


def found_in_files(
    columns: Columns, in_files: Iterable[Columns]
) -> tuple[Mapping[str, Sequence[str]], Mapping[str, Sequence[str]]]:
    """Return the names and the types that each column has in files, both without duplicates.

    Args:
        columns: The columns of a table; names may differ only in case.
        in_files: The distinct columns of its files. A name in another case is that of a column
            unless a column has exactly this name.
    """
    exact = {name for name, _ in columns}
    folded = {name.lower(): name for name in exact}
    names: dict[str, dict[str, None]] = {name: {name: None} for name in exact}
    types: dict[str, set[str]] = {name: set() for name in exact}
    for of_file in in_files:
        for name, type_ in of_file:
            column = name if name in exact else folded.get(name.lower())
            if column is not None:
                names[column][name] = None
                types[column].add(type_)
    return (
        {name: list(found) for name, found in names.items()},
        {name: sorted(found) for name, found in types.items()},
    )


def why_unreadable(type_: str, in_files: Iterable[str], table_format: str) -> str:
    """Return why a column cannot be read as a type in each file; empty: it can.

    Args:
        type_: Its type in the table.
        in_files: Its types in files.
        table_format: The name of the format, for the reason.
    """
    if engine_type(innermost(type_)) is None:
        return f"{table_format} has no type that equals {type_}"
    for other in in_files:
        if not _is_promotable(other, type_):
            return (
                f"it is {other} in some segments and {type_} in others, and {table_format} reads a"
                " column as one type: compact the older segments"
            )
    return ""


def _is_promotable(narrow: str, wide: str) -> bool:
    if narrow == wide:
        return True
    if depth(narrow) or depth(wide):
        return False
    pair = engine_type(narrow), engine_type(wide)
    if pair[0] == pair[1] or pair in _PROMOTED:
        return pair[0] is not None
    decimals = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if decimals[0] is None or decimals[1] is None:
        return False
    return decimals[0][2] == decimals[1][2] and int(decimals[0][1]) <= int(decimals[1][1])
