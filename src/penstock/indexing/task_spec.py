"""Specs of tasks: the JSON that a task has from its submission to its peon, and in the store.

Tasks of every kind have the form of `TaskSpec`, which is all that queue, runner and workers use.
Owns the streaming kind; the batch kinds are models of `penstock.indexing.specs`.
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
from penstock.indexing.lock_intent import LockIntent
from penstock.indexing.sequences import Offsets, offsets_to_json
from penstock.indexing.specs import DataSchema, IoConfig, SupervisorSpec, TuningConfig
from penstock.indexing.specs.batch.batch_task_specs import NoopSpec, parse_batch_task
from penstock.indexing.specs.errors import spec_error
from penstock.indexing.specs.input_formats import DelimitedFormat
from penstock.indexing.specs.rows.stream_formats import KafkaFormat
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.stream_config import TopicName
from penstock.indexing.specs.task_context import (
    STREAMING_PRIORITY,
    Context,
    TaskContext,
    read_context,
)
from penstock.indexing.stream_location import StreamLocation, location_of

TASK_TYPE = "index_penstock"


class TaskSpec(Protocol):
    """A task of any kind. Immutable."""

    @property
    def id(self) -> str:
        """Its id, never reused; also the name of its folder."""
        ...

    @property
    def type(self) -> str:
        """Its kind."""
        ...

    @property
    def datasource(self) -> str:
        """The datasource of its rows and locks."""
        ...

    @property
    def group_name(self) -> str:
        """The group of tasks that share locks; a task without a group has its own id."""
        ...

    @property
    def availability_group(self) -> str:
        """Tasks of one availability group run on different workers; by default its own id."""
        ...

    @property
    def priority(self) -> int:
        """A higher priority runs earlier, and may revoke locks of a lower one."""
        ...

    @property
    def context(self) -> Mapping[str, JsonValue]:
        """The context from its spec."""
        ...

    def lock_intents(self) -> tuple[LockIntent, ...]:
        """Return the intervals to lock before it starts; often none."""
        ...

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form; `parse_task` parses it."""
        ...


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """Rows before `min_ms` are late, those at or after `max_ms` early; None means no limit."""

    min_ms: int | None = None
    max_ms: int | None = None

    def or_wider(self, other: MessageTimes) -> MessageTimes:
        """Return the times that accept rows that either accepts."""
        starts, ends = (self.min_ms, other.min_ms), (self.max_ms, other.max_ms)
        return MessageTimes(
            None if None in starts else min(ms for ms in starts if ms is not None),
            None if None in ends else max(ms for ms in ends if ms is not None),
        )


class StreamTaskSpec(SpecModel):
    """A streaming task: it reads its stream partitions from `start_offsets` until its end is set.

    A task with `end_offsets` has a fixed end: it replaces a task that was lost. Rows before
    `min_time_ms` are late, those at or after `max_time_ms` early, but never those that are less
    than `early_period_ms` ahead of the clock when they are read. The offsets are of the topic with
    `topic_id`, or of the first topic that it sees if that is empty.

    The base sequence name is derived from the work, so tasks with the same name, which are
    replicas, publish the same rows. A task that joins its replicas later is given their
    `checkpoints`: the start offsets of each unpublished sequence, by number.

    Without a `place`, `topic` is a topic of Penstock; without a `delimited` format its messages are
    JSON. With a `record_format`, other parts of records than their values become columns, too.

    `replicas` is the number of replicas when it was created. Queries read the unpublished rows of a
    replica that keeps up and has the highest `server_priority`. Until `retaken_until`, a task
    accepts rows that lost tasks may have accepted by these times.
    """

    type: Literal["index_penstock"] = "index_penstock"
    id: str
    group_id: int
    supervisor_id: str
    base_sequence_name: str
    data_schema: DataSchema
    tuning_config: TuningConfig
    topic: str = Field(min_length=1)
    place: StreamLocation | None = None
    delimited: DelimitedFormat | None = None
    # Left out if not set: workers of earlier releases then accept the task.
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
    # Left out if it is the default: peons of an earlier release do not know it.
    server_priority: int = Field(default=0, exclude_if=lambda value: value == 0)
    context: Context = Field(default_factory=dict)

    @property
    def datasource(self) -> str:
        """The datasource of its rows."""
        return self.data_schema.datasource

    @property
    def group_name(self) -> str:
        """The group id that Druid's API shows."""
        return f"{TASK_TYPE}_{self.supervisor_id}"

    @property
    def availability_group(self) -> str:
        """The base sequence name, which replicas share because they do the same work."""
        return self.base_sequence_name

    @property
    def times(self) -> MessageTimes:
        """Limits for late and early rows when it was created."""
        return MessageTimes(self.min_time_ms, self.max_time_ms)

    def times_at(self, now_ms: int) -> MessageTimes:
        """Return the limits for late and early rows that are read now.

        The limit of early rows follows the clock, so that new rows are never early, however long
        the task waited for a worker or has been reading. The limit of late rows does not: a row
        that a lost task accepted is also accepted by the task that reads it again.
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
        """Streams have a high default: a topic stores messages for a limited time only."""
        return self.settings.priority

    def lock_intents(self) -> tuple[LockIntent, ...]:
        """Return nothing: only its rows determine the time chunks."""
        return ()

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form; `parse_task_spec` parses it."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value


NoopTaskSpec: TypeAlias = NoopSpec


def parse_task(value: object) -> TaskSpec:
    """Parse the JSON form of a task of any kind.

    Raises:
        InvalidRequest: Its kind is unknown, or a `SpecError` that lists every mistake with its
            place.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("a task must be a JSON object with a type")
    return parse_task_spec(value) if value.get("type") == TASK_TYPE else parse_batch_task(value)


def parse_task_spec(value: object) -> StreamTaskSpec:
    """Parse the JSON form of a streaming task.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    try:
        return StreamTaskSpec.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise spec_error(error, StreamTaskSpec) from None


def message_times(io: IoConfig, now_ms: int) -> MessageTimes:
    """Return the limits for late and early rows of a task that is created now."""
    late, early = io.late_message_rejection_period, io.early_message_rejection_period
    min_ms = None if late is None else now_ms - late
    if io.late_message_rejection_start_date_time is not None:
        min_ms = parse_time(io.late_message_rejection_start_date_time)
    return MessageTimes(min_ms, None if early is None else now_ms + io.task_duration + early)


def base_sequence_name(spec: SupervisorSpec, start_offsets: Offsets) -> str:
    """Return the name that is derived from the work of a task; a token is added to it.

    Equal inputs give an equal name. So a restarted overlord recognises its tasks, and a changed
    spec no longer matches the running ones. The token distinguishes tasks that do the same at
    different times: after a reset, the same offsets are published once more.
    """
    # Other brokers of Kafka, or other credentials, require other tasks.
    io = spec.io
    place = [location_of(io).model_dump(mode="json")] if io.source == "kafka" else []
    meaning = json.dumps(
        [
            # Projections do not change the work of tasks, so they do not change the name.
            spec.data_schema.model_dump(mode="json", by_alias=True, exclude={"projections"}),
            # Nor do the fields that only the supervisor uses.
            spec.tuning.model_dump(
                mode="json", by_alias=True, exclude={"offset_fetch_period", "http_timeout"}
            ),
            io.stream,
            io.dead_letters,
            offsets_to_json(start_offsets),
            io.late_message_rejection_start_date_time or io.late_message_rejection_period,
            io.early_message_rejection_period,
            # It affects locks. Without it, the name stays as in earlier releases.
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
    """Return whether a spec's task over the same offsets would have this name and work."""
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
    """Return a task of a supervisor that reads from `start` to `end`, if given."""
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
        place=None if io.source == "topic" else location_of(io),
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
    """Return a replica of a task that starts at the first of these checkpoints."""
    changes = {
        "id": f"{of.base_sequence_name}_{token}",
        "checkpoints": {number: dict(start) for number, start in sorted(checkpoints.items())},
        "server_priority": server_priority,
    }
    return of.model_copy(update=changes)
