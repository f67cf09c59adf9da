"""Plan of a compaction task: the segments that it rewrites, and the form of the new ones.

Without a segment granularity each time chunk keeps its interval, overlapping chunks become one,
and chunks of one granularity form one job. Rows are rolled up if the spec requires it or if all
input segments were rolled up in the same way; otherwise every row is kept. Segments record that
their rows are rolled up, and by which metrics, so that a later compaction does not treat them as
raw rows.

A minor compaction rewrites some segments of a time chunk. Its output has the version of the
task's REPLACE lock, which would hide all other segments of the chunk, so the publish lists
those again under that version with the same files. `split_input` selects both groups; it is pure.
Invariant: a segment that stays is visible as a whole before and after, because its file is read
as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.column_case import ColumnNames, case_variants_in, shown_case_variants
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import (
    ETERNITY,
    NAMED_GRANULARITIES,
    Granularity,
    Interval,
    apart,
    condensed,
)
from penstock.indexing.batch.input_segments import touches
from penstock.indexing.batch.job import IngestJob, compaction_state, ids_digest, partitioning_of
from penstock.indexing.batch.metric_merge import (
    carried,
    kept_rows,
    merged_metrics,
    metrics_of,
    united,
)
from penstock.indexing.specs import parse_data_schema
from penstock.indexing.specs.batch.compact import IntervalInput
from penstock.indexing.specs.batch.task import aligned
from penstock.segments.segment import SegmentId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import JsonValue

    from penstock.indexing.batch.input_segments import VisibleSegment
    from penstock.indexing.batch.task_input import TaskInput
    from penstock.indexing.specs import Aggregator, DataSchema
    from penstock.indexing.specs.batch.compact import CompactSpec, MinorInput


_SEGMENTS = "ioConfig.inputSpec.segments"


def split_input(
    spec: CompactSpec, minor: MinorInput, found: Sequence[VisibleSegment]
) -> tuple[list[VisibleSegment], set[str]]:
    """Return the segments to rewrite, and the ids of the others in the same time chunks.

    Args:
        spec: The task.
        minor: The segments that it names.
        found: The visible segments in its interval.

    Raises:
        InvalidRequest: A named segment is not visible, or another one cannot be kept: the message
            has the reason.
    """
    named = {
        str(SegmentId(spec.datasource, Interval.parse(one.itvl), one.ver, one.part))
        for one in minor.segments
    }
    chosen = [one for one in found if str(one.segment.id) in named]
    if missing := named - {str(one.segment.id) for one in chosen}:
        raise InvalidRequest(
            f"segment {min(missing)} is not visible: name segments that `segment timeline` shows",
            place=_SEGMENTS,
        )
    granularity = spec.segment_granularity
    chunks = {
        one.segment.interval if granularity is None else aligned(one.interval, granularity)
        for one in chosen
    }
    written, kept = condensed(chunks), set()
    for one in found:
        whole, name = one.segment.interval, str(one.segment.id)
        if name in named or not touches(one.interval, written):
            continue
        if one.interval != whole:
            raise InvalidRequest(
                f"segment {name} would be kept, but newer ones hide a part of it: name it, too",
                place=_SEGMENTS,
            )
        if granularity is None:
            fits = whole in chunks or any(chunk.covers(whole) for chunk in chunks)
        else:
            fits = granularity.bucket(whole.start_ms).covers(whole)
        if not fits:
            raise InvalidRequest(
                f"segment {name} would be kept, but its time chunk is larger than the new ones:"
                " name it, too, or set a coarser segmentGranularity",
                place=_SEGMENTS,
            )
        kept.add(name)
    return chosen, kept


_DIMENSION_TYPES: Final = {
    "STRING": "string",
    "BIGINT": "long",
    "INT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
}


class CompactPlan:
    """The plan of a `compact`."""

    def __init__(self, spec: CompactSpec) -> None:
        self._spec = spec
        self.wanted: Final = [intent.interval for intent in spec.lock_intents()]

    def jobs(self, task_input: TaskInput) -> Sequence[IngestJob]:
        """Return a job for each group of time chunks with the same granularity."""
        spec, interval = self._spec, _interval(self._spec)
        # The interval of named segments was not known earlier, so it could not be locked then.
        if spec.minor is None:
            found = task_input.claim([interval], named=frozenset(spec.segment_ids))
            _check_input(spec, found)
        else:
            task_input.lock([interval])
            found = task_input.to_replace_some(interval, partial(split_input, spec, spec.minor))
        return [
            _job(spec, chunks, group, task_input)
            for chunks, group in _groups(spec, interval, found)
        ]


def _interval(spec: CompactSpec) -> Interval:
    """Return the interval to compact: whole time chunks if the spec names a granularity."""
    if spec.interval is not None:
        interval = spec.interval
    else:
        ids = [SegmentId.parse(text, spec.datasource) for text in spec.segment_ids]
        interval = Interval(
            min(one.interval.start_ms for one in ids), max(one.interval.end_ms for one in ids)
        )
    granularity = spec.segment_granularity
    return interval if granularity is None else aligned(interval, granularity)


def _check_input(spec: CompactSpec, found: Sequence[VisibleSegment]) -> None:
    """Compare the visible segments with those that the spec expects.

    Raises:
        NotFound: There are none.
        InvalidRequest: They differ; the message has the difference.
    """
    if not found:
        raise NotFound(
            f"datasource {spec.datasource} has no rows in {_interval(spec)}: nothing to compact"
        )
    ids = {str(one.segment.id) for one in found}
    if spec.segment_ids and ids != set(spec.segment_ids):
        differing = ", ".join(sorted(ids ^ set(spec.segment_ids))[:3])
        raise InvalidRequest(
            f"the visible segments of the interval are not those that the spec names: {differing}"
            " differ; list them again and submit the task again",
            place="ioConfig.inputSpec.segments",
        )
    given = spec.io_config.input_spec
    digest = given.sha256_of_sorted_segment_ids if isinstance(given, IntervalInput) else None
    if digest is not None and digest != ids_digest(sorted(ids)):
        raise InvalidRequest(
            "the segments of the interval have changed since the task was made:"
            " submit it again with the current segments",
            place="ioConfig.inputSpec.sha256OfSortedSegmentIds",
        )


def _groups(
    spec: CompactSpec, interval: Interval, found: Sequence[VisibleSegment]
) -> list[tuple[dict[str, JsonValue], list[VisibleSegment]]]:
    """Return the groups to write together: the new time chunks as a granularitySpec, the segments.

    Overlapping time chunks are merged, as in Druid: the new segments of both have one version, so
    neither would hide the other.

    Raises:
        InvalidRequest: A time chunk lies across an end of the interval.
    """
    named = spec.granularity_spec.segment_granularity
    if named is not None:
        return [({"segmentGranularity": named}, list(found))]
    wholes = {one.segment.interval for one in found}
    if cut := [whole for whole in sorted(wholes) if not interval.covers(whole)]:
        raise InvalidRequest(
            f"{interval} cuts the time chunk {cut[0]}: include the whole chunk, or set"
            " segmentGranularity",
            place="ioConfig.inputSpec.interval",
        )
    chunks = apart(wholes)
    names = [_granularity_of(chunk) for chunk in chunks]
    starts = [chunk.start_ms for chunk in chunks]
    groups: dict[str, tuple[set[Interval], list[VisibleSegment]]] = {}
    for one in found:
        at = bisect_right(starts, one.segment.interval.start_ms) - 1
        made, group = groups.setdefault(names[at], (set(), []))
        made.add(chunks[at])
        group.append(one)
    return [(_chunks(name, made), group) for name, (made, group) in groups.items()]


def _chunks(granularity: str, chunks: Iterable[Interval]) -> dict[str, JsonValue]:
    """Return the time chunks of a job: a granularity, or a list if it has no name.

    Some chunks, such as two months or the days of a time zone, are not a granularity by name, so
    they need a list. The query granularity still divides each of them.
    """
    if Granularity.parse(granularity) in NAMED_GRANULARITIES:
        return {"segmentGranularity": granularity}
    return {"type": "arbitrary", "intervals": [str(chunk) for chunk in sorted(chunks)]}


def _granularity_of(chunk: Interval) -> str:
    found = Granularity.of_bucket(chunk)
    return found.name.lower() if found in NAMED_GRANULARITIES else found.name


def _job(
    spec: CompactSpec,
    chunks: Mapping[str, JsonValue],
    group: Sequence[VisibleSegment],
    task_input: TaskInput,
) -> IngestJob:
    metrics, combines = _metrics(spec, group)
    exact = _has_exact_names(spec, group, task_input)
    schema = _schema(spec, chunks, group, metrics, exact=exact)
    state = compaction_state(schema, spec.tuning_config.partitions)
    return IngestJob(
        schema=schema,
        input=replace(task_input.as_input(group), renamed=() if exact else _renamed(group, schema)),
        intervals=tuple(condensed(one.interval for one in group)),
        partitioning=partitioning_of(spec.tuning_config.partitions),
        mode=spec.mode,
        compaction_state=state if spec.settings.store_compaction_state else None,
        combines=combines,
        rollup=schema.rollup_json() or _rollup_before(group),
    )


def _rolls_up(spec: CompactSpec, group: Iterable[VisibleSegment]) -> bool:
    wanted = spec.granularity_spec.rollup
    return _alike(group) if wanted is None else wanted


def _metrics(
    spec: CompactSpec, group: Sequence[VisibleSegment]
) -> tuple[tuple[Aggregator, ...], frozenset[str]]:
    """Return the metrics of a job, and the names of those that its input already has."""
    rows = kept_rows(one.segment for one in group)
    known = united(rows)
    if not _rolls_up(spec, group):
        # Rolled-up rows stay rolled up: their metrics are not dimensions.
        metrics = known or ()
        if spec.dimensions_spec is None:
            more = carried(rows, metrics)
            names = frozenset(metric.name for metric in more)
            return (*metrics, *more), merged_metrics(metrics, rows) | names
    elif spec.metrics_spec is not None:
        metrics = spec.metrics_spec
    elif known is not None:
        metrics = known
    else:
        raise InvalidRequest(
            "the rows were not rolled up by the same metrics, so there are no common metrics: set"
            " metricsSpec, or set granularitySpec.rollup to false",
            place="metricsSpec",
        )
    return metrics, merged_metrics(metrics, rows)


def _schema(
    spec: CompactSpec,
    chunks: Mapping[str, JsonValue],
    group: Sequence[VisibleSegment],
    metrics: Iterable[Aggregator],
    *,
    exact: bool,
) -> DataSchema:
    """Return the schema of a job.

    Raises:
        InvalidRequest: Columns whose names differ only in case include a metric.
    """
    listed: list[JsonValue] = [
        metric.model_dump(mode="json", by_alias=True, exclude_none=True) for metric in metrics
    ]
    named = {metric.name for metric in metrics}
    dimensions: JsonValue = (
        {"dimensions": _dimensions(group, leave_out=named, exact=exact)}
        if spec.dimensions_spec is None
        else spec.dimensions_spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    )
    query = spec.granularity_spec.query_granularity or _common_query_granularity(group)
    filter_spec = spec.transform_spec.filter
    schema = parse_data_schema(
        {
            "dataSource": spec.datasource,
            "timestampSpec": {"column": "__time", "format": "auto"},
            "dimensionsSpec": dimensions,
            "metricsSpec": listed,
            "granularitySpec": {
                **chunks,
                "queryGranularity": query,
                "rollup": _rolls_up(spec, group),
            },
            "transformSpec": {
                "filter": None
                if filter_spec is None
                else filter_spec.model_dump(mode="json", by_alias=True)
            },
        }
    )
    if schema.has_exact_names and not exact and spec.dimensions_spec is None:
        case_variants = case_variants_in(
            [*(d.name for d in schema.dimensions), *(m.name for m in schema.metrics)]
        )
        raise InvalidRequest(
            f"the columns {shown_case_variants(case_variants)} differ only in case, and not all of"
            " them are dimensions, so they cannot be merged: set dimensionsSpec and metricsSpec",
            place="dimensionsSpec",
        )
    return schema


def _has_exact_names(
    spec: CompactSpec, group: Sequence[VisibleSegment], task_input: TaskInput
) -> bool:
    """Return whether column names of the datasource are case-sensitive: see `core.column_case`.

    If names differ only in case between segments of the group, all other segments of the
    datasource are checked: columns that are one to queries must become one, others must not.
    """
    names = [name for one in group for name, _ in one.segment.columns]
    if spec.dimensions_spec is not None:
        names += [dimension.name for dimension in spec.dimensions_spec.dimensions]
    if not case_variants_in(names):
        return False
    return _any_has_case_variants(group) or _any_has_case_variants(
        task_input.visible(spec.datasource, [ETERNITY])
    )


def _any_has_case_variants(segments: Iterable[VisibleSegment]) -> bool:
    kinds = {one.segment.columns for one in segments}
    return any(case_variants_in(name for name, _ in columns) for columns in kinds)


def _renamed(group: Iterable[VisibleSegment], schema: DataSchema) -> tuple[tuple[str, str], ...]:
    """Return the names under which columns are read that match a dimension except for case."""
    known = {dimension.name for dimension in schema.dimensions}
    known |= {metric.name for metric in schema.metrics}
    dimensions = ColumnNames({d.name: d.name for d in schema.dimensions}, exact=False)
    names = dict.fromkeys(name for one in group for name, _ in one.segment.columns)
    pairs = ((name, dimensions.get(name)) for name in names if name not in known)
    return tuple((name, found) for name, found in pairs if found is not None)


def _alike(group: Iterable[VisibleSegment]) -> bool:
    """Return whether all segments were rolled up by the same metrics."""
    found = [metrics_of(one.segment) for one in group]
    return found[0] is not None and all(metrics == found[0] for metrics in found)


def _rollup_before(group: Sequence[VisibleSegment]) -> dict[str, object] | None:
    """Return the earlier roll-up of rows that are read and not rolled up again."""
    metrics: list[JsonValue] = []
    for one in group:
        metrics += [m for m in metrics_of(one.segment) or () if m not in metrics]
    if all(metrics_of(one.segment) is None for one in group):
        return None
    return {"queryGranularity": _common_query_granularity(group), "metricsSpec": metrics}


def _common_query_granularity(group: Iterable[VisibleSegment]) -> JsonValue:
    """Return the common granularity of all times; the finest one keeps all of them."""
    found = [_rollup(one).get("queryGranularity", "none") for one in group]
    if any(one != found[0] for one in found):
        return "none"
    return dict(found[0]) if isinstance(found[0], Mapping) else str(found[0])


def _rollup(one: VisibleSegment) -> Mapping[str, object]:
    return one.segment.rollup or {}


def _dimensions(
    group: Iterable[VisibleSegment], *, leave_out: set[str], exact: bool
) -> list[JsonValue]:
    """Return the columns of all segments, in the order of the newest, with types that fit all.

    Unless names are case-sensitive, those that differ only in case are one column, named as in the
    newest segment.
    """
    types: dict[str, set[str]] = {}
    names: dict[str, str] = {}
    for one in sorted(group, key=lambda one: one.segment.version, reverse=True):
        for name, spark_type in one.segment.columns[1:]:
            if name not in leave_out:
                key = names.setdefault(name if exact else name.lower(), name)
                type_ = _DIMENSION_TYPES.get(spark_type.upper(), "string")
                types.setdefault(key, set()).add(type_)
    return [{"name": name, "type": _widest(found)} for name, found in types.items()]


def _widest(types: set[str]) -> str:
    if len(types) == 1:
        return next(iter(types))
    return "double" if types <= {"long", "float", "double"} else "string"
