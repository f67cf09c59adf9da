"""Operator operations of the overlord's API: locks, automatic compaction and segments.

`AdminService` returns locks and locked intervals, deletes unneeded pending segments, and
computes compaction plans; it keeps a cache of segments, so that a compaction plan reads only
what changed since the previous one. `CompactionService` serves the specs and the status of
automatic compaction, with or without a supervisor. A change is posted to the overlord's mailbox
and returns a future. All methods may be called from any thread; those of `AdminService` raise
`NotLeading` if the process has no term.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict
from penstock.core.instants import format_time
from penstock.indexing.overlord.compaction.compaction_duty import CompactionConfigs, CompactionDuty
from penstock.indexing.overlord.compaction.compaction_supervisors import compaction_summary

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.task_locks import HeldLock, LockPolicy
    from penstock.indexing.overlord.compaction.compaction_duty import AuditOf
    from penstock.indexing.overlord.compaction.planner import CompactionPlan
    from penstock.indexing.overlord.term import CurrentTerm, LeaderTerm, OverlordPorts
    from penstock.indexing.specs import CompactionSupervisorSpec
    from penstock.indexing.specs.compaction import CompactionConfig
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import MetadataStore


# Upper bound of the time to read the active tasks: a task created later had another clock.
_READ_MS_MAX: Final = 1_000


class AdminService:
    """Administrative operations on the term. Every call raises NotLeading if there is none.

    The mutex is held while a compaction plan is made: the cache of segments is for one thread at a
    time, and the second of two concurrent calls uses the segments that the first has read.

    Args:
        current: The term that the overlord leads now.
    """

    def __init__(self, current: CurrentTerm) -> None:
        self._current = current
        self._mutex = threading.Lock()
        self._planner: tuple[LeaderTerm, CompactionDuty] | None = None

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, which refuses writes after the term is over."""
        return self._current.lead().metadata

    def locks(self, datasource: str) -> Future[list[HeldLock]]:
        """Return the locks of a datasource with their holders."""
        return self._current.lead().lockboxes.locks(datasource)

    def locked_intervals(
        self, policies: Sequence[LockPolicy]
    ) -> Future[Mapping[str, list[Interval]]]:
        """Return the locked times of each datasource for given policies, disjoint, in order."""
        return self._current.lead().lockboxes.locked_intervals(policies)

    def delete_pending_segments(self, datasource: str, allocated: Interval) -> int:
        """Delete the unneeded pending segments that were allocated within an interval. Blocks.

        Returns the number of deleted ids.

        Raises:
            Conflict: An active task may still publish with them.
            Unavailable: The metadata store does not answer.
        """
        term = self._current.lead()
        # Read before the tasks, so that ids of a task that is added after the check are newer.
        now_ms = term.tools.clock.now_ms()
        active = term.queue.index.of_datasource(datasource).values()
        # If a former leader's clock was ahead, the creation time of its tasks is unknown.
        ahead_ms = now_ms + _READ_MS_MAX
        in_the_way = [one for one in active if not allocated.end_ms <= one.created_ms <= ahead_ms]
        if in_the_way:
            oldest = min(in_the_way, key=lambda one: one.created_ms)
            raise Conflict(
                f"task {oldest.task.id} of {datasource} has been active since"
                f" {format_time(oldest.created_ms)} and may use its pending segments: end the"
                " interval before that, or wait for the task"
            )
        return term.metadata.segments.delete_pending(
            datasource,
            created_from_ms=allocated.start_ms,
            created_before_ms=min(allocated.end_ms, now_ms),
        )

    def compaction_plans(
        self, configs: CompactionConfigs, of: Collection[str] | None = None
    ) -> Mapping[str, CompactionPlan]:
        """Return the plans of automatic compaction under these configurations. Blocks.

        Args:
            configs: All configurations; the cache of other datasources is deleted.
            of: The datasources, suspended or not; None: all with a configuration.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        term = self._current.lead()
        with self._mutex:
            if self._planner is None or self._planner[0] is not term:
                self._planner = (term, CompactionDuty(term.tools))
            return self._planner[1].plans(configs, of)


class CompactionService:
    """The compaction service.

    Args:
        current: The term that the overlord leads now.
        ports: The overlord's ports.
        processor: The overlord's mailbox.
    """

    def __init__(
        self, current: CurrentTerm, ports: OverlordPorts, processor: MailboxProcessor
    ) -> None:
        self._current = current
        self._clock = ports.clock
        self._executor = processor.main_executor

    def configure(self, config: CompactionConfig, audit_of: AuditOf | None = None) -> Future[None]:
        """Set the compaction config of a datasource; `audit_of` records the change."""
        return self._executor.submit_change(
            lambda: self._current.full().supervisors.compaction.configure(config, audit_of),
            "configure compaction",
        )

    def end(self, datasource: str, audit_of: AuditOf | None = None) -> Future[None]:
        """Stop compacting a datasource; `audit_of` records the change."""
        return self._executor.submit_change(
            lambda: self._current.full().supervisors.compaction.end(datasource, audit_of),
            "end compaction",
        )

    def spec(self, supervisor_id: str) -> CompactionSupervisorSpec | None:
        """Return a supervisor's spec; None if there is no compaction supervisor with this id."""
        return self._current.full().supervisors.compaction.get(supervisor_id)

    def status(
        self, spec: CompactionSupervisorSpec, progress: Mapping[str, object]
    ) -> dict[str, object]:
        """Return the status of a supervisor, in Druid's JSON.

        Args:
            spec: Its spec.
            progress: How much is compacted, in Druid's JSON. The caller determines it, because
                that takes too long for the mailbox.
        """
        return {
            "id": spec.supervisor_id,
            "generationTime": format_time(self._clock.now_ms()),
            "payload": {**progress, **compaction_summary(spec)},
        }
