"""What a projection holds, resolved against the columns that its datasource has. Plain records.

A file of a projection has one row for each group of rows of one file of the datasource: its keys,
and its measures, which are sums, counts and extremes that can be put together further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.core.intervals import Granularity

MeasureKind = Literal["rows", "values", "sum", "min", "max"]


@dataclass(frozen=True, slots=True)
class Key:
    """A column by which rows are grouped.

    Attributes:
        stored: Its name in the projection's files: that of a column of the datasource if it is one,
            else one that no datasource has.
        sql: What it is, in Spark SQL over the columns of the datasource.
        time: If it is the time, what it is cut to; `NONE`: nothing is cut.
    """

    stored: str
    sql: str
    time: Granularity | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """What is kept of a group: how many rows, or of a column how many values, or one of them.

    Attributes:
        kind: `rows` counts rows, `values` those whose column is not null.
        column: The column of the datasource; empty for `rows`.
        stored: Its name in the projection's files, which no datasource has.
    """

    kind: MeasureKind
    column: str
    stored: str


@dataclass(frozen=True, slots=True)
class ProjectionPlan:
    """One projection of one datasource.

    Attributes:
        name: As the spec has it.
        keys: By what rows are grouped; none: all rows of a file are one group.
        measures: What is kept of each group; the number of rows always.
        conditions: Which rows count, in Spark SQL, all to be true; none: all rows.
        digest: Of all of this and of the types of the columns that are read: files of another
            digest hold something else. 16 hexadecimal digits.
    """

    name: str
    keys: tuple[Key, ...]
    measures: tuple[Measure, ...]
    conditions: tuple[str, ...]
    digest: str
