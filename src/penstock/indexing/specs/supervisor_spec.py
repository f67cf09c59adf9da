"""The spec of a supervisor: the whole JSON that a user writes, and its parsing.

Most supervisors read a stream; those of type `autocompact` have the spec of `compaction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, get_args

from pydantic import Field, JsonValue, model_validator

from penstock.indexing.specs.batch.batch_task_specs import BATCH_TASK_TYPES
from penstock.indexing.specs.compaction import AUTOCOMPACT, CompactionSupervisorSpec
from penstock.indexing.specs.data_schema import DataSchema
from penstock.indexing.specs.duplicate_fields import without_duplicates
from penstock.indexing.specs.scalars import Flag, SupervisorId
from penstock.indexing.specs.spec_base import Found, SpecModel, mistakes
from penstock.indexing.specs.spec_text import read_model, read_object
from penstock.indexing.specs.stream_config import IoConfig, StreamType, TuningConfig
from penstock.indexing.specs.task_context import (
    STREAMING_PRIORITY,
    ContextOfCreated,
    TaskContext,
    read_context,
)

_BATCH: Final = "use it in a batch task"


class IngestionSpec(SpecModel):
    """The schema of rows, their source, and how they are written."""

    data_schema: DataSchema
    io_config: IoConfig
    tuning_config: TuningConfig = TuningConfig()

    @model_validator(mode="before")
    @classmethod
    def _refuse_listed_chunks(cls, data: object) -> object:
        """Refuse listed time chunks first, before their missing fields are reported."""
        schema = data.get("dataSchema") if isinstance(data, dict) else None
        granularity = schema.get("granularitySpec") if isinstance(schema, dict) else None
        if isinstance(granularity, dict) and granularity.get("type") == "arbitrary":
            text = "a stream accepts every time, so its time chunks cannot be listed: set a"
            text += f" segmentGranularity, and set type to uniform; or {_BATCH}"
            place = ("dataSchema", "granularitySpec", "type")
            raise mistakes("IngestionSpec", [(place, "arbitrary", text)])
        return data

    @model_validator(mode="after")
    def _check_together(self) -> IngestionSpec:
        found = [*self._mistakes_in_schema(), *self._mistakes_in_time()]
        found += self._mistakes_in_handoffs()
        if found:
            raise mistakes("IngestionSpec", found)
        if self.tuning_config.intermediate_handoff_period is None:
            return self
        # It is never reached: a task ends earlier.
        config = self.tuning_config.model_copy(update={"intermediate_handoff_period": None})
        return self.model_copy(update={"tuning_config": config})

    def _mistakes_in_schema(self) -> Found:
        found: Found = []
        for number, metric in enumerate(self.data_schema.metrics):
            if metric.reads_sketches:
                text = f"a stream's messages contain no sketches, but {metric.type} reads: {_BATCH}"
                found.append((("dataSchema", "metricsSpec", number, "type"), metric.type, text))
        if self.data_schema.granularity_spec.intervals:
            text = "a stream accepts every time; refuse late and early rows in ioConfig"
            found.append((("dataSchema", "granularitySpec", "intervals"), None, text))
        return found

    def _mistakes_in_time(self) -> Found:
        """Check the format of a record's own time, which is a number of milliseconds."""
        records, time = self.io_config.record_format, self.data_schema.timestamp_spec
        if records is None or time.column != records.timestamp_column_name:
            return []
        if time.format in {"auto", "millis"}:
            return []
        text = f"{time.column} counts milliseconds: write millis"
        return [(("dataSchema", "timestampSpec", "format"), time.format, text)]

    def _mistakes_in_handoffs(self) -> Found:
        period = self.tuning_config.intermediate_handoff_period
        if period is None or period >= self.io_config.task_duration:
            return []
        text = "a task publishes when it ends: set ioConfig.taskDuration to this, or leave it out"
        return [(("tuningConfig", "intermediateHandoffPeriod"), None, text)]


class SupervisorSpec(SpecModel):
    """A supervisor that ingests one stream into one datasource."""

    type: StreamType = "penstock"
    id: SupervisorId | None = None
    spec: IngestionSpec
    context: ContextOfCreated = Field(default_factory=dict)
    suspended: Flag = False

    unsupported: ClassVar[Mapping[str, str]] = {
        "dataSchema": "move it into spec",
        "ioConfig": "move it into spec",
        "source": "it is ioConfig.topic: leave it out",
        "tuningConfig": "move it into spec",
    }

    @model_validator(mode="before")
    @classmethod
    def _drop_duplicates(cls, data: object) -> object:
        """Drop the copies of the parts of `spec` that Druid writes next to it."""
        inside = ("ioConfig", "topic")
        return without_duplicates("SupervisorSpec", data, beside="source", inside=inside)

    @model_validator(mode="before")
    @classmethod
    def _one_type_for_all(cls, data: object) -> object:
        """Copy the type to its three places; a missing one is that of the supervisor."""
        if isinstance(data, dict) and data.get("type") in BATCH_TASK_TYPES:
            text = f"{data['type']!r} is a kind of batch task, not of supervisor: submit a task"
            raise mistakes("SupervisorSpec", [(("type",), data["type"], text)])
        spec = data.get("spec") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(spec, dict):
            return data
        if "dataSource" in spec and "dataSchema" not in spec:
            text = f"must be {AUTOCOMPACT} for a spec that has a dataSource and no dataSchema"
            raise mistakes("SupervisorSpec", [(("type",), data.get("type"), text)])
        if data.get("type") not in get_args(StreamType):
            return data
        filled = dict(spec)
        for name in ("ioConfig", "tuningConfig"):
            part = spec.get(name)
            if isinstance(part, dict) and part.get("type") is None:
                filled[name] = part | {"type": data["type"]}
        return data | {"spec": filled}

    @model_validator(mode="after")
    def _check_types(self) -> SupervisorSpec:
        found: Found = []
        if self.io.type != self.type:
            text = f"must be {self.type}, the supervisor's type"
            found.append((("spec", "ioConfig", "type"), self.io.type, text))
        # If a spec has no tuningConfig, its JSON form has the default.
        if self.tuning.type not in {self.type, "penstock"}:
            text = f"must be {self.type}, the supervisor's type, or leave it out"
            found.append((("spec", "tuningConfig", "type"), self.tuning.type, text))
        if found:
            raise mistakes("SupervisorSpec", found)
        return self

    @property
    def settings(self) -> TaskContext:
        """The context with the defaults of streaming tasks."""
        return read_context(self.context, priority=STREAMING_PRIORITY)

    @property
    def supervisor_id(self) -> str:
        """The id of the supervisor: `id`, or the datasource."""
        return self.id or self.spec.data_schema.datasource

    @property
    def data_schema(self) -> DataSchema:
        """The schema of the rows."""
        return self.spec.data_schema

    @property
    def io(self) -> IoConfig:
        """The stream."""
        return self.spec.io_config

    @property
    def tuning(self) -> TuningConfig:
        """The size of segments, and other tuning."""
        return self.spec.tuning_config

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self.io.stream

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form, including defaults; parsing it gives an equal spec."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value

    def with_suspended(self, suspended: bool) -> SupervisorSpec:
        """Return a copy that is suspended or not."""
        return self.model_copy(update={"suspended": suspended})


AnySupervisorSpec = SupervisorSpec | CompactionSupervisorSpec
"""The spec of a supervisor of either kind."""


def parse_supervisor(
    raw: bytes | str | Mapping[str, JsonValue], names: Callable[[str], str] | None = None
) -> AnySupervisorSpec:
    """Parse the spec of a supervisor of either kind; for `names` see `read_model`.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    value = read_object(raw) if isinstance(raw, bytes | str) else raw
    if isinstance(value, dict) and value.get("type") == AUTOCOMPACT:
        return read_model(CompactionSupervisorSpec, value, names)
    return read_model(SupervisorSpec, value, names)


def parse_supervisor_spec(raw: bytes | str | dict[str, JsonValue]) -> SupervisorSpec:
    """Parse the spec of a supervisor that reads a stream.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    return read_model(SupervisorSpec, raw)


def parse_data_schema(raw: bytes | str | dict[str, JsonValue]) -> DataSchema:
    """Parse a ``dataSchema`` alone.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    return read_model(DataSchema, raw)
