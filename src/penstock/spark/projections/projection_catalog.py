"""Projections of each datasource, resolved against its present columns.

Owns the cache of resolved projections (any thread may use it; concurrent results are equal),
the resolution of a projection's names and expressions into Spark SQL, and the conversion of its
filter into conditions as a query would write them. Resolution and conversion are pure.

Measures are sums, minima and maxima; sketches and first and last values are not, so their
queries read the rows. A filter is converted only if it means exactly the same as a plain
comparison: a query with that comparison among its AND conditions asks for rows that the
projection has. A projection that cannot be resolved exactly is left out, and its queries read
the rows.

Imports the models of specs, so it should not be imported if there are no projections.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from penstock.core.column_case import case_variants_in
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.intervals import Granularity
from penstock.core.sql import tree
from penstock.core.sql.checked_expression import ParsedExpression, parsed_expression
from penstock.core.sql.writer import written
from penstock.indexing.specs import (
    TIME_COLUMN,
    Aggregator,
    AndFilter,
    EqualsFilter,
    Filter,
    InFilter,
    NotFilter,
    NullFilter,
    RangeFilter,
    SelectorFilter,
)
from penstock.indexing.specs.druid_expressions import (
    FunctionCall,
    Literal,
    Name,
    as_spark_sql,
    is_druids,
    parse,
)
from penstock.indexing.specs.filters import ExpressionFilter, TrueFilter
from penstock.indexing.specs.rows.projections import ExpressionColumn, Projection, VirtualColumn
from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.segments.layout import projection_file, projection_folder
from penstock.spark.ddl import quoted
from penstock.spark.projections.plan import GroupingKey, Measure, MeasureKind, ProjectionPlan
from penstock.spark.tables.table_columns import union_columns
from penstock.spark.tables.table_files import Columns, TableFile, Tables, TableSource
from penstock.spark.transforms.deterministic import is_deterministic

if TYPE_CHECKING:
    from penstock.indexing.specs.rows.declared_projections import DeclaredProjections


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DatasourceProjections:
    """The projections of a datasource.

    Attributes:
        files: The visible files.
        declared: The declarations.
        columns: The columns of all files together.
        plans: Plans that can be made, in the order of the specs.
        unresolved: Names of projections without a plan.
    """

    files: tuple[TableFile, ...]
    declared: Sequence[DeclaredProjections]
    columns: Columns
    plans: tuple[ProjectionPlan, ...]
    unresolved: tuple[str, ...]


class ProjectionCatalog:
    """Resolver of the projections of datasources.

    Args:
        source: Source of the declarations.
    """

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._known: dict[str, DatasourceProjections] = {}

    def of(self, datasource: str, files: tuple[TableFile, ...]) -> DatasourceProjections | None:
        """Return the projections of a datasource with these visible files, or None."""
        try:
            declared = self._source.projections(datasource)
        except PenstockError as error:
            logger.debug("projections of %s cannot be read: %s", datasource, error)
            return None
        if not declared or not files:
            self._known.pop(datasource, None)
            return None
        known = self._known.get(datasource)
        if known is not None and known.declared == declared:
            if known.files is files:
                return known
            columns = union_columns(files)
            if columns == known.columns:
                known = DatasourceProjections(
                    files, declared, columns, known.plans, known.unresolved
                )
                self._known[datasource] = known
                return known
        columns = union_columns(files)
        # Projections ignore the case of names, so datasources with case variants cannot have any.
        plans = () if case_variants_in(n for n, _ in columns) else _resolved(declared, columns)
        missing = {one.name for one in declared} - {plan.name for plan in plans}
        known = DatasourceProjections(files, declared, columns, plans, tuple(sorted(missing)))
        self._known[datasource] = known
        return known

    def needed(self, tables: Tables) -> Mapping[str, set[str]]:
        """Return the folders of all plans, with the file names that belong to visible files."""
        for gone in self._known.keys() - tables.files.keys():
            self._known.pop(gone, None)
        found: dict[str, set[str]] = {}
        for datasource, files in tables.files.items():
            if (known := self.of(datasource, files)) is None:
                continue
            names = {projection_file(file.path) for file in files if not file.announced}
            for plan in known.plans:
                # Two datasources whose names differ by a colon may share one folder.
                found.setdefault(projection_folder(datasource, plan.digest), set()).update(names)
        return found


def _resolved(
    declared: Sequence[DeclaredProjections], columns: Columns
) -> tuple[ProjectionPlan, ...]:
    # Imported here: most datasources have no projections, and do not need their models.
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - said above

    from penstock.indexing.specs.rows.projections import Projection  # noqa: PLC0415 - as above

    adapter = TypeAdapter(Projection)
    found: list[ProjectionPlan] = []
    for one in declared:
        try:
            projection = adapter.validate_python(one.projection)
        except ValidationError as error:
            # Written by a later release.
            logger.debug("projection %s cannot be read: %s", one.name, error)
            continue
        found += plans([projection], frozenset(one.metrics), columns)
    return tuple(found)


Scalar = str | int | float | bool

_WHOLE_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_LONG_MAX: Final = 2**63
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'"})


class Unresolved(Exception):
    """There is no exact counterpart in Spark SQL: the projection is left out."""


class ColumnSource(Protocol):
    """Lookup of a datasource's columns."""

    def column(self, name: str) -> tuple[str, str]:
        """Return (name, type) of a column.

        Raises:
            Unresolved: There is no such column.
        """
        ...

    def inlined(self, sql: str, *, translated: bool, nested: int = 0) -> str:
        """Return an expression over the columns.

        Raises:
            Unresolved: It has no exact counterpart.
        """
        ...


def conditions(node: Filter, source: ColumnSource) -> tuple[str, ...]:
    """Return the conditions that all rows meet; empty: every row counts.

    Raises:
        Unresolved: No comparison of Spark SQL has exactly this meaning.
    """
    match node:
        case TrueFilter():
            return ()
        case AndFilter():
            return tuple(one for field in node.fields for one in conditions(field, source))
        case ExpressionFilter():
            return (source.inlined(node.sql, translated=is_druids(node.expression)),)
        case NotFilter(field=NullFilter() as inner):
            return (f"{quoted(source.column(inner.column)[0])} IS NOT NULL",)
        case NullFilter(column=column) | SelectorFilter(dimension=column, value=None):
            return (f"{quoted(source.column(column)[0])} IS NULL",)
        case SelectorFilter():
            name, type_ = source.column(node.dimension)
            return (f"{quoted(name)} = {_as_text(node.value, type_)}",)
        case InFilter() if node.values:
            name, type_ = source.column(node.dimension)
            values = ", ".join(_as_text(value, type_) for value in node.values)
            return (f"{quoted(name)} IN ({values})",)
        case EqualsFilter():
            name, type_ = source.column(node.column)
            return (f"{quoted(name)} = {_typed(node.match_value, node.match_value_type, type_)}",)
        case RangeFilter():
            name, type_ = source.column(node.column)
            signs = (">" if node.lower_open else ">=", "<" if node.upper_open else "<=")
            return tuple(
                f"{quoted(name)} {sign} {_typed(bound, node.match_value_type, type_)}"
                for sign, bound in zip(signs, (node.lower, node.upper), strict=True)
                if bound is not None
            )
        case _:
            raise Unresolved(node.type)


def _as_text(value: Scalar | None, type_: str) -> str:
    """Return a literal that equals the column exactly if the column's text equals the value."""
    if type_ == "string" and isinstance(value, str | int):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f"'{text.translate(_ESCAPES)}'"
    if type_ == "bigint" and isinstance(value, int | str) and not isinstance(value, bool):
        return _whole(str(value))
    raise Unresolved(str(value))


def _typed(value: Scalar, asked: str, type_: str) -> str:
    """Return a literal of the requested type, which must be the column's type."""
    if asked == type_ == "string":
        return _as_text(value, type_)
    if asked == "long" and type_ == "bigint" and type(value) is int:
        return _whole(str(value))
    raise Unresolved(str(value))


def _whole(text: str) -> str:
    if not _WHOLE_NUMBER.fullmatch(text) or not -_LONG_MAX < int(text) < _LONG_MAX:
        raise Unresolved(text)
    return text


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
# Nodes of the expressions that mean the same in sessions with and without ANSI mode.
_PLAIN: Final = (
    *(tree.Name, tree.Number, tree.Text, tree.Constant, tree.Call, tree.Unary, tree.Operation),
    *(tree.Row,),
)
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

    def key(self, name: str, number: int) -> GroupingKey:
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
            return GroupingKey(
                column, quoted(column), Granularity.parse("NONE") if is_time else None
            )
        stored = f"{OWN_PREFIX}key_{number}"
        time = None if TIME_COLUMN in self.virtual else _time_cut(virtual)
        if time is None:
            return GroupingKey(stored, self.computed(virtual))
        time_column, type_ = self.column(TIME_COLUMN)
        if type_ != "timestamp":
            raise Unresolved(name)
        return GroupingKey(stored, _cut_sql(time, quoted(time_column)), time)

    def computed(self, column: VirtualColumn, nested: int = 0) -> str:
        """Return a virtual column in Spark SQL over the columns of the datasource.

        Raises:
            Unresolved: It has no exact counterpart.
            InvalidRequest: The expression has no counterpart.
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
            Unresolved: It names something other than a column, or its result is not deterministic.
            InvalidRequest: As `computed`.
        """
        if nested > _NESTED_MAX or not is_deterministic(sql):
            raise Unresolved(sql)
        parsed = parsed_expression(sql)
        nodes = [*tree.walk(parsed.root)]
        variables = {
            name for one in nodes if isinstance(one, tree.Lambda) for name in one.parameters
        }
        replaced: dict[int, tuple[int, str]] = {}
        for node in nodes:
            if isinstance(node, tree.Name) and not variables.issuperset(node.parts):
                if len(node.parts) > 1:
                    raise Unresolved(sql)
                replaced[node.start] = (node.end, self._named(node.parts[0], nested))
            elif not (translated or isinstance(node, _PLAIN)) or _is_of_query(node, parsed):
                raise Unresolved(sql)
        text = written(sql, parsed.tokens, parsed.root, replaced)
        # Double quotes around other names, such as those of functions, are texts to the engine.
        quoted_ones = (at for at, one in enumerate(parsed.tokens) if one.raw.startswith('"'))
        if len(text) > _EXPRESSION_LENGTH_MAX or not replaced.keys() >= set(quoted_ones):
            raise Unresolved(sql)
        return text

    def _named(self, name: str, nested: int) -> str:
        virtual = self.virtual.get(name)
        if virtual is not None:
            return f"({self.computed(virtual, nested + 1)})"
        return quoted(self.column(name)[0])


def _is_of_query(node: tree.Node, parsed: ParsedExpression) -> bool:
    """Return whether a part of an expression has the value of the moment, or may have it."""
    if isinstance(node, tree.Call):
        return node.name[-1].lower() in _OF_THE_QUERY
    if isinstance(node, tree.Text):
        raws = (token.raw for token in parsed.tokens[node.start : node.end])
        return any(_OF_NOW.match(raw) for raw in raws)
    return False


def _time_cut(column: VirtualColumn) -> Granularity | None:
    """Return the granularity to which a virtual column truncates the time; None for others."""
    if not isinstance(column, ExpressionColumn):
        return None
    match parse(column.expression):
        case FunctionCall("timestamp_floor", (Name(name), Literal(str(period)))):
            pass
        case FunctionCall("date_trunc", (Literal(str(period)), Name(name))):
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
