"""Selection of an input of segments: rows that match its filter, and some of their columns.

Owns the columns that only the filter reads, and the mark of rows that match. The filter sees the
types of the segments, for example a long although a metric reads it as a double; transforms and the
rest of a spec see the selected rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import functions as sf

from penstock.core.column_case import case_variants_in
from penstock.indexing.batch.batch_engine import BatchInput, SegmentInput
from penstock.indexing.specs import TIME_COLUMN, Filter
from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.spark.expressions import column
from penstock.spark.filter_conditions import condition, expressions_in
from penstock.spark.schema_columns import filter_columns
from penstock.spark.sql_guard import check_expressions, constants_kept
from penstock.spark.topic.row_shape import FieldType, RowShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FLOATING: Final = frozenset({FieldType.DOUBLE, FieldType.FLOAT})
MARK: Final = f"{OWN_PREFIX}selected"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SegmentSelection:
    """A filter of rows, and hidden columns; false if nothing is filtered or hidden.

    `longs` are the columns that are longs in all segments with them. With `exact`, column names
    are case-sensitive, because a segment has some that differ only in case (`core.column_case`).
    """

    filter: Filter | None = None
    hidden: frozenset[str] = frozenset()
    longs: frozenset[str] = frozenset()
    exact: bool = False

    def __bool__(self) -> bool:
        return self.filter is not None or bool(self.hidden)

    @property
    def mark(self) -> str | None:
        """Return the column that marks matching rows; None: all rows match."""
        return None if self.filter is None else MARK

    def shown(self, columns: Mapping[str, _T]) -> dict[str, _T]:
        """Return the columns that are not hidden."""
        return {name: value for name, value in columns.items() if name not in self.hidden}

    def shape(self, shape: RowShape, *, exact: bool = False) -> RowShape:
        """Return the shape to read, which includes the columns of the filter.

        With `exact`, column names are case-sensitive.
        """
        if self.filter is None:
            return shape

        def key(name: str) -> str:
            # Unless names are exact, a field that differs only in case would make every reference
            # ambiguous, because Spark ignores case.
            return name if exact else name.lower()

        known = {key(name) for name, _ in shape.fields} | {TIME_COLUMN}
        seen = self.longs & set(filter_columns(self.filter))
        # The text of a double differs from that of a long.
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
        """Return the rows with their mark, if there is a filter, and without hidden columns.

        Args:
            rows: Rows of the shape `self.shape(shape)`.
            shape: The requested shape.

        Raises:
            InvalidRequest: Spark resolves an expression of the filter to more than its row.
        """
        columns = [sf.col(TIME_COLUMN)]
        for name, type_ in shape.fields:
            value = sf.lit(None) if name in self.hidden else column(name)
            columns.append(value.cast(str(type_)).alias(name))
        if self.filter is None:
            return rows.select(*columns)
        columns.append(condition(self.filter).alias(MARK))
        selected = rows.select(*columns)
        if expressions_in(self.filter):
            with constants_kept(rows.sparkSession):
                check_expressions(selected)
        return selected


def selection_of(given: BatchInput) -> SegmentSelection:
    """Return the selection of an input; only segments as a single input may have one."""
    if isinstance(given, SegmentInput):
        kinds = {file.columns for file, _ in given.files}
        exact = any(case_variants_in(name for name, _ in columns) for columns in kinds)
        return SegmentSelection(given.filter, given.hidden, _longs(given), exact)
    return SegmentSelection()


def _longs(given: SegmentInput) -> frozenset[str]:
    kinds = {column for file, _ in given.files for column in file.columns}
    others = {name for name, kind in kinds if kind != str(FieldType.LONG)}
    return frozenset(name for name, _ in kinds if name not in others)
