"""Twins: columns of one table whose names differ in case alone. Pure.

Names fold case, as Spark's do, unless a table has twins; then its names are exact. This module
owns which names are twins and how a name finds its column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")


def twins_in(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that differ from another one in case alone, in their order, each once."""
    groups: dict[str, list[str]] = {}
    order = list(dict.fromkeys(names))
    for name in order:
        groups.setdefault(name.lower(), []).append(name)
    if len(groups) == len(order):
        return ()
    return tuple(name for name in order if len(groups[name.lower()]) > 1)


def shown_twins(twins: Sequence[str]) -> str:
    """Return the first twins for a message: `"City" and "city"`."""
    first = twins[0].lower()
    *others, last = (f'"{name}"' for name in twins if name.lower() == first)
    return f"{', '.join(others)} and {last}" if others else last


class ColumnNames(Generic[_T]):
    """Values of the columns of a table, found by a name.

    Args:
        columns: By the name of its column.
        exact: Whether case counts; None: if there are twins among the columns.
    """

    def __init__(self, columns: Mapping[str, _T], *, exact: bool | None = None) -> None:
        self._exact = bool(twins_in(columns)) if exact is None else exact
        self._found = dict(columns)
        if not self._exact:
            self._found = {}
            for name, value in columns.items():
                self._found.setdefault(name.lower(), value)

    def get(self, name: str) -> _T | None:
        """Return what belongs to the column; None if there is no such column."""
        return self._found.get(name if self._exact else name.lower())
