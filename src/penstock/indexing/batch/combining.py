"""What becomes of metrics when rows of segments are rolled up again. Pure.

Owns whether a metric goes on from the column that rows have of it (counts are added up, sketches
united) or is computed of their other columns, and refuses what neither can give: rows that were
rolled up do not hold what they were made of any more, so a count of them would be too small and a
sum of a field that is gone would be null.

Rows that were never rolled up may have metrics of one row each; a column with a metric's name is
taken for that where the field is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from penstock.core.errors import InvalidRequest
from penstock.indexing.spec.aggregators import Aggregator

if TYPE_CHECKING:
    from pydantic import JsonValue

    from penstock.segments.model import Segment

Way = Literal["combine", "compute"]

_BOTH: Final[frozenset[Way]] = frozenset({"combine", "compute"})
# These are the same of rows that were merged: what is equal counts once, or not at all.
_BLIND_TO_COPIES: Final = frozenset({"min", "max", "first", "last", "hll", "theta"})
_NUMBERS: Final = frozenset({"long", "double", "float"})
_SKETCH: Final = "BINARY"


@dataclass(frozen=True, slots=True)
class KeptRows:
    """What one segment, or several alike, keep of the rows they were made of.

    Attributes:
        columns: Names and Spark's types, but for the time.
        metrics: What they were rolled up by; None: they were not.
    """

    columns: Mapping[str, str]
    metrics: tuple[Aggregator, ...] | None


def kept_rows(segments: Iterable[Segment]) -> list[KeptRows]:
    """Return what segments keep; those that are alike count once."""
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
    """Return the metrics that a segment's rows were rolled up by; None: they were not."""
    metrics = None if segment.rollup is None else segment.rollup.get("metricsSpec")
    return metrics if isinstance(metrics, list) else None


def combined(wanted: Sequence[Aggregator], rows: Sequence[KeptRows]) -> frozenset[str]:
    """Return the names of the metrics that go on from their own columns.

    Args:
        wanted: The metrics of the new rows.
        rows: All that is read.

    Raises:
        InvalidRequest: A metric can be had neither way.
    """
    return frozenset(metric.name for metric in wanted if _way(metric, rows) == "combine")


def united(rows: Iterable[KeptRows]) -> tuple[Aggregator, ...] | None:
    """Return all metrics that rows were rolled up by.

    None: a name means one thing here and another there, or some rows were not rolled up.
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
    """Return metrics for sketches that none of the known ones is, of rows that all stay.

    No dimension holds bytes. Which kind of sketch it is does not matter: it goes on as it is.
    """
    named = {metric.name for metric in known}
    names = [name for one in rows for name, type_ in one.columns.items() if type_ == _SKETCH]
    return tuple(
        Aggregator(type="HLLSketchMerge", name=name, field_name=name)
        for name in dict.fromkeys(names)
        if name not in named
    )


def _way(metric: Aggregator, rows: Sequence[KeptRows]) -> Way:
    ways = _BOTH.intersection(*(_ways(metric, one) for one in rows))
    giving = frozenset[Way]().union(*(_giving(metric, one) for one in rows))
    if not ways & giving:
        raise InvalidRequest(_refusal(metric, rows, there=bool(giving)), place="metricsSpec")
    # Of rows as they came a column may have the metric's name and be another thing.
    first: Way = "compute" if all(one.metrics is None for one in rows) else "combine"
    return first if first in ways & giving else next(iter(ways & giving))


def _ways(metric: Aggregator, rows: KeptRows) -> frozenset[Way]:
    """Return how the metric can be had of rows; any way does where they have nothing of it."""
    found: set[Way] = set()
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


def _giving(metric: Aggregator, rows: KeptRows) -> frozenset[Way]:
    """Return in which ways the rows give the metric anything at all."""
    found: set[Way] = set()
    if metric.name in rows.columns:
        found.add("combine")
    if metric.kind == "count" or _is_there(metric, rows):
        found.add("compute")
    return frozenset(found)


def _is_there(metric: Aggregator, rows: KeptRows) -> bool:
    return metric.kind != "count" and all(name in rows.columns for name in metric.inputs)


def _goes_on(metric: Aggregator, known: Aggregator) -> bool:
    """Tell whether a metric is what another one is, of the same field or of its own column."""
    kinds = {metric.kind, known.kind}
    same = len(kinds) == 1 or (metric.kind == "sum" and known.kind == "count")
    types = {metric.value_type, known.value_type}
    fits = len(types) == 1 or types <= _NUMBERS
    return same and fits and (metric.inputs == known.inputs or metric.field_name == metric.name)


def _may_compute(metric: Aggregator, known: Mapping[str, Aggregator]) -> bool:
    """Tell whether merged rows give what the rows gave that they were made of."""
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
        why = "the rows were rolled up, and what it is to be made of is gone"
    mend = f"ask for what they have ({listed})" if listed else "name a column that is there"
    return (
        f"the metric {metric.name} ({metric.type}) cannot be had of the segments: {why};"
        f" {mend}, leave it out, or set granularitySpec.rollup to false"
    )
