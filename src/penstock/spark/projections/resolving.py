"""Resolve the projections of a spec to plans, against the datasource's current columns. Pure.

Owns the Spark SQL of a projection's names and expressions, and which of its aggregators become
measures: sums, minimum and maximum values. Sketches, first and last values do not, so a query for
them reads the rows. A projection without an exact counterpart has no plan; its queries read the
rows, too.

Imports the models of specs: processes without projections should not import this module.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Sequence
from typing import Final

import orjson

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity
from penstock.core.sql_text import Token, tokens
from penstock.indexing.specs import TIME_COLUMN, Aggregator
from penstock.indexing.specs.druid_expressions import (
    Call,
    Literal,
    Name,
    as_spark_sql,
    is_druids,
    parse,
)
from penstock.indexing.specs.rows.projections import (
    ExpressionColumn,
    Projection,
    VirtualColumn,
)
from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.spark.projections.conditions import Unresolved, conditions
from penstock.spark.projections.plan import Key, Measure, MeasureKind, ProjectionPlan
from penstock.spark.schema_text import quoted
from penstock.spark.tables.model import Columns
from penstock.spark.transforms.repeatable import is_repeatable

# Version of the files' content, for changes that the fields of a plan do not show.
_FORMAT_NUMBER: Final = 1
_DIGEST_DIGITS: Final = 16

_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_SUMMED: Final = _WHOLE | {"float", "double"}
_ORDERED: Final = _SUMMED | {"string", "boolean", "date", "timestamp"}
_EXPRESSION_LENGTH_MAX: Final = 10_000
_NESTED_MAX: Final = 50

# Constant within a query, but the values in a file would not be those of the query.
_OF_THE_QUERY: Final = frozenset(
    {"now", "curdate", "current_date", "current_timestamp", "unix_timestamp"}
)
# Text that Spark reads as a current time, or that may be one after its escapes are read.
_OF_NOW: Final = re.compile(
    r"[rR]?'\s*(?:(?:now|today|yesterday|tomorrow)\b|[a-z]{0,9}\\[uU0-9ntrbZ])", re.IGNORECASE
)
_CONSTANTS: Final = frozenset({"NULL", "TRUE", "FALSE"})
_MONTHS: Final = {1: "MONTH", 3: "QUARTER", 12: "YEAR"}
_TRUNCATED: Final = frozenset({"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", *_MONTHS.values()})


def plans(
    projections: Sequence[Projection], metrics: Container[str], columns: Columns
) -> tuple[ProjectionPlan, ...]:
    """Return the plans of a datasource's projections, without those that cannot be resolved.

    Args:
        projections: The projections of the spec, in its order.
        metrics: The names of the datasource's metrics.
        columns: (name, Spark SQL type) of the columns of all its visible files.
    """
    found = (_plan(projection, metrics, columns) for projection in projections)
    return tuple(plan for plan in found if plan is not None)


def _plan(
    projection: Projection, metrics: Container[str], columns: Columns
) -> ProjectionPlan | None:
    source = _Source(projection.virtual_columns, columns)
    try:
        keys = tuple(
            source.key(column.name, number)
            for number, column in enumerate(projection.grouping_columns)
        )
        if len({key.stored.lower() for key in keys}) < len(keys):
            return None
        measures = _measures(projection.aggregators, metrics, source)
        wanted = () if projection.filter is None else conditions(projection.filter, source)
    except (Unresolved, InvalidRequest):
        return None
    if any(name.lower().startswith(OWN_PREFIX) for name, _ in source.read):
        return None
    described = {
        "format": _FORMAT_NUMBER,
        "name": projection.name,
        "keys": [[k.stored, k.sql, None if k.time is None else k.time.name] for k in keys],
        "measures": [[m.kind, m.column, m.stored] for m in measures],
        "conditions": wanted,
        "columns": sorted(source.read),
    }
    digest = hashlib.sha256(orjson.dumps(described)).hexdigest()[:_DIGEST_DIGITS]
    return ProjectionPlan(projection.name, keys, measures, wanted, digest)


def _measures(
    aggregators: Sequence[Aggregator], metrics: Container[str], source: _Source
) -> tuple[Measure, ...]:
    wanted: dict[tuple[MeasureKind, str], None] = {("rows", ""): None}
    for aggregator in aggregators:
        kind, field = aggregator.kind, aggregator.field_name
        if aggregator.name in metrics:
            kind, field = "sum" if kind == "count" else kind, aggregator.name
        if kind not in {"sum", "min", "max"} or field is None or field in source.virtual:
            continue
        column, type_ = source.column(field)
        if kind == "sum" and type_ in _SUMMED:
            wanted |= {("sum", column): None, ("values", column): None}
        elif kind in {"min", "max"} and type_ in _ORDERED:
            wanted["min" if kind == "min" else "max", column] = None
    return tuple(
        Measure(kind, column, f"{OWN_PREFIX}{kind}_{number}")
        for number, (kind, column) in enumerate(wanted)
    )


class _Source:
    """Available columns, including computed ones, and which of them were read.

    Attributes:
        virtual: The virtual columns by name.
        read: (name, type) of each requested column of the datasource.
    """

    def __init__(self, virtual: Sequence[VirtualColumn], columns: Columns) -> None:
        self.virtual = {column.name: column for column in virtual}
        self.read: set[tuple[str, str]] = set()
        self._columns = {name.lower(): (name, type_) for name, type_ in columns}

    def column(self, name: str) -> tuple[str, str]:
        """Return (name, type) of a column of the datasource.

        Raises:
            Unresolved: There is no such column, or it is computed.
        """
        found = self._columns.get(name.lower())
        if found is None or name in self.virtual:
            raise Unresolved(name)
        self.read.add(found)
        return found

    def key(self, name: str, number: int) -> Key:
        """Return the key of a grouping column.

        Raises:
            Unresolved: It has no exact counterpart, or cannot be a grouping column.
        """
        virtual = self.virtual.get(name)
        if virtual is None:
            column, type_ = self.column(name)
            if type_ not in _ORDERED:
                raise Unresolved(name)
            is_time = column.lower() == TIME_COLUMN
            return Key(column, quoted(column), Granularity.parse("NONE") if is_time else None)
        stored = f"{OWN_PREFIX}key_{number}"
        time = None if TIME_COLUMN in self.virtual else _time_cut(virtual)
        if time is None:
            return Key(stored, self.computed(virtual))
        time_column, type_ = self.column(TIME_COLUMN)
        if type_ != "timestamp":
            raise Unresolved(name)
        return Key(stored, _cut_sql(time, quoted(time_column)), time)

    def computed(self, column: VirtualColumn, nested: int = 0) -> str:
        """Return a virtual column in Spark SQL over the columns of the datasource.

        Raises:
            Unresolved: It has no exact counterpart.
            InvalidRequest: The expression has none.
        """
        if not isinstance(column, ExpressionColumn):
            raise Unresolved(column.name)
        return self.inlined(
            as_spark_sql(column.expression), translated=is_druids(column.expression), nested=nested
        )

    def inlined(self, sql: str, *, translated: bool, nested: int = 0) -> str:
        """Return an expression with backticks around columns, and virtual columns inlined.

        Args:
            sql: The expression.
            translated: Whether the expression was generated, with all names in quotes.
            nested: Nesting depth of virtual columns.

        Raises:
            Unresolved: It names something other than a column, or its result is not repeatable.
            InvalidRequest: As `computed`.
        """
        if nested > _NESTED_MAX or not is_repeatable(sql):
            raise Unresolved(sql)
        parts: list[str] = []
        at = 0
        found = tokens(sql)
        for token, following in zip(found, [*found[1:], None], strict=True):
            if sql[at : token.position].strip():  # a comment here may be an operator there
                raise Unresolved(sql)
            is_call = bool(token.text) and following is not None and following.text == "("
            is_of_now = token.is_text and _OF_NOW.match(token.raw) is not None
            if is_of_now or (is_call and token.name.lower() in _OF_THE_QUERY):
                raise Unresolved(sql)
            is_name = not is_call and _is_name(token, translated=translated)
            parts += (
                sql[at : token.position],
                self._named(token, nested) if is_name else token.raw,
            )
            at = token.position + len(token.raw)
        text = "".join(parts)
        if len(text) > _EXPRESSION_LENGTH_MAX:
            raise Unresolved(sql)
        return text

    def _named(self, token: Token, nested: int) -> str:
        virtual = self.virtual.get(token.name)
        if virtual is not None:
            return f"({self.computed(virtual, nested + 1)})"
        return quoted(self.column(token.name)[0])


def _is_name(token: Token, *, translated: bool) -> bool:
    if not token.name or token.raw[:1].isdigit():
        return False
    return not token.text or not (translated or token.text in _CONSTANTS)


def _time_cut(column: VirtualColumn) -> Granularity | None:
    """Return the granularity to which a virtual column truncates the time; None for others."""
    if not isinstance(column, ExpressionColumn):
        return None
    match parse(column.expression):
        case Call("timestamp_floor", (Name(name), Literal(str(period)))):
            pass
        case Call("date_trunc", (Literal(str(period)), Name(name))):
            if period.upper() not in _TRUNCATED:
                return None
        case _:
            return None
    if name.lower() != TIME_COLUMN:
        return None
    cut = Granularity.parse(period)
    is_known = cut.months in _MONTHS or (cut.fixed_ms > 1 and not cut.months)
    return cut if is_known and cut.zoned is None else None


def _cut_sql(cut: Granularity, time: str) -> str:
    if cut.months:
        return f"date_trunc('{_MONTHS[cut.months]}', {time})"
    if cut.name in _TRUNCATED:
        return f"date_trunc('{cut.name}', {time})"
    since = f"unix_millis({time})"
    return f"timestamp_millis({since} - pmod({since} - {cut.origin_ms}L, {cut.fixed_ms}L))"
