"""The supervisors of one term: which there are, and their specs' versions in the metadata store.

On the overlord's mailbox. What one that reads a stream does is `penstock.indexing.supervisor`'s;
those that compact are `CompactionSupervisors`. An id is of one kind at a time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.indexing.overlord.supervising.compaction import (
    CompactionSupervisors,
    Submitted,
    require_other,
)
from penstock.indexing.overlord.supervising.streams import StreamSupervisors
from penstock.indexing.overlord.supervising.unreadable import UnreadableEnds, not_read
from penstock.indexing.spec import (
    AnySupervisorSpec,
    CompactionSupervisorSpec,
    SupervisorSpec,
    parse_supervisor,
)
from penstock.indexing.spec.compaction import AUTOCOMPACT
from penstock.indexing.supervisor import (
    Supervisor,
    SupervisorOptions,
    SupervisorPorts,
    UpdateAction,
    succeed,
    update_action,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

_log = logging.getLogger(__name__)


class Supervisors:
    """The supervisors.

    Args:
        ports: What each of them works with.
        options: How they behave beside what their specs say.

    Attributes:
        compaction: Those that compact.
        streams: Those that read streams.
    """

    def __init__(self, ports: SupervisorPorts, options: SupervisorOptions) -> None:
        self.compaction: Final = CompactionSupervisors(ports.metadata, self._gone)
        self.streams: Final = StreamSupervisors(ports, options, self._gone)
        self._ports = ports
        # Stored specs of streams that cannot be read, each with its payload and what is wrong.
        self._unread: dict[str, tuple[Mapping[str, object], str]] = {}
        self._stopped = False
        self._unreadable = UnreadableEnds(
            ports,
            is_void=lambda supervisor_id: self._stopped or supervisor_id in self.streams,
            gone=self._release,
        )

    def start(self) -> None:
        """Run those whose specs are stored, and those that were being terminated.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        for row in self._ports.metadata.supervisors.list():
            try:
                self._restore(parse_supervisor(_json_object(row.payload)))
            except InvalidRequest as error:
                # One that an older release took must not keep the others from starting.
                _log.error("supervisor %s cannot be started: %s", row.id, error)
                if row.payload.get("type") == AUTOCOMPACT:
                    self.compaction.keep_unread(row.id, str(error))
                else:
                    self._unread[row.id] = (row.payload, str(error))
        for row in self._ports.metadata.supervisors.ending():
            # Its tasks may have ended: then it has only to let go of what its source keeps for it.
            self._end(row.id, row.payload)
        self.streams.end_tasks_of_nobody()

    def stop(self) -> None:
        """Look after nothing any more; tasks go on."""
        self._stopped = True
        self.streams.stop()
        self._unread.clear()

    def spec(self, supervisor_id: str) -> AnySupervisorSpec:
        """Return the spec of one of either kind.

        Raises:
            NotFound: There is none.
        """
        if supervisor_id in self.compaction:
            return self.compaction.find(supervisor_id)
        return self.find(supervisor_id).spec

    def find(self, supervisor_id: str) -> Supervisor:
        """Return one that reads a stream.

        Raises:
            NotFound: There is none.
            InvalidRequest: It compacts, and has nothing of what others have.
        """
        if supervisor_id in self.compaction:
            self.compaction.find(supervisor_id)
            raise InvalidRequest(
                f"supervisor {supervisor_id} is of type {AUTOCOMPACT}: it reads no stream, so there"
                " are no offsets, counts or task groups of it. Ask for its status, suspend, resume"
                " or terminate it; what its tasks did stands in their reports"
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

    def put(self, spec: AnySupervisorSpec, *, skip_unmodified: bool = False) -> Submitted:
        """Start one, or give a running one another spec.

        Args:
            spec: The spec.
            skip_unmodified: Whether a spec that asks for nothing new is not even stored.

        Raises:
            Unavailable: One of this id is being terminated.
            InvalidRequest: The spec cannot follow the one that is there.
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
                return Submitted(supervisor_id, modified=False, restarted=False)
        self._ports.metadata.supervisors.put(supervisor_id, spec.to_json())
        if running is not None:
            running.update(spec)
        else:
            self._run(spec)
        return Submitted(
            supervisor_id,
            modified=action is not UpdateAction.NONE,
            restarted=action is UpdateAction.RESTART_SUPERVISOR_AND_TASKS,
        )

    def backfill(self, supervisor_id: str, task_count: int | None) -> str:
        """Have one go on at the latest messages and another read what lies before; return its id.

        Raises:
            NotFound: There is none.
            InvalidRequest: Its spec or its state does not allow it.
        """
        supervisor = self.find(supervisor_id)
        # Suspended until the one has let go of what the other is to read: whatever dies between
        # the two, nothing is read by both, and what is to be resumed is there to see.
        piece = supervisor.offsets.cut_backfill(task_count).with_suspended(True)  # noqa: FBT003 - its name says it
        self.put(piece)
        supervisor.offsets.leave_behind(piece)
        self.suspend(piece.supervisor_id, suspended=False)
        return piece.supervisor_id

    def suspend(self, supervisor_id: str, *, suspended: bool) -> AnySupervisorSpec:
        """Suspend or resume one; return its spec.

        Raises:
            NotFound: There is none.
            InvalidRequest: It is so already.
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
        """Suspend or resume all that are not being terminated; return how many were not so.

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
        # One transaction: a thousand would keep all else on the mailbox waiting for the disk.
        self._ports.metadata.supervisors.put_all(payloads)
        for one, spec in specs.items():
            one.update(spec)
        self.compaction.keep(compaction)
        return len(payloads)

    def terminate_all(self) -> int:
        """Have all publish what is read, then be gone; return how many there were.

        Raises:
            Unavailable: The metadata store does not answer: nothing changed.
        """
        found = self.streams.all()
        ending = [one for one in found if not one.is_stopping]
        compaction, unread = self.compaction.ids(), list(self._unread)
        self.compaction.drop_beside(compaction)
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
        """Have one publish what is read, then be gone.

        One that compacts, or whose spec cannot be read, goes at once.

        Raises:
            NotFound: There is none.
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
        """Go on with a termination that an overlord before this one did not see to the end."""
        if payload.get("type") == AUTOCOMPACT:
            self._release(supervisor_id)
            return
        try:
            spec = parse_supervisor(_json_object(payload))
        except InvalidRequest as error:
            _log.error(
                "supervisor %s cannot publish what its tasks have read: %s", supervisor_id, error
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
        """Take over one that is stored."""
        if isinstance(spec, CompactionSupervisorSpec):
            self.compaction.keep([spec])
        else:
            self._run(spec)

    def _run(self, spec: SupervisorSpec) -> Supervisor:
        self._unread.pop(spec.supervisor_id, None)
        return self.streams.run(spec)

    def _gone(self, supervisor_id: str) -> None:
        _log.info("supervisor %s has ended", supervisor_id)
        self._release(supervisor_id)

    def _release(self, supervisor_id: str) -> None:
        try:
            self._ports.metadata.supervisors.release(supervisor_id)
        except PenstockError as error:
            # The next term asks it to let go again, which does no harm.
            _log.warning("the end of supervisor %s is not noted: %s", supervisor_id, error)

    def _spec_before(self, supervisor_id: str) -> SupervisorSpec | None:
        """Return the spec of a terminated supervisor that left committed offsets, if one did."""
        if not self._ports.metadata.offsets(supervisor_id):
            return None
        try:
            spec = parse_supervisor(_json_object(self._last_spec(supervisor_id)))
        except (InvalidRequest, NotFound):
            return None
        return spec if isinstance(spec, SupervisorSpec) else None


def _other_kind(supervisor_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"there is a supervisor {supervisor_id} already, and one reads a stream, the other"
        " compacts: terminate that one first, or name the one that reads otherwise",
        place="id",
    )


def _require_lasting(supervisor: Supervisor) -> None:
    """Refuse another version of a spec whose end is stored: the next overlord would run it."""
    if supervisor.is_stopping:
        raise Unavailable(
            f"supervisor {supervisor.id} is being terminated, its tasks still publish: submit it"
            " again when it is gone"
        )


def _json_object(payload: Mapping[str, object]) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = dict(payload)  # type: ignore[arg-type]  # it was stored as JSON
    return value
