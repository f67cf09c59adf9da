"""Publish requests of tasks: segments and offsets in one transaction under the task's locks.

`OverlordPublisher` owns the checks of a publish and the text of its refusal;
`segment_transactions` has what runs on the lane of the datasource, where no lock can change
meanwhile. Any thread may call; it blocks until the result.

`declare_projections` stores the projections of a batch task's spec after its publish; the
newest of a name wins. It never raises. If it fails or is interrupted, queries read the rows, and
the next task with the same spec stores the projections.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Conflict, LockRevoked, PenstockError
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.segment_transactions import keep_segments, publish_segments
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.rows.declared_projections import (
    config_name,
    dump,
    load,
    merged,
    of_schema,
)
from penstock.indexing.task_spec import StreamTaskSpec
from penstock.storage.metadata import PublishOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.actions import PublishSegments
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.overlord.task_index import ActiveTask
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.specs.rows.declared_projections import DeclaredProjections
    from penstock.indexing.task_spec import TaskSpec
    from penstock.storage.metadata import MetadataStore


_log = logging.getLogger(__name__)

_TRIES: Final = 10


def declare_projections(metadata: MetadataStore, task: TaskSpec) -> None:
    """Register the projections of a task that has published; the newest wins for each name.

    Never raises a `PenstockError`, because the publish has succeeded.
    """
    declared = _declared(task)
    if not declared:
        return
    name = config_name(task.datasource)
    try:
        for _ in range(_TRIES):
            old = metadata.config.get(name)
            known = load(old)
            if set_again := [one for one in declared if one not in known]:
                new = dump(merged(known, set_again))
                if not metadata.config.compare_and_set(name, old, new):
                    continue
            return
        _log.warning("task %s: projections are not registered: others change them at once", task.id)
    except PenstockError as error:
        _log.warning(
            "task %s: projections are not registered, queries read the rows (%s)", task.id, error
        )


def _declared(task: TaskSpec) -> tuple[DeclaredProjections, ...]:
    match task:
        case IndexParallelSpec():
            if task.data_schema.projections:
                return of_schema(task.data_schema.model_dump(mode="json", by_alias=True))
        case CompactSpec():
            if task.projections:
                return of_schema(task.model_dump(mode="json", by_alias=True))
        case _:
            pass
    return ()


class SupervisedTasks(Protocol):
    """Lookup of the tasks of a supervisor. Any thread."""

    def of_supervisor(self, supervisor_id: str) -> Mapping[str, ActiveTask]:
        """Return its active tasks, by id."""
        ...


class OverlordPublisher:
    """Publishes segments. Any thread; a call waits for the answer.

    Args:
        metadata: The metadata store.
        lockboxes: The locks.
        tasks: Finds the task that must publish first.
    """

    def __init__(
        self, metadata: MetadataStore, lockboxes: Lockboxes, tasks: SupervisedTasks
    ) -> None:
        self._metadata = metadata
        self._lockboxes = lockboxes
        self._tasks = tasks

    def publish(self, task: TaskSpec, action: PublishSegments) -> PublishOutcome:
        """Publish under the task's locks.

        Raises:
            LockRevoked: A lock that covers a segment was revoked, or the task is not active.
            Conflict: No lock covers a segment.
            Unavailable: The store does not answer: retry.
        """
        commit = partial(publish_segments, self._metadata, task, action)
        mine = lock_task(task)
        # Overwritten segments must still be locked, too: a new holder of the lock may rewrite them.
        old = self._metadata.segments.by_ids(action.overwritten) if action.overwritten else []
        try:
            future = self._lockboxes.critical(mine, commit, segments=[*action.segments, *old])
            outcome = future.result()
        except (LockRevoked, Conflict):  # narrow: translates
            if self._is_published(action):
                return PublishOutcome(ok=False, already_published=True)
            raise
        if outcome.ok or outcome.already_published:
            declare_projections(self._metadata, task)
        if outcome.retryable and isinstance(task, StreamTaskSpec) and action.start is not None:
            return replace(outcome, reason=self._waits_for(task, action.start, outcome.reason))
        return outcome

    def carry_over(self, task: TaskSpec, ids: Sequence[str]) -> int:
        """Add segments that the task did not read to its publish unchanged; return how many.

        Raises:
            LockRevoked: A lock that covers a segment was revoked, or the task is not active.
            Conflict: A segment is not used, or no REPLACE lock of the task contains it.
            Unavailable: The store does not answer: retry.
        """
        found = self._metadata.segments.by_ids(ids)
        rows = [row for row in found if row.used and row.datasource == task.datasource]
        if gone := sorted(set(ids) - {row.id for row in rows}):
            raise Conflict(
                f"segment {gone[0]} of {task.datasource}, which task {task.id} keeps, is"
                " no longer used: submit the task again for the current segments"
            )

        keep = partial(keep_segments, self._metadata, task, rows)
        return self._lockboxes.critical(lock_task(task), keep, segments=rows).result()

    def _is_published(self, action: PublishSegments) -> bool:
        """Return whether an earlier try succeeded whose answer was lost before a lock was."""
        ids = {segment.id for segment in action.segments}
        return bool(ids) and {row.id for row in self._metadata.segments.by_ids(ids)} == ids

    def _waits_for(self, task: StreamTaskSpec, start: Offsets, reason: str) -> str:
        """Describe the missing offsets, the tasks that read them, and the next step."""
        committed = self._metadata.offsets(task.supervisor_id) or {}
        missing = {p: (committed[p], at) for p, at in start.items() if committed.get(p, at) < at}
        if not missing:
            return f"{reason}; they are committed now: the task retries this publish"
        parts = ", ".join(f"{p}: {a} to {b}" for p, (a, b) in sorted(missing.items()))
        earlier = [
            other.task.id
            for other in self._tasks.of_supervisor(task.supervisor_id).values()
            if isinstance(other.task, StreamTaskSpec)
            and other.task.id != task.id
            and any(other.task.start_offsets.get(p, at) < at for p, (_, at) in missing.items())
        ]
        whose = (
            f"task {', '.join(sorted(earlier))} reads them and must publish first"
            if earlier
            else "no active task reads them: the supervisor starts one"
        )
        return (
            f"{reason}; not committed yet are the offsets (stream partition: from to) {parts};"
            f" {whose}; then the task retries this publish"
        )
