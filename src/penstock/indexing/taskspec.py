"""What a streaming task is: the JSON that travels from the supervisor to its peon and is kept."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import JsonValue, ValidationError

from penstock.core.intervals import parse_time
from penstock.indexing.sequences import Offsets, offsets_to_json
from penstock.indexing.spec import DataSchema, SupervisorSpec, TuningConfig
from penstock.indexing.spec.config import TopicName
from penstock.indexing.spec.errors import spec_error
from penstock.indexing.spec.model import SpecModel

TASK_TYPE = "index_penstock"


class StreamTaskSpec(SpecModel):
    """A streaming task: it reads its stream partitions from `start_offsets` until told the end.

    One with `end_offsets` knows the end from the start: it makes up for a task that was lost. Rows
    before `min_time_ms` are late, those at or after `max_time_ms` early. The offsets are of the
    topic with `topic_id`, or of the first that it sees if that is empty. The base sequence name
    follows from what the task does, so two tasks of one name would publish the same rows.
    """

    type: Literal["index_penstock"] = "index_penstock"
    id: str
    group_id: int
    supervisor_id: str
    base_sequence_name: str
    data_schema: DataSchema
    tuning_config: TuningConfig
    topic: TopicName
    topic_id: str = ""
    dead_letter_topic: TopicName
    start_offsets: dict[int, int]
    end_offsets: dict[int, int] | None = None
    min_time_ms: int | None = None
    max_time_ms: int | None = None

    @property
    def datasource(self) -> str:
        """Where its rows go."""
        return self.data_schema.data_source

    @property
    def group_name(self) -> str:
        """The group id that Druid's API shows."""
        return f"{TASK_TYPE}_{self.supervisor_id}"

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form; `parse_task_spec` reads it."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value


def parse_task_spec(value: object) -> StreamTaskSpec:
    """Read a task's JSON form.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    try:
        return StreamTaskSpec.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise spec_error(error, StreamTaskSpec) from None


def base_sequence_name(
    spec: SupervisorSpec,
    start_offsets: Offsets,
    min_time_ms: int | None,
    max_time_ms: int | None,
) -> str:
    """Return the name that follows from what a task is to do; a token is added to it.

    Equal inputs give an equal name: that is how a restarted overlord recognises its tasks, and how
    a changed spec makes the running ones strangers. The token tells apart tasks that do the same at
    different times: after a reset, the same offsets are published once more.
    """
    meaning = json.dumps(
        [
            spec.data_schema.model_dump(mode="json", by_alias=True),
            spec.tuning.model_dump(mode="json", by_alias=True),
            spec.io.topic,
            spec.io.dead_letters,
            offsets_to_json(start_offsets),
            min_time_ms,
            max_time_ms,
        ],
        sort_keys=True,
    )
    digest = hashlib.sha256(meaning.encode()).hexdigest()[:15]
    return f"{TASK_TYPE}_{spec.supervisor_id}_{digest}"


def make_task(
    spec: SupervisorSpec,
    group_id: int,
    start: Offsets,
    end: Offsets | None,
    *,
    topic_id: str,
    now_ms: int,
    token: str,
) -> StreamTaskSpec:
    """Return a task of a supervisor that reads from `start`, up to `end` if that is known.

    Which rows are late or early follows from its first moment, so that its replacement after a
    crash of its process judges alike.
    """
    io = spec.io
    late, early = io.late_message_rejection_period, io.early_message_rejection_period
    min_ms = None if late is None else now_ms - late
    if io.late_message_rejection_start_date_time is not None:
        min_ms = parse_time(io.late_message_rejection_start_date_time)
    max_ms = None if early is None else now_ms + io.task_duration + early
    base = f"{base_sequence_name(spec, start, min_ms, max_ms)}_{token}"
    return StreamTaskSpec(
        id=base,
        group_id=group_id,
        supervisor_id=spec.supervisor_id,
        base_sequence_name=base,
        data_schema=spec.data_schema,
        tuning_config=spec.tuning,
        topic=io.topic,
        topic_id=topic_id,
        dead_letter_topic=io.dead_letters,
        start_offsets=dict(start),
        end_offsets=None if end is None else dict(end),
        min_time_ms=min_ms,
        max_time_ms=max_ms,
    )
