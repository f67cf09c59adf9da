"""Case variants: columns of one table whose names differ only in case. Pure.

Names are case-insensitive, as in Spark, unless a table has case variants; then names are exact.
This module owns which names are case variants and how a name finds its column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")


def case_variants_in(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that differ from another one only in case, in order, without duplicates."""
    groups: dict[str, list[str]] = {}
    order = list(dict.fromkeys(names))
    for name in order:
        groups.setdefault(name.lower(), []).append(name)
    if len(groups) == len(order):
        return ()
    return tuple(name for name in order if len(groups[name.lower()]) > 1)


def shown_case_variants(case_variants: Sequence[str]) -> str:
    """Return the first group of case variants for a message: `"City" and "city"`."""
    first = case_variants[0].lower()
    *others, last = (f'"{name}"' for name in case_variants if name.lower() == first)
    return f"{', '.join(others)} and {last}" if others else last


class ColumnNames(Generic[_T]):
    """Looks up values of a table's columns by name.

    Args:
        columns: The values by the names of their columns.
        exact: Whether case matters; None: only if there are case variants among the columns.
    """

    def __init__(self, columns: Mapping[str, _T], *, exact: bool | None = None) -> None:
        self._exact = bool(case_variants_in(columns)) if exact is None else exact
        self._found = dict(columns)
        if not self._exact:
            self._found = {}
            for name, value in columns.items():
                self._found.setdefault(name.lower(), value)

    def get(self, name: str) -> _T | None:
        """Return the value of a column; None if it does not exist."""
        return self._found.get(name if self._exact else name.lower())
