"""The overlord's side of task actions: does them against the metadata store.

Runs on the threads that bring the actions, not on the overlord's mailbox, so a slow transaction
holds up nobody else: every action is one transaction of the store, and the store is safe for any
thread. Only tasks that the overlord counts as active are heard. A task that was ended meanwhile may
still win that race, which does no harm: the publish compares offsets.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Closed, Conflict, InvalidRequest, LockRevoked, Unavailable
from penstock.core.intervals import format_time
from penstock.indexing.actions import (
    AnnounceFiles,
    AnyAction,
    CheckPointDataSourceMetadata,
    PublishSegments,
    RetrieveSegmentsById,
    SegmentAllocate,
    SegmentPlace,
    UpdateLocation,
    action_from_json,
    outcome_to_json,
    place_to_json,
    segment_to_json,
)
from penstock.indexing.filejson import data_file_to_json
from penstock.indexing.ports import TaskLocation
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    CountsRow,
    MetadataStore,
    PublishOutcome,
    PublishRequest,
)

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.engine import DataFile
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.taskspec import StreamTaskSpec

_VERSION_TRIES: Final = 10


class ActiveTasks(Protocol):
    """Which tasks are active; asked from any thread."""

    def active_task(self, task_id: str) -> StreamTaskSpec | None:
        """Return the task if it is active.

        Raises:
            Unavailable: The overlord has not read its tasks yet.
        """
        ...


class TaskNotices(Protocol):
    """What the overlord wants to know of actions; told from any thread."""

    def location_changed(self, task_id: str, location: TaskLocation) -> None:
        """A task's peon answers at another place."""
        ...

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's open sequence, which began at `start`, is full."""
        ...

    def published(self, task_id: str) -> None:
        """A task has moved the committed offsets."""
        ...


class ActionHandler:
    """Does task actions. Any thread.

    Args:
        metadata: The metadata store.
        tasks: Which tasks are active.
        notices: Who is told.
        clock: Versions of new time chunks are times.
    """

    def __init__(
        self, metadata: MetadataStore, tasks: ActiveTasks, notices: TaskNotices, clock: Clock
    ) -> None:
        self._metadata = metadata
        self._tasks = tasks
        self._notices = notices
        self._clock = clock

    def perform(self, task_id: str, action: object) -> object:
        """Do an action given in JSON; return its answer in JSON.

        Raises:
            InvalidRequest: It is no action.
            LockRevoked: The task is not active.
            Unavailable: The metadata store does not answer; ask again.
        """
        try:
            return self._perform(task_id, action_from_json(action))
        except Closed as error:
            # To the task that is no different from an overlord that is not there.
            raise Unavailable(f"the overlord is stopping, ask the next one: {error}") from error

    def _perform(self, task_id: str, action: AnyAction) -> object:
        task = self._tasks.active_task(task_id)
        if task is None:
            raise LockRevoked(
                f"task {task_id} is not active: it has ended for the overlord, abandon its work"
            )
        match action:
            case SegmentAllocate():
                return [place_to_json(place) for place in self._allocate(task, action)]
            case PublishSegments():
                return outcome_to_json(self._publish(task, action))
            case RetrieveSegmentsById():
                rows = self._metadata.segments.by_ids(action.ids)
                return [segment_to_json(row) for row in rows if row.datasource == task.datasource]
            case AnnounceFiles():
                files = [_announced(file) for file in action.files]
                name = action.sequence_name
                return self._metadata.announce(task_id, task.datasource, name, files)
            case UpdateLocation():
                self._notices.location_changed(task_id, TaskLocation(action.host, action.port))
                return None
            case CheckPointDataSourceMetadata():
                self._notices.checkpoint_wanted(task_id, action.start)
                return True
            case _:
                raise InvalidRequest(f"tasks of type {task.type} have no use for this action")

    def _publish(self, task: StreamTaskSpec, action: PublishSegments) -> PublishOutcome:
        _require_own(task, action.sequence_name)
        counts = action.counts
        outcome = self._metadata.publish(
            PublishRequest(
                task_id=task.id,
                datasource=task.datasource,
                segments=action.segments,
                supervisor_id=task.supervisor_id,
                start_offsets=action.start,
                end_offsets=action.end,
                sequence_name=action.sequence_name,
                topic_id=action.topic_id,
                counts=CountsRow(
                    processed=counts.processed,
                    unparseable=counts.unparseable,
                    thrown_away_late=counts.thrown_away_late,
                    thrown_away_early=counts.thrown_away_early,
                    thrown_away_filtered=counts.thrown_away_filtered,
                    # A sequence is published only when all of its bad messages are there.
                    dead_letters=counts.unparseable,
                ),
            )
        )
        if outcome.ok:
            self._notices.published(task.id)
        return outcome

    def _allocate(self, task: StreamTaskSpec, action: SegmentAllocate) -> list[SegmentPlace]:
        _require_own(task, action.sequence_name)
        names = _part_names(action)
        now_ms = self._clock.now_ms()
        for attempt in range(_VERSION_TRIES):
            version = format_time(now_ms + attempt)
            requests = [
                AllocateRequest(task.datasource, interval, name, version)
                for interval, name in zip(action.intervals, names, strict=True)
            ]
            try:
                rows = self._metadata.allocate_segments(requests)
            except Conflict:
                # Segments of this very millisecond were there and are unused now: take a later one.
                if attempt == _VERSION_TRIES - 1:
                    raise
                continue
            break
        places = []
        for row, interval in zip(rows, action.intervals, strict=True):
            if row is None:
                raise InvalidRequest(
                    f"datasource {task.datasource}: the time chunk {interval} cannot take a segment"
                    " beside those of another granularity: set the segmentGranularity that they"
                    " have, or mark them unused"
                )
            places.append(
                SegmentPlace(row.interval, row.version, row.partition_number, row.core_partitions)
            )
        return places


def _part_names(action: SegmentAllocate) -> list[str]:
    """Name the places of one sequence: the first of a chunk by its name, then with a number."""
    seen: Counter[str] = Counter()
    names = []
    for interval in action.intervals:
        part = seen[str(interval)]
        seen[str(interval)] += 1
        names.append(f"{action.sequence_name}#{part}" if part else action.sequence_name)
    return names


def _require_own(task: StreamTaskSpec, sequence_name: str) -> None:
    if not sequence_name.startswith(f"{task.base_sequence_name}_"):
        raise InvalidRequest(
            f"task {task.id}: the sequence {sequence_name!r} is not its own; its sequences begin"
            f" with {task.base_sequence_name}_"
        )


def _announced(file: DataFile) -> AnnouncedFile:
    payload = data_file_to_json(file)
    return AnnouncedFile(file.path, file.interval, file.rows, payload)
