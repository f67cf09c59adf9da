"""A projection as a table: existing files are read, the remaining rows are aggregated on the fly.

Owns the plan of both, and the temporary views of projections in one Spark session. Not thread-safe:
`selector` holds its mutex during calls.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from penstock.spark.ddl import quoted
from penstock.spark.expressions import column
from penstock.spark.projections.plan import Measure, ProjectionPlan
from penstock.spark.sql_guard import check_expressions, constants_kept
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.spark.views import null_row, table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_VIEWS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ViewFiles:
    """The parts of a projection's table.

    Attributes:
        made: Files of the projection, without columns.
        rest: Files of the datasource whose rows are aggregated on the fly.
    """

    made: tuple[TableFile, ...]
    rest: tuple[TableFile, ...]


@dataclass(frozen=True, slots=True)
class _Defined:
    """Parts of a defined view, and the newest metadata revision at which they were correct."""

    revision: int
    parts: ViewFiles


def summed(rows: DataFrame, plan: ProjectionPlan, *extra_keys: Column) -> DataFrame:
    """Return rows of a datasource aggregated as a projection's rows.

    Args:
        rows: The rows, with all columns of the datasource.
        plan: The projection.
        extra_keys: Further named grouping columns, before the projection's own keys.
    """
    for condition in plan.conditions:
        rows = rows.where(sf.expr(condition))
    keys = [sf.expr(key.sql).alias(key.stored) for key in plan.keys]
    grouped = rows.groupBy(*extra_keys, *keys) if extra_keys or keys else rows.groupBy()
    found = grouped.agg(*(_measured(one) for one in plan.measures))
    if keys or extra_keys:
        return found
    # Without rows there is one group if there are no grouping columns, and none otherwise.
    return found.where(column(_rows_of(plan)) > 0)


def view_name(datasource: str, plan: ProjectionPlan) -> str:
    """Return the name of a projection's view, which needs no quotes."""
    whole = hashlib.sha256(f"{plan.digest} {datasource}".encode()).hexdigest()
    return f"projection_{whole[:32]}"


class ProjectionViews:
    """Views of projections in one Spark session."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._defined: dict[str, _Defined] = {}
        self._stored: dict[str, Columns] = {}

    def shows(self, name: str, revision: int, parts: ViewFiles) -> bool:
        """Return whether the view shows these parts, or those of a later revision.

        A slow query must not replace the view that newer queries use by an older one.
        """
        known = self._defined.get(name)
        if known is not None and known.parts == parts:
            self._defined[name] = _Defined(max(revision, known.revision), parts)
            return True
        return known is not None and known.revision > revision

    def define(
        self, name: str, plan: ProjectionPlan, columns: Columns, revision: int, parts: ViewFiles
    ) -> None:
        """Define the view of a name, which does not show these parts yet."""
        self._table(name, plan, columns, parts).createOrReplaceTempView(quoted(name))
        self._defined.pop(name, None)
        self._defined[name] = _Defined(revision, parts)  # the last entry is the newest
        for old in list(self._defined)[:-_VIEWS_MAX]:
            self.session.catalog.dropTempView(old)
            del self._defined[old], self._stored[old]

    def forget(self, name: str) -> None:
        """Redefine the view of a name at its next use."""
        if known := self._defined.get(name):
            self._defined[name] = _Defined(known.revision, ViewFiles((), ()))

    def _table(
        self, name: str, plan: ProjectionPlan, columns: Columns, parts: ViewFiles
    ) -> DataFrame:
        stored = self._stored.get(name)
        if stored is None:
            stored = self._stored[name] = stored_columns(self.session, plan, columns)
        if not parts.made:
            return summed(table(self.session, parts.rest, columns), plan)
        made = table(self.session, [with_columns(one, stored) for one in parts.made], stored)
        if not parts.rest:
            return made
        return made.unionAll(summed(table(self.session, parts.rest, columns), plan))


def stored_columns(session: SparkSession, plan: ProjectionPlan, columns: Columns) -> Columns:
    """Return the columns of a projection's files with the types that Spark reports.

    Args:
        session: A Spark session with `OUTLINE_CONF`.
        plan: The projection.
        columns: Columns of the whole datasource.

    Raises:
        InvalidRequest: Spark resolves an expression to more than reading its row.
    """
    rows = summed(null_row(session, columns), plan)
    with constants_kept(session):
        check_expressions(rows)
    return tuple((field.name, field.dataType.simpleString()) for field in rows.schema.fields)


def with_columns(file: TableFile, columns: Columns) -> TableFile:
    """Return the same file with columns."""
    return TableFile(file.path, columns, file.interval, size_bytes=file.size_bytes)


def _measured(measure: Measure) -> Column:
    given = sf.lit(1) if measure.kind == "rows" else column(measure.column)
    of_kind = {"rows": sf.count, "values": sf.count, "sum": sf.sum, "min": sf.min, "max": sf.max}
    return of_kind[measure.kind](given).alias(measure.stored)


def _rows_of(plan: ProjectionPlan) -> str:
    return next(one.stored for one in plan.measures if one.kind == "rows")
