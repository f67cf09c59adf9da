"""Metrics of segments whose rows are rolled up again. Pure.

Owns the choice whether a metric is combined from its own column (counts are summed, sketches
merged) or computed from other columns. It refuses a metric for which neither works: rolled-up rows
no longer contain the original rows, so a count of them would be too small, and a sum of a dropped
field would be null.

Rows that were never rolled up may have metrics of one row each; a column with a metric's name is
taken for the metric if the field does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.aggregators import Aggregator

if TYPE_CHECKING:
    from pydantic import JsonValue

    from penstock.segments.segment import Segment

MergeMethod = Literal["combine", "compute"]

_BOTH: Final[frozenset[MergeMethod]] = frozenset({"combine", "compute"})
# These are the same for merged rows: equal values count once, or not at all.
_BLIND_TO_COPIES: Final = frozenset({"min", "max", "first", "last", "hll", "theta"})
_NUMBERS: Final = frozenset({"long", "double", "float"})
_SKETCH: Final = "BINARY"


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The columns and metrics of one segment, or of several equal ones.

    Attributes:
        columns: Names and Spark's types, without the time.
        metrics: The metrics of their roll-up; None if they were not rolled up.
    """

    columns: Mapping[str, str]
    metrics: tuple[Aggregator, ...] | None


def kept_rows(segments: Iterable[Segment]) -> list[KeptRows]:
    """Return the columns and metrics of segments, without duplicates."""
    found: dict[str, KeptRows] = {}
    for segment in segments:
        metrics = metrics_of(segment)
        key = repr((segment.columns, metrics))
        if key not in found:
            parsed = None if metrics is None else tuple(map(Aggregator.model_validate, metrics))
            columns = {name: type_.upper() for name, type_ in segment.columns[1:]}
            found[key] = KeptRows(columns, parsed)
    return list(found.values())


def metrics_of(segment: Segment) -> list[JsonValue] | None:
    """Return the metrics of a segment's roll-up; None if it was not rolled up."""
    metrics = None if segment.rollup is None else segment.rollup.get("metricsSpec")
    return metrics if isinstance(metrics, list) else None


def merged_metrics(wanted: Sequence[Aggregator], rows: Sequence[KeptRows]) -> frozenset[str]:
    """Return the names of the metrics that are combined from their own columns.

    Args:
        wanted: The metrics of the new rows.
        rows: The segments to read.

    Raises:
        InvalidRequest: A metric can neither be combined nor computed.
    """
    return frozenset(metric.name for metric in wanted if _merge_method(metric, rows) == "combine")


def united(rows: Iterable[KeptRows]) -> tuple[Aggregator, ...] | None:
    """Return all metrics of the roll-up of rows.

    None: a name has two meanings, or some rows were not rolled up.
    """
    found: dict[str, Aggregator] = {}
    for one in rows:
        if one.metrics is None:
            return None
        for metric in one.metrics:
            before = found.setdefault(metric.name, metric)
            if not _goes_on(metric, before) or metric.value_type != before.value_type:
                return None
    return tuple(found.values())


def carried(rows: Iterable[KeptRows], known: Iterable[Aggregator]) -> tuple[Aggregator, ...]:
    """Return metrics for sketches that no known metric is for, of rows that are all kept.

    Dimensions never hold bytes. The kind of sketch does not matter: it is copied unchanged.
    """
    named = {metric.name for metric in known}
    names = [name for one in rows for name, type_ in one.columns.items() if type_ == _SKETCH]
    return tuple(
        Aggregator(type="HLLSketchMerge", name=name, field_name=name)
        for name in dict.fromkeys(names)
        if name not in named
    )


def _merge_method(metric: Aggregator, rows: Sequence[KeptRows]) -> MergeMethod:
    ways = _BOTH.intersection(*(_merge_methods(metric, one) for one in rows))
    giving = frozenset[MergeMethod]().union(*(_giving(metric, one) for one in rows))
    if not ways & giving:
        raise InvalidRequest(_refusal(metric, rows, there=bool(giving)), place="metricsSpec")
    # In rows that were not rolled up, a column with the metric's name may be something else.
    first: MergeMethod = "compute" if all(one.metrics is None for one in rows) else "combine"
    return first if first in ways & giving else next(iter(ways & giving))


def _merge_methods(metric: Aggregator, rows: KeptRows) -> frozenset[MergeMethod]:
    """Return the ways to derive the metric from rows; any way if they have no values of it."""
    found: set[MergeMethod] = set()
    if rows.metrics is None:
        if metric.kind == "count" or _is_there(metric, rows):
            found.add("compute")
            # Ones, if rows were counted one by one; a field that is the metric's own column.
            counted = metric.kind == "count" and rows.columns.get(metric.name) == "BIGINT"
            if counted or metric.inputs == (metric.name,):
                found.add("combine")
            return frozenset(found)
        return frozenset({"combine"}) if metric.name in rows.columns else _BOTH
    known = {one.name: one for one in rows.metrics}
    is_absent = metric.name not in rows.columns
    if is_absent or (metric.name in known and _goes_on(metric, known[metric.name])):
        found.add("combine")
    if _is_there(metric, rows):
        if _may_compute(metric, known):
            found.add("compute")
    elif is_absent and metric.kind != "count":
        found.add("compute")
    return frozenset(found)


def _giving(metric: Aggregator, rows: KeptRows) -> frozenset[MergeMethod]:
    """Return the ways in which the rows have any values of the metric."""
    found: set[MergeMethod] = set()
    if metric.name in rows.columns:
        found.add("combine")
    if metric.kind == "count" or _is_there(metric, rows):
        found.add("compute")
    return frozenset(found)


def _is_there(metric: Aggregator, rows: KeptRows) -> bool:
    return metric.kind != "count" and all(name in rows.columns for name in metric.inputs)


def _goes_on(metric: Aggregator, known: Aggregator) -> bool:
    """Return whether a metric combines another one, of the same field or of its own column."""
    kinds = {metric.kind, known.kind}
    same = len(kinds) == 1 or (metric.kind == "sum" and known.kind == "count")
    types = {metric.value_type, known.value_type}
    fits = len(types) == 1 or types <= _NUMBERS
    return same and fits and (metric.inputs == known.inputs or metric.field_name == metric.name)


def _may_compute(metric: Aggregator, known: Mapping[str, Aggregator]) -> bool:
    """Return whether merged rows give the same value as the original rows."""
    read = [known[name] for name in metric.inputs if name in known]
    if any(one.value_type == "sketch" for one in read):
        return metric.reads_sketches and all(one.kind == metric.kind for one in read)
    if metric.kind == "sum":
        return bool(read) and all(one.kind in {"sum", "count"} for one in read)
    return metric.kind in _BLIND_TO_COPIES and not metric.reads_sketches


def _refusal(metric: Aggregator, rows: Sequence[KeptRows], *, there: bool) -> str:
    known = {one.name: one.type for kept in rows for one in kept.metrics or ()}
    listed = ", ".join(f"{type_} {name}" for name, type_ in known.items())
    if not there:
        missing = " and ".join(metric.inputs)
        why = f"no segment has a column {metric.name}, nor {missing}"
    elif any(one.metrics is None for one in rows) and known:
        why = "some of the segments were rolled up and some were not"
    else:
        why = "the rows were rolled up, and no longer hold its field"
    remedy = f"use the metrics that they have ({listed})" if listed else "name an existing column"
    return (
        f"the metric {metric.name} ({metric.type}) cannot be derived from the segments: {why};"
        f" {remedy}, leave it out, or set granularitySpec.rollup to false"
    )
