"""Supervisors of compaction: their specs' versions, and that one configuration counts of each.

On the overlord's mailbox. They run nothing: the duty of compaction reads what is stored, so all of
a change is in its one transaction. What is set of a datasource without a supervisor is kept
elsewhere (`CompactionConfigs`); where both are stored, as after a crash between two writes, the
supervisor counts, and its end takes the other along.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Fenced, InvalidRequest, PenstockError
from penstock.indexing.overlord.duties.compaction import CompactionConfigs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.indexing.overlord.duties.compaction import AuditOf
    from penstock.indexing.spec import CompactionSupervisorSpec
    from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a submitted spec changed: anything, and whether tasks begin anew for it."""

    id: str
    modified: bool
    restarted: bool


class CompactionSupervisors:
    """Those that were not terminated.

    Args:
        metadata: Where specs and configurations are kept.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._specs: dict[str, CompactionSupervisorSpec] = {}  # one look-up is for any thread

    def __contains__(self, supervisor_id: str) -> bool:
        """Tell whether there is one of this id."""
        return supervisor_id in self._specs

    def all(self) -> list[CompactionSupervisorSpec]:
        """Return their specs, by id."""
        return [self._specs[supervisor_id] for supervisor_id in sorted(self._specs)]

    def get(self, supervisor_id: str) -> CompactionSupervisorSpec | None:
        """Return a spec, None if there is none. Any thread."""
        return self._specs.get(supervisor_id)

    def keep(self, specs: Iterable[CompactionSupervisorSpec]) -> None:
        """Take over specs that are stored."""
        self._specs.update((spec.supervisor_id, spec) for spec in specs)

    def put(self, spec: CompactionSupervisorSpec, *, skip_unmodified: bool = False) -> Submitted:
        """Store a spec, of a new supervisor or of one that is there.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        supervisor_id = spec.supervisor_id
        modified = self._specs.get(supervisor_id) != spec
        if modified or not skip_unmodified:
            self._metadata.supervisors.put(supervisor_id, spec.to_json())
            self.keep([spec])
            self._drop_other(spec.spec.data_source)
        return Submitted(supervisor_id, modified=modified, restarted=False)

    def suspend(self, supervisor_id: str, *, suspended: bool) -> CompactionSupervisorSpec:
        """Suspend or resume one; tasks that run go on.

        Raises:
            InvalidRequest: It is so already.
        """
        spec = self._specs[supervisor_id]
        require_other(supervisor_id, spec.suspended, suspended)
        self.put(spec := spec.with_suspended(suspended))
        return spec

    def forget(self, supervisor_id: str) -> None:
        """Drop one that is terminated, if it is there."""
        self._specs.pop(supervisor_id, None)

    def note(self, audit_of: AuditOf | None) -> None:
        """Have the audit log say what was changed in the same mail, so by nobody else since.

        Raises:
            InvalidRequest: What is stored was set by a release that knows more.
            Unavailable: The metadata store does not answer.
        """
        if audit_of is None:
            return
        row = audit_of(CompactionConfigs.read(self._metadata))
        self._metadata.audit.add(
            row.key, row.type, author=row.author, comment=row.comment, payload=row.payload
        )

    def _drop_other(self, datasource: str) -> None:
        """Tidy up what is set beside a supervisor whose spec is stored, if that can be done now."""
        try:
            CompactionConfigs.drop(self._metadata, [datasource])
        except Fenced:
            raise  # The term is over: whoever asked asks the next leader.
        except PenstockError as error:
            # The spec counts already, and alone: an error would say that nothing was changed.
            _log.warning("what was set of %s beside its supervisor is left: %s", datasource, error)


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
