"""How the columns of many files become those of one table. Pure.

Of one column's types the wider wins: bigint and double are double, anything with text is text. A
column that a file lacks is null there. Names fold case, as Spark's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.spark.tables.model import Columns, TableFile

_NUMBERS: Final = ("bigint", "float", "double")


def union_columns(files: Sequence[TableFile]) -> Columns:
    """Return the columns of all files together, in the order of their first appearance."""
    types: dict[str, str] = {}
    names: dict[str, str] = {}
    # Most files have the same columns, and the wider of two types stays the wider.
    for columns in dict.fromkeys(file.columns for file in files):
        for name, type_ in columns:
            key = name.lower()
            names.setdefault(key, name)
            types[key] = wider(types.get(key, type_), type_)
    return tuple((names[key], type_) for key, type_ in types.items())


def wider(one: str, other: str) -> str:
    """Return the type that holds the values of both."""
    if one == other:
        return one
    return "double" if one in _NUMBERS and other in _NUMBERS else "string"
