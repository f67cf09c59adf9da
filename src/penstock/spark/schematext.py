"""Columns as the text that Spark takes for a schema. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def ddl(columns: Sequence[tuple[str, str]]) -> str:
    """Return (name, Spark SQL type) pairs as a schema; names may have any character."""
    return ", ".join(f"`{name.replace('`', '``')}` {type_}" for name, type_ in columns)
