"""Tables of which a principal sees some rows, or some values replaced.

Owns the principal of a statement (`SqlReader`), the SQL that stands between a view with all rows
and the statement, and the errors of such statements. `core.access.row_rules` has the rules, and
`sql_guard.hidden_query` writes the SQL around the statement, where it stands below everything that
the statement can do.

Invariant: an expression of the statement is evaluated for visible rows only, so that its errors
tell nothing about the others. Spark moves conditions of a statement down to the files and evaluates
conditions in any order, but does not move them below a sample. So a sample of all rows stands above
a filter; `Sample` keeps a row if a random number of [0, 1) is below 1.0, thus every row. Unlike
with a condition that is not deterministic, which Spark does not pass either, LATERAL works, and a
table that is named twice is not computed for both at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.access.row_rules import HASH, NULL, RowRules, folded_column
from penstock.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    PenstockError,
    StorageUnavailable,
)
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.spark.connect.spark_sessions import SparkRefusal
from penstock.spark.ddl import quoted
from penstock.spark.tables.readable_tables import ReadableTables, listed_tables, readable_tables
from penstock.spark.tables.table_files import Columns, TableFile, Tables, TableSource

_TEXT: Final = "string"
_CODE: Final = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")


@dataclass(frozen=True, slots=True)
class SqlReader:
    """The principal of a query. Datasources that it may not read do not exist for the query.

    Attributes:
        rights: Text that principals with the same rights share.
        rows_of: Returns what it may see of a datasource, by its stored name; None: nothing.
        mask_key: Returns the key of hashes in masks, in hexadecimal digits.
    """

    rights: str
    rows_of: Callable[[str], RowRules | None]
    mask_key: Callable[[], str] = str

    def may_read(self, name: str) -> bool:
        """Return whether it may see anything of a datasource."""
        return self.rows_of(name) is not None

    def sees_part_of(self, names: Iterable[str]) -> bool:
        """Return whether a filter or a mask applies to it and one of these datasources."""
        return any(rows is not None and rows.is_limited for rows in map(self.rows_of, names))


@dataclass(frozen=True, slots=True)
class SeenTables:
    """The tables of one statement, as its principal sees them.

    Attributes:
        tables: The datasources that exist for it.
        every: The files of all datasources, whose views others use.
        limits: The filters and masks of the datasources that it sees in part.
        mask_key: As in `SqlReader`.
    """

    tables: Tables
    every: Mapping[str, tuple[TableFile, ...]]
    limits: Mapping[str, RowRules]
    mask_key: Callable[[], str] = str

    def sql_of(self, name: str, view: str, columns: Columns) -> str:
        """Return the SQL of a datasource that it sees in part. Arguments as `limited_table`."""
        return limited_table(view, columns, self.limits[name], self.mask_key)


def seen_tables(
    source: TableSource, reader: SqlReader | None, *, may_be_none: bool = False
) -> SeenTables:
    """Return what a principal sees of a source now.

    Args:
        source: The source of all datasources.
        reader: The principal; None: one that may read everything.
        may_be_none: Whether the query makes sense for a principal that sees no datasource.

    Raises:
        Forbidden: There are rows, but the principal may read none.
        Unavailable: The datasources cannot be listed.
    """
    if reader is None:
        tables = source.tables()
        return SeenTables(tables, tables.files, {})
    every = listed_tables(source)
    # One answer for each datasource: rights and filters may change meanwhile.
    rows = {name: reader.rows_of(name) for name in every.files}
    tables = readable_tables(every, lambda name: rows[name] is not None)
    if every.files and not tables.files and not may_be_none:
        raise Forbidden(
            "you may read no datasource that has rows, so there is nothing to query: ask an"
            " administrator for the right to read one"
        )
    limits = {name: found for name, found in rows.items() if found and found.is_limited}
    return SeenTables(tables, every.files, limits, reader.mask_key)


def readable_source(source: TableSource, reader: SqlReader | None) -> TableSource:
    """Return the source of the datasources that exist for a principal, for messages to it."""
    return source if reader is None else ReadableTables(source, reader.may_read)


def limited_table(view: str, columns: Columns, rules: RowRules, key: Callable[[], str]) -> str:
    """Return the SQL of the visible rows and values of a view, on one line.

    Args:
        view: The name of the view with all rows.
        columns: Its columns; the result has the same names and types.
        rules: The filter and the masks.
        key: Returns the key of hashes, in hexadecimal digits.
    """
    masks = dict(rules.masks)
    shown = (
        quoted(name) if mask is None else _masked(name, type_, mask, key)
        for name, type_ in columns
        for mask in [masks.get(folded_column(name))]
    )
    rows = f"FROM {quoted(view)}"
    if rules.condition:
        # Without TRUE, Spark reads `t WHERE (a)` as a table with the alias WHERE and a column `a`.
        where = f"WHERE TRUE AND ({rules.condition})"
        rows = f"FROM (SELECT * {rows} {where}) TABLESAMPLE (100 PERCENT)"
    return f"SELECT {', '.join(shown)} {rows}"


def _masked(name: str, type_: str, mask: str, key: Callable[[], str]) -> str:
    value = mask
    if mask == HASH and type_ != _TEXT:
        value = NULL
    elif mask == HASH:
        # HMAC without its padding. The inner digest has a fixed length, so a longer text does not
        # continue a shorter one.
        secret = key()
        inner = f"sha2(concat('{secret}', {quoted(name)}), 256)"
        value = f"sha2(concat('{secret}', {inner}), 256)"
    # The outlines, over which a statement is resolved, have the types of the columns.
    return f"TRY_CAST(({value}) AS {type_}) AS {quoted(name)}"


def refused_filter(name: str) -> InvalidRequest:
    """Return the error of a statement over a table whose filter names a column that it lacks."""
    return InvalidRequest(
        f'"{name}" shows no rows, because a row filter of your roles names a column that it does'
        " not have: ask an administrator to correct the filter; the log of the router has the name"
    )


def refused_explanation(names: Iterable[str]) -> InvalidRequest:
    """Return the error for EXPLAIN of limited tables, whose plan has the filter's values."""
    return InvalidRequest(
        f"EXPLAIN is not available for {_listed(names)}, because a row filter or a column mask"
        " applies: run the query itself, or ask an administrator for its plan"
    )


def refused_projection(names: Iterable[str], place: str) -> InvalidRequest:
    """Return the error for a required projection of limited tables."""
    return InvalidRequest(
        f"no projection answers this query: a row filter or a column mask applies to"
        f" {_listed(names)}, and projections contain all rows. Leave it out, and the rows answer",
        place=place,
    )


def refused_rows(error: SparkRefusal, names: Iterable[str]) -> InvalidRequest:
    """Return the error of a statement that failed while it ran over limited tables.

    Spark's message may have a value of a row that is not visible, if the filter itself failed, or
    the text of the filter.
    """
    return InvalidRequest(
        f"the query failed{_code_of(error)}. Details are not shown, because a row filter or a"
        f" column mask applies to {_listed(names)}: check divisors, casts and other computations of"
        " the query; if SELECT count(*) fails too, ask an administrator to correct the filter"
    )


def without_details(error: PenstockError) -> PenstockError:
    """Return an error for a principal with limited tables, without Spark's text and files' names.

    Errors of the statement itself are returned as they are: `refused_rows` has no details either.
    """
    if isinstance(error, InvalidRequest | Conflict):
        return error
    hidden = (
        f"the query failed{_code_of(error)}. Details are not shown, because row filters or column"
        " masks apply to you: try again, or ask an administrator: the reason is in the"
        " log of the router"
    )
    if isinstance(error, StorageUnavailable):
        return StorageUnavailable(hidden)
    return (EngineUnavailable if isinstance(error, EngineUnavailable) else EngineFailure)(hidden)


def _code_of(error: PenstockError) -> str:
    found = _CODE.search(str(error))
    return f" ({found[1]})" if found else ""


def _listed(names: Iterable[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)
