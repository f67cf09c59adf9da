"""Records of leadership, leases, supervisors, retention rules and the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.payloads import JsonObject


@dataclass(frozen=True, slots=True)
class Term:
    """A term of leadership: `holder` leads `service`; a later term has a larger number."""

    service: str
    holder: str
    number: int
    expires_ms: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """An instance of a service that renewed its lease recently; the service defines `extra`."""

    service: str
    instance: str
    host: str
    port: int
    expires_ms: int
    extra: JsonObject = field(default_factory=dict)
    started_ms: int = 0


@dataclass(frozen=True, slots=True)
class SupervisorRow:
    """One version of a supervisor's spec. Versions count up from 1; all are kept."""

    id: str
    payload: JsonObject
    version: int = 0
    tombstone: bool = False
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class RuleRow:
    """The retention rules of a datasource, in order, as JSON; `_default` has the cluster's."""

    datasource: str
    rules: Sequence[JsonObject]
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Audit entry: author, change, time and reason."""

    key: str
    type: str
    author: str
    comment: str
    payload: JsonObject
    created_ms: int = 0
