"""The spec of `compact`: the segments of an interval, or named ones, and their new form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval
from penstock.indexing.lock_intent import LockIntent
from penstock.indexing.specs.aggregators import Aggregator
from penstock.indexing.specs.batch.task import RESOURCE_REFUSAL, BatchTask, aligned
from penstock.indexing.specs.batch_tuning import BatchTuning
from penstock.indexing.specs.errors import Mistake, SpecError
from penstock.indexing.specs.filters import Filter
from penstock.indexing.specs.rows.dimensions import DimensionsSpec
from penstock.indexing.specs.rows.granularities import AnyGranularity
from penstock.indexing.specs.rows.projections import Projections
from penstock.indexing.specs.scalars import (
    DatasourceName,
    Flag,
    IntervalText,
    interval_mistake,
)
from penstock.indexing.specs.spec_base import Found, IgnoredValue, SpecModel, mistakes
from penstock.indexing.specs.task_context import (
    COMPACTION_PRIORITY,
    IngestionMode,
)
from penstock.segments.segment import Segment

_NO_SEGMENT: Final = "does not name a segment: write its id, or the whole segment as JSON"


class IntervalInput(SpecModel):
    """All visible segments that lie in an interval."""

    type: Literal["interval"] = "interval"
    interval: IntervalText
    sha256_of_sorted_segment_ids: str | None = Field(default=None, alias="sha256OfSortedSegmentIds")


class SegmentsInput(SpecModel):
    """Segments in a list."""

    type: Literal["segments"] = "segments"
    segments: tuple[str, ...] = Field(min_length=1)


class SegmentDescriptor(SpecModel):
    """A segment of the datasource in Druid's short form."""

    itvl: IntervalText
    ver: str = Field(min_length=1)
    part: int = Field(ge=0)


class MinorInput(SpecModel):
    """Some segments of an interval; the other visible segments keep their files."""

    type: Literal["minor"] = "minor"
    interval: IntervalText
    segments: tuple[SegmentDescriptor, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_inside(self) -> MinorInput:
        whole = Interval.parse(self.interval)
        found: Found = [
            (("segments", number, "itvl"), one.itvl, f"is not within the interval {whole}")
            for number, one in enumerate(self.segments)
            if not whole.covers(Interval.parse(one.itvl))
        ]
        if found:
            raise mistakes("MinorInput", found)
        return self


class CompactIo(SpecModel):
    """The input of a compaction."""

    type: Literal["compact"] = "compact"
    input_spec: Annotated[
        IntervalInput | SegmentsInput | MinorInput,
        Field(discriminator="type"),
    ]
    drop_existing: Flag = False
    allow_non_aligned_interval: Flag = False


class CompactGranularity(SpecModel):
    """The granularity of the new segments; a part that is left out stays unchanged."""

    segment_granularity: AnyGranularity | None = None
    query_granularity: AnyGranularity | None = None
    rollup: Flag | None = None


class CompactTransform(SpecModel):
    """The filter of the rows to keep."""

    filter: Filter | None = None

    unsupported: ClassVar[Mapping[str, str]] = {
        "transforms": "compaction does not change columns: index the datasource into another one",
        "virtualColumns": "filter by an expression",
    }


class CompactSpec(BatchTask):
    """Read the segments of an interval and write them again, merged or in another form."""

    type: Literal["compact"] = "compact"
    datasource: DatasourceName
    io_config: CompactIo
    dimensions_spec: DimensionsSpec | None = None
    metrics_spec: tuple[Aggregator, ...] | None = None
    granularity_spec: CompactGranularity = CompactGranularity()
    transform_spec: CompactTransform = CompactTransform()
    tuning_config: BatchTuning = BatchTuning(type="compaction")
    projections: Projections = ()

    unsupported: ClassVar[Mapping[str, str]] = RESOURCE_REFUSAL | {
        "keepSegmentGranularity": "set granularitySpec.segmentGranularity: without it, time chunks"
        " do not change",
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"keepSegmentGranularity": True}
    repeated: ClassVar[Mapping[str, str]] = {
        "dimensions": "dimensionsSpec",
        "interval": "ioConfig",
        "segments": "ioConfig",
        "segmentGranularity": "granularitySpec",
    }
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"compactionRunner": IgnoredValue.ANY}
    default_priority: ClassVar[int] = COMPACTION_PRIORITY
    stores_compaction_state: ClassVar[bool] = True

    @classmethod
    def _without_repeated(cls, data: dict[str, object]) -> dict[str, object]:
        """Rewrite fields of older Druid versions, which Druid's published examples still use."""
        found: Found = []
        current = dict(data)
        _move_compaction_input(current, found)
        _move_segment_granularity(current, found)
        if found:
            raise mistakes("CompactSpec", found)
        return super()._without_repeated(current)

    @model_validator(mode="after")
    def _check_together(self) -> CompactSpec:
        found: Found = []
        interval, granularity = self.interval, self.segment_granularity
        if (
            interval is not None
            and granularity is not None
            and not self.io_config.allow_non_aligned_interval
            and not granularity.is_aligned(interval)
        ):
            text = (
                f"does not begin and end with a time chunk (segmentGranularity {granularity}):"
                f" write {aligned(interval, granularity)}, or set allowNonAlignedInterval"
            )
            # pydantic also puts the tag of the union before its field.
            tag = self.io_config.input_spec.type
            found.append((("ioConfig", "inputSpec", tag, "interval"), str(interval), text))
        if self.minor is not None and not self.io_config.drop_existing:
            text = "must be true for a minor compaction: it publishes the other segments again"
            found.append((("ioConfig", "dropExisting"), False, text))
        if found:
            raise mistakes("CompactSpec", found)
        return self

    @property
    def mode(self) -> IngestionMode:
        """Replace the whole interval, or the time chunks that have rows."""
        dropped = self.io_config.drop_existing
        return IngestionMode.REPLACE if dropped else IngestionMode.REPLACE_LEGACY

    @property
    def locks_max(self) -> int | None:
        """Maximum number of locks; None means unlimited."""
        return self.tuning_config.locks_max

    @property
    def locks_segments(self) -> bool:
        """Whether the task locks single segments, if the existing ones allow it."""
        return self._stands_apart(self.tuning_config)

    @property
    def segment_granularity(self) -> Granularity | None:
        """The new time chunks; None keeps the existing ones."""
        text = self.granularity_spec.segment_granularity
        return None if text is None else Granularity.parse(text)

    @property
    def interval(self) -> Interval | None:
        """The interval of the segments; None if they are listed."""
        given = self.io_config.input_spec
        return None if isinstance(given, SegmentsInput) else Interval.parse(given.interval)

    @property
    def segment_ids(self) -> tuple[str, ...]:
        """The ids of the segments, if they are listed."""
        given = self.io_config.input_spec
        return given.segments if isinstance(given, SegmentsInput) else ()

    @property
    def minor(self) -> MinorInput | None:
        """The segments that a minor compaction rewrites; None for another compaction."""
        given = self.io_config.input_spec
        return given if isinstance(given, MinorInput) else None

    def require_locks(self) -> None:
        """Require the type of lock that the task needs; its context must match the cluster's.

        Raises:
            SpecError: A minor compaction uses locks other than REPLACE.
        """
        if self.minor is not None and self.settings.lock_type(self.mode) != "REPLACE":
            text = (
                "must be true for a minor compaction: its publish, under a REPLACE lock, lists the"
                " other segments again"
            )
            raise SpecError((Mistake("context.useConcurrentLocks", text),))

    def lock_intents(self) -> tuple[LockIntent, ...]:
        """Return the interval, widened to the new time chunks."""
        if self.interval is None:
            return ()
        granularity = self.segment_granularity
        return self._lock_intents(
            [self.interval if granularity is None else aligned(self.interval, granularity)]
        )


def _move_compaction_input(task: dict[str, object], found: Found) -> None:
    """Replace `interval` or `segments` of a compaction task by the equivalent `ioConfig`.

    Args:
        task: The fields of the task; changed in place.
        found: The list of mistakes; this function appends to it.
    """
    given = [name for name in ("ioConfig", "interval", "segments") if task.get(name)]
    interval, segments = task.pop("interval", None), task.pop("segments", None)
    if len(given) > 1:
        text = f"conflicts with {given[0]}: a task compacts one input, so leave one of them out"
        found.append(((given[1],), None, text))
    elif interval is not None:
        if text := interval_mistake(interval):
            found.append((("interval",), interval, text))
        task["ioConfig"] = _compaction_io({"type": "interval", "interval": interval})
    elif segments:
        ids = _named_segments(segments, found)
        task["ioConfig"] = _compaction_io({"type": "segments", "segments": ids})


def _compaction_io(input_spec: dict[str, object]) -> dict[str, object]:
    return {"type": "compact", "inputSpec": input_spec}


def _named_segments(segments: object, found: Found) -> list[str]:
    """Return the ids of segments that are given as ids, or as Druid's whole segments."""
    ids = []
    for number, one in enumerate(segments if isinstance(segments, list) else [segments]):
        if isinstance(one, str):
            ids.append(one)
            continue
        try:
            ids.append(str(Segment.from_json(one if isinstance(one, dict) else {}).id))
        except InvalidRequest:
            found.append((("segments", number), None, _NO_SEGMENT))
    return ids


def _move_segment_granularity(task: dict[str, object], found: Found) -> None:
    """Move `segmentGranularity` of a compaction task into its `granularitySpec`."""
    given = task.pop("segmentGranularity", None)
    inside = task.get("granularitySpec")
    if given is None or not isinstance(inside, dict | None):
        return
    other = None if inside is None else inside.get("segmentGranularity")
    if other is not None and _folded(other) != _folded(given):
        text = "differs from granularitySpec.segmentGranularity: leave one of the two out"
        found.append((("segmentGranularity",), given, text))
    task["granularitySpec"] = {"segmentGranularity": given} | {
        name: value for name, value in (inside or {}).items() if value is not None
    }


def _folded(granularity: object) -> object:
    return granularity.lower() if isinstance(granularity, str) else granularity
