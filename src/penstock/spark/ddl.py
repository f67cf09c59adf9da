"""Columns and schemas as text in Spark's notation. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def quoted(name: str) -> str:
    """Return a name in SQL's quotes; it may have any characters."""
    return "`" + name.replace("`", "``") + "`"


def ddl(columns: Sequence[tuple[str, str]]) -> str:
    """Return (name, Spark SQL type) pairs as a schema; names may have any character."""
    return ", ".join(f"{quoted(name)} {type_}" for name, type_ in columns)
