"""Plan of a projection, resolved against the columns of its datasource. Plain records.

A file of a projection has one row for each group of rows of one file of the datasource. A row has
the keys, and the measures, which are sums, counts and extremes that can be aggregated further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.core.intervals import Granularity

MeasureKind = Literal["rows", "values", "sum", "min", "max"]


@dataclass(frozen=True, slots=True)
class GroupingKey:
    """A column by which rows are grouped.

    Attributes:
        stored: Its name in the projection's files: the name of the datasource's column if it is
            one, otherwise a name that no datasource has.
        sql: Its expression, in Spark SQL over the columns of the datasource.
        time: For the time, the granularity to which it is truncated; `NONE`: not truncated.
    """

    stored: str
    sql: str
    time: Granularity | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate of a group: the number of rows, or the number of values or a value of a column.

    Attributes:
        kind: `rows` counts rows, `values` those whose column is not null.
        column: The column of the datasource; empty for `rows`.
        stored: Its name in the projection's files, a name that no datasource has.
    """

    kind: MeasureKind
    column: str
    stored: str


@dataclass(frozen=True, slots=True)
class ProjectionPlan:
    """One projection of one datasource.

    Attributes:
        name: Name in the spec.
        keys: Grouping columns; empty: all rows of a file are one group.
        measures: Aggregates of each group, always with the number of rows.
        conditions: Spark SQL conditions that all rows meet; empty: all rows.
        digest: Digest of all of this and of the types of the columns that are read, 16 hexadecimal
            digits. Files of another digest have other content.
    """

    name: str
    keys: tuple[GroupingKey, ...]
    measures: tuple[Measure, ...]
    conditions: tuple[str, ...]
    digest: str
