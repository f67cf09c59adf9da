"""Druid's type names of a result's columns: its own (`LONG`) and SQL's (`BIGINT`).

Owns only the names; `sqlresults` owns their places in an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import pyarrow as pa

TypeName = Literal["type", "sqlType"]
"""Kind of a type's name; the values are the keys in an object's header."""

# By the prefix of an Arrow type's text: (Druid's own, SQL's).
_NAMES: Final[Sequence[tuple[tuple[str, ...], tuple[str, str]]]] = (
    (("bool",), ("LONG", "BOOLEAN")),
    (("int8", "uint8"), ("LONG", "TINYINT")),
    (("int16", "uint16"), ("LONG", "SMALLINT")),
    (("int32", "uint32"), ("LONG", "INTEGER")),
    (("int64", "uint64"), ("LONG", "BIGINT")),
    (("halffloat", "float"), ("FLOAT", "FLOAT")),
    (("double",), ("DOUBLE", "DOUBLE")),
    (("decimal",), ("DOUBLE", "DECIMAL")),
    (("timestamp",), ("LONG", "TIMESTAMP")),
    (("date",), ("LONG", "DATE")),
    (("string", "large_string", "null"), ("STRING", "VARCHAR")),
)
_OTHER: Final = ("COMPLEX", "OTHER")


def type_name(of: pa.DataType, name: TypeName) -> str:
    """Return one of the names of a column's type."""
    text = str(of)
    if text.startswith(("list", "large_list")):
        inner = type_name(of.value_type, "type")
        return "ARRAY" if name == "sqlType" else f"ARRAY<{inner}>"
    if text.startswith(("struct", "map")):
        return "OTHER" if name == "sqlType" else "COMPLEX<json>"
    found = next((names for begins, names in _NAMES if text.startswith(begins)), _OTHER)
    return found[0] if name == "type" else found[1]
