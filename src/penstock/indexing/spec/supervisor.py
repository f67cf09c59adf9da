"""The spec of a supervisor: the whole JSON that a user writes, and its parsing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field, JsonValue, model_validator

from penstock.indexing.spec.config import IoConfig, TuningConfig
from penstock.indexing.spec.jsontext import read_model
from penstock.indexing.spec.model import SpecModel, mistakes
from penstock.indexing.spec.scalars import DatasourceName
from penstock.indexing.spec.schema import DataSchema

# What files of a task can be merged by, again and again.
_STREAM_KINDS: Final = frozenset({"count", "sum", "min", "max"})
_BATCH: Final = "use it in a batch task"


class IngestionSpec(SpecModel):
    """What rows look like, where they come from, how they are written."""

    data_schema: DataSchema
    io_config: IoConfig
    tuning_config: TuningConfig = TuningConfig()

    @model_validator(mode="after")
    def _check_for_streams(self) -> IngestionSpec:
        found: list[tuple[tuple[str | int, ...], object, str]] = []
        for number, metric in enumerate(self.data_schema.metrics):
            if metric.kind not in _STREAM_KINDS:
                text = f"the aggregator {metric.type} is not supported yet in streams: {_BATCH}"
                found.append((("dataSchema", "metricsSpec", number, "type"), metric.type, text))
        if self.io_config.input_format.type != "json":
            kind = self.io_config.input_format.type
            text = f"a stream's messages are json, not {kind}: {_BATCH}"
            found.append((("ioConfig", "inputFormat", "type"), kind, text))
        if self.data_schema.granularity_spec.intervals is not None:
            text = "a stream takes every time; refuse late and early rows in ioConfig"
            found.append((("dataSchema", "granularitySpec", "intervals"), None, text))
        if found:
            raise mistakes("IngestionSpec", found)
        return self


class SupervisorSpec(SpecModel):
    """One supervisor: it feeds one topic into one datasource."""

    type: Literal["penstock", "kafka"] = "penstock"
    id: DatasourceName | None = None
    spec: IngestionSpec
    context: dict[str, JsonValue] = Field(default_factory=dict)
    suspended: bool = False

    unsupported: ClassVar[Mapping[str, str]] = {
        "dataSchema": "it goes inside spec",
        "ioConfig": "it goes inside spec",
        "tuningConfig": "it goes inside spec",
    }

    @property
    def supervisor_id(self) -> str:
        """The name of the supervisor: `id`, or the datasource."""
        return self.id or self.spec.data_schema.data_source

    @property
    def data_schema(self) -> DataSchema:
        """The schema of the rows."""
        return self.spec.data_schema

    @property
    def io(self) -> IoConfig:
        """Where from."""
        return self.spec.io_config

    @property
    def tuning(self) -> TuningConfig:
        """How large."""
        return self.spec.tuning_config

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form, defaults included; parsing it gives an equal spec."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value

    def with_suspended(self, suspended: bool) -> SupervisorSpec:
        """Return the same spec, suspended or not."""
        return self.model_copy(update={"suspended": suspended})


def parse_supervisor_spec(raw: bytes | str | dict[str, JsonValue]) -> SupervisorSpec:
    """Read a supervisor's spec.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    return read_model(SupervisorSpec, raw)


def parse_data_schema(raw: bytes | str | dict[str, JsonValue]) -> DataSchema:
    """Read a ``dataSchema`` alone.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    return read_model(DataSchema, raw)


def supervisor_json_schema() -> dict[str, JsonValue]:
    """Return the JSON schema of a supervisor's spec, for editors and the reference page."""
    schema: dict[str, JsonValue] = SupervisorSpec.model_json_schema(by_alias=True)
    return schema
