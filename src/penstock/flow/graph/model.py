"""The model of a flow: process groups, processors, connections, funnels, ports, labels, parameters.

Owns the shape of a flow and the short forms in which it may be written; the document form (YAML,
JSON) has the same fields. Does not own whether a flow makes sense (`validation`), nor ids that are
not given (`index`), nor values of parameters that come from outside (`parameters`).

Invariants:

- Immutable; mappings are never changed in place.
- A component's name is its key in the group's mapping: names of one kind cannot be double.
- No secret is in here: a sensitive parameter says where its value is found. So whatever prints,
  compares or exports a flow cannot tell one; errors of the model do not show what they were given.
- What a short form says, the long form says too; both give equal models.
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
from penstock.core.wholenumbers import INT64_MAX, INT64_MIN

FORMAT_NUMBER: Final = 1

MAX_TEXT_CHARACTERS: Final = 1 << 20
MAX_CONCURRENT_TASKS: Final = 1_000

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PARAMETER_NAME: Final = re.compile(r"[A-Za-z0-9_.-](?:[A-Za-z0-9_. -]*[A-Za-z0-9_.-])?", re.ASCII)


def _mistake(message: str) -> PydanticCustomError:
    # Braces in the message would be read as places of values.
    return PydanticCustomError("flow", "{message}", {"message": message})


def _check_name(name: str) -> str:
    try:
        check_stored_name(name, COMPONENT)
    except InvalidRequest as error:
        raise _mistake(str(error)) from None
    return name  # Ids follow from names as they are spelt; `index` compares them in normal form.


def _check_parameter_name(name: str) -> str:
    _check_name(name)
    if _PARAMETER_NAME.fullmatch(name) is None:
        raise _mistake(
            f"{name!r} is no name of a parameter: write letters, digits, blanks and . _ - only"
        )
    return name


def _check_id(text: str) -> str:
    lowered = text.lower()
    if _UUID.fullmatch(lowered) is None:
        raise _mistake("an id is a UUID, such as 0b1e5c9e-8d3f-5a51-9a55-2f1f0c7d8a10")
    return lowered


def _check_text(text: str) -> str:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise _mistake(f"{len(text)} characters: a text has at most {MAX_TEXT_CHARACTERS}")
    return text


def _sorted_once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _as_text(value: object) -> object:
    """Return a scalar as the text a flow file would have; anything else as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _set_only(value: object) -> object:
    """Leave out what is unset, so that a property without a value has its default."""
    if not isinstance(value, Mapping):
        return value
    return {name: text for name, text in value.items() if text is not None}


def _property_value(value: object) -> object:
    """Return a scalar as text and a list as texts; what a list means, its processor knows."""
    if isinstance(value, list | tuple):
        texts = tuple(_as_text(item) for item in value)
        if all(isinstance(text, str) for text in texts):
            return texts
    elif isinstance(text := _as_text(value), str):
        return _check_text(text)
    raise _mistake("must be a text, a number, true, false or a list of texts")


def _named(value: object) -> object:
    """Accept a list of names for a mapping whose values say nothing, ``funnels: [a, b]``."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        double = sorted({name for name in value if value.count(name) > 1})
        if double:
            raise _mistake(f"{double[0]!r} stands there more than once")
        return {name: {} for name in value}
    if isinstance(value, Mapping):
        return {name: {} if item is None else item for name, item in value.items()}
    return value


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Name = Annotated[str, AfterValidator(_check_name)]
ParameterName = Annotated[str, AfterValidator(_check_parameter_name)]
Id = Annotated[str, AfterValidator(_check_id)]
Text = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_text)]
PropertyValue = Annotated[str | tuple[str, ...], BeforeValidator(_property_value)]
Names = Annotated[
    tuple[Name, ...], BeforeValidator(_one_or_many), AfterValidator(_sorted_once)
]  # a set, in the one order that is exported


class FlowModel(BaseModel):
    """Base of the models: immutable, unknown fields refused, values kept out of errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _without_unset(cls, data: object) -> object:
        """Take a field without a value for one that is not there."""
        if isinstance(data, dict) and None in data.values():
            return {name: value for name, value in data.items() if value is not None}
        return data


class Position(FlowModel):
    """Where something is drawn. Written ``[x, y]``."""

    x: int = Field(ge=INT64_MIN, le=INT64_MAX)
    y: int = Field(ge=INT64_MIN, le=INT64_MAX)

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, data: object) -> object:
        if isinstance(data, list | tuple):
            if len(data) != 2:
                raise _mistake("a position is two whole numbers, [x, y]")
            return {"x": data[0], "y": data[1]}
        return data


class Component(FlowModel):
    """What everything in a group may have.

    Attributes:
        id: Its UUID; without one it follows from the names on the way to it. Given, it keeps queues
            and state when something is renamed or moved.
        comments: Anything, for people.
        position: Where it is drawn.
    """

    id: Id | None = None
    comments: Text = ""
    position: Position | None = None


class Strategy(StrEnum):
    """What starts a run of a processor."""

    EVENT = "event"
    TIMER = "timer"
    CRON = "cron"


_SHORT_SCHEDULES: Final = {"every": Strategy.TIMER, "cron": Strategy.CRON}


class Schedule(FlowModel):
    """When a processor runs. Short forms: ``event``, ``every 10 sec``, ``cron 0 0 13 * * ?``.

    Attributes:
        strategy: What starts a run.
        period: Timer driven: from the end of a run to the next, ``10 sec``; CRON driven: the
            expression. It may hold parameters.
        zone: CRON driven: the time zone, ``Europe/Berlin``.
        catch_up: CRON driven: one run for all firing times that passed while nothing could run.
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
            f"{data[:80]!r} is no schedule: write event, every PERIOD (every 10 sec) or "
            "cron EXPRESSION (cron 0 0 13 * * ?)"
        )

    def short(self) -> str | None:
        """Return the short form; None if it does not say everything."""
        if self.zone != "UTC" or self.catch_up or self.period != self.period.strip():
            return None
        if self.strategy is Strategy.EVENT:
            return None if self.period else "event"
        word = "every" if self.strategy is Strategy.TIMER else "cron"
        return f"{word} {self.period}" if self.period else None


class BackoffMechanism(StrEnum):
    """What waits between two tries."""

    PENALIZE_FLOWFILE = "penalize"
    YIELD_PROCESSOR = "yield"


class Retry(FlowModel):
    """How often a FlowFile is tried again before it goes to a relationship. Short: the count.

    Attributes:
        count: Tries after the first.
        backoff: What waits meanwhile, the FlowFile or the processor.
        max_backoff: The wait doubles up to this period.
    """

    count: int = Field(default=10, ge=0, le=1_000)
    backoff: BackoffMechanism = BackoffMechanism.PENALIZE_FLOWFILE
    max_backoff: Text = "10 mins"

    @model_validator(mode="before")
    @classmethod
    def _from_count(cls, data: object) -> object:
        return {"count": data} if isinstance(data, int | str) else data


class BulletinLevel(StrEnum):
    """From which level on a processor's messages are shown as bulletins."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"
    NONE = "NONE"


class Processor(Component):
    """A processor of a type, with its properties.

    Attributes:
        type: Name of the type; see ``penstock processor list``.
        properties: Values by name, as text that may hold parameters, ``#{name}``, or as a list of
            such texts; a property that is not there has its default.
        schedule: When it runs.
        concurrent_tasks: Threads that may be in it at once.
        run_duration: How long a run may go on with one commit.
        yield_duration: How long it rests when it asks to.
        penalty_duration: How long a FlowFile that it penalizes is not handed out.
        bulletin_level: Which of its messages are shown.
        auto_terminated: Relationships whose FlowFiles end here.
        retry: By relationship: tried again before it goes there.
        enabled: False: it is not started.
    """

    type: Name
    properties: Annotated[Mapping[Name, PropertyValue], BeforeValidator(_set_only)] = Field(
        default_factory=dict,
        repr=False,  # one that is not validated yet may hold a secret in clear
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
    """Joins connections; it does nothing to what passes."""


class Port(Component):
    """Where FlowFiles enter a process group, or leave it."""


class Label(FlowModel):
    """A text beside the components, for people. Short: the text."""

    text: Text
    position: Position | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: object) -> object:
        return {"text": data} if isinstance(data, str) else data


class Connection(FlowModel):
    """The queue between two components of a group.

    In documents ``from: Name.relationship`` and ``to: Name``; ``Group/Port`` names a port of a
    group within. The last dot parts the two, unless only another one leaves the name of a component
    (`index`). With ``relationships`` the whole of ``from`` is the name.

    Attributes:
        source: Name of where FlowFiles come from.
        relationships: Which of the source's; none for a funnel or a port.
        destination: Name of where they go.
        name: Needed where two connections have the same ends.
        id: Its UUID; without one it follows from the ids of its ends and its name.
        prioritizers: Which FlowFiles come first; the second decides where the first does not.
        expiration: FlowFiles older than this period are dropped; 0: never.
        back_pressure_count: FlowFiles from which on the source rests; 0: any number.
        back_pressure_size: Size of their contents from which on the source rests; 0: any size.
        swap_threshold: FlowFiles in memory before others are written to swap files.
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
    """A value that properties and periods may name, ``#{name}``. Short: the value.

    Exactly one of `value`, `env` and `file` says it. What comes from outside is sensitive unless
    said otherwise; what is written in the flow never is.

    Attributes:
        value: The value itself.
        env: Environment variable that holds it.
        file: Path of a file that holds it; line ends at its end do not count.
        sensitive: It is never shown.
        description: What it is for.
    """

    value: Text | None = None
    env: Text | None = None
    file: Text | None = None
    sensitive: bool = False
    description: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _from_value(cls, data: object) -> object:
        if not isinstance(data, dict):
            return {"value": "" if data is None else data}
        outside = data.get("env") is not None or data.get("file") is not None
        return {"sensitive": True, **data} if outside and "value" not in data else data

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(given is not None for given in (self.value, self.env, self.file)) != 1:
            raise _mistake("say where the value is by exactly one of value, env and file")
        if self.sensitive and self.value is not None:
            raise _mistake("a sensitive value is not written in the flow: give env or file")
        return self


class ParameterContext(FlowModel):
    """Parameters that groups share.

    Attributes:
        parameters: By name.
        inherits: Contexts whose parameters count where this one has none; the first that has it.
        description: What it is for.
    """

    parameters: Mapping[ParameterName, Parameter] = Field(default_factory=dict)
    inherits: Annotated[tuple[Name, ...], BeforeValidator(_one_or_many)] = ()
    description: Text = ""


class ProcessGroup(Component):
    """Components that belong together, with connections between them.

    Processors, funnels, ports and groups of one group share their names: no two have the same.

    Attributes:
        parameters: The group's own; they count before those of its context.
        parameter_context: Name of the context used here and, where they name none, in groups
            within.
        max_concurrent_tasks: Threads that may be in all of its processors at once; None: any.
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
    """A flow: the root process group, with what holds for all of it.

    Attributes:
        format: Number of the format of its document.
        name: Names the flow; ids that are not given follow from it.
        version: Of the flow, by its author.
        parameter_contexts: By name.
    """

    format: int = Field(default=FORMAT_NUMBER, ge=1)
    name: Name
    version: Text = ""
    parameter_contexts: Mapping[Name, ParameterContext] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_format(self) -> Self:
        if self.format != FORMAT_NUMBER:
            raise _mistake(
                f"format {self.format} is not known: this version of Penstock reads format "
                f"{FORMAT_NUMBER}"
            )
        return self
