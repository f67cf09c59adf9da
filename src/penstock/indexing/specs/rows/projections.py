"""Druid's projections of a datasource, ``projections``: their form, and their validation.

A projection is a set of aggregates that is kept in addition to the rows, so that a query for such
aggregates is answered faster. It changes neither answers nor ingestion: the router builds it from
the existing segments (`spark.projections`). Projections are checked against the columns of the
datasource when they are submitted, because nothing would report a mistake later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from penstock.indexing.specs.aggregators import Aggregator
from penstock.indexing.specs.druid_expressions import (
    Binary,
    Expression,
    FunctionCall,
    Name,
    Unary,
    parse,
)
from penstock.indexing.specs.errors import did_you_mean
from penstock.indexing.specs.filters import Filter
from penstock.indexing.specs.rows.dimensions import COLUMNS_MAX, Dimension
from penstock.indexing.specs.scalars import TIME_COLUMN, ColumnName, Flag
from penstock.indexing.specs.spec_base import (
    Found,
    IgnoredValue,
    SpecModel,
    as_mistake,
    mistake,
    mistakes,
    refuse_types,
)

PROJECTIONS_MAX: Final = 1_000
# Finding similar names is slow, so it is limited to this many mistakes and columns.
_HINTS_MAX: Final = 20
_HINTS_COLUMNS_MAX: Final = 1_000

_COLUMN_TYPE: Final = re.compile(
    r"(?:LONG|FLOAT|DOUBLE|STRING|ARRAY<(?:LONG|FLOAT|DOUBLE|STRING)>|COMPLEX<[A-Za-z0-9_.]+>)",
    re.IGNORECASE,
)
# How each aggregator is combined: counts are summed, sketches are merged.
_COMBINING: Final = {"count": "longSum", "HLLSketchBuild": "HLLSketchMerge"}

_REFUSED: Final = dict.fromkeys(
    ("mv-filtered", "mv-prefix-filtered", "mv-regex-filtered", "fallback"),
    "group by a column of the data, or by an expression",
)


def _column_type(text: str) -> str:
    if not _COLUMN_TYPE.fullmatch(text):
        raise mistake(f"{text!r} is not a type of column: use LONG, DOUBLE, STRING, ARRAY<LONG> …")
    return text


def _druids_expression(text: str) -> str:
    with as_mistake():
        parse(text)
    return text


ColumnType = Annotated[str, AfterValidator(_column_type)]
_NameText = Annotated[str, Field(min_length=1)]


class ExpressionColumn(SpecModel):
    """A virtual column that an expression of Druid's language computes."""

    type: Literal["expression"]
    name: ColumnName
    expression: Annotated[str, Field(min_length=1), AfterValidator(_druids_expression)]
    output_type: ColumnType | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(dict.fromkeys(_names(parse(self.expression))))


class NestedFieldColumn(SpecModel):
    """A virtual column that is a part of a nested column."""

    type: Literal["nested-field"]
    column_name: _NameText
    output_name: ColumnName
    path: str | None = None
    path_parts: tuple[dict[str, JsonValue], ...] | None = None
    expected_type: ColumnType | None = None
    process_from_raw: Flag | None = None
    use_jq_syntax: Flag | None = None

    @model_validator(mode="after")
    def _check_path(self) -> NestedFieldColumn:
        if self.path is None and self.path_parts is None:
            text = "specify the part to extract: set this or pathParts"
            raise mistakes("NestedFieldColumn", [(("path",), None, text)])
        return self

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.output_name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The column that it reads."""
        return (self.column_name,)


VirtualColumn = Annotated[
    ExpressionColumn | NestedFieldColumn, Field(discriminator="type"), refuse_types(_REFUSED)
]


class GroupingColumn(Dimension):
    """A column that a projection groups by: a dimension, a virtual column, or the time."""

    name: _NameText

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"createBitmapIndex": IgnoredValue.FLAG}


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class Projection(SpecModel):
    """Aggregates kept in addition to the rows, built when a query first needs them.

    Only sums, minima, maxima and counts are kept; a query for other aggregates reads the rows.
    """

    type: Literal["aggregate"]
    name: _NameText
    filter: Filter | None = None
    virtual_columns: tuple[VirtualColumn, ...] = Field(default=(), max_length=COLUMNS_MAX)
    grouping_columns: tuple[Annotated[GroupingColumn, BeforeValidator(_named)], ...] = Field(
        default=(), max_length=COLUMNS_MAX
    )
    aggregators: tuple[Aggregator, ...] = Field(default=(), max_length=COLUMNS_MAX)

    # Derived from the grouping columns; Druid writes it.
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"ordering": IgnoredValue.ANY}

    @model_validator(mode="after")
    def _check_names(self) -> Projection:
        found: Found = []
        if not self.grouping_columns and not self.aggregators:
            text = "must not be empty if aggregators is empty, too: the projection has no columns"
            found.append((("groupingColumns",), None, text))
        virtual = [("virtualColumns", i, c.name) for i, c in enumerate(self.virtual_columns)]
        made = [("groupingColumns", i, c.name) for i, c in enumerate(self.grouping_columns)]
        made += [("aggregators", i, a.name) for i, a in enumerate(self.aggregators)]
        for places in (virtual, made):
            first: dict[str, str] = {}
            for part, number, name in places:
                place = f"{part}[{number}]"
                if first.setdefault(name, place) != place:
                    text = f"duplicate column {name!r}: {first[name]} has it already"
                    found.append(((part, number), name, text))
        circular = _circular(self.virtual_columns)
        for number, column in enumerate(self.virtual_columns):
            if column.name in circular:
                text = f"{column.name!r} is computed from itself, or from a column that is circular"
                found.append((("virtualColumns", number), column.name, text))
        if found:
            raise mistakes("Projection", found)
        return self


@dataclass(frozen=True, slots=True)
class BaseColumns:
    """The columns of a datasource that projections may use.

    Attributes:
        dimensions: The dimensions, by name.
        metrics: The metrics, by name.
        are_all: Whether the datasource has no other columns; discovery may add columns.
    """

    dimensions: Mapping[str, Dimension]
    metrics: Mapping[str, Aggregator]
    are_all: bool


def _of_different_names(projections: tuple[Projection, ...]) -> tuple[Projection, ...]:
    found: Found = []
    first: dict[str, int] = {}
    for number, projection in enumerate(projections):
        if (at := first.setdefault(projection.name, number)) != number:
            text = f"duplicate name {projection.name!r}: projections[{at}] has it already"
            found.append(((number, "name"), projection.name, text))
    if found:
        raise mistakes("Projection", found)
    return projections


Projections = Annotated[
    tuple[Projection, ...],
    # Left out if empty, because earlier releases do not know this field.
    Field(max_length=PROJECTIONS_MAX, exclude_if=lambda value: not value),
    AfterValidator(_of_different_names),
]


def projection_mistakes(projections: Sequence[Projection], base: BaseColumns) -> Found:
    """Return the columns of projections that the datasource lacks, or that differ from its own.

    Places begin with ``projections``.
    """
    found: Found = []
    hints = _Hints()
    for number, projection in enumerate(projections):
        virtual = {column.name for column in projection.virtual_columns}
        for part, name, text in _mistakes_in_columns(projection, virtual, base, hints):
            found.append((("projections", number, *part), name, text))
    return found


class _Hints:
    """Error texts for unknown columns, with similar names as long as that is fast."""

    def __init__(self) -> None:
        self._left = _HINTS_MAX

    def unknown_column_text(self, name: str, known: Collection[str]) -> str:
        """Return the text for a name that is not among the known columns."""
        text = f"unknown column {name!r}"
        if not self._left or len(known) > _HINTS_COLUMNS_MAX:
            return text
        self._left -= 1
        return text + did_you_mean(name, sorted(known))


_Part = tuple[tuple[str | int, ...], object, str]


def _mistakes_in_columns(
    projection: Projection, virtual: set[str], base: BaseColumns, hints: _Hints
) -> Iterator[_Part]:
    known = {TIME_COLUMN, *virtual, *base.dimensions}
    readable = known | base.metrics.keys()
    for number, column in enumerate(projection.virtual_columns):
        for name in column.inputs:
            if base.are_all and name not in readable:
                field = "expression" if isinstance(column, ExpressionColumn) else "columnName"
                # pydantic also puts the tag of the union before its field.
                at = ("virtualColumns", number, column.type, field)
                yield at, name, hints.unknown_column_text(name, readable)
    for number, grouping in enumerate(projection.grouping_columns):
        name = grouping.name
        dimension = None if name in virtual else base.dimensions.get(name)
        if base.are_all and name not in known:
            yield ("groupingColumns", number, "name"), name, hints.unknown_column_text(name, known)
        elif dimension is not None and dimension.type != grouping.type:
            text = f"must be {dimension.type}, as in dimensionsSpec, not {grouping.type}"
            yield ("groupingColumns", number, "type"), grouping.type, text
    for number, aggregator in enumerate(projection.aggregators):
        for field, name, text in _mistakes_in_aggregator(aggregator, known, virtual, base, hints):
            yield ("aggregators", number, field), name, text
    if projection.filter is not None and base.are_all:
        for name in _filtered_columns(projection.filter.model_dump(mode="json", by_alias=True)):
            if name not in known:
                yield ("filter",), name, hints.unknown_column_text(name, known)


def _mistakes_in_aggregator(
    aggregator: Aggregator,
    known: set[str],
    virtual: set[str],
    base: BaseColumns,
    hints: _Hints,
) -> Iterator[tuple[str, str, str]]:
    metric = base.metrics.get(aggregator.name)
    if metric is not None:
        if not _combines(aggregator, metric):
            type_ = _COMBINING.get(metric.type, metric.type)
            text = f"is a metric of the datasource: aggregate it by {type_} of {metric.name!r}"
            yield "name", aggregator.name, text
        return
    field = "fields" if aggregator.fields is not None else "fieldName"
    for name in aggregator.inputs:
        if name in base.metrics and name not in virtual:
            text = f"{name!r} is a metric, aggregated only under its own name: use that name"
            yield field, name, text
        elif base.are_all and name not in known:
            yield field, name, hints.unknown_column_text(name, known | base.metrics.keys())


def _combines(aggregator: Aggregator, metric: Aggregator) -> bool:
    """Return whether an aggregator of a projection combines a metric of the datasource."""
    if aggregator == metric:
        return True
    of_itself = aggregator.field_name == metric.name or aggregator.fields == (metric.name,)
    return of_itself and aggregator.type in {metric.type, _COMBINING.get(metric.type)} - {"count"}


def _filtered_columns(node: JsonValue) -> Iterator[str]:
    if isinstance(node, list):
        for one in node:
            yield from _filtered_columns(one)
    if not isinstance(node, dict):
        return
    for field in ("dimension", "column"):
        if isinstance(name := node.get(field), str):
            yield name
    if isinstance(names := node.get("dimensions"), list):
        yield from map(str, names)
    for field in ("field", "fields"):
        yield from _filtered_columns(node.get(field))


def _circular(columns: Sequence[ExpressionColumn | NestedFieldColumn]) -> frozenset[str]:
    """Return the virtual columns that are computed from themselves, directly or indirectly."""
    names = {column.name for column in columns}
    inputs = {column.name: names.intersection(column.inputs) for column in columns}
    readers: dict[str, list[str]] = {name: [] for name in names}
    for name, read in inputs.items():
        for one in read:
            readers[one].append(name)
    left = {name: len(read) for name, read in inputs.items()}
    ready = [name for name, count in left.items() if not count]
    for name in ready:
        for reader in readers[name]:
            left[reader] -= 1
            if not left[reader]:
                ready.append(reader)
    return frozenset(names.difference(ready))


def _names(node: Expression) -> Iterator[str]:
    match node:
        case Name(name):
            yield name
        case Unary(_, operand):
            yield from _names(operand)
        case Binary(_, left, right):
            yield from _names(left)
            yield from _names(right)
        case FunctionCall(_, arguments):
            for argument in arguments:
                yield from _names(argument)
        case _:
            return
