"""The spec of a supervisor: the whole JSON that a user writes, and its parsing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeVar

from pydantic import Field, JsonValue, ValidationError

from penstock.indexing.spec.config import IoConfig, TuningConfig
from penstock.indexing.spec.errors import Mistake, SpecError, spec_error
from penstock.indexing.spec.jsontext import read_object
from penstock.indexing.spec.model import SpecModel
from penstock.indexing.spec.schema import DataSchema, DatasourceName

_Model = TypeVar("_Model", bound=SpecModel)


class IngestionSpec(SpecModel):
    """What rows look like, where they come from, how they are written."""

    data_schema: DataSchema
    io_config: IoConfig
    tuning_config: TuningConfig = TuningConfig()


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
    return _parse(SupervisorSpec, raw)


def parse_data_schema(raw: bytes | str | dict[str, JsonValue]) -> DataSchema:
    """Read a ``dataSchema`` alone.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    return _parse(DataSchema, raw)


def _parse(model: type[_Model], raw: bytes | str | dict[str, JsonValue]) -> _Model:
    value: object = read_object(raw) if isinstance(raw, bytes | str) else raw
    if not isinstance(value, dict):
        raise SpecError((Mistake("", "the spec must be a JSON object"),))
    try:
        # Snake case is for our own code only.
        return model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise spec_error(error, model) from None


def supervisor_json_schema() -> dict[str, JsonValue]:
    """Return the JSON schema of a supervisor's spec, for editors and the reference page."""
    schema: dict[str, JsonValue] = SupervisorSpec.model_json_schema(by_alias=True)
    return schema
