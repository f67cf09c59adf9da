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
    rows_per_second,
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
    from penstock.indexing.specs import AnySupervisorSpec
    from penstock.indexing.supervisor import Supervisor
    from penstock.indexing.supervisor.lag import LagSamples
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
    """A supervisor as an entry of a list.

    Attributes:
        summary: Its summary in Druid's JSON.
        spec: Its spec.
        rows_per_second: Rows that its tasks process; 0 if it does not read a stream.
    """

    summary: Mapping[str, object]
    spec: AnySupervisorSpec
    rows_per_second: float = 0.0


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

    def parse(self, raw: bytes | dict[str, JsonValue]) -> AnySupervisorSpec:
        """Return the spec of a supervisor that is submitted, with stored names as stored.

        Raises:
            SpecError: The spec is invalid; the error lists all mistakes.
        """
        is_stored = self._ports.metadata.is_stored_name
        return parse_supervisor(raw, lambda name: spelling(name, is_stored))

    def submit(
        self,
        given: bytes | dict[str, JsonValue] | AnySupervisorSpec,
        *,
        skip_unmodified: bool = False,
        check: Callable[[str | None], None] = lambda _: None,
    ) -> Future[SubmitResult]:
        """Start a supervisor, or replace the spec of an existing one; return what changed.

        Args:
            given: The spec, or its JSON.
            skip_unmodified: Whether to store nothing if the spec equals the current one.
            check: Called on the mailbox with the datasource of the supervisor that is replaced, as
                `supervisor_registry` returns it. It must not block; the future raises its errors,
                and then nothing is stored.

        Raises:
            SpecError: The spec is invalid; the error lists all mistakes.
        """
        spec = self.parse(given) if isinstance(given, bytes | dict) else given

        def put() -> SubmitResult:
            term = self._current.full()
            check(term.supervisors.written_by(spec.supervisor_id))
            done = term.supervisors.put(spec, skip_unmodified=skip_unmodified)
            if done.modified:
                _log_shortage(term)
            return done

        return self._change(put, "submit a supervisor")

    def backfill(
        self,
        supervisor_id: str,
        ranges: Mapping[int, tuple[int, int]] | None = None,
        *,
        task_count: int | None = None,
    ) -> Future[str]:
        """Start a second supervisor that reads a part of the stream, then ends; return its id.

        Args:
            supervisor_id: The first supervisor.
            ranges: Offsets [start, end) that the second one reads, while the first one continues
                where it is. None: those that are not published, and the first one continues at the
                latest messages.
            task_count: Number of task groups of the second one; None: the same number.

        The future raises InvalidRequest if the supervisor's spec or state does not allow it, or if
        the stream does not hold the ranges.
        """

        def start() -> str:
            supervisors = self._current.full().supervisors
            if ranges is None:
                return supervisors.backfill(supervisor_id, task_count)
            return supervisors.backfill_ranges(supervisor_id, ranges, task_count)

        return self._change(start, "backfill")

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

    def written_by(self, supervisor_id: str) -> Future[str | None]:
        """Return the datasource of a supervisor; None: no supervisor; empty: an invalid spec."""
        return self._call(
            lambda: self._current.full().supervisors.written_by(supervisor_id), "its datasource"
        )

    def spec(self, supervisor_id: str) -> Future[AnySupervisorSpec]:
        """Return a supervisor's spec; the future raises NotFound."""
        return self._call(
            lambda: self._current.full().supervisors.spec(supervisor_id), "supervisor spec"
        )

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

    def lag_samples(self, supervisor_id: str) -> Future[LagSamples]:
        """Return the lag of a streaming supervisor in the last hour; may raise NotFound."""
        return self._call(
            lambda: self._find(supervisor_id).lag_history.samples(),  # noqa: PLW0108 - on the mailbox
            "lag of the last hour",
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

    def specs(self) -> Future[list[AnySupervisorSpec]]:
        """Return the specs of all supervisors, sorted by id: a fraction of the work of `every`."""

        def read() -> list[AnySupervisorSpec]:
            supervisors = self._current.full().supervisors
            streams = [one.spec for one in supervisors.streams.all()]
            return sorted(
                [*streams, *supervisors.compaction.all()], key=lambda spec: spec.supervisor_id
            )

        return self._call(read, "specs of all supervisors")

    def every(self, supervisor_ids: Sequence[str] | None = None) -> Future[list[SupervisorView]]:
        """Return a snapshot of all supervisors, sorted by id, or of some, in the given order.

        Summaries of streaming supervisors have the key `SHORT_OF_SLOTS`, too. Those that have ended
        meanwhile are left out.
        """

        def read() -> list[SupervisorView]:
            shortage = self._shortage()
            ids = supervisor_ids
            if ids is None:
                supervisors = self._current.full().supervisors
                streams = [one.id for one in supervisors.streams.all()]
                compaction = [spec.supervisor_id for spec in supervisors.compaction.all()]
                ids = sorted(streams + compaction)
            found = (self._view(supervisor_id, shortage) for supervisor_id in ids)
            return [one for one in found if one is not None]

        return self._call(read, "supervisors")

    def _view(self, supervisor_id: str, shortage: Mapping[str, object]) -> SupervisorView | None:
        supervisors = self._current.full().supervisors
        if (one := supervisors.streams.get(supervisor_id)) is not None:
            summary = {**supervisor_summary(one.snapshot), **shortage}
            return SupervisorView(summary, one.spec, rows_per_second(one.snapshot))
        compacts = supervisors.compaction.get(supervisor_id)
        return None if compacts is None else SupervisorView(compaction_summary(compacts), compacts)

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
