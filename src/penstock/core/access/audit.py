"""The audit of access: one JSON line for each decision that is worth one, and for its end.

Owns which decisions are recorded, the form of a record, the rights that records need, and the
metrics. Records go to the logger `penstock.audit`, so an operator can send them to a file of their
own; the module `audit_files` of the services keeps them for a topic. A record has no secret: no
token, no password, no body, no statement.

Refusals are always recorded. Allowed requests are recorded if they change something: `manage`,
`run-code`, `read-external`, and writes of anything but messages. With `records_everything`, reads
and publishes are recorded too. Calls of processes and tasks are recorded only if they are refused,
or change something: reading and publishing the records would itself be recorded, and so on.

The record of an allowed request is written before the request is carried out, so that a process
which ends in the middle leaves one. A second record, with the duration and the status of the
answer, follows at the end. Reads and publishes of a connection to the broker are counted instead:
each use has one record at its beginning, and one with the count at the end of the connection.

Invariant: refused requests come from strangers, so their records are limited; the next record has
the number of those left out.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import threading
from dataclasses import dataclass, field
from typing import Final

from penstock.core.access.policy import Decision, Policy
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.clock import Clock
from penstock.core.intervals import format_time
from penstock.core.metrics import MetricRegistry

REFUSALS_PER_SECOND_MAX: Final = 20
ENDS_MAX: Final = 20
"""Records of the end of one request, which may have needed several decisions."""
_TEXT_MAX: Final = 300
_MS: Final = 1_000

_audit_logger = logging.getLogger("penstock.audit")

_MESSAGES: Final = frozenset({ResourceKind.TOPIC, ResourceKind.CHANNEL})
_OWN: Final = frozenset({PrincipalKind.PROCESS, PrincipalKind.TASK})
_OF_RECORDS: Final = _MESSAGES | {ResourceKind.DATASOURCE}
# A task has the rights that its submitter was found to have.
_TRUSTED: Final = _OWN | {PrincipalKind.OWNER}


_ACCESS: Final = Resource(ResourceKind.SYSTEM, "access")
_TOPIC_WRITTEN: Final = Decision.refused(
    "only the processes of the installation publish to the topic of the audit"
)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Kinds of requests that are recorded, and the topic of the records.

    Attributes:
        topic: The topic; empty: none.
        records_everything: Whether allowed reads and publishes are recorded, too.
    """

    topic: str = ""
    records_everything: bool = False

    def has(self, resource: Resource) -> bool:
        """Return whether a resource holds records: the topic, and what is named after it.

        The dead-letter topic of the topic is `TOPIC.dead-letter`.
        """
        if not self.topic or resource.kind not in _OF_RECORDS:
            return False
        name = resource.name
        if resource.kind == ResourceKind.CHANNEL:
            name = name.partition("/")[0]
        return name == self.topic or name.startswith(f"{self.topic}.")

    def decide(
        self, policy: Policy, principal: Principal, action: Action, resource: Resource
    ) -> Decision:
        """Return the decision of a policy, which is stricter about the records of the audit.

        The topic of the audit, its channels, the datasource of its name, and names that begin with
        it and a dot also need `read system:access` for reading, and `manage system:access` for
        anything else. Only processes publish to the topic, so that no record is forged.
        """
        decision = policy.decide(principal, action, resource)
        if not self.has(resource) or decision.rows is None or principal.kind in _TRUSTED:
            return decision
        is_topic = resource.kind == ResourceKind.TOPIC and resource.name == self.topic
        if is_topic and action == Action.WRITE:
            return _TOPIC_WRITTEN
        needed = Action.READ if action == Action.READ else Action.MANAGE
        if policy.decide(principal, needed, _ACCESS).allowed:
            return decision
        return Decision.refused(f"it has records of the audit, which need {needed} {_ACCESS}")


def is_frequent(action: Action, kind: ResourceKind) -> bool:
    """Return whether requests read or publish, and are recorded only if everything is."""
    return action is Action.READ or (action is Action.WRITE and kind in _MESSAGES)


@dataclass(slots=True)
class RequestTrail:
    """Records of one request. One thread at a time.

    Attributes:
        started_s: Monotonic time of its start.
        origin: Address of the client.
        id: Text that its records share; empty until the first one.
        allowed: The records of its allowed decisions, without their time.
        count: Number of requests, if the trail is that of one use of a connection.
    """

    started_s: float
    origin: str = ""
    id: str = ""
    allowed: list[dict[str, object]] = field(default_factory=list)
    count: int = 1


class AccessAudit:
    """Writes the records of one process. Any thread.

    The mutex guards the count of refusals: mail would cost more than the count.

    Args:
        clock: For the time of a record.
        process: Name of the process in records and metrics, such as `router`.
        registry: Metrics of the process; None: none.
        options: Options of the audit.
    """

    def __init__(
        self,
        clock: Clock,
        process: str,
        registry: MetricRegistry | None = None,
        options: AuditOptions | None = None,
    ) -> None:
        self._clock = clock
        self._process = process
        self._host = socket.gethostname()
        self._mutex = threading.Lock()
        self._second = 0
        self._refusals = 0
        self._left_out = 0
        self.options: Final = options or AuditOptions()
        registry = registry or MetricRegistry()
        self._registry = registry
        self.denied: Final = registry.counter(
            "penstock_access_denied_total", "Requests refused by the rules of access"
        )
        self.failed_logins: Final = registry.counter(
            "penstock_access_failed_logins_total", "Requests with an invalid credential"
        )

    def trail(self, origin: str) -> RequestTrail:
        """Return the trail of a request that begins now.

        Args:
            origin: Address of the client.
        """
        return RequestTrail(self._clock.monotonic_s(), origin)

    def counts(self) -> dict[str, int]:
        """Return the metrics of access and of the audit, for a process without `/metrics`.

        The names lack their common beginning, and end with the values of their labels.
        """
        counted = {}
        for one in self._registry.snapshot():
            name = one.name.removeprefix("penstock_")
            is_counted = name.startswith(("access_", "audit_"))
            if is_counted and isinstance(one.value, int | float):
                counted["_".join((name, *(value for _, value in one.labels)))] = int(one.value)
        return counted

    def decided(
        self,
        principal: Principal,
        action: Action,
        resource: Resource,
        decision: Decision,
        origin: str,
        trail: RequestTrail | None = None,
    ) -> None:
        """Record a decision, if it is worth it, and count it, if it is a refusal."""
        if decision.allowed:
            if not self.is_recorded(principal, action, resource):
                return
        else:
            self.denied.add()
            if not self._may_record_refusal():
                return
        record: dict[str, object] = {
            "event": "decision",
            "principal": principal.id,
            "action": str(action),
            "resource": str(resource)[:_TEXT_MAX],
            "allowed": decision.allowed,
            "reason": decision.reason[:_TEXT_MAX],
        }
        if principal.via:
            record["via"] = principal.via
        if trail is not None:
            trail.id = trail.id or secrets.token_hex(8)
            record["request"] = trail.id
            if not decision.allowed:
                record["duration_ms"] = self._duration_ms(trail)
            elif record not in trail.allowed and len(trail.allowed) < ENDS_MAX:
                trail.allowed.append(record)
        self._write(record, origin)

    def ended(self, trail: RequestTrail, status: int) -> None:
        """Record the end of a request whose decisions were recorded.

        Args:
            trail: The trail of the request.
            status: HTTP status of its answer.
        """
        allowed, trail.allowed = trail.allowed, []
        for record in allowed:
            more = {"event": "end", "status": status, "duration_ms": self._duration_ms(trail)}
            self._write({**record, **more}, trail.origin)

    def ended_use(self, trail: RequestTrail, counted: str, count: int) -> None:
        """Record the end of one use of a connection, which may have had many requests.

        Args:
            trail: The trail of its first request.
            counted: Unit of the count, `requests` or `messages`.
            count: How many.
        """
        allowed, trail.allowed = trail.allowed, []
        for record in allowed:
            more = {"event": "end", counted: count, "duration_ms": self._duration_ms(trail)}
            self._write({**record, **more}, trail.origin)

    def logged_in(self, principal: Principal, origin: str) -> None:
        """Record that a user showed the correct password, or a new valid token of an issuer."""
        self._write({"event": "login", "principal": principal.id, "allowed": True}, origin)

    def failed_login(self, claimed: str, reason: str, origin: str) -> None:
        """Record and count an invalid credential.

        Args:
            claimed: Whose credential it seems to be, such as `user:alice`; never a secret.
            reason: Why it is invalid.
            origin: Address of the client.
        """
        self.failed_logins.add()
        if self._may_record_refusal():
            login: dict[str, object] = {"event": "login", "principal": claimed[:_TEXT_MAX]}
            self._write({**login, "allowed": False, "reason": reason}, origin)

    def over_quota(self, principal: Principal, quota: str, reason: str, origin: str) -> None:
        """Record that a request was refused because of a quota.

        The caller records the first one of a principal, a quota and a minute only.
        """
        if self._may_record_refusal():
            refused: dict[str, object] = {"event": "quota", "principal": principal.id}
            self._write({**refused, "quota": quota, "allowed": False, "reason": reason}, origin)

    def is_recorded(self, principal: Principal, action: Action, resource: Resource) -> bool:
        """Return whether an allowed request is recorded."""
        if principal.kind is PrincipalKind.PROCESS:
            return False
        if is_frequent(action, resource.kind):
            return self.options.records_everything and principal.kind not in _OWN
        return True

    def _duration_ms(self, trail: RequestTrail) -> float:
        return round((self._clock.monotonic_s() - trail.started_s) * _MS, 3)

    def _may_record_refusal(self) -> bool:
        second = self._clock.now_ms() // 1_000
        with self._mutex:
            if second != self._second:
                self._second, self._refusals = second, 0
            self._refusals += 1
            if self._refusals <= REFUSALS_PER_SECOND_MAX:
                return True
            self._left_out += 1
            return False

    def _write(self, fields: dict[str, object], origin: str) -> None:
        with self._mutex:
            left_out, self._left_out = self._left_out, 0
        record = {
            "time": format_time(self._clock.now_ms()),
            **fields,
            "process": self._process,
            "host": self._host,
        }
        if origin:
            record["origin"] = origin[:_TEXT_MAX]
        if left_out:
            record["left_out"] = left_out
        _audit_logger.info("%s", json.dumps(record))
