"""What a task is: the JSON that travels from whoever submits it to its peon, and is kept.

Tasks of every kind have the form of `TaskSpec`; the queue, the runner and the workers know no more
of them. Owns the streaming kind; the batch kinds are models of `penstock.indexing.spec`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from pydantic import Field, JsonValue, ValidationError

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import parse_time
from penstock.indexing.lockwish import LockWish
from penstock.indexing.sequences import Offsets, offsets_to_json
from penstock.indexing.spec import DataSchema, IoConfig, SupervisorSpec, TuningConfig
from penstock.indexing.spec.batch import NoopSpec, parse_batch_task
from penstock.indexing.spec.config import TopicName
from penstock.indexing.spec.context import STREAMING_PRIORITY, Context, TaskContext, read_context
from penstock.indexing.spec.errors import spec_error
from penstock.indexing.spec.inputs import DelimitedFormat
from penstock.indexing.spec.model import SpecModel
from penstock.indexing.spec.rows.records import KafkaFormat
from penstock.indexing.streamplace import StreamPlace, place_of

TASK_TYPE = "index_penstock"


class TaskSpec(Protocol):
    """A task of any kind. Immutable."""

    @property
    def id(self) -> str:
        """Its name, unique for ever; also the name of its folder."""
        ...

    @property
    def type(self) -> str:
        """Its kind."""
        ...

    @property
    def datasource(self) -> str:
        """Where its rows go: what it locks is of this datasource."""
        ...

    @property
    def group_name(self) -> str:
        """The tasks that share locks; a task alone has its own id."""
        ...

    @property
    def availability_group(self) -> str:
        """Tasks of one such group never share a worker; a task alone has its own id."""
        ...

    @property
    def priority(self) -> int:
        """The higher, the sooner it is handed over; a lock of a lower one may be revoked."""
        ...

    @property
    def context(self) -> Mapping[str, JsonValue]:
        """What its submitter says about running it."""
        ...

    def lock_wishes(self) -> tuple[LockWish, ...]:
        """Return what it must lock before it may start; often nothing."""
        ...

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form; `parse_task` reads it."""
        ...


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """Rows before `min_ms` are late, those at or after `max_ms` early; None: no row is."""

    min_ms: int | None = None
    max_ms: int | None = None

    def or_wider(self, other: MessageTimes) -> MessageTimes:
        """Return the times that take what either takes."""
        starts, ends = (self.min_ms, other.min_ms), (self.max_ms, other.max_ms)
        return MessageTimes(
            None if None in starts else min(ms for ms in starts if ms is not None),
            None if None in ends else max(ms for ms in ends if ms is not None),
        )


class StreamTaskSpec(SpecModel):
    """A streaming task: it reads its stream partitions from `start_offsets` until told the end.

    One with `end_offsets` knows the end from the start: it makes up for a task that was lost. Rows
    before `min_time_ms` are late, those at or after `max_time_ms` early, but none that is less than
    `early_period_ms` ahead of the clock when it is read. The offsets are of the
    topic with `topic_id`, or of the first that it sees if that is empty. The base sequence name
    follows from what the task does, so tasks of one name, which are replicas, publish the same
    rows. One that joins its replicas later is given their `checkpoints`: where each sequence that
    is not published yet begins, by number. Without a `place`, `topic` is one of Penstock's own;
    without a `delimited` format its messages are JSON. With a `record_format` columns are made of
    what records have beside their values, too.
    `replicas` is how many were to do the same when it was made; of those that keep up, the rows of
    one with the highest `server_priority` are queried before they are published. Up to
    `retaken_until`, tasks that were lost may have taken rows by these times; whoever goes on before
    that takes them, too.
    """

    type: Literal["index_penstock"] = "index_penstock"
    id: str
    group_id: int
    supervisor_id: str
    base_sequence_name: str
    data_schema: DataSchema
    tuning_config: TuningConfig
    topic: str = Field(min_length=1)
    place: StreamPlace | None = None
    delimited: DelimitedFormat | None = None
    # Left out while it is not set: workers that do not know it yet take the task.
    record_format: KafkaFormat | None = Field(default=None, exclude_if=lambda value: value is None)
    topic_id: str = ""
    dead_letter_topic: TopicName
    start_offsets: dict[int, int]
    end_offsets: dict[int, int] | None = None
    checkpoints: dict[int, dict[int, int]] = Field(default_factory=dict)
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    early_period_ms: int | None = None
    retaken_until: dict[int, int] = Field(default_factory=dict)
    replicas: int = Field(default=1, ge=1)
    # Left out while it is the usual one: peons of an earlier release do not know it.
    server_priority: int = Field(default=0, exclude_if=lambda value: value == 0)
    context: Context = Field(default_factory=dict)

    @property
    def datasource(self) -> str:
        """Where its rows go."""
        return self.data_schema.data_source

    @property
    def group_name(self) -> str:
        """The group id that Druid's API shows."""
        return f"{TASK_TYPE}_{self.supervisor_id}"

    @property
    def availability_group(self) -> str:
        """Replicas do the same work: they have the base sequence name in common."""
        return self.base_sequence_name

    @property
    def times(self) -> MessageTimes:
        """Which rows were late or early when it was made."""
        return MessageTimes(self.min_time_ms, self.max_time_ms)

    def times_at(self, now_ms: int) -> MessageTimes:
        """Return which rows are late or early of those that are read now.

        What is early depends on the clock, so that no fresh row ever is, however long the task
        waited for a worker or reads on. What is late does not: a row that was in time for a task
        that was lost is in time for the one that reads it again.
        """
        if self.max_time_ms is None or self.early_period_ms is None:
            return self.times
        return MessageTimes(self.min_time_ms, max(self.max_time_ms, now_ms + self.early_period_ms))

    @property
    def settings(self) -> TaskContext:
        """The context with its defaults."""
        return read_context(self.context, priority=STREAMING_PRIORITY)

    @property
    def priority(self) -> int:
        """Streams come first: data waits in a topic only so long."""
        return self.settings.priority

    def lock_wishes(self) -> tuple[LockWish, ...]:
        """Return nothing: only its rows tell which time chunks it needs."""
        return ()

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form; `parse_task_spec` reads it."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value


NoopTaskSpec: TypeAlias = NoopSpec


def parse_task(value: object) -> TaskSpec:
    """Read the JSON form of a task of any kind.

    Raises:
        InvalidRequest: It is of no known kind, or a `SpecError` that lists every mistake with its
            place.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("a task must be a JSON object with a type")
    return parse_task_spec(value) if value.get("type") == TASK_TYPE else parse_batch_task(value)


def parse_task_spec(value: object) -> StreamTaskSpec:
    """Read a task's JSON form.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    try:
        return StreamTaskSpec.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise spec_error(error, StreamTaskSpec) from None


def message_times(io: IoConfig, now_ms: int) -> MessageTimes:
    """Return which rows are late or early of a task that is made now."""
    late, early = io.late_message_rejection_period, io.early_message_rejection_period
    min_ms = None if late is None else now_ms - late
    if io.late_message_rejection_start_date_time is not None:
        min_ms = parse_time(io.late_message_rejection_start_date_time)
    return MessageTimes(min_ms, None if early is None else now_ms + io.task_duration + early)


def base_sequence_name(spec: SupervisorSpec, start_offsets: Offsets) -> str:
    """Return the name that follows from what a task is to do; a token is added to it.

    Equal inputs give an equal name: that is how a restarted overlord recognises its tasks, and how
    a changed spec makes the running ones strangers. The token tells apart tasks that do the same at
    different times: after a reset, the same offsets are published once more.
    """
    # Other brokers of Kafka, or other credentials, want other tasks.
    io = spec.io
    place = [place_of(io).model_dump(mode="json")] if io.source == "kafka" else []
    meaning = json.dumps(
        [
            # Tasks make nothing of projections, so others make no other tasks.
            spec.data_schema.model_dump(mode="json", by_alias=True, exclude={"projections"}),
            # By what only the supervisor heeds, tasks do nothing otherwise.
            spec.tuning.model_dump(
                mode="json", by_alias=True, exclude={"offset_fetch_period", "http_timeout"}
            ),
            io.stream,
            io.dead_letters,
            offsets_to_json(start_offsets),
            io.late_message_rejection_start_date_time or io.late_message_rejection_period,
            io.early_message_rejection_period,
            # It decides about locks. Without one, the name is as it always was.
            *([spec.context] if spec.context else []),
            *place,
            *(
                format_.model_dump(mode="json", by_alias=True)
                for format_ in (io.delimited, io.record_format)
                if format_ is not None
            ),
        ],
        sort_keys=True,
    )
    digest = hashlib.sha256(meaning.encode()).hexdigest()[:15]
    return f"{TASK_TYPE}_{spec.supervisor_id}_{digest}"


def is_made_by(spec: SupervisorSpec, task: StreamTaskSpec) -> bool:
    """Whether a spec's task that reads the same would be named alike: it would do the same."""
    return task.base_sequence_name.startswith(f"{base_sequence_name(spec, task.start_offsets)}_")


def make_task(
    spec: SupervisorSpec,
    group_id: int,
    start: Offsets,
    end: Offsets | None,
    *,
    topic_id: str,
    times: MessageTimes,
    token: str,
    retaken_until: Offsets | None = None,
) -> StreamTaskSpec:
    """Return a task of a supervisor that reads from `start`, up to `end` if that is known."""
    io = spec.io
    base = f"{base_sequence_name(spec, start)}_{token}"
    return StreamTaskSpec(
        id=base,
        group_id=group_id,
        supervisor_id=spec.supervisor_id,
        base_sequence_name=base,
        data_schema=spec.data_schema,
        tuning_config=spec.tuning,
        topic=io.stream,
        place=None if io.source == "topic" else place_of(io),
        delimited=io.delimited,
        record_format=io.record_format,
        topic_id=topic_id,
        dead_letter_topic=io.dead_letters,
        start_offsets=dict(start),
        end_offsets=None if end is None else dict(end),
        min_time_ms=times.min_ms,
        max_time_ms=times.max_ms,
        early_period_ms=io.early_message_rejection_period,
        retaken_until=dict(retaken_until or {}),
        replicas=io.replicas,
        server_priority=io.server_priorities[0],
        context=spec.context,
    )


def make_replica(
    of: StreamTaskSpec,
    checkpoints: Mapping[int, Offsets],
    *,
    token: str,
    server_priority: int = 0,
) -> StreamTaskSpec:
    """Return a task that does the same as another, beginning at the first of these checkpoints."""
    changes = {
        "id": f"{of.base_sequence_name}_{token}",
        "checkpoints": {number: dict(start) for number, start in sorted(checkpoints.items())},
        "server_priority": server_priority,
    }
    return of.model_copy(update=changes)
