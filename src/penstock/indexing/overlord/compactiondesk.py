"""API service for automatic compaction, with or without a supervisor. Any thread.

Changes are posted to the overlord's mailbox and return a future.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.instants import format_time
from penstock.indexing.overlord.compaction.supervisors import compaction_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from penstock.indexing.overlord.compaction.duty import AuditOf
    from penstock.indexing.overlord.term import LeaderTerm, OverlordPorts
    from penstock.indexing.specs import CompactionSupervisorSpec
    from penstock.indexing.specs.compaction import CompactionConfig
    from penstock.mailbox import MailboxProcessor


class CompactionDesk:
    """The compaction service.

    Args:
        full: Returns the term once it is full, or raises NotLeading.
        ports: The overlord's ports.
        processor: The overlord's mailbox.
    """

    def __init__(
        self, full: Callable[[], LeaderTerm], ports: OverlordPorts, processor: MailboxProcessor
    ) -> None:
        self._full = full
        self._clock = ports.clock
        self._executor = processor.main_executor

    def configure(self, config: CompactionConfig, audit_of: AuditOf | None = None) -> Future[None]:
        """Set the compaction config of a datasource; `audit_of` records the change."""
        return self._executor.submit_change(
            lambda: self._full().supervisors.compaction.configure(config, audit_of),
            "configure compaction",
        )

    def end(self, datasource: str, audit_of: AuditOf | None = None) -> Future[None]:
        """Stop compacting a datasource; `audit_of` records the change."""
        return self._executor.submit_change(
            lambda: self._full().supervisors.compaction.end(datasource, audit_of),
            "end compaction",
        )

    def spec(self, supervisor_id: str) -> CompactionSupervisorSpec | None:
        """Return a supervisor's spec; None if there is no compaction supervisor with this id."""
        return self._full().supervisors.compaction.get(supervisor_id)

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
