"""Columns of a table that has many files. Pure.

If a column has different types in different files, the widest one counts: bigint and double become
double, text and any other type become text. A column that a file lacks is null there.

Names ignore case, as in Spark, so a column whose producer changed its case is one column. If the
rows of one segment have two names that differ only in case (`core.column_case`), names are exact in
the whole datasource, so that both can be queried. The files of one segment count together, so that
merging them changes nothing; see decision 47.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from penstock.core.column_case import case_variants_in
from penstock.spark.tables.table_files import Columns, TableFile

_NUMBERS: Final = ("bigint", "float", "double")


def union_columns(files: Sequence[TableFile]) -> Columns:
    """Return the columns of all files together, in the order of their first appearance.

    Some of them are case variants only if names are exact.
    """
    # Most files have the same columns, and the wider of two types stays the wider.
    distinct = list(dict.fromkeys(file.columns for file in files))
    found = _united(distinct, fold=False)
    if not case_variants_in(name for name, _ in found) or _are_exact(files):
        return found
    return _united(distinct, fold=True)


def _united(distinct: Iterable[Columns], *, fold: bool) -> Columns:
    types: dict[str, str] = {}
    names: dict[str, str] = {}
    for columns in distinct:
        for name, type_ in columns:
            key = name.lower() if fold else name
            names.setdefault(key, name)
            types[key] = wider(types.get(key, type_), type_)
    return tuple((names[key], type_) for key, type_ in types.items())


def _are_exact(files: Iterable[TableFile]) -> bool:
    """Return whether the rows of one segment have case variants."""
    segments: dict[str, set[Columns]] = {}
    published: set[Columns] = set()
    for file in files:
        kinds = segments.setdefault(file.part_of, set()) if file.part_of else published
        kinds.add(file.columns)
    return any(case_variants_in(name for name, _ in columns) for columns in published) or any(
        case_variants_in(name for columns in kinds for name, _ in columns)
        for kinds in segments.values()
    )


def wider(one: str, other: str) -> str:
    """Return the type that holds the values of both."""
    if one == other:
        return one
    return "double" if one in _NUMBERS and other in _NUMBERS else "string"


class KnownColumns:
    """The columns of each datasource, found again only where its files changed.

    Any thread may ask: each entry is replaced as a whole.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Sequence[TableFile], Columns]] = {}

    def keep(self, datasources: Collection[str]) -> None:
        """Forget all other datasources."""
        for gone in self._known.keys() - datasources:
            self._known.pop(gone, None)

    def of(self, datasource: str, files: Sequence[TableFile]) -> Columns:
        """Return the columns of a datasource that has these files."""
        known = self._known.get(datasource)
        if known is not None and (known[0] is files or known[0] == files):
            return known[1]
        columns = union_columns(files)
        self._known[datasource] = (files, columns)
        return columns
