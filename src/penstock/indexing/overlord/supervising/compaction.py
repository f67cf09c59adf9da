"""Supervisors of compaction: their specs' versions, and that one configuration counts of each.

On the overlord's mailbox. They run nothing: the duty of compaction reads what is stored, so all of
a change, its entry in the audit log too, is in its one transaction. What is set of a datasource
without a supervisor is kept elsewhere (`CompactionConfigs`); where both are stored, as after a
crash between two writes, the supervisor counts, and its end takes the other along.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Fenced, InvalidRequest, PenstockError
from penstock.indexing.overlord.duties.compaction import CompactionConfigs
from penstock.indexing.overlord.supervising.unreadable import not_read
from penstock.indexing.spec import CompactionSupervisorSpec
from penstock.indexing.spec.compaction import SUPERVISOR_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.indexing.overlord.duties.compaction import AuditOf
    from penstock.indexing.spec.compaction import CompactionConfig
    from penstock.storage.metadata import AuditRow, MetadataStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a submitted spec changed: anything, and whether tasks begin anew for it."""

    id: str
    modified: bool
    restarted: bool


class CompactionSupervisors:
    """Those that were not terminated, also such whose stored specs cannot be read.

    Args:
        metadata: Where specs and configurations are kept.
        gone: Told the id of one that has ended.
    """

    def __init__(self, metadata: MetadataStore, gone: Callable[[str], None]) -> None:
        self._metadata = metadata
        self._gone = gone
        self._specs: dict[str, CompactionSupervisorSpec] = {}  # one look-up is for any thread
        # Of those that cannot be read, what is wrong.
        self._unread: dict[str, str] = {}

    def __contains__(self, supervisor_id: str) -> bool:
        """Tell whether there is one of this id."""
        return supervisor_id in self._specs or supervisor_id in self._unread

    def ids(self) -> list[str]:
        """Return the ids of all."""
        return [*self._specs, *self._unread]

    def all(self) -> list[CompactionSupervisorSpec]:
        """Return the specs that can be read, by id."""
        return [self._specs[supervisor_id] for supervisor_id in sorted(self._specs)]

    def get(self, supervisor_id: str) -> CompactionSupervisorSpec | None:
        """Return a spec, None if there is none that can be read. Any thread."""
        return self._specs.get(supervisor_id)

    def find(self, supervisor_id: str) -> CompactionSupervisorSpec:
        """Return the spec of one that there is.

        Raises:
            NotFound: It cannot be read.
        """
        if supervisor_id in self._unread:
            raise not_read(supervisor_id, self._unread[supervisor_id])
        return self._specs[supervisor_id]

    def keep(self, specs: Iterable[CompactionSupervisorSpec]) -> None:
        """Take over specs that are stored."""
        for spec in specs:
            self._unread.pop(spec.supervisor_id, None)
            self._specs[spec.supervisor_id] = spec

    def keep_unread(self, supervisor_id: str, why: str) -> None:
        """Take over one whose stored spec cannot be read: it compacts nothing."""
        self._unread[supervisor_id] = why

    def put(
        self,
        spec: CompactionSupervisorSpec,
        *,
        skip_unmodified: bool = False,
        audit_of: AuditOf | None = None,
    ) -> Submitted:
        """Store a spec, of a new supervisor or of one that is there; `audit_of` notes it.

        Raises:
            InvalidRequest: It is to be noted, and what is stored was set by a release that knows
                more.
            Unavailable: The metadata store does not answer.
        """
        supervisor_id = spec.supervisor_id
        modified = self._specs.get(supervisor_id) != spec
        if modified or not skip_unmodified:
            entry = self._entry(audit_of, lambda known: known.plus(spec.spec))
            self._metadata.supervisors.put(supervisor_id, spec.to_json(), entry=entry)
            self.keep([spec])
            self._drop_other(spec.spec.data_source)
        return Submitted(supervisor_id, modified=modified, restarted=False)

    def suspend(self, supervisor_id: str, *, suspended: bool) -> CompactionSupervisorSpec:
        """Suspend or resume one that there is; tasks that run go on.

        Raises:
            NotFound: Its spec cannot be read.
            InvalidRequest: It is so already.
        """
        spec = self.find(supervisor_id)
        require_other(supervisor_id, spec.suspended, suspended)
        self.put(spec := spec.with_suspended(suspended))
        return spec

    def terminate(self, supervisor_id: str, audit_of: AuditOf | None = None) -> None:
        """End one that there is, at once; tasks that run go on. Raises as `put`, and Conflict."""
        names = _datasources([supervisor_id])
        entry = self._entry(audit_of, lambda known: known.without(names))
        self.drop_beside([supervisor_id])
        self._metadata.supervisors.terminate_all([supervisor_id], entry=entry)
        self.ended([supervisor_id])

    def drop_beside(self, ids: Iterable[str]) -> None:
        """Forget what is set beside some, before their ends are stored: it must not count again.

        Raises:
            Conflict: The configurations are changed by many at once.
        """
        CompactionConfigs.drop(self._metadata, _datasources(ids))

    def ended(self, ids: Iterable[str]) -> None:
        """Let go of those whose ends are stored."""
        for supervisor_id in ids:
            self._specs.pop(supervisor_id, None)
            self._unread.pop(supervisor_id, None)
            self._gone(supervisor_id)

    # By datasource, with a supervisor or without

    def configure(self, config: CompactionConfig, audit_of: AuditOf | None = None) -> None:
        """Set what the segments of a datasource should look like: by its supervisor, if it has one.

        That one is resumed, if it is suspended.

        Raises:
            Conflict: The configurations are changed by many at once.
        """
        spec = CompactionSupervisorSpec(spec=config)
        if spec.supervisor_id in self:
            self.put(spec, audit_of=audit_of)
        else:
            CompactionConfigs.change(self._metadata, lambda known: known.plus(config), audit_of)

    def end(self, datasource: str, audit_of: AuditOf | None = None) -> None:
        """Compact a datasource no more; its supervisor, if it has one, is terminated.

        Raises:
            Conflict: The configurations are changed by many at once.
        """
        supervisor_id = SUPERVISOR_PREFIX + datasource
        if supervisor_id in self:
            self.terminate(supervisor_id, audit_of)
        else:
            CompactionConfigs.drop(self._metadata, [datasource], audit_of)

    def _entry(
        self,
        audit_of: AuditOf | None,
        changed: Callable[[CompactionConfigs], CompactionConfigs],
    ) -> AuditRow | None:
        """Return what the audit log is told: supervisors change on this mailbox alone."""
        if audit_of is None:
            return None
        return audit_of(changed(CompactionConfigs.read(self._metadata)))

    def _drop_other(self, datasource: str) -> None:
        """Tidy up what is set beside a supervisor whose spec is stored, if that can be done now."""
        try:
            CompactionConfigs.drop(self._metadata, [datasource])
        except Fenced:
            raise  # The term is over: whoever asked asks the next leader.
        except PenstockError as error:
            # The spec counts already, and alone: an error would say that nothing was changed.
            _log.warning("what was set of %s beside its supervisor is left: %s", datasource, error)


def _datasources(ids: Iterable[str]) -> list[str]:
    return [one.removeprefix(SUPERVISOR_PREFIX) for one in ids]


def require_other(supervisor_id: str, is_suspended: bool, suspended: bool) -> None:
    """Refuse to suspend what is suspended, or to resume what runs."""
    if is_suspended == suspended:
        state = "suspended" if suspended else "running"
        raise InvalidRequest(f"supervisor {supervisor_id} is already {state}")


def compaction_summary(spec: CompactionSupervisorSpec) -> dict[str, object]:
    """Return one entry of ``GET …/supervisor?state=true``."""
    state = "SUSPENDED" if spec.suspended else "RUNNING"
    return {
        "id": spec.supervisor_id,
        "type": spec.type,
        "dataSource": spec.spec.data_source,
        "state": state,
        "detailedState": state,
        "healthy": True,
        "suspended": spec.suspended,
    }
