"""What an input of segments shows of its rows: those that meet its filter, some of their columns.

Owns the columns that are read for the filter alone, and the mark by which rows are told to pass.
The filter sees what the segments have, a long as a long, though a metric may want it as a double;
transforms and the rest of a spec see what is selected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import functions as sf

from penstock.core.twins import twins_in
from penstock.indexing.batch.engine import BatchInput, SegmentInput
from penstock.indexing.spec import TIME_COLUMN, Filter
from penstock.indexing.spec.scalars import OWN_PREFIX
from penstock.spark.columns import filter_columns
from penstock.spark.expressions import column
from penstock.spark.filters import condition
from penstock.spark.topic.rowshape import FieldType, RowShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FLOATING: Final = frozenset({FieldType.DOUBLE, FieldType.FLOAT})
MARK: Final = f"{OWN_PREFIX}selected"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Selection:
    """A filter and the columns that are hidden behind it; false when it shows everything.

    `longs` are the columns that are longs in all segments that have them; with `exact` case counts
    in the names of columns, as a segment has some that differ in case alone (`core.twins`).
    """

    filter: Filter | None = None
    hidden: frozenset[str] = frozenset()
    longs: frozenset[str] = frozenset()
    exact: bool = False

    def __bool__(self) -> bool:
        return self.filter is not None or bool(self.hidden)

    @property
    def mark(self) -> str | None:
        """The column of selected rows that tells which of them pass; None: all do."""
        return None if self.filter is None else MARK

    def shown(self, columns: Mapping[str, _T]) -> dict[str, _T]:
        """Return the columns that are not hidden."""
        return {name: value for name, value in columns.items() if name not in self.hidden}

    def shape(self, shape: RowShape, *, exact: bool = False) -> RowShape:
        """Return what to read of each row, so that the filter has its columns too.

        With `exact` case counts in the names of columns.
        """
        if self.filter is None:
            return shape

        def key(name: str) -> str:
            # Unless names are exact, a field that differs only in case would make every use
            # ambiguous, as Spark folds it.
            return name if exact else name.lower()

        known = {key(name) for name, _ in shape.fields} | {TIME_COLUMN}
        seen = self.longs & set(filter_columns(self.filter))
        # The text of a double is another.
        fields = [
            (name, FieldType.LONG if name in seen and type_ in _FLOATING else type_)
            for name, type_ in shape.fields
        ]
        more: dict[str, FieldType] = {}
        for name in filter_columns(self.filter):
            if key(name) not in known:
                known.add(key(name))
                more[name] = FieldType.STRING
        return RowShape((*fields, *more.items()), shape.time)

    def select(self, rows: DataFrame, shape: RowShape) -> DataFrame:
        """Return the rows with their mark, if there is a filter, and without what is hidden.

        Args:
            rows: As `self.shape(shape)` has them.
            shape: What is wanted of them.
        """
        columns = [sf.col(TIME_COLUMN)]
        for name, type_ in shape.fields:
            value = sf.lit(None) if name in self.hidden else column(name)
            columns.append(value.cast(str(type_)).alias(name))
        if self.filter is not None:
            columns.append(condition(self.filter).alias(MARK))
        return rows.select(*columns)


def selection_of(given: BatchInput) -> Selection:
    """Return what an input shows; all but segments that stand alone show everything."""
    if isinstance(given, SegmentInput):
        kinds = {file.columns for file, _ in given.files}
        exact = any(twins_in(name for name, _ in columns) for columns in kinds)
        return Selection(given.filter, given.hidden, _longs(given), exact)
    return Selection()


def _longs(given: SegmentInput) -> frozenset[str]:
    kinds = {column for file, _ in given.files for column in file.columns}
    others = {name for name, kind in kinds if kind != str(FieldType.LONG)}
    return frozenset(name for name, _ in kinds if name not in others)
