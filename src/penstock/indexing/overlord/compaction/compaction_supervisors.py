"""Compaction supervisors: the versions of their specs.

On the overlord's mailbox. They run nothing: the compaction duty reads the stored specs, so a change
and its entry in the audit log are one transaction. Configurations of datasources without a
supervisor are stored elsewhere (`CompactionConfigs`). If a datasource has both, as after a crash
between two writes, only the supervisor's applies, and terminating it deletes both.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Fenced, InvalidRequest, PenstockError
from penstock.indexing.overlord.compaction.compaction_duty import CompactionConfigs
from penstock.indexing.overlord.supervisor_ends import not_read, release
from penstock.indexing.specs import CompactionSupervisorSpec
from penstock.indexing.specs.compaction import SUPERVISOR_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.indexing.overlord.compaction.compaction_duty import AuditOf
    from penstock.indexing.specs.compaction import CompactionConfig
    from penstock.storage.metadata import AuditRow, MetadataStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """Result of submitting a spec: whether it changed, and whether its tasks restart."""

    id: str
    modified: bool
    restarted: bool


class CompactionSupervisors:
    """The compaction supervisors, including those with invalid stored specs.

    Args:
        metadata: The store of specs and configurations.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._specs: dict[str, CompactionSupervisorSpec] = {}  # Any thread may look up one key.
        # Errors of invalid stored specs, by supervisor.
        self._unread: dict[str, str] = {}

    def __contains__(self, supervisor_id: str) -> bool:
        """Return whether a supervisor has this id."""
        return supervisor_id in self._specs or supervisor_id in self._unread

    def ids(self) -> list[str]:
        """Return the ids of all supervisors."""
        return [*self._specs, *self._unread]

    def all(self) -> list[CompactionSupervisorSpec]:
        """Return the valid specs, sorted by id."""
        return [self._specs[supervisor_id] for supervisor_id in sorted(self._specs)]

    def get(self, supervisor_id: str) -> CompactionSupervisorSpec | None:
        """Return a spec, None if there is no valid one. Any thread."""
        return self._specs.get(supervisor_id)

    def find(self, supervisor_id: str) -> CompactionSupervisorSpec:
        """Return the spec of an existing supervisor.

        Raises:
            NotFound: Its stored spec is invalid.
        """
        if supervisor_id in self._unread:
            raise not_read(supervisor_id, self._unread[supervisor_id])
        return self._specs[supervisor_id]

    def is_unread(self, supervisor_id: str) -> bool:
        """Return whether a supervisor's stored spec is invalid."""
        return supervisor_id in self._unread

    def keep(self, specs: Iterable[CompactionSupervisorSpec]) -> None:
        """Add specs that are stored."""
        for spec in specs:
            self._unread.pop(spec.supervisor_id, None)
            self._specs[spec.supervisor_id] = spec

    def keep_unread(self, supervisor_id: str, why: str) -> None:
        """Add a supervisor with an invalid stored spec: it compacts nothing."""
        self._unread[supervisor_id] = why

    def put(
        self,
        spec: CompactionSupervisorSpec,
        *,
        skip_unmodified: bool = False,
        audit_of: AuditOf | None = None,
    ) -> SubmitResult:
        """Store a spec of a new or existing supervisor; `audit_of` records the change.

        Raises:
            InvalidRequest: With `audit_of`, the stored configurations were written by a newer
                release.
            Unavailable: The metadata store does not answer.
        """
        supervisor_id = spec.supervisor_id
        modified = self._specs.get(supervisor_id) != spec
        if modified or not skip_unmodified:
            entry = self._entry(audit_of, lambda known: known.plus(spec.spec))
            self._metadata.supervisors.put(supervisor_id, spec.to_json(), entry=entry)
            self.keep([spec])
            self._drop_other(spec.spec.datasource)
        return SubmitResult(supervisor_id, modified=modified, restarted=False)

    def suspend(self, supervisor_id: str, *, suspended: bool) -> CompactionSupervisorSpec:
        """Suspend or resume an existing supervisor; running tasks continue.

        Raises:
            NotFound: Its stored spec is invalid.
            InvalidRequest: It is already in that state.
        """
        spec = self.find(supervisor_id)
        require_other(supervisor_id, spec.suspended, suspended)
        self.put(spec := spec.with_suspended(suspended))
        return spec

    def terminate(self, supervisor_id: str, audit_of: AuditOf | None = None) -> None:
        """Delete a supervisor at once; running tasks continue. Raises as `put`, and Conflict."""
        names = _datasources([supervisor_id])
        entry = self._entry(audit_of, lambda known: known.without(names))
        self.delete_others([supervisor_id])
        self._metadata.supervisors.terminate_all([supervisor_id], entry=entry)
        self.ended([supervisor_id])

    def delete_others(self, ids: Iterable[str]) -> None:
        """Delete other configurations of datasources, so that they do not apply after the end.

        Raises:
            Conflict: Other changes of the configurations conflict repeatedly.
        """
        CompactionConfigs.drop(self._metadata, _datasources(ids))

    def ended(self, ids: Iterable[str]) -> None:
        """Remove supervisors whose ends are stored."""
        for supervisor_id in ids:
            self._specs.pop(supervisor_id, None)
            self._unread.pop(supervisor_id, None)
            _log.info("supervisor %s has ended", supervisor_id)
            release(self._metadata, supervisor_id)

    # Datasources with or without a supervisor

    def configure(self, config: CompactionConfig, audit_of: AuditOf | None = None) -> None:
        """Set the compaction config of a datasource, in its supervisor's spec if it has one.

        A suspended supervisor is resumed.

        Raises:
            Conflict: Other changes of the configurations conflict repeatedly.
        """
        spec = CompactionSupervisorSpec(spec=config)
        if spec.supervisor_id in self:
            self.put(spec, audit_of=audit_of)
        else:
            CompactionConfigs.change(self._metadata, lambda known: known.plus(config), audit_of)

    def end(self, datasource: str, audit_of: AuditOf | None = None) -> None:
        """Stop compacting a datasource; its supervisor, if it has one, is terminated.

        Raises:
            Conflict: Other changes of the configurations conflict repeatedly.
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
        """Return the audit entry; supervisors change on this mailbox only, so the read is safe."""
        if audit_of is None:
            return None
        return audit_of(changed(CompactionConfigs.read(self._metadata)))

    def _drop_other(self, datasource: str) -> None:
        """Try to delete the configuration of a datasource whose supervisor has a stored spec."""
        try:
            CompactionConfigs.drop(self._metadata, [datasource])
        except Fenced:
            raise  # The term is over: the caller retries on the next leader.
        except PenstockError as error:
            # The stored spec applies already; an error would wrongly report that nothing changed.
            _log.warning(
                "the configuration of %s, which has a supervisor, stays stored: %s",
                datasource,
                error,
            )


def _datasources(ids: Iterable[str]) -> list[str]:
    return [one.removeprefix(SUPERVISOR_PREFIX) for one in ids]


def require_other(supervisor_id: str, is_suspended: bool, suspended: bool) -> None:
    """Raise an error if a supervisor is already suspended or already running."""
    if is_suspended == suspended:
        state = "suspended" if suspended else "running"
        raise InvalidRequest(f"supervisor {supervisor_id} is already {state}")


def compaction_summary(spec: CompactionSupervisorSpec) -> dict[str, object]:
    """Return one entry of ``GET …/supervisor?state=true``."""
    state = "SUSPENDED" if spec.suspended else "RUNNING"
    return {
        "id": spec.supervisor_id,
        "type": spec.type,
        "dataSource": spec.spec.datasource,
        "state": state,
        "detailedState": state,
        "healthy": True,
        "suspended": spec.suspended,
    }
