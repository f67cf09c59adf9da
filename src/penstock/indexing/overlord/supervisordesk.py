"""Questions and commands about all supervisors at once, or about one in detail. Any thread.

What changes something is posted to the overlord's mailbox and returns a future; histories are read
from the metadata store on the caller's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.indexing.supervisor import supervisor_parse_errors, supervisor_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.indexing.overlord.term import LeaderTerm, OverlordPorts
    from penstock.indexing.spec import SupervisorSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import SupervisorRow


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """A supervisor as lists show it: its entry in Druid's JSON, and its spec."""

    summary: Mapping[str, object]
    spec: SupervisorSpec


class SupervisorDesk:
    """The desk.

    Args:
        full: Returns the term once it is full, or raises NotLeading.
        ports: What the overlord works with.
        processor: The overlord's mailbox.
    """

    def __init__(
        self, full: Callable[[], LeaderTerm], ports: OverlordPorts, processor: MailboxProcessor
    ) -> None:
        self._full = full
        self._ports = ports
        self._processor = processor

    def every(self) -> Future[list[SupervisorView]]:
        """Return all supervisors as they stand at one moment, by id."""

        def look() -> list[SupervisorView]:
            return [
                SupervisorView(supervisor_summary(one), one.spec)
                for one in self._full().supervisors.all()
            ]

        return self._processor.main_executor.submit(look, "all supervisors")

    def parse_errors(self, supervisor_id: str) -> Future[dict[str, object]]:
        """Return samples of what a supervisor's tasks could not parse; may raise NotFound."""

        def look() -> dict[str, object]:
            return supervisor_parse_errors(self._full().supervisors.find(supervisor_id))

        return self._processor.main_executor.submit(look, "parse errors")

    def suspend_all(self, *, suspended: bool) -> Future[int]:
        """Suspend all supervisors, or resume them; return how many were not so before."""

        def change() -> int:
            supervisors = self._full().supervisors
            others = [
                one
                for one in supervisors.all()
                if one.spec.suspended != suspended and not one.is_stopping
            ]
            for one in others:
                supervisors.suspend(one.id, suspended=suspended)
            return len(others)

        return self._processor.main_executor.submit(change, "suspend or resume all supervisors")

    def terminate_all(self) -> Future[int]:
        """Have all supervisors publish what is read, then be gone; return how many there were."""

        def end() -> int:
            supervisors = self._full().supervisors
            found = supervisors.all()
            for one in found:
                supervisors.terminate(one.id)
            return len(found)

        return self._processor.main_executor.submit(end, "terminate all supervisors")

    def histories(self) -> Mapping[str, Sequence[SupervisorRow]]:
        """Return all versions of all supervisors' specs by id, each the newest first."""
        return self._ports.metadata.supervisors.histories()
