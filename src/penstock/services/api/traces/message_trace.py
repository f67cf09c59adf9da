"""From a message to its row: the tasks that read it, its segment, and the segments that hide it.

Owns the steps and the outcome of a message for each supervisor that reads its topic. The outcome is
found from stored records: the log of publishes and its counts, the announcements of running tasks,
the segments, and the message itself, which the task's own parser reads again. A row is confirmed by
a search in the files that SQL reads.

Outcomes: `visible` in a segment; `running`: visible in a file of a running task; `reading`: a task
will persist it; `notRead` yet; `hidden` by newer segments; `unused`; `deleted`; `unparseable`,
`late`, `early`, `filtered`: refused; `lost`: deleted before it was read; `published`: its sequence
was, but its row cannot be determined; `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound, PenstockError, counted
from penstock.core.intervals import format_time
from penstock.indexing.specs import SupervisorSpec
from penstock.indexing.specs.supervisor_spec import parse_supervisor
from penstock.indexing.task_spec import TASK_TYPE, StreamTaskSpec, parse_task_spec
from penstock.segments.segment import SegmentId
from penstock.services.api.traces.flow_history import FlowHistory, NoFlowHistory
from penstock.services.api.traces.segments_at import (
    FoundRows,
    ReadableFiles,
    SegmentsAt,
    find_rows,
    publish_json,
    segment_ids,
    segment_json,
    segments_at,
)
from penstock.services.api.traces.topic_messages import TopicMessages, id_text
from penstock.services.json_values import part
from penstock.spark.traces.message_rows import MessageOutcome, MessageSchema, outcome_of
from penstock.storage.metadata import (
    AnnouncedSequence,
    MetadataStore,
    PublishRecord,
    SegmentText,
    TaskFilter,
    TaskRow,
)
from penstock.storage.queue.log_reader import MessageSlice

_ATTEMPTS_EXAMINED: Final = 20
_SHOWN_MAX: Final = 20
_TERMINATED_MAX: Final = 1_000
"""Terminated supervisors that are searched for the message, the newest."""
_LETTERS_BYTES: Final = 4 << 20
_IN_SQL: Final = frozenset({"visible", "running"})
_UNSURE: Final = frozenset({"published", "unknown"})


@dataclass(frozen=True, slots=True)
class TraceParts:
    """Dependencies of traces.

    Attributes:
        store: The metadata store.
        messages: Reads messages.
        files: The files of segments.
        clock: The time.
        flows: Steps of a message in flows.
    """

    store: MetadataStore
    messages: TopicMessages
    files: ReadableFiles
    clock: Clock
    flows: FlowHistory = field(default_factory=NoFlowHistory)


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """A message, and what the topic has of it; `stored` is None if it was deleted."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    latest: int
    stored: MessageSlice | None

    def is_of(self, topic_id: str) -> bool:
        """Return whether offsets of a topic with this id may be those of the message's topic."""
        return not (topic_id and self.topic_id and topic_id != self.topic_id)


@dataclass(slots=True)
class Steps:
    """The steps of an event, in order."""

    found: list[dict[str, object]] = field(default_factory=list)

    def add(
        self,
        step: str,
        text: str,
        at_ms: int | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Add a step, with its time if it is known."""
        time = None if at_ms is None else format_time(at_ms)
        self.found.append(
            {"step": step, "time": time, "text": text, "details": dict(details or {})}
        )


@dataclass(slots=True)
class _Chain:
    """One supervisor's part of a trace while it is made."""

    message: TracedMessage
    spec: SupervisorSpec
    reading: MessageSchema
    steps: Steps = field(default_factory=Steps)

    @classmethod
    def begin(cls, message: TracedMessage, spec: SupervisorSpec) -> _Chain:
        return cls(message, spec, MessageSchema.of_supervisor(spec))

    @property
    def datasource(self) -> str:
        return self.spec.data_schema.datasource

    def done(self, outcome: str, reason: str, **more: object) -> dict[str, object]:
        return {
            "supervisor": self.spec.supervisor_id,
            "datasource": self.datasource,
            "outcome": outcome,
            "inSql": None if outcome in _UNSURE else outcome in _IN_SQL,
            "reason": reason,
            "rolledUp": self.reading.schema.rollup,
            **more,
            "steps": self.steps.found,
        }


class MessageTraces:
    """Follows messages. Any thread.

    Args:
        parts: Its dependencies.
    """

    def __init__(self, parts: TraceParts) -> None:
        self._parts = parts
        self._store = parts.store

    def trace(
        self,
        topic: str,
        partition: int,
        offset: int,
        may_read: Callable[[str], bool],
        may_read_topic: Callable[[str], bool],
        headers: Mapping[str, str],
    ) -> dict[str, object]:
        """Return the answer for a message.

        Args:
            topic: The topic, which the principal may read.
            partition: The stream partition.
            offset: The offset.
            may_read: Returns whether the principal may read a whole datasource: supervisors of
                others are left out.
            may_read_topic: Returns whether it may read a topic, to search dead letters there.
            headers: The headers by which other processes know the principal.

        Raises:
            NotFound: The topic does not exist, or it has no such message yet.
            InvalidRequest: The topic has no such stream partition.
            Unavailable: The broker or the metadata store does not answer.
        """
        message = self._message(topic, partition, offset)
        readers = self._readers(message, may_read, may_read_topic)
        stored = message.stored
        return {
            "topic": topic,
            "topicId": message.topic_id,
            "partition": partition,
            "offset": offset,
            "id": id_text(partition, offset),
            "message": {
                "kept": stored is not None,
                "publishedAt": None if stored is None else format_time(stored.append_time_ms),
                "bytes": None if stored is None else len(stored.messages[0].as_py()),
            },
            "flow": list(self._parts.flows.steps(topic, partition, offset, headers)),
            "readers": list(readers),
        }

    def _message(self, topic: str, partition: int, offset: int) -> TracedMessage:
        found = self._parts.messages.topic(topic)
        if partition >= len(found.partitions):
            raise InvalidRequest(
                f"topic {topic} has the stream partitions 0 to {len(found.partitions) - 1}:"
                " name one of them",
                place="partition",
            )
        known = found.partitions[partition]
        if offset >= known.latest:
            raise NotFound(
                f"stream partition {partition} of topic {topic} has no message at offset {offset}"
                f" yet: its next message gets the offset {known.latest}"
            )
        stored = None
        if offset >= known.earliest:
            stored = self._parts.messages.one(topic, partition, offset)
        return TracedMessage(topic, found.id, partition, offset, known.latest, stored)

    def _readers(
        self,
        message: TracedMessage,
        may_read: Callable[[str], bool],
        may_read_topic: Callable[[str], bool],
    ) -> Iterator[dict[str, object]]:
        """Yield the part of each supervisor that reads the topic, or has published the message."""
        rows = [(row, False) for row in self._store.supervisors.list()]
        rows += [(row, True) for row in self._store.supervisors.terminated(_TERMINATED_MAX)]
        for row, is_terminated in rows:
            io = part(row.payload, "spec", "ioConfig")
            if message.topic not in {part(io, "topic"), part(io, "stream")}:
                continue
            if is_terminated and not self._records(message, row.id):
                continue  # it never read the message, or long ago
            more: dict[str, object] = {"terminated": True} if is_terminated else {}
            try:
                spec = parse_supervisor(dict(row.payload))  # type: ignore[arg-type]  # stored JSON
            except PenstockError:  # narrow: the spec is of another release
                datasource = part(row.payload, "spec", "dataSchema", "dataSource")
                if isinstance(datasource, str) and may_read(datasource):
                    yield {**self._unparsed(message, row.id, datasource), **more}
                continue
            if not isinstance(spec, SupervisorSpec) or spec.io.source != "topic":
                continue  # a stream of this name elsewhere
            if may_read(spec.data_schema.datasource):
                yield {**self._reader(message, spec, may_read_topic), **more}

    def _unparsed(
        self, message: TracedMessage, supervisor_id: str, datasource: str
    ) -> dict[str, object]:
        """Return what the log of publishes has, if the spec of a supervisor cannot be read."""
        steps, records = Steps(), self._records(message, supervisor_id)
        for record in records[:1]:
            steps.add(
                "published",
                f"task {record.task_id} published it in the sequence {record.sequence_name}",
                record.published_ms,
                publish_json(record),
            )
        reached = self._committed(message, supervisor_id)
        if not records:
            text = f"the committed offset of its stream partition is {reached}"
            steps.add("committed", text)
        return {
            "supervisor": supervisor_id,
            "datasource": datasource,
            "outcome": "published" if records else "unknown",
            "inSql": None,
            "reason": "the stored spec of the supervisor is of another release, so the message"
            " cannot be parsed as its tasks did: submit a spec of this release",
            "rolledUp": False,
            "steps": steps.found,
        }

    def _reader(
        self, message: TracedMessage, spec: SupervisorSpec, may_read_topic: Callable[[str], bool]
    ) -> dict[str, object]:
        # In this order: a publish moves the committed offsets and is recorded in one transaction.
        reached = self._committed(message, spec.supervisor_id)
        if records := self._records(message, spec.supervisor_id):
            return self._last_published(message, spec, records, reached, may_read_topic)
        if reached > message.offset:
            return self._unrecorded(_Chain.begin(message, spec), reached, may_read_topic)
        answer = self._unpublished(_Chain.begin(message, spec), reached, may_read_topic)
        # It may have been published while the announcements were read.
        if records := self._records(message, spec.supervisor_id):
            reached = self._committed(message, spec.supervisor_id)
            return self._last_published(message, spec, records, reached, may_read_topic)
        return answer

    def _committed(self, message: TracedMessage, supervisor_id: str) -> int:
        committed = self._store.committed(supervisor_id)
        if committed is None or not message.is_of(committed.topic_id):
            return 0
        return committed.offsets.get(message.partition, 0)

    def _records(self, message: TracedMessage, supervisor_id: str) -> list[PublishRecord]:
        """Return the publishes that contain the message, the newest first."""
        found = self._store.publishes.at_offset(supervisor_id, message.partition, message.offset)
        return [one for one in found if message.is_of(one.topic_id)]

    def _last_published(
        self,
        message: TracedMessage,
        spec: SupervisorSpec,
        records: Sequence[PublishRecord],
        reached: int,
        may_read_topic: Callable[[str], bool],
    ) -> dict[str, object]:
        more: dict[str, object] = {}
        if len(records) > 1:
            more["otherPublishes"] = [publish_json(one) for one in records[1:]]
        if reached <= message.offset:
            more["readAgain"] = True
        return self._published(_Chain.begin(message, spec), records[0], may_read_topic, more)

    # Published

    def _published(
        self,
        chain: _Chain,
        record: PublishRecord,
        may_read_topic: Callable[[str], bool],
        more: Mapping[str, object],
    ) -> dict[str, object]:
        message, row = chain.message, self._store.tasks.get(record.task_id)
        task = None if row is None else _as_stream_task(row)
        if task is not None:
            chain.reading = MessageSchema.of_task(task)
        self._add_attempts(chain, record)
        p = message.partition
        first, end = record.start_offsets[p], record.end_offsets[p]
        chain.steps.add(
            "read",
            f"task {record.task_id}, which began then, read it with the offsets {first} to"
            f" {end - 1} of the sequence {record.sequence_name}",
            None if row is None else row.created_ms,
            publish_json(record),
        )
        chain.steps.add(
            "published",
            f"the sequence was published as {counted(len(record.segments), 'segment')}",
            record.published_ms,
            {"segments": list(record.segments[:_SHOWN_MAX])},
        )
        if message.stored is None:
            text = "the topic no longer has the message, so its row is not known"
            return chain.done("published", text, **more)
        found = outcome_of(chain.reading, message.stored, p, record.published_ms)
        if found.kind in {"unparseable", "late", "early"}:
            return self._refused(chain, found, may_read_topic, more)
        return self._row(chain, record, found, more)

    def _refused(
        self,
        chain: _Chain,
        found: MessageOutcome,
        may_read_topic: Callable[[str], bool],
        more: Mapping[str, object],
        *,
        sent: Literal["yes", "later", "unknown"] = "yes",
    ) -> dict[str, object]:
        chain.steps.add("refused", found.reason)
        if found.kind != "unparseable":
            return chain.done(found.kind, found.reason, **more)
        letters = chain.spec.io.dead_letters
        letter: dict[str, object] = {"topic": letters}
        place = self._letter_of(chain, letters) if may_read_topic(letters) else None
        reason = found.reason
        # Tasks send dead letters when they have persisted a whole sequence, before they publish it.
        if place is None and sent == "unknown":
            return chain.done("unparseable", reason, **more)
        if place is None and sent == "later":
            text = "its dead letter can be found once the task has published"
            reason = f"{reason}; {text}"
        elif place is None and may_read_topic(letters):
            text = (
                f"it was published to the dead-letter topic {letters}; it was not found there: it"
                " was deleted, or is after many others"
            )
        elif place is None:
            text = f"it was published to the dead-letter topic {letters}"
        else:
            letter |= {"partition": place[0], "offset": place[1], "id": id_text(*place)}
            where = f"dead-letter topic {letters}, stream partition {place[0]}, offset {place[1]}"
            text = f"it was published to the {where}"
            reason = f"{reason}; it is in the {where}"
        chain.steps.add("deadLetter", text, details=letter)
        if place is not None and self._parts.messages.is_redriven(letters, *place):
            chain.steps.add(
                "redriven",
                "its dead letter was redriven: a topic has it again, as another message with an"
                " offset of its own",
            )
        return chain.done("unparseable", reason, deadLetter=letter, **more)

    def _letter_of(self, chain: _Chain, letters: str) -> tuple[int, int] | None:
        message = chain.message
        if message.stored is None:
            return None
        source = (message.topic, message.partition, message.offset)
        since_ms = message.stored.append_time_ms
        try:
            return self._parts.messages.dead_letter(letters, source, since_ms, _LETTERS_BYTES)
        except NotFound:
            return None

    def _row(
        self,
        chain: _Chain,
        record: PublishRecord,
        found: MessageOutcome,
        more: Mapping[str, object],
    ) -> dict[str, object]:
        """Return the outcome of a message whose row was published, unless Spark refused it."""
        if found.time_ms is None:
            text = (
                "a transform computes its time in Spark, so its segment is one of those published"
            )
            return chain.done("published", text, **more)
        at = segments_at(self._store, chain.datasource, found.time_ms)
        rows = self._rows(at, found)
        candidates = [
            one
            for one in segment_ids(record.segments, chain.datasource)
            if one.interval.start_ms <= found.time_ms < one.interval.end_ms
        ]
        if not candidates:
            return self._absent(chain, record, found, more)
        shown = {
            str(one): there for one in candidates if (there := at.shown_copy(str(one))) is not None
        }
        confirmed = [name for name, there in shown.items() if there.id in rows.segments]
        if not shown:
            return self._not_shown(chain, record, candidates, at, rows, more)
        segment = shown[confirmed[0]] if confirmed else next(iter(shown.values()))
        is_refused = "filter" in chain.reading.in_spark and record.counts.thrown_away_filtered
        if is_refused and not confirmed and not rows.unread:
            return self._absent(chain, record, found, more)
        chain.steps.add(
            "segment", f"its row is in segment {segment.id}", details=segment_json(segment)
        )
        is_confirmed = {"isConfirmed": bool(confirmed)}
        chain.steps.add("visible", "queries read this segment", details=is_confirmed)
        doubt = "" if confirmed else f"; its row was not looked up: {rows.unread}"
        if not confirmed and not rows.unread:
            doubt = "; no row with its values was found there, so Spark may have changed them"
        return chain.done("visible", f"SQL shows its row{doubt}", **more)

    def _absent(
        self,
        chain: _Chain,
        record: PublishRecord,
        found: MessageOutcome,
        more: Mapping[str, object],
    ) -> dict[str, object]:
        """Return the outcome of a message whose sequence has no row of it."""
        if "filter" in chain.reading.in_spark and record.counts.thrown_away_filtered:
            text = "the filter of the spec refused it: Spark evaluated it, and there is no such row"
            chain.steps.add("refused", text)
            return chain.done("filtered", text, **more)
        if record.counts.thrown_away_early or found.kind == "undecided":
            chain.steps.add("refused", found.reason)
            return chain.done("early", found.reason, **more)
        if record.counts.thrown_away_late:
            text = "its sequence has no segment of its time, and refused late rows"
            chain.steps.add("refused", text)
            return chain.done("late", text, **more)
        text = "its sequence was published without a segment of its time"
        return chain.done("unknown", text, **more)

    def _not_shown(
        self,
        chain: _Chain,
        record: PublishRecord,
        candidates: Sequence[SegmentId],
        at: SegmentsAt,
        rows: FoundRows,
        more: Mapping[str, object],
    ) -> dict[str, object]:
        """Return the outcome of a row whose segment queries do not read."""
        segment = candidates[0]
        name = str(segment)
        stored = {row.id: row for row in self._store.segments.by_ids([name])}.get(name)
        place = segment_json(segment)
        text = f"its row was in segment {name}"
        chain.steps.add("segment", text, record.published_ms, place)
        over = [one for one in at.visible if one.version > segment.version]
        hiders, hidden_ms = self._hiders(over)
        if stored is None:
            chain.steps.add("deleted", f"segment {name} was deleted")
        elif not stored.used:
            chain.steps.add("unused", f"segment {name} was marked unused", stored.used_changed_ms)
        if over:
            names = ", ".join(one.id for one in over[:3])
            text = f"newer segments hide it: {names}"
            chain.steps.add("hidden", text, hidden_ms, {"hiddenBy": hiders})
        for other, count in rows.segments.items():
            writer = self._store.publishes.of_segments([other]).get(other)
            by = "" if writer is None else f", which task {writer.task_id} wrote"
            text = f"{counted(count, 'row')} with its values and time: segment {other}{by}"
            at_ms = None if writer is None else writer.published_ms
            chain.steps.add("rewritten", text, at_ms, {"segment": other})
            reason = f"SQL shows a row with its values, which was rewritten into segment {other}"
            return chain.done("visible", reason, hiddenBy=hiders, **more)
        if over:
            reason = f"newer segments hide segment {name}, and have no row with its values"
            if rows.unread:
                reason = f"newer segments hide segment {name}: {rows.unread}"
            return chain.done("hidden", reason, hiddenBy=hiders, **more)
        if stored is None:
            return chain.done("deleted", f"segment {name} was deleted", **more)
        if not stored.used:
            reason = f"segment {name} was marked unused, by a retention rule or by a user"
            return chain.done("unused", reason, **more)
        return chain.done("hidden", f"the time chunk of segment {name} is incomplete", **more)

    def _hiders(self, over: Sequence[SegmentText]) -> tuple[list[dict[str, object]], int | None]:
        """Return the segments that hide others, and when the first was published, if known."""
        texts = over[:_SHOWN_MAX]
        writers = self._store.publishes.of_segments([one.id for one in texts])
        hiders = [
            {**segment_json(one), "task": writers[one.id].task_id if one.id in writers else None}
            for one in texts
        ]
        return hiders, min((one.published_ms for one in writers.values()), default=None)

    def _rows(self, at: SegmentsAt, found: MessageOutcome) -> FoundRows:
        try:
            return find_rows(at, found.stored_ms or 0, found.values or {}, self._parts.files)
        except InvalidRequest:
            return FoundRows(unread="the types of columns have changed since")

    # Not published, or not recorded

    def _unrecorded(
        self, chain: _Chain, reached: int, may_read_topic: Callable[[str], bool]
    ) -> dict[str, object]:
        message = chain.message
        chain.steps.add(
            "committed",
            f"the committed offset of its stream partition is {reached}; no publish of the message"
            " is recorded",
        )
        doubt = (
            "it was published before publishes were recorded, or its segments were deleted long"
            " ago, or a start at the latest offset or a reset skipped it"
        )
        if message.stored is None:
            return chain.done("unknown", doubt)
        found = outcome_of(
            chain.reading, message.stored, message.partition, self._parts.clock.now_ms()
        )
        if found.kind == "unparseable":
            return self._refused(chain, found, may_read_topic, {}, sent="unknown")
        if found.time_ms is not None:
            rows = self._rows(segments_at(self._store, chain.datasource, found.time_ms), found)
            for name in rows.segments:
                text = f"segment {name} has a row with its values"
                chain.steps.add("visible", text, details={"segment": name})
                return chain.done("visible", f"SQL shows a row with its values; {doubt}")
        return chain.done("unknown", doubt)

    def _unpublished(
        self, chain: _Chain, reached: int, may_read_topic: Callable[[str], bool]
    ) -> dict[str, object]:
        message, spec = chain.message, chain.spec
        p = message.partition
        sequences = self._store.publishes.unpublished(chain.datasource)
        mine = [one for one in sequences if _contains(one, spec.supervisor_id, message)]
        for sequence in sorted(mine, key=lambda one: not one.is_shown):
            return self._announced(chain, sequence, may_read_topic)
        lag = message.latest - message.offset
        for task, row in self._active_tasks(chain):
            end = task.end_offsets
            if task.start_offsets.get(p, message.latest) <= message.offset and (
                end is None or message.offset < end.get(p, message.latest)
            ):
                first = task.start_offsets[p]
                chain.steps.add(
                    "reading",
                    f"task {task.id} reads from offset {first} on and has not persisted it yet",
                    row.created_ms,
                    {"task": task.id, "lag": lag},
                )
                reason = (
                    f"task {task.id} reads it next or is reading it;"
                    f" {counted(lag, 'message')} of its stream partition wait from this one on"
                )
                return chain.done("reading", reason, task=task.id)
        if message.stored is None:
            text = "the topic deleted it before the supervisor read it"
            chain.steps.add("lost", text)
            return chain.done("lost", text)
        why = "its supervisor is suspended" if spec.suspended else "no task reads it yet"
        text = f"{why}; the committed offset of its stream partition is {reached}"
        chain.steps.add("waiting", text, details={"lag": lag})
        return chain.done("notRead", text)

    def _announced(
        self,
        chain: _Chain,
        sequence: AnnouncedSequence,
        may_read_topic: Callable[[str], bool],
    ) -> dict[str, object]:
        message = chain.message
        task = self._stream_task(sequence.task_id)
        if task is not None:
            chain.reading = MessageSchema.of_task(task)
        assert sequence.reading is not None
        first = sequence.reading.start[message.partition]
        end = sequence.reading.end[message.partition]
        chain.steps.add(
            "read",
            f"task {sequence.task_id} read it with the offsets {first} to {end - 1} of the sequence"
            f" {sequence.sequence_name}, which is not published yet",
            details={"task": sequence.task_id, "sequence": sequence.sequence_name},
        )
        if message.stored is None:
            text = "the topic no longer has the message, so its row is not known"
            return chain.done("published", text)
        found = outcome_of(
            chain.reading, message.stored, message.partition, self._parts.clock.now_ms()
        )
        if found.kind in {"unparseable", "late", "early"}:
            return self._refused(chain, found, may_read_topic, {}, sent="later")
        if not sequence.is_shown:
            text = "queries read the files of another replica, which has not persisted it yet"
            return chain.done("reading", text)
        if found.time_ms is None:
            text = "a transform computes its time in Spark, so its row is not known"
            return chain.done("published", text)
        rows = self._rows(segments_at(self._store, chain.datasource, found.time_ms), found)
        is_there = sequence.sequence_name in rows.sequences
        if not is_there and not rows.unread and "filter" in chain.reading.in_spark:
            text = "the filter of the spec refused it: Spark evaluated it, and there is no such row"
            chain.steps.add("refused", text)
            return chain.done("filtered", text)
        text = f"queries read the files of task {sequence.task_id}"
        chain.steps.add("visible", text, details={"isConfirmed": is_there})
        return chain.done("running", f"SQL shows its row: {text} before they are published")

    def _active_tasks(self, chain: _Chain) -> Iterator[tuple[StreamTaskSpec, TaskRow]]:
        for row in self._store.tasks.list(active=True, datasource=chain.datasource):
            is_own = row.payload.get("supervisorId") == chain.spec.supervisor_id
            if is_own and (task := _as_stream_task(row)) is not None:
                yield task, row

    def _add_attempts(self, chain: _Chain, record: PublishRecord) -> None:
        """Add the other tasks that had this offset before it was published."""
        message = chain.message
        since_ms = 0 if message.stored is None else message.stored.append_time_ms
        wanted = TaskFilter(
            datasource=chain.datasource,
            type=TASK_TYPE,
            created_before_ms=record.published_ms + 1,
        )
        recent = self._store.tasks.summaries(wanted, limit=_ATTEMPTS_EXAMINED)
        ids = [
            one.id
            for one in recent
            if one.id != record.task_id and (one.active or one.updated_ms >= since_ms)
        ]
        rows = sorted(self._store.tasks.rows_of(ids), key=lambda row: row.created_ms)
        for row in rows:
            task = _as_stream_task(row)
            if task is None or task.supervisor_id != record.supervisor_id:
                continue
            p, end = message.partition, task.end_offsets
            if task.start_offsets.get(p, message.latest) > message.offset or (
                end is not None and end.get(p, 0) <= message.offset
            ):
                continue
            error = row.status.get("errorMsg") or ""
            ended = "is active" if row.active else f"ended as {row.state}"
            chain.steps.add(
                "attempt",
                f"task {row.id} also had its offset and {ended}" + (f": {error}" if error else ""),
                row.created_ms,
                {
                    "task": row.id,
                    "state": row.state,
                    "endedAt": None if row.active else format_time(row.updated_ms),
                },
            )

    def _stream_task(self, task_id: str) -> StreamTaskSpec | None:
        row = self._store.tasks.get(task_id)
        return None if row is None else _as_stream_task(row)


def _as_stream_task(row: TaskRow) -> StreamTaskSpec | None:
    """Return the spec of a streaming task; None if it is another task or of another release."""
    if row.type != TASK_TYPE:
        return None
    try:
        return parse_task_spec(dict(row.payload))
    except PenstockError:  # narrow: the task is left out
        return None


def _contains(sequence: AnnouncedSequence, supervisor_id: str, message: TracedMessage) -> bool:
    """Return whether the announcement of a supervisor's task contains a message."""
    reading, p = sequence.reading, message.partition
    return (
        reading is not None
        and reading.supervisor_id == supervisor_id
        and message.is_of(reading.topic_id)
        and p in reading.start
        and reading.start[p] <= message.offset < reading.end[p]
    )
