"""API service for supervisors. Any thread.

Changes are posted to the overlord's mailbox and return a future; histories are read from the
metadata store on the caller's thread.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import NotFound
from penstock.core.names import spelling
from penstock.indexing.overlord.compaction.compaction_supervisors import compaction_summary
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.overlord.wait_reasons import reasons_of
from penstock.indexing.specs import parse_supervisor
from penstock.indexing.supervisor import (
    supervisor_parse_errors,
    supervisor_stats,
    supervisor_status,
    supervisor_summary,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from pydantic import JsonValue

    from penstock.indexing.overlord.compaction.compaction_supervisors import SubmitResult
    from penstock.indexing.overlord.term import CurrentTerm, LeaderTerm, OverlordPorts
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.specs import AnySupervisorSpec, SupervisorSpec
    from penstock.indexing.supervisor import Supervisor
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import SupervisorRow


T = TypeVar("T")

SHORT_OF_SLOTS: Final = "shortOfSlots"
"""Key in answers about supervisors: how they leave too few slots for other tasks, or absent."""
TASKS_WAIT_FOR: Final = "tasksWaitFor"
"""Key in a supervisor's status: distinct reasons why its tasks do not run, or absent."""
# Replicas have the same reasons, and explaining one task examines all workers.
_EXPLAINED_MAX: Final = 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """A supervisor as an entry of a list: its summary in Druid's JSON, and its spec."""

    summary: Mapping[str, object]
    spec: AnySupervisorSpec


class SupervisorService:
    """The supervisor service.

    Args:
        current: The term that the overlord leads now.
        ports: The overlord's ports.
        processor: The overlord's mailbox.
    """

    def __init__(
        self, current: CurrentTerm, ports: OverlordPorts, processor: MailboxProcessor
    ) -> None:
        self._current = current
        self._ports = ports
        self._processor = processor

    # One supervisor

    def submit(
        self, raw: bytes | dict[str, JsonValue], *, skip_unmodified: bool = False
    ) -> Future[SubmitResult]:
        """Start a supervisor, or replace the spec of an existing one; return what changed.

        Args:
            raw: The spec.
            skip_unmodified: Whether to store nothing if the spec equals the current one.

        Raises:
            SpecError: The spec is invalid; the error lists all mistakes.
        """
        is_stored = self._ports.metadata.is_stored_name
        spec = parse_supervisor(raw, lambda name: spelling(name, is_stored))

        def put() -> SubmitResult:
            term = self._current.full()
            done = term.supervisors.put(spec, skip_unmodified=skip_unmodified)
            if done.modified:
                _log_shortage(term)
            return done

        return self._change(put, "submit a supervisor")

    def backfill(self, supervisor_id: str, *, task_count: int | None = None) -> Future[str]:
        """Continue at the latest messages; a second supervisor reads the earlier ones.

        Returns the id of the second one. The future raises InvalidRequest if the supervisor's spec
        or state does not allow it.
        """
        return self._change(
            lambda: self._current.full().supervisors.backfill(supervisor_id, task_count), "backfill"
        )

    def suspend(self, supervisor_id: str, *, suspended: bool = True) -> Future[AnySupervisorSpec]:
        """Suspend a supervisor: its tasks publish and end. If not `suspended`, resume it.

        A suspended compaction supervisor submits no tasks.

        The future raises InvalidRequest if nothing would change, NotFound if there is none.
        """

        def change() -> AnySupervisorSpec:
            term = self._current.full()
            spec = term.supervisors.suspend(supervisor_id, suspended=suspended)
            _log_shortage(term)
            return spec

        return self._change(change, "suspend")

    def resume(self, supervisor_id: str) -> Future[AnySupervisorSpec]:
        """Resume a suspended supervisor; see `suspend`."""
        return self.suspend(supervisor_id, suspended=False)

    def terminate(self, supervisor_id: str) -> Future[None]:
        """Have a supervisor's tasks publish, then delete it. Committed offsets are kept."""
        return self._change(
            lambda: self._current.full().supervisors.terminate(supervisor_id), "terminate"
        )

    def reset(self, supervisor_id: str, offsets: Offsets | None = None) -> Future[None]:
        """Set committed offsets, or delete them; the tasks end without publishing."""
        return self._change(lambda: self._find(supervisor_id).offsets.reset(offsets), "reset")

    def hand_off(self, supervisor_id: str, groups: Sequence[int] | None = None) -> Future[None]:
        """Publish the rows of some task groups, or of all, now."""
        return self._change(lambda: self._find(supervisor_id).hand_off(groups), "hand off")

    def spec(self, supervisor_id: str) -> Future[AnySupervisorSpec]:
        """Return a supervisor's spec; the future raises NotFound."""
        return self._call(
            lambda: self._current.full().supervisors.spec(supervisor_id), "supervisor spec"
        )

    def stream_spec(self, supervisor_id: str) -> Future[SupervisorSpec]:
        """Return the spec of a streaming supervisor; InvalidRequest if it compacts."""
        return self._call(lambda: self._find(supervisor_id).spec, "supervisor spec")

    def status(self, supervisor_id: str) -> Future[dict[str, object]]:
        """Return a supervisor's status, in Druid's JSON; the future raises NotFound.

        The payload has the keys `SHORT_OF_SLOTS` and `TASKS_WAIT_FOR`, too.
        """

        def read() -> dict[str, object]:
            supervisor = self._find(supervisor_id)
            status = supervisor_status(supervisor.snapshot, self._ports.clock.now_ms())
            payload = status["payload"]
            assert isinstance(payload, dict)
            more = {**self._shortage(), **self._task_waits(supervisor)}
            return {**status, "payload": {**payload, **more}}

        return self._call(read, "supervisor status")

    def stats(self, supervisor_id: str) -> Future[dict[str, object]]:
        """Return the row counts of a supervisor's tasks, in Druid's JSON."""
        return self._call(
            lambda: supervisor_stats(self._find(supervisor_id).snapshot), "supervisor stats"
        )

    def parse_errors(self, supervisor_id: str) -> Future[dict[str, object]]:
        """Return samples of messages that the tasks could not parse; may raise NotFound."""
        return self._call(
            lambda: supervisor_parse_errors(self._find(supervisor_id).snapshot), "parse errors"
        )

    def history(self, supervisor_id: str) -> Sequence[SupervisorRow]:
        """Return all versions of a supervisor's spec, newest first.

        Raises:
            NotFound: No supervisor ever had this id.
        """
        rows = self._ports.metadata.supervisors.history(supervisor_id)
        if not rows:
            raise NotFound(f"there is no supervisor {supervisor_id!r}, and no history of one")
        return rows

    # All supervisors

    def every(self) -> Future[list[SupervisorView]]:
        """Return a snapshot of all supervisors, sorted by id.

        Summaries of streaming supervisors have the key `SHORT_OF_SLOTS`, too.
        """

        def read() -> list[SupervisorView]:
            supervisors = self._current.full().supervisors
            shortage = self._shortage()
            streams = [
                SupervisorView({**supervisor_summary(one.snapshot), **shortage}, one.spec)
                for one in supervisors.streams.all()
            ]
            compaction = [
                SupervisorView(compaction_summary(spec), spec)
                for spec in supervisors.compaction.all()
            ]
            return sorted(streams + compaction, key=lambda view: view.spec.supervisor_id)

        return self._call(read, "all supervisors")

    def suspend_all(self, *, suspended: bool) -> Future[int]:
        """Suspend or resume all supervisors; return how many changed."""
        return self._change(
            lambda: self._current.full().supervisors.suspend_all(suspended=suspended),
            "suspend or resume all supervisors",
        )

    def terminate_all(self) -> Future[int]:
        """Have the tasks of all supervisors publish, then delete them; return how many."""
        return self._change(
            # Not a bound method: the command determines the term when it runs.
            lambda: self._current.full().supervisors.terminate_all(),  # noqa: PLW0108 - see above
            "terminate all supervisors",
        )

    def histories(self) -> Mapping[str, Sequence[SupervisorRow]]:
        """Return all versions of all supervisors' specs by id, newest first."""
        return self._ports.metadata.supervisors.histories()

    def _shortage(self) -> dict[str, object]:
        shortage = self._current.full().shortage()
        return {SHORT_OF_SLOTS: shortage} if shortage else {}

    def _task_waits(self, supervisor: Supervisor) -> dict[str, object]:
        queue = self._current.full().queue
        task_ids = [task for group in supervisor.snapshot.groups() for task in group.replicas]
        active = [one for task in task_ids if (one := queue.index.get(task)) is not None]
        waiting = [one.task.id for one in active if one.state is not RunnerState.RUNNING]
        facts = [queue.wait_facts(task_id) for task_id in waiting[:_EXPLAINED_MAX]]
        texts = {wait.text for one in facts for wait in reasons_of(one)}
        return {TASKS_WAIT_FOR: sorted(texts)} if texts else {}

    def _find(self, supervisor_id: str) -> Supervisor:
        return self._current.full().supervisors.find(supervisor_id)

    def _change(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit_change(command, description)

    def _call(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit(command, description)


def _log_shortage(term: LeaderTerm) -> None:
    if shortage := term.shortage():
        _log.warning("short of slots: %s", shortage)
