"""Registry of a term's supervisors, with the versions of their specs in the metadata store.

Owns the supervisors by id, the versions of their specs, the running stream supervisors, and the
delivery of reports from tasks to them. Does not own what a stream supervisor does
(`penstock.indexing.supervisor`) or compaction supervisors (`compaction.compaction_supervisors`).

Threading: on the overlord's mailbox. Invariants: an id belongs to one kind of supervisor at a
time. A streaming task in the task queue has its supervisor here, or is ended.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.core.waits import owned
from penstock.indexing.overlord.compaction.compaction_supervisors import (
    CompactionSupervisors,
    SubmitResult,
    require_other,
)
from penstock.indexing.overlord.supervisor_ends import UnreadableEnds, not_read, release
from penstock.indexing.specs import (
    AnySupervisorSpec,
    CompactionSupervisorSpec,
    SupervisorSpec,
    parse_supervisor,
)
from penstock.indexing.specs.compaction import AUTOCOMPACT
from penstock.indexing.supervisor import (
    Supervisor,
    SupervisorOptions,
    SupervisorPorts,
    UpdateAction,
    succeed,
    update_action,
)
from penstock.indexing.supervisor.lag import LagHistories
from penstock.indexing.task_spec import StreamTaskSpec
from penstock.mailbox.event_mail import EventMail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import TaskState
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task_spec import TaskSpec


_log = logging.getLogger(__name__)


class StreamSupervisors:
    """The running streaming supervisors.

    Args:
        ports: The dependencies of each supervisor.
        options: Options of all supervisors.
    """

    def __init__(self, ports: SupervisorPorts, options: SupervisorOptions) -> None:
        self._ports = ports
        self._options = options
        self._running: dict[str, Supervisor] = {}
        self._lag_histories = LagHistories()
        self._ends = EventMail(ports.processor, self._ended, "a supervisor ended")

    def __contains__(self, supervisor_id: object) -> bool:
        return supervisor_id in self._running

    def get(self, supervisor_id: str) -> Supervisor | None:
        """Return a supervisor, None if it does not run."""
        return self._running.get(supervisor_id)

    def all(self) -> list[Supervisor]:
        """Return all, sorted by id."""
        return [self._running[supervisor_id] for supervisor_id in sorted(self._running)]

    def waits(self) -> list[tuple[DependencyWait, ...]]:
        """Return the waits of the supervisors themselves, which they name, without their tasks'.

        Any thread.
        """
        return [
            owned(one.snapshot.own_waits(), f"supervisor {supervisor_id}")
            for supervisor_id, one in self._running.copy().items()
        ]

    def run(self, spec: SupervisorSpec) -> Supervisor:
        """Start a supervisor whose id is not running."""
        supervisor_id = spec.supervisor_id
        history = self._lag_histories.of(supervisor_id)
        made = Supervisor(spec, self._ports, self._options, lag_history=history, ended=self._ends)
        self._running[supervisor_id] = made
        made.start()
        return made

    def stop(self) -> None:
        """Stop; tasks continue."""
        for supervisor in self._running.values():
            supervisor.abandon()
        self._running.clear()

    # Events of tasks

    def checkpoint_wanted(self, task: TaskSpec, start: Offsets) -> None:
        """A task's open sequence is full."""
        if isinstance(task, StreamTaskSpec) and task.supervisor_id in self._running:
            self._running[task.supervisor_id].checkpoint_wanted(task.id, start)

    def task_ended(self, task: TaskSpec, state: TaskState, error: str) -> None:
        """A task has ended."""
        if isinstance(task, StreamTaskSpec) and task.supervisor_id in self._running:
            self._running[task.supervisor_id].task_ended(task, state, error)

    def tasks_compared(self) -> None:
        """Stored tasks may have been added that were unknown here.

        Their supervisor may have found no tasks left meanwhile and have ended.
        """
        try:
            self.end_tasks_of_nobody()
        except Unavailable as error:
            _log.info("tasks without a supervisor are ended later: %s", error)

    def end_tasks_of_nobody(self) -> None:
        """End tasks without a supervisor, which would never be ended otherwise.

        Their unpublished offsets are not committed, so the next reader of the topic reads them
        again.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        queue = self._ports.queue
        for supervisor_id in queue.index.supervisors():
            if supervisor_id not in self._running:
                reason = f"there is no supervisor {supervisor_id!r} that can run it"
                for task_id in queue.index.streams(supervisor_id):
                    queue.shutdown(task_id, reason)

    def _ended(self, supervisor_id: str) -> None:
        self._running.pop(supervisor_id, None)
        self._lag_histories.forget(supervisor_id)
        _log.info("supervisor %s has ended", supervisor_id)
        release(self._ports.metadata, supervisor_id)


class Supervisors:
    """All supervisors of a term.

    Args:
        ports: The dependencies of each supervisor.
        options: Options of all supervisors.

    Attributes:
        compaction: The compaction supervisors.
        streams: The streaming supervisors.
    """

    def __init__(self, ports: SupervisorPorts, options: SupervisorOptions) -> None:
        self.compaction: Final = CompactionSupervisors(ports.metadata)
        self.streams: Final = StreamSupervisors(ports, options)
        self._ports = ports
        # Invalid stored specs of streaming supervisors, each with its payload and its error.
        self._unread: dict[str, tuple[Mapping[str, object], str]] = {}
        self._unreadable = UnreadableEnds(ports, self.streams)

    def start(self) -> None:
        """Start the supervisors with stored specs, and finish pending terminations.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        for row in self._ports.metadata.supervisors.list():
            try:
                self._restore(parse_supervisor(_json_object(row.payload)))
            except InvalidRequest as error:
                # A spec from an older release must not keep the others from starting.
                _log.error("supervisor %s cannot be started: %s", row.id, error)
                if row.payload.get("type") == AUTOCOMPACT:
                    self.compaction.keep_unread(row.id, str(error))
                else:
                    self._unread[row.id] = (row.payload, str(error))
        for row in self._ports.metadata.supervisors.unreleased():
            # If its tasks have ended, only its source's state is left to release.
            self._end(row.id, row.payload)
        self.streams.end_tasks_of_nobody()

    def stop(self) -> None:
        """Stop; tasks continue."""
        self._unreadable.stop()
        self.streams.stop()
        self._unread.clear()

    def spec(self, supervisor_id: str) -> AnySupervisorSpec:
        """Return the spec of a supervisor of either kind.

        Raises:
            NotFound: There is no such supervisor.
        """
        if supervisor_id in self.compaction:
            return self.compaction.find(supervisor_id)
        return self.find(supervisor_id).spec

    def written_by(self, supervisor_id: str) -> str | None:
        """Return the datasource of a supervisor; None: there is no such supervisor.

        It is empty if the stored spec of the supervisor could not be read.
        """
        if supervisor_id in self._unread or self.compaction.is_unread(supervisor_id):
            return ""
        if supervisor_id in self.compaction:
            return self.compaction.find(supervisor_id).spec.datasource
        supervisor = self.streams.get(supervisor_id)
        return None if supervisor is None else supervisor.spec.data_schema.datasource

    def find(self, supervisor_id: str) -> Supervisor:
        """Return a streaming supervisor.

        Raises:
            NotFound: There is no such supervisor.
            InvalidRequest: The id belongs to a compaction supervisor.
        """
        if supervisor_id in self.compaction:
            self.compaction.find(supervisor_id)
            raise InvalidRequest(
                f"supervisor {supervisor_id} is of type {AUTOCOMPACT}: it reads no stream, so it"
                " has no offsets, counts or task groups. Get its status, suspend, resume or"
                " terminate it; the reports of its tasks show their work"
            )
        supervisor = self.streams.get(supervisor_id)
        if supervisor is None and supervisor_id in self._unread:
            raise not_read(supervisor_id, self._unread[supervisor_id][1])
        if supervisor is None:
            running = (one.id for one in self.streams.all())
            ids = {*running, *(one.supervisor_id for one in self.compaction.all())}
            known = ", ".join(sorted(ids)) or "none"
            raise NotFound(f"there is no supervisor {supervisor_id!r}; there are: {known}")
        return supervisor

    def put(self, spec: AnySupervisorSpec, *, skip_unmodified: bool = False) -> SubmitResult:
        """Start a supervisor, or replace the spec of an existing one.

        Args:
            spec: The spec.
            skip_unmodified: Whether to store nothing if the spec equals the current one.

        Raises:
            Unavailable: A supervisor with this id is being terminated.
            InvalidRequest: The spec cannot replace the existing one.
        """
        supervisor_id = spec.supervisor_id
        running = self.streams.get(supervisor_id)
        if isinstance(spec, CompactionSupervisorSpec):
            if running is not None:
                raise _other_kind(supervisor_id)
            done = self.compaction.put(spec, skip_unmodified=skip_unmodified)
            self._unread.pop(supervisor_id, None)
            return done
        if supervisor_id in self.compaction:
            raise _other_kind(supervisor_id)
        if running is not None:
            _require_lasting(running)
        before = self._spec_before(supervisor_id) if running is None else running.spec
        spec = succeed(before, spec)
        action = UpdateAction.RESTART_SUPERVISOR_AND_TASKS
        if running is not None:
            action = update_action(running.spec, spec)
            if action is UpdateAction.NONE and skip_unmodified:
                return SubmitResult(supervisor_id, modified=False, restarted=False)
        self._ports.metadata.supervisors.put(supervisor_id, spec.to_json())
        if running is not None:
            running.update(spec)
        else:
            self._run(spec)
        return SubmitResult(
            supervisor_id,
            modified=action is not UpdateAction.NONE,
            restarted=action is UpdateAction.RESTART_SUPERVISOR_AND_TASKS,
        )

    def backfill(self, supervisor_id: str, task_count: int | None) -> str:
        """Continue at the latest messages; another supervisor reads earlier ones. Return its id.

        Raises:
            NotFound: There is no such supervisor.
            InvalidRequest: Its spec or its state does not allow a backfill.
        """
        supervisor = self.find(supervisor_id)
        # The new one is suspended until the old one has given up its range. After a crash between
        # the two, no range is read twice, and users can resume the suspended supervisor.
        piece = supervisor.offsets.cut_backfill(task_count).with_suspended(True)  # noqa: FBT003 - its name says it
        self.put(piece)
        supervisor.offsets.leave_behind(piece)
        self.suspend(piece.supervisor_id, suspended=False)
        return piece.supervisor_id

    def backfill_ranges(
        self, supervisor_id: str, ranges: Mapping[int, tuple[int, int]], task_count: int | None
    ) -> str:
        """Start a supervisor that reads ranges of another one's stream; return its id.

        Raises:
            NotFound: There is no such supervisor.
            InvalidRequest: The stream does not hold the ranges, or the spec does not allow it.
            Unavailable: It is being terminated, or has not seen its stream yet.
        """
        supervisor = self.find(supervisor_id)
        _require_lasting(supervisor)
        piece = supervisor.offsets.chosen_backfill(ranges, task_count)
        return self.put(piece).id

    def suspend(self, supervisor_id: str, *, suspended: bool) -> AnySupervisorSpec:
        """Suspend or resume a supervisor; return its spec.

        Raises:
            NotFound: There is no such supervisor.
            InvalidRequest: It is already in that state.
            Unavailable: It is being terminated.
        """
        if supervisor_id in self.compaction:
            return self.compaction.suspend(supervisor_id, suspended=suspended)
        supervisor = self.find(supervisor_id)
        _require_lasting(supervisor)
        require_other(supervisor_id, supervisor.spec.suspended, suspended)
        spec = supervisor.spec.with_suspended(suspended)
        self._ports.metadata.supervisors.put(supervisor_id, spec.to_json())
        supervisor.update(spec)
        return spec

    def suspend_all(self, *, suspended: bool) -> int:
        """Suspend or resume all that are not being terminated; return how many changed.

        Raises:
            Unavailable: The metadata store does not answer: nothing changed.
        """
        specs = {
            one: one.spec.with_suspended(suspended)
            for one in self.streams.all()
            if one.spec.suspended != suspended and not one.is_stopping
        }
        compaction = [
            one.with_suspended(suspended)
            for one in self.compaction.all()
            if one.suspended != suspended
        ]
        payloads = {one.id: spec.to_json() for one, spec in specs.items()}
        payloads.update((one.supervisor_id, one.to_json()) for one in compaction)
        # One transaction: a thousand would block the mailbox with disk writes.
        self._ports.metadata.supervisors.put_all(payloads)
        for one, spec in specs.items():
            one.update(spec)
        self.compaction.keep(compaction)
        return len(payloads)

    def terminate_all(self) -> int:
        """Have the tasks of all supervisors publish, then delete them; return how many.

        Raises:
            Unavailable: The metadata store does not answer: nothing changed.
        """
        found = self.streams.all()
        ending = [one for one in found if not one.is_stopping]
        compaction, unread = self.compaction.ids(), list(self._unread)
        self.compaction.delete_others(compaction)
        self._ports.metadata.supervisors.terminate_all(
            [*(one.id for one in ending), *compaction, *unread]
        )
        for one in ending:
            one.stop()
        self.compaction.ended(compaction)
        for supervisor_id in unread:
            self._end_unread(supervisor_id)
        return len(found) + len(compaction) + len(unread)

    def terminate(self, supervisor_id: str) -> None:
        """Have a supervisor's tasks publish, then delete it.

        A compaction supervisor, or one with an invalid stored spec, is deleted at once.

        Raises:
            NotFound: There is no such supervisor.
        """
        if supervisor_id in self.compaction:
            self.compaction.terminate(supervisor_id)
            return
        if supervisor_id in self._unread:
            self._ports.metadata.supervisors.terminate(supervisor_id)
            self._end_unread(supervisor_id)
            return
        supervisor = self.find(supervisor_id)
        if not supervisor.is_stopping:
            self._ports.metadata.supervisors.terminate(supervisor_id)
            supervisor.stop()

    def _end(self, supervisor_id: str, payload: Mapping[str, object]) -> None:
        """Continue a termination that a former overlord did not complete."""
        if payload.get("type") == AUTOCOMPACT:
            release(self._ports.metadata, supervisor_id)
            return
        try:
            spec = parse_supervisor(_json_object(payload))
        except InvalidRequest as error:
            _log.error(
                "supervisor %s cannot publish the rows that its tasks have read: %s",
                supervisor_id,
                error,
            )
            self._unreadable.end(supervisor_id, payload)
        else:
            if isinstance(spec, SupervisorSpec):
                self._run(spec).stop()

    def _end_unread(self, supervisor_id: str) -> None:
        payload, _ = self._unread.pop(supervisor_id)
        self._unreadable.end(supervisor_id, payload)

    def _last_spec(self, supervisor_id: str) -> Mapping[str, object]:
        versions = self._ports.metadata.supervisors.history(supervisor_id)
        if not versions:
            raise NotFound(f"there is no supervisor {supervisor_id!r}")
        return versions[0].payload

    def _restore(self, spec: AnySupervisorSpec) -> None:
        """Take over a stored supervisor."""
        if isinstance(spec, CompactionSupervisorSpec):
            self.compaction.keep([spec])
        else:
            self._run(spec)

    def _run(self, spec: SupervisorSpec) -> Supervisor:
        self._unread.pop(spec.supervisor_id, None)
        return self.streams.run(spec)

    def _spec_before(self, supervisor_id: str) -> SupervisorSpec | None:
        """Return the spec of a terminated supervisor that left committed offsets, if any."""
        if not self._ports.metadata.offsets(supervisor_id):
            return None
        try:
            spec = parse_supervisor(_json_object(self._last_spec(supervisor_id)))
        except (InvalidRequest, NotFound):
            return None
        return spec if isinstance(spec, SupervisorSpec) else None


def _other_kind(supervisor_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"supervisor {supervisor_id} already exists, and one of the two reads a stream, the other"
        " compacts: terminate the existing one first, or give the streaming one another id",
        place="id",
    )


def _require_lasting(supervisor: Supervisor) -> None:
    """Refuse a new version of a spec whose end is stored: the next overlord would run it."""
    if supervisor.is_stopping:
        raise Unavailable(
            f"supervisor {supervisor.id} is being terminated, its tasks still publish: submit it"
            " again when it has ended"
        )


def _json_object(payload: Mapping[str, object]) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = dict(payload)  # type: ignore[arg-type]  # it was stored as JSON
    return value
