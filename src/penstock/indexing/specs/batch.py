"""The specs of batch tasks: `index_parallel`, `compact`, `kill`, `noop` and SQL.

Owns the requests that a user may make of a task, and the contradictions that are refused;
`indexing.batch` runs the tasks. All kinds have the form of a task that queue and workers know:
`id`, `type`, `datasource`, `group_name`, `priority`, `context`, `lock_wishes`.

`id` is empty until `with_id` names the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, ClassVar, Final, Literal, Self, get_args

from pydantic import AfterValidator, Field, JsonValue, ValidationInfo, model_validator

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import ETERNITY, Granularity, Interval, condensed
from penstock.indexing.lock_intent import LockIntent
from penstock.indexing.specs.aggregators import Aggregator
from penstock.indexing.specs.batch_tuning import BatchTuning
from penstock.indexing.specs.duplicate_fields import without_duplicates
from penstock.indexing.specs.errors import Mistake, SpecError, did_you_mean, shown
from penstock.indexing.specs.filters import Filter
from penstock.indexing.specs.inputs import (
    ExternTable,
    InputFormat,
    InputSource,
    wrong_format,
)
from penstock.indexing.specs.model import Found, Ignored, SpecModel, mistakes
from penstock.indexing.specs.partitions import DynamicPartitions, SingleDimensionPartitions
from penstock.indexing.specs.rows.dimensions import DimensionsSpec
from penstock.indexing.specs.rows.granularities import AnyGranularity
from penstock.indexing.specs.rows.projections import Projections
from penstock.indexing.specs.scalars import (
    TIME_COLUMN,
    Count,
    DatasourceName,
    Flag,
    GranularityText,
    IntervalText,
    TaskId,
    TimeText,
    check_task_id,
    interval_mistake,
)
from penstock.indexing.specs.schema import DataSchema
from penstock.indexing.specs.spec_text import read_model, read_object
from penstock.indexing.specs.stream_config import StreamType
from penstock.indexing.specs.task_context import (
    BATCH_PRIORITY,
    COMPACTION_PRIORITY,
    OTHER_PRIORITY,
    Context,
    IngestionMode,
    TaskContext,
    read_context,
)
from penstock.indexing.specs.text.clauses import overwrite_clause
from penstock.segments.model import Segment

_EXTERNS_MAX: Final = 100
_NO_SEGMENT: Final = "does not name a segment: write its id, or the whole segment as JSON"
_RESOURCE: Final = {"resource": "the availability group follows from the id of the task"}


def _check_id(name: str, info: ValidationInfo) -> str:
    return check_task_id(name, info) if name else name


class _BatchTask(SpecModel):
    """Fields that tasks of all kinds have in common."""

    id: Annotated[str, AfterValidator(_check_id)] = ""
    group_id: TaskId | None = None
    context: Context = Field(default_factory=dict)

    unsupported: ClassVar[Mapping[str, str]] = _RESOURCE
    default_priority: ClassVar[int] = OTHER_PRIORITY
    stores_compaction_state: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _drop_own_resource(cls, data: object) -> object:
        """Drop Druid's `resource`: one slot, in an availability group named after the task."""
        resource = data.get("resource") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(resource, dict):
            return data
        known = resource.keys() <= {"availabilityGroup", "requiredCapacity"}
        group, capacity = resource.get("availabilityGroup"), resource.get("requiredCapacity")
        own = not data.get("id") or group in (None, data["id"], data.get("groupId"))
        if known and own and capacity in (None, 1):
            return {name: value for name, value in data.items() if name != "resource"}
        return data

    @property
    def group_name(self) -> str:
        """The group of tasks that share locks; the task's own id unless it names a group."""
        return self.group_id or self.id

    @property
    def availability_group(self) -> str:
        """The availability group: the task's own id, so that it is alone in it."""
        return self.id

    @property
    def settings(self) -> TaskContext:
        """The context with its defaults."""
        return read_context(
            self.context,
            priority=self.default_priority,
            store_compaction_state=self.stores_compaction_state,
        )

    @property
    def priority(self) -> int:
        """Priority of the task in the queue, and of its locks."""
        return self.settings.priority

    @property
    def mode(self) -> IngestionMode:
        """How the task treats existing segments."""
        return IngestionMode.NONE

    @property
    def locks_max(self) -> int | None:
        """Maximum number of locks; None means unlimited."""
        return None

    @property
    def locks_segments(self) -> bool:
        """Whether the task locks single segments, if the existing ones allow it."""
        return False

    def with_id(self, name: str) -> Self:
        """Return a copy of the task with a name."""
        return self.model_copy(update={"id": name})

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form, including defaults; parsing it gives an equal task."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value

    def _stands_apart(self, tuning: BatchTuning) -> bool:
        """Return whether the segments that the task writes are independent and can be locked.

        Segments that replace whole intervals hide all existing ones, and the segments of a perfect
        partitioning, to which no task appends, only count together.
        """
        return not (
            self.settings.force_time_chunk_lock
            or self.mode is IngestionMode.REPLACE
            or tuning.partitions.is_perfect
        )

    def _wishes(self, intervals: Iterable[Interval]) -> tuple[LockIntent, ...]:
        if self.locks_segments:
            return ()  # It looks up the existing segments when it runs.
        appends = self.mode is IngestionMode.APPEND
        return tuple(LockIntent(interval, appends=appends) for interval in condensed(intervals))


class BatchIo(SpecModel):
    """The input of `index_parallel`, and how it treats existing segments."""

    type: Literal["index_parallel", "index"] = "index_parallel"
    input_source: InputSource
    input_format: InputFormat | None = None
    append_to_existing: Flag = False
    drop_existing: Flag = False

    unsupported: ClassVar[Mapping[str, str]] = {"firehose": "use inputSource and inputFormat"}

    @model_validator(mode="after")
    def _check_together(self) -> BatchIo:
        found: Found = []
        if self.append_to_existing and self.drop_existing:
            text = "cannot be used with appendToExisting: a task either appends or replaces"
            found.append((("dropExisting",), True, text))
        if (wrong := wrong_format(self.input_source, self.input_format)) is not None:
            found.append((("inputFormat",), None, wrong))
        if found:
            raise mistakes("BatchIo", found)
        return self


class BatchIngestion(SpecModel):
    """The schema of rows, their source, and the size of segments."""

    data_schema: DataSchema
    io_config: BatchIo
    tuning_config: BatchTuning = BatchTuning()

    @model_validator(mode="after")
    def _check_together(self) -> BatchIngestion:
        found: Found = []
        perfect = self.tuning_config.partitions.is_perfect
        if self.io_config.append_to_existing and perfect:
            text = "appendToExisting adds single segments, so it requires the type dynamic"
            found.append((("tuningConfig", "partitionsSpec", "type"), None, text))
        intervals = self.data_schema.granularity_spec.intervals
        if self.io_config.drop_existing and not intervals:
            text = "dropExisting replaces all segments of these intervals: list the intervals"
            found.append((("dataSchema", "granularitySpec", "intervals"), intervals, text))
        found += self._absent_partition_dimensions()
        if found:
            raise mistakes("BatchIngestion", found)
        return self

    def _absent_partition_dimensions(self) -> Found:
        """Report partition dimensions that are not dimensions: unknown columns and metrics."""
        partitions = self.tuning_config.partitions
        if isinstance(partitions, DynamicPartitions) or self.data_schema.dimensions_spec.discovers:
            return []
        known = {TIME_COLUMN, *(d.name for d in self.data_schema.dimensions)}
        found: Found = []
        for number, name in enumerate(partitions.partition_dimensions):
            if name in known:
                continue
            is_single = isinstance(partitions, SingleDimensionPartitions)
            field = ("partitionDimension",) if is_single else ("partitionDimensions", number)
            place = ("tuningConfig", "partitionsSpec", partitions.type, *field)
            text = f"{name!r} is not a dimension: use one of these, or add it there"
            found.append((place, name, text))
        return found


class IndexParallelSpec(_BatchTask):
    """Read an input and write segments of it."""

    type: Literal["index_parallel", "index"] = "index_parallel"
    spec: BatchIngestion

    unsupported: ClassVar[Mapping[str, str]] = _RESOURCE | {
        "dataSchema": "move it into spec",
        "dataSource": "move it into spec.dataSchema",
        "ioConfig": "move it into spec",
        "tuningConfig": "move it into spec",
    }
    default_priority: ClassVar[int] = BATCH_PRIORITY

    @model_validator(mode="before")
    @classmethod
    def _drop_duplicates(cls, data: object) -> object:
        """Drop the copies of the datasource, and in old forms of the parts, that Druid writes."""
        inside = ("dataSchema", "dataSource")
        return without_duplicates("IndexParallelSpec", data, beside="dataSource", inside=inside)

    @model_validator(mode="after")
    def _check_locks(self) -> IndexParallelSpec:
        place = ("spec", "dataSchema", "granularitySpec", "intervals")
        most = self.locks_max
        if most is not None and most < (count := len(self.lock_wishes())):
            text = f"need {count} locks, more than maxAllowedLockCount {most}: list fewer"
            raise mistakes("IndexParallelSpec", [(place, None, text)])
        return self

    @property
    def datasource(self) -> str:
        """The datasource of the rows."""
        return self.data_schema.data_source

    @property
    def data_schema(self) -> DataSchema:
        """The schema of the rows."""
        return self.spec.data_schema

    @property
    def io(self) -> BatchIo:
        """The input, and how existing segments are treated."""
        return self.spec.io_config

    @property
    def tuning(self) -> BatchTuning:
        """The size of segments, and other tuning."""
        return self.spec.tuning_config

    @property
    def locks_max(self) -> int | None:
        """Maximum number of locks; None means unlimited."""
        return self.tuning.locks_max

    @property
    def mode(self) -> IngestionMode:
        """Append, replace whole intervals, or replace the time chunks that have rows."""
        if self.io.append_to_existing:
            return IngestionMode.APPEND
        if self.io.drop_existing:
            return IngestionMode.REPLACE
        return IngestionMode.REPLACE_LEGACY

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """Rows outside these intervals are dropped; empty means that every row counts."""
        given = self.data_schema.granularity_spec.intervals or ()
        return tuple(condensed(map(Interval.parse, given)))

    @property
    def segment_granularity(self) -> Granularity:
        """The time chunks."""
        return self.data_schema.segment_granularity

    @property
    def chunks(self) -> tuple[Interval, ...]:
        """The intervals, widened to time chunks; empty if only the rows determine them."""
        return tuple(aligned(one, self.segment_granularity) for one in self.intervals)

    @property
    def locks_segments(self) -> bool:
        """Whether the task locks single segments, if the existing ones allow it."""
        return self._stands_apart(self.tuning)

    def lock_wishes(self) -> tuple[LockIntent, ...]:
        """Return the time chunks, or nothing if the task locks segments."""
        return self._wishes(self.chunks)


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


class CompactSpec(_BatchTask):
    """Read the segments of an interval and write them again, merged or in another form."""

    type: Literal["compact"] = "compact"
    data_source: DatasourceName
    io_config: CompactIo
    dimensions_spec: DimensionsSpec | None = None
    metrics_spec: tuple[Aggregator, ...] | None = None
    granularity_spec: CompactGranularity = CompactGranularity()
    transform_spec: CompactTransform = CompactTransform()
    tuning_config: BatchTuning = BatchTuning(type="compaction")
    projections: Projections = ()

    unsupported: ClassVar[Mapping[str, str]] = _RESOURCE | {
        "keepSegmentGranularity": "set granularitySpec.segmentGranularity: without it, time chunks"
        " do not change",
    }
    nothing_said: ClassVar[Mapping[str, object]] = {"keepSegmentGranularity": True}
    repeated: ClassVar[Mapping[str, str]] = {
        "dimensions": "dimensionsSpec",
        "interval": "ioConfig",
        "segments": "ioConfig",
        "segmentGranularity": "granularitySpec",
    }
    without_effect: ClassVar[Mapping[str, Ignored]] = {"compactionRunner": Ignored.ANY}
    default_priority: ClassVar[int] = COMPACTION_PRIORITY
    stores_compaction_state: ClassVar[bool] = True

    @classmethod
    def _without_repeated(cls, data: dict[str, object]) -> dict[str, object]:
        """Rewrite the fields of older Druid versions, which its published examples still use."""
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
    def datasource(self) -> str:
        """The datasource to compact."""
        return self.data_source

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

    def lock_wishes(self) -> tuple[LockIntent, ...]:
        """Return the interval, widened to the new time chunks."""
        if self.interval is None:
            return ()
        granularity = self.segment_granularity
        return self._wishes(
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


class KillSpec(_BatchTask):
    """Delete rows and files of unused segments of an interval."""

    type: Literal["kill"] = "kill"
    data_source: DatasourceName
    interval: IntervalText
    # One query takes all of them, and databases limit the number of values in a query.
    versions: (
        Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=1_000)] | None
    ) = None
    batch_size: Count = Field(default=100, ge=1, le=10_000)
    limit: Count | None = Field(default=None, ge=1)
    max_used_status_last_updated_time: TimeText | None = None

    unsupported: ClassVar[Mapping[str, str]] = _RESOURCE | {
        "markAsUnused": "mark segments unused through the datasource's API first"
    }
    nothing_said: ClassVar[Mapping[str, object]] = {"markAsUnused": False}

    @property
    def datasource(self) -> str:
        """The datasource of the segments."""
        return self.data_source

    @property
    def time(self) -> Interval:
        """The interval."""
        return Interval.parse(self.interval)

    def lock_wishes(self) -> tuple[LockIntent, ...]:
        """Return its interval."""
        return self._wishes([self.time])


class NoopSpec(_BatchTask):
    """A task that only sleeps, to test that the cluster runs tasks."""

    type: Literal["noop"] = "noop"
    data_source: DatasourceName = "none"
    run_time: Count = Field(default=2_500, ge=0, le=86_400_000)

    without_effect: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        ("firehose", "isReadyResult", "isReadyTime"), Ignored.ANY
    )

    @property
    def datasource(self) -> str:
        """The datasource that the task names."""
        return self.data_source

    def lock_wishes(self) -> tuple[LockIntent, ...]:
        """Return nothing."""
        return ()


class SqlIngestSpec(_BatchTask):
    """A SQL `INSERT` or `REPLACE`, as the SQL parser split the statement.

    `sql` is the whole statement, for display; `query` selects its rows, with a column `__time`.
    `overwrite` lists the intervals of a REPLACE, ``["all"]`` for all of time; an INSERT has none.
    `query` reads the first of `externs` by the name `__penstock_extern_1`, and so on.
    """

    type: Literal["query_controller"] = "query_controller"
    data_source: DatasourceName
    sql: str = Field(min_length=1)
    query: str = Field(min_length=1)
    overwrite: tuple[Literal["all"] | IntervalText, ...] | None = None
    partitioned_by: GranularityText = "all"
    clustered_by: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    rows_per_segment: Count = Field(default=3_000_000, ge=1)
    externs: tuple[ExternTable, ...] = Field(default=(), max_length=_EXTERNS_MAX)
    max_parse_exceptions: Count = Field(default=0, ge=-1)

    default_priority: ClassVar[int] = BATCH_PRIORITY

    @model_validator(mode="after")
    def _check_together(self) -> SqlIngestSpec:
        found: Found = []
        granularity = self.segment_granularity
        if self.overwrite is not None and not self.overwrite:
            found.append((("overwrite",), [], "list the intervals to replace"))
        for number, interval in enumerate(self.intervals):
            if not granularity.is_aligned(interval):
                text = (
                    f"{overwrite_clause([interval])} does not begin and end with a time chunk"
                    f" (PARTITIONED BY {granularity}):"
                    f" write {overwrite_clause([aligned(interval, granularity)])},"
                    " or a finer PARTITIONED BY"
                )
                found.append((("overwrite", number), str(interval), text))
        if found:
            raise mistakes("SqlIngestSpec", found)
        return self

    @property
    def datasource(self) -> str:
        """The datasource of the rows."""
        return self.data_source

    @property
    def mode(self) -> IngestionMode:
        """INSERT appends; REPLACE replaces whole intervals."""
        return IngestionMode.APPEND if self.overwrite is None else IngestionMode.REPLACE

    @property
    def segment_granularity(self) -> Granularity:
        """The time chunks."""
        return Granularity.parse(self.partitioned_by)

    @property
    def parse_errors_max(self) -> int | None:
        """Maximum number of unparseable rows of `externs`; one more fails the task.

        None means unlimited, but one of `externs` with no other rows fails the task.
        """
        return None if self.max_parse_exceptions < 0 else self.max_parse_exceptions

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The intervals that a REPLACE replaces."""
        given = self.overwrite or ()
        return tuple(ETERNITY if text == "all" else Interval.parse(text) for text in given)

    def lock_wishes(self) -> tuple[LockIntent, ...]:
        """Return the replaced intervals; nothing for an INSERT, whose rows determine the chunks."""
        return self._wishes(self.intervals)


BatchTaskSpec = IndexParallelSpec | CompactSpec | KillSpec | NoopSpec | SqlIngestSpec

_TYPES: Final[Mapping[str, type[BatchTaskSpec]]] = {
    "index_parallel": IndexParallelSpec,
    "index": IndexParallelSpec,
    "compact": CompactSpec,
    "kill": KillSpec,
    "noop": NoopSpec,
    "query_controller": SqlIngestSpec,
}
BATCH_TASK_TYPES: Final = tuple(_TYPES)
_OF_SUPERVISORS: Final = "supervisors create the tasks of streams: submit a supervisor"
_OF_PARALLEL: Final = "submit index_parallel: one task, whose work Spark distributes"
_OF_STORES: Final = "move files with the tools of the store"
_REFUSED_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("index_kafka", "index_kinesis", "index_rabbit"), _OF_SUPERVISORS),
    **dict.fromkeys(
        (
            "index_hadoop",
            "partial_dimension_cardinality",
            "partial_dimension_distribution",
            "partial_index_generate",
            "partial_index_generic_merge",
            "partial_range_index_generate",
            "single_phase_sub_task",
        ),
        _OF_PARALLEL,
    ),
    **dict.fromkeys(("archive", "move", "restore"), _OF_STORES),
    "query_worker": "Spark distributes the work of a statement: POST it to /druid/v2/sql/task",
}


def parse_batch_task(
    raw: bytes | str | Mapping[str, JsonValue], names: Callable[[str], str] | None = None
) -> BatchTaskSpec:
    """Read the spec of a batch task of any kind; for `names` see `read_model`.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    value: object = read_object(raw) if isinstance(raw, bytes | str) else raw
    if not isinstance(value, dict):
        raise SpecError((Mistake("", "the spec must be a JSON object"),))
    kind: object = value.get("type")
    if kind is None:
        raise SpecError((Mistake("type", f"is required, one of {', '.join(_TYPES)}"),))
    if not isinstance(kind, str) or kind not in _TYPES:
        if kind in get_args(StreamType):
            text = f"{kind!r} is a kind of supervisor, not of batch task: submit it as a supervisor"
            raise SpecError((Mistake("type", text),))
        if isinstance(kind, str) and kind in _REFUSED_TYPES:
            text = f"{kind!r} of Druid is not supported here: {_REFUSED_TYPES[kind]}"
            raise SpecError((Mistake("type", text),))
        given, name = (repr(kind), kind) if isinstance(kind, str) else (shown(kind), "")
        text = f"{given} is not a kind of batch task{did_you_mean(name, list(_TYPES))}"
        raise SpecError((Mistake("type", text),))
    return read_model(_TYPES[kind], value, names)


def aligned(interval: Interval, granularity: Granularity) -> Interval:
    """Return the interval, widened until each end is at the edge of a time chunk, or in a gap."""
    start_ms, last_ms = interval.start_ms, interval.end_ms - 1
    return Interval(
        start_ms if granularity.is_gap(start_ms) else granularity.truncate(start_ms),
        interval.end_ms if granularity.is_gap(last_ms) else granularity.bucket(last_ms).end_ms,
    )
