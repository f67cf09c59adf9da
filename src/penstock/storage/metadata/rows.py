"""What the metadata store takes and gives: frozen records, free of SQL and of meaning.

Payloads are JSON objects that the store keeps and never looks into. Times are epoch milliseconds,
intervals half open. `created_ms` and its like are stamped by the store when a row goes in; a row
that is handed in may leave them at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from penstock.core.intervals import Interval

JsonObject: TypeAlias = Mapping[str, object]
Offsets: TypeAlias = Mapping[int, int]  # stream partition -> offset


@dataclass(frozen=True, slots=True)
class TaskRow:
    """An indexing task: what it is (`payload`), its state, and what is known of it (`status`).

    `status` holds location, error message and the like; it may change while `active`.
    """

    id: str
    datasource: str
    type: str
    group_id: str
    payload: JsonObject
    state: str = "RUNNING"
    status: JsonObject = field(default_factory=dict)
    active: bool = True
    created_ms: int = 0
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class SupervisorRow:
    """One version of a supervisor's spec; versions count up from 1, all are kept."""

    id: str
    payload: JsonObject
    version: int = 0
    tombstone: bool = False
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A published segment. Only `used` rows can be visible."""

    id: str
    datasource: str
    interval: Interval
    version: str
    partition_number: int
    core_partitions: int
    payload: JsonObject
    used: bool = True
    created_ms: int = 0
    used_changed_ms: int = 0


@dataclass(frozen=True, slots=True)
class PendingRow:
    """An allocated place for a segment that is not published yet."""

    datasource: str
    interval: Interval
    version: str
    partition_number: int
    core_partitions: int
    sequence_name: str
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class AllocateRequest:
    """Ask for a place of one sequence in a time chunk; `version` is for one without segments."""

    datasource: str
    interval: Interval
    sequence_name: str
    version: str


@dataclass(frozen=True, slots=True)
class AnnouncedFile:
    """A persisted file that is not published yet; `payload` says its columns, bytes and times."""

    path: str
    interval: Interval
    rows: int
    payload: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnnouncedRow:
    """An announced file with whose it is."""

    task_id: str
    datasource: str
    sequence_name: str
    file: AnnouncedFile


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is visible at one revision: each event in a segment or an announced file, never both.

    `segments` are all used rows, overshadowed ones too. `announced` holds one task's files for each
    sequence, however many replicas announced some. `segments_revision` is the revision at which
    `segments` last changed.
    """

    revision: int
    segments_revision: int
    segments: tuple[SegmentRow, ...]
    announced: tuple[AnnouncedRow, ...]
    datasource: str | None = None


@dataclass(frozen=True, slots=True)
class CountsRow:
    """Rows of a supervisor, added up over all its publishes."""

    processed: int = 0
    unparseable: int = 0
    thrown_away_late: int = 0
    thrown_away_early: int = 0
    thrown_away_filtered: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class CommittedRow:
    """The committed offset of each stream partition, and the topic in which they mean something.

    A topic that is deleted and made again under its name has another id. An empty `topic_id` means
    that it is not known.
    """

    topic_id: str
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Segments of one datasource and, for a stream, the offsets they stand for.

    `supervisor_id`, `start_offsets` and `end_offsets` are given together or not at all. Without
    segments only the offsets move. `sequence_name` names the sequence whose pending places and
    announced files go away with the publish. `topic_id` says which topic the offsets are of, if
    that is known.
    """

    task_id: str
    datasource: str
    segments: tuple[SegmentRow, ...] = ()
    supervisor_id: str | None = None
    start_offsets: Offsets | None = None
    end_offsets: Offsets | None = None
    sequence_name: str = ""
    counts: CountsRow = CountsRow()
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What became of a publish.

    ok: committed now; `inserted` are the ids of the segments that were not there before.
    retryable: nothing changed; an earlier sequence has to publish first, ask again later.
    already_published: nothing changed; this very sequence, from the same start to the same end, was
        committed before, by a replica or by this task before it was cut. Its rows are in.
    Neither: refused for good; nothing changed.
    """

    ok: bool
    retryable: bool = False
    already_published: bool = False
    reason: str = ""
    inserted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """An instance of a service that said lately that it is there; `extra` is its own."""

    service: str
    instance: str
    host: str
    port: int
    expires_ms: int
    extra: JsonObject = field(default_factory=dict)
    started_ms: int = 0


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Who changed what, when and why."""

    key: str
    type: str
    author: str
    comment: str
    payload: JsonObject
    created_ms: int = 0
