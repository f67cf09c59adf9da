"""Model of a flow: process groups, processors, connections, funnels, ports, labels, parameters.

Owns the shape of a flow and its short forms; the document form (YAML, JSON) has the same fields.
Does not own the validation of a flow (`validation`), derived ids (`flow_index`), nor external
values of parameters (`parameters`).

Invariants:

- Immutable; mappings are never changed in place.
- A component's name is its key in the group's mapping, so that names of one kind are unique.
- The model contains no secret: of a sensitive parameter it contains only the location of the value.
  So code that prints, compares or exports a flow cannot reveal a secret. Errors of the model do not
  show the given values.
- Every short form has an equivalent long form; both give equal models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from penstock.core.errors import InvalidRequest
from penstock.core.names import COMPONENT, check_stored_name
from penstock.core.secret_names import check_secret_name, is_reference, referenced_name
from penstock.core.whole_numbers import INT64_MAX, INT64_MIN

FORMAT_NUMBER: Final = 1

MAX_TEXT_CHARACTERS: Final = 1 << 20
MAX_CONCURRENT_TASKS: Final = 1_000

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PARAMETER_NAME: Final = re.compile(r"[A-Za-z0-9_.-](?:[A-Za-z0-9_. -]*[A-Za-z0-9_.-])?", re.ASCII)


def _mistake(message: str) -> PydanticCustomError:
    # Braces in the message would be interpreted as placeholders.
    return PydanticCustomError("flow", "{message}", {"message": message})


def _check_name(name: str) -> str:
    try:
        check_stored_name(name, COMPONENT)
    except InvalidRequest as error:
        raise _mistake(str(error)) from None
    return name  # ids are derived from the exact spelling; `index` compares normalized names


def _check_parameter_name(name: str) -> str:
    _check_name(name)
    if _PARAMETER_NAME.fullmatch(name) is None:
        raise _mistake(
            f"{name!r} is not a valid parameter name: use only letters, digits, spaces and . _ -"
        )
    return name


def _referenced_name(text: str) -> str | None:
    try:
        return referenced_name(text)
    except InvalidRequest as error:
        raise _mistake(str(error)) from None


def _check_secret_name(name: str) -> str:
    try:
        return check_secret_name(name)
    except InvalidRequest as error:
        raise _mistake(str(error)) from None


def _check_id(text: str) -> str:
    lowered = text.lower()
    if _UUID.fullmatch(lowered) is None:
        raise _mistake("an id must be a UUID, such as 0b1e5c9e-8d3f-5a51-9a55-2f1f0c7d8a10")
    return lowered


def _check_text(text: str) -> str:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise _mistake(f"the text has {len(text)} characters: use at most {MAX_TEXT_CHARACTERS}")
    return text


def _sorted_once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _as_text(value: object) -> object:
    """Return a scalar as the text in a flow file; other values unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _set_only(value: object) -> object:
    """Omit unset values, so that a property without a value has its default."""
    if not isinstance(value, Mapping):
        return value
    return {name: text for name, text in value.items() if text is not None}


def _property_value(value: object) -> object:
    """Return a scalar as text and a list as texts; the processor interprets the list."""
    if isinstance(value, list | tuple):
        texts = tuple(_as_text(item) for item in value)
        if all(isinstance(text, str) for text in texts):
            return texts
    elif isinstance(text := _as_text(value), str):
        return _check_text(text)
    raise _mistake("must be a text, a number, true, false or a list of texts")


def _named(value: object) -> object:
    """Convert a list of names to a mapping without settings, ``funnels: [a, b]``."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        double = sorted({name for name in value if value.count(name) > 1})
        if double:
            raise _mistake(f"{double[0]!r} is listed more than once: remove one")
        return {name: {} for name in value}
    if isinstance(value, Mapping):
        return {name: {} if item is None else item for name, item in value.items()}
    return value


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Name = Annotated[str, AfterValidator(_check_name)]
ParameterName = Annotated[str, AfterValidator(_check_parameter_name)]
Id = Annotated[str, AfterValidator(_check_id)]
SecretName = Annotated[str, AfterValidator(_check_secret_name)]
Text = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_text)]
PropertyValue = Annotated[str | tuple[str, ...], BeforeValidator(_property_value)]
Names = Annotated[
    tuple[Name, ...], BeforeValidator(_one_or_many), AfterValidator(_sorted_once)
]  # a set, exported in this order only


class FlowModel(BaseModel):
    """Base class of the models: immutable, unknown fields refused, no values in errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _without_unset(cls, data: object) -> object:
        """Treat a field without a value like a missing one."""
        if isinstance(data, dict) and None in data.values():
            return {name: value for name, value in data.items() if value is not None}
        return data


class Position(FlowModel):
    """Position in a drawing. Written ``[x, y]``."""

    x: int = Field(ge=INT64_MIN, le=INT64_MAX)
    y: int = Field(ge=INT64_MIN, le=INT64_MAX)

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, data: object) -> object:
        if isinstance(data, list | tuple):
            if len(data) != 2:
                raise _mistake("a position is two integers, [x, y]")
            return {"x": data[0], "y": data[1]}
        return data


class Component(FlowModel):
    """Common fields of everything in a group.

    Attributes:
        id: Its UUID; without one it is derived from the names of its groups and its own. A given id
            keeps queues and state when something is renamed or moved.
        comments: Free text for readers.
        position: Position in a drawing.
    """

    id: Id | None = None
    comments: Text = ""
    position: Position | None = None


class Strategy(StrEnum):
    """Cause of a run of a processor."""

    EVENT = "event"
    TIMER = "timer"
    CRON = "cron"


_SHORT_SCHEDULES: Final = {"every": Strategy.TIMER, "cron": Strategy.CRON}


class Schedule(FlowModel):
    """When a processor runs. Short forms: ``event``, ``every 10 sec``, ``cron 0 0 13 * * ?``.

    Attributes:
        strategy: Cause of a run.
        period: Timer driven: time from the end of a run to the next, ``10 sec``; CRON driven: the
            expression. It may contain parameters.
        zone: CRON driven: the time zone, ``Europe/Berlin``.
        catch_up: CRON driven: whether one run follows for all firing times missed while nothing
            could run.
    """

    strategy: Strategy = Strategy.EVENT
    period: Text = ""
    zone: Text = "UTC"
    catch_up: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_short(cls, data: object) -> object:
        if not isinstance(data, str):
            return data
        word, _, rest = data.strip().partition(" ")
        if word in _SHORT_SCHEDULES and rest.strip():
            return {"strategy": _SHORT_SCHEDULES[word], "period": rest.strip()}
        if data.strip() == Strategy.EVENT:
            return {}
        raise _mistake(
            f"{data[:80]!r} is not a schedule: write event, every PERIOD (every 10 sec) or cron "
            "EXPRESSION (cron 0 0 13 * * ?)"
        )

    def short(self) -> str | None:
        """Return the short form; None if it would lose information."""
        if self.zone != "UTC" or self.catch_up or self.period != self.period.strip():
            return None
        if self.strategy is Strategy.EVENT:
            return None if self.period else "event"
        word = "every" if self.strategy is Strategy.TIMER else "cron"
        return f"{word} {self.period}" if self.period else None


class BackoffMechanism(StrEnum):
    """Whether the FlowFile or the processor waits between two retries."""

    PENALIZE_FLOWFILE = "penalize"
    YIELD_PROCESSOR = "yield"


class Retry(FlowModel):
    """Retries of a FlowFile before it is transferred to a relationship. Short form: the count.

    Attributes:
        count: Number of retries.
        backoff: Whether the FlowFile is penalized or the processor yields.
        max_backoff: The delay doubles up to this period.
    """

    count: int = Field(default=10, ge=0, le=1_000)
    backoff: BackoffMechanism = BackoffMechanism.PENALIZE_FLOWFILE
    max_backoff: Text = "10 mins"

    @model_validator(mode="before")
    @classmethod
    def _from_count(cls, data: object) -> object:
        return {"count": data} if isinstance(data, int | str) else data


class BulletinLevel(StrEnum):
    """Minimum level of a processor's messages that become bulletins."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"
    NONE = "NONE"


class Processor(Component):
    """Processor of a type, with its properties.

    Attributes:
        type: Name of the type; see ``penstock processor list``.
        properties: Values by name, as text that may contain parameters, ``#{name}``, or as a list
            of such texts; a missing property has its default.
        schedule: When it runs.
        concurrent_tasks: Maximum number of threads that run it at once.
        run_duration: How long a run may continue with one commit.
        yield_duration: How long it is not triggered after it yields.
        penalty_duration: How long a FlowFile that it penalizes cannot be taken.
        bulletin_level: Minimum level of its bulletins.
        auto_terminated: Relationships at which FlowFiles end.
        retry: Retries by relationship.
        enabled: False: it cannot be started.
    """

    type: Name
    properties: Annotated[Mapping[Name, PropertyValue], BeforeValidator(_set_only)] = Field(
        default_factory=dict,
        repr=False,  # before validation it may contain a secret in clear text
    )
    schedule: Schedule = Schedule()
    concurrent_tasks: int = Field(default=1, ge=1, le=MAX_CONCURRENT_TASKS)
    run_duration: Text = "0 ms"
    yield_duration: Text = "1 sec"
    penalty_duration: Text = "30 sec"
    bulletin_level: BulletinLevel = BulletinLevel.WARN
    auto_terminated: Names = ()
    retry: Mapping[Name, Retry] = Field(default_factory=dict)
    enabled: bool = True


class Funnel(Component):
    """Joins connections without changing FlowFiles."""


class Port(Component):
    """Entry or exit of a process group for FlowFiles."""


class Label(FlowModel):
    """Text next to the components, for readers. Short form: the text."""

    text: Text
    position: Position | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: object) -> object:
        return {"text": data} if isinstance(data, str) else data


class Connection(FlowModel):
    """Connection between two components of a group, with a queue.

    In documents ``from: Name.relationship`` and ``to: Name``; ``Group/Port`` names a port of a
    child group. The last dot separates the two, unless only another dot leaves the name of a
    component (`flow_index`). With ``relationships``, the whole of ``from`` is the name.

    Attributes:
        source: Name of the source.
        relationships: Relationships of the source; empty for a funnel or a port.
        destination: Name of the destination.
        name: Required if two connections have the same ends.
        id: Its UUID; without one it is derived from the ids of its ends and its name.
        prioritizers: Order of FlowFiles; each prioritizer orders FlowFiles that are equal for the
            previous ones.
        expiration: FlowFiles older than this period are dropped; 0: never.
        back_pressure_count: Number of FlowFiles at which the source stops; 0: no limit.
        back_pressure_size: Size of their content at which the source stops; 0: no limit.
        swap_threshold: Number of FlowFiles in memory beyond which others are written to swap files.
    """

    source: Text
    relationships: Names = ()
    destination: Text
    name: Text = ""
    id: Id | None = None
    prioritizers: Annotated[tuple[Text, ...], BeforeValidator(_one_or_many)] = ()
    expiration: Text = "0 sec"
    back_pressure_count: int = Field(default=10_000, ge=0, le=INT64_MAX)
    back_pressure_size: Text = "1 GB"
    swap_threshold: int = Field(default=20_000, ge=1, le=INT64_MAX)

    @model_validator(mode="before")
    @classmethod
    def _from_document(cls, data: object) -> object:
        if not isinstance(data, dict) or not ("from" in data or "to" in data):
            return data
        fields = {**data}
        if "from" in fields:
            source = fields.pop("from")
            if isinstance(source, str) and "relationships" not in fields and "." in source:
                source, _, relationship = source.rpartition(".")
                fields["relationships"] = (relationship,)
            fields["source"] = source
        if "to" in fields:
            fields["destination"] = fields.pop("to")
        return fields


class Parameter(FlowModel):
    """Value that properties and periods may name, ``#{name}``. Short form: the value.

    Exactly one of `value`, `env`, `file` and `secret` is given. External values are sensitive by
    default, and a secret always is; a value in the flow never is. The short form of a secret is
    ``secret://NAME``.

    Attributes:
        value: The value itself.
        env: Environment variable that contains it.
        file: Path of a file that contains it; line breaks at the end of the file are ignored.
        secret: Name of a secret of Penstock.
        sensitive: Whether it is never shown.
        description: Purpose of the parameter.
    """

    value: Text | None = None
    env: Text | None = None
    file: Text | None = None
    secret: SecretName | None = None
    sensitive: bool = False
    description: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _from_value(cls, data: object) -> object:
        if not isinstance(data, dict):
            data = {"value": "" if data is None else data}
        if is_reference(data.get("value")) and "secret" not in data:
            rest = {name: value for name, value in data.items() if name != "value"}
            data = {**rest, "secret": _referenced_name(str(data["value"]))}
        outside = any(data.get(name) is not None for name in ("env", "file", "secret"))
        return {"sensitive": True, **data} if outside and "value" not in data else data

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = (self.value, self.env, self.file, self.secret)
        if sum(given is not None for given in sources) != 1:
            raise _mistake("a parameter needs exactly one of value, env, file and secret")
        if self.sensitive and self.value is not None:
            raise _mistake(
                "a sensitive value must not be written in the flow: use secret, env or file"
            )
        if self.secret is not None and not self.sensitive:
            raise _mistake("a secret is always sensitive: leave out sensitive")
        return self


class ParameterContext(FlowModel):
    """Parameters that groups share.

    Attributes:
        parameters: Parameters by name.
        inherits: Contexts that are searched for parameters missing here, in this order.
        description: Purpose of the context.
    """

    parameters: Mapping[ParameterName, Parameter] = Field(default_factory=dict)
    inherits: Annotated[tuple[Name, ...], BeforeValidator(_one_or_many)] = ()
    description: Text = ""


class ProcessGroup(Component):
    """Components that belong together, with connections between them.

    Processors, funnels, ports and groups of one group share a namespace: each name is unique.

    Attributes:
        parameters: The group's own; they take precedence over those of its context.
        parameter_context: Name of the context of this group and of groups within that name none.
        max_concurrent_tasks: Maximum number of threads in all of its processors at once; None: no
            limit.
    """

    parameters: Mapping[ParameterName, Parameter] = Field(default_factory=dict)
    parameter_context: Name | None = None
    max_concurrent_tasks: int | None = Field(default=None, ge=1, le=MAX_CONCURRENT_TASKS)
    input_ports: Annotated[Mapping[Name, Port], BeforeValidator(_named)] = Field(
        default_factory=dict
    )
    output_ports: Annotated[Mapping[Name, Port], BeforeValidator(_named)] = Field(
        default_factory=dict
    )
    processors: Mapping[Name, Processor] = Field(default_factory=dict)
    funnels: Annotated[Mapping[Name, Funnel], BeforeValidator(_named)] = Field(default_factory=dict)
    connections: tuple[Connection, ...] = ()
    groups: Mapping[Name, ProcessGroup] = Field(default_factory=dict)
    labels: tuple[Label, ...] = ()


class Flow(ProcessGroup):
    """Flow: the root process group, with settings for the whole flow.

    Attributes:
        format: Format number of its document.
        name: Name of the flow; missing ids are derived from it.
        version: Version of the flow, set by its author.
        parameter_contexts: Parameter contexts by name.
    """

    format: int = Field(default=FORMAT_NUMBER, ge=1)
    name: Name
    version: Text = ""
    parameter_contexts: Mapping[Name, ParameterContext] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_format(self) -> Self:
        if self.format != FORMAT_NUMBER:
            raise _mistake(
                f"unknown format {self.format}: this version of Penstock reads format "
                f"{FORMAT_NUMBER}"
            )
        return self
