"""Publishes: segments and offsets in one transaction, while no lock of the datasource can change.

Owns what a publish must be checked for, and what its refusal says; the transaction itself is
`penstock.storage.metadata`'s. Invariant: nothing becomes visible that the task's locks do not
cover at that moment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import Conflict, LockRevoked
from penstock.indexing.lockbox.model import LockType
from penstock.indexing.overlord.declaring import declare
from penstock.indexing.overlord.locking import lock_task, lock_type
from penstock.indexing.taskspec import StreamTaskSpec
from penstock.storage.metadata import CountsRow, Covering, PublishOutcome, PublishRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.actions import PublishSegments
    from penstock.indexing.engine import RowCounts
    from penstock.indexing.lockbox.coverage import CoveringLocks
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.overlord.taskindex import ActiveTask
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.taskspec import TaskSpec
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.metadata.rows import PublishKind


class SupervisedTasks(Protocol):
    """Which tasks a supervisor has; asked from any thread."""

    def of_supervisor(self, supervisor_id: str) -> Mapping[str, ActiveTask]:
        """Return its active tasks, by id."""
        ...


class Publishing:
    """Does publishes. Any thread may ask; it waits for the answer.

    Args:
        metadata: The metadata store.
        lockboxes: The locks.
        tasks: Names the task that has to publish first.
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
            Unavailable: The store does not answer: ask again.
        """
        kind = _kind(task, action)

        def commit(locks: CoveringLocks) -> PublishOutcome:
            covering: dict[str, Covering] = {}
            if kind == "append":
                locks.require(LockType.APPEND)
                holders = locks.replacing(action.segments)
                covering = {
                    segment.id: Covering(held.task_id, held.lock.version)
                    for segment, held in zip(action.segments, holders, strict=True)
                    if held is not None
                }
            return self._metadata.publish(_request(task, action, kind, covering))

        mine = lock_task(task)
        # What is rewritten must still be locked, too: who took that lock may rewrite it otherwise.
        old = self._metadata.segments.by_ids(action.overwritten) if action.overwritten else []
        try:
            future = self._lockboxes.critical(mine, commit, segments=[*action.segments, *old])
            outcome = future.result()
        except (LockRevoked, Conflict):  # narrow: translates
            if self._is_published(action):
                return PublishOutcome(ok=False, already_published=True)
            raise
        if outcome.ok or outcome.already_published:
            declare(self._metadata, task)
        if outcome.retryable and isinstance(task, StreamTaskSpec) and action.start is not None:
            return replace(outcome, reason=self._waits_for(task, action.start, outcome.reason))
        return outcome

    def carry_over(self, task: TaskSpec, ids: Sequence[str]) -> int:
        """Have the task's publish list segments again that it did not read; return how many.

        Raises:
            LockRevoked: A lock that covers a segment was revoked, or the task is not active.
            Conflict: A segment is not used, or no REPLACE lock of the task contains it.
            Unavailable: The store does not answer: ask again.
        """
        found = self._metadata.segments.by_ids(ids)
        rows = [row for row in found if row.used and row.datasource == task.datasource]
        if gone := sorted(set(ids) - {row.id for row in rows}):
            raise Conflict(
                f"segment {gone[0]} of {task.datasource}, which task {task.id} wants to keep, is"
                " not used any more: submit the task again for what is there now"
            )

        def keep(locks: CoveringLocks) -> int:
            versions = {}
            for row, held in zip(rows, locks.replacing(rows), strict=True):
                if held is None or held.task_id != task.id:
                    raise Conflict(
                        f"task {task.id} has no REPLACE lock around segment {row.id}: set"
                        " useConcurrentLocks in its context"
                    )
                versions[row.id] = held.lock.version
            self._metadata.upgrades.add(task.id, versions)
            return len(versions)

        return self._lockboxes.critical(lock_task(task), keep, segments=rows).result()

    def _is_published(self, action: PublishSegments) -> bool:
        """Tell whether an earlier try went through, whose answer was lost and then a lock."""
        ids = {segment.id for segment in action.segments}
        return bool(ids) and {row.id for row in self._metadata.segments.by_ids(ids)} == ids

    def _waits_for(self, task: StreamTaskSpec, start: Offsets, reason: str) -> str:
        """Say which offsets are missing, whose they are, and what happens next."""
        committed = self._metadata.offsets(task.supervisor_id) or {}
        missing = {p: (committed[p], at) for p, at in start.items() if committed.get(p, at) < at}
        if not missing:
            return f"{reason}; that has happened meanwhile: this publish is tried again"
        parts = ", ".join(f"{p}: {a} to {b}" for p, (a, b) in sorted(missing.items()))
        earlier = [
            other.task.id
            for other in self._tasks.of_supervisor(task.supervisor_id).values()
            if isinstance(other.task, StreamTaskSpec)
            and other.task.id != task.id
            and any(other.task.start_offsets.get(p, at) < at for p, (_, at) in missing.items())
        ]
        whose = (
            f"task {', '.join(sorted(earlier))} reads them and has to publish first"
            if earlier
            else "no active task reads them: the supervisor starts one"
        )
        return (
            f"{reason}; not committed yet are the offsets (stream partition: from to) {parts};"
            f" {whose}; then this publish is tried again"
        )


def _kind(task: TaskSpec, action: PublishSegments) -> PublishKind:
    # A stream always adds; which transaction that is follows from its locks.
    is_stream = isinstance(task, StreamTaskSpec)
    if is_stream and lock_type(task, appends=True) is LockType.APPEND:
        return "append"
    return action.kind


def _request(
    task: TaskSpec, action: PublishSegments, kind: PublishKind, covering: dict[str, Covering]
) -> PublishRequest:
    is_stream = isinstance(task, StreamTaskSpec)
    return PublishRequest(
        task_id=task.id,
        datasource=task.datasource,
        segments=action.segments,
        supervisor_id=task.supervisor_id if isinstance(task, StreamTaskSpec) else None,
        start_offsets=action.start if is_stream else None,
        end_offsets=action.end if is_stream else None,
        sequence_name=action.sequence_name,
        topic_id=action.topic_id,
        counts=_counts(action.counts),
        kind=kind,
        covering=covering,
        basis=action.basis,
        overwritten=action.overwritten,
    )


def _counts(counts: RowCounts) -> CountsRow:
    return CountsRow(
        processed=counts.processed,
        unparseable=counts.unparseable,
        thrown_away_late=counts.thrown_away_late,
        thrown_away_early=counts.thrown_away_early,
        thrown_away_filtered=counts.thrown_away_filtered,
        # A sequence is published only when all of its bad messages are there.
        dead_letters=counts.unparseable,
    )
