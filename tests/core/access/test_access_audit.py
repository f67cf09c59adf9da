"""Which decisions the audit records, in which form, and who may see the records."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.access.access_control import AccessControl
from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.audit import AuditOptions
from penstock.core.access.policy_file import parse_policy
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource, Rule
from penstock.core.clock import SystemClock
from penstock.core.errors import Forbidden
from penstock.testing.clock import VirtualClock

CLICKS = Resource.parse("topic:clicks")


@pytest.fixture
def folder(tmp_path: Path) -> AccessFolder:
    return AccessFolder(tmp_path / "access")


@pytest.fixture
def control(folder: AccessFolder) -> AccessControl:
    return AccessControl(folder.path, VirtualClock(), process="router")


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(record.getMessage()))


@pytest.fixture
def records() -> Iterator[list[dict[str, object]]]:
    handler, logger = _Records(), logging.getLogger("penstock.audit")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.found
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_everything_has_reads_and_publishes_but_not_those_of_processes_and_tasks(
    folder: AccessFolder, records: list[dict[str, object]]
) -> None:
    everything = AuditOptions("audit", records_everything=True)
    control = AccessControl(folder.path, SystemClock(), process="router", audit=everything)
    operator = control.authenticator.of_bearer(folder.operator_token.read_text().strip().encode())
    process = control.authenticator.of_bearer(control.key.process_bearer().encode())
    rules = [Rule.parse("read topic:audit")]
    task = control.authenticator.of_bearer(control.key.task_bearer("index_audit", rules).encode())
    assert operator and process and task  # noqa: PT018
    audit = Resource.parse("topic:audit")
    control.require(operator, Action.READ, CLICKS)
    control.require(operator, Action.WRITE, CLICKS)
    control.require(process, Action.WRITE, audit)
    control.require(task, Action.READ, audit)
    assert [(one["principal"], one["action"]) for one in records] == [
        ("token:operator", "read"),
        ("token:operator", "write"),
    ]


def test_a_request_leaves_a_record_before_and_one_after_it(
    control: AccessControl, folder: AccessFolder, records: list[dict[str, object]]
) -> None:
    operator = control.authenticator.of_bearer(folder.operator_token.read_text().strip().encode())
    assert operator
    trail = control.audit.trail("127.0.0.1:5000")
    control.require(operator, Action.READ, CLICKS, trail=trail)
    control.require(operator, Action.MANAGE, CLICKS, trail=trail)
    control.require(operator, Action.MANAGE, CLICKS, trail=trail)
    with pytest.raises(Forbidden):
        control.require(Principal(PrincipalKind.USER, "eve"), Action.READ, CLICKS, trail=trail)
    control.audit.ended(trail, 200)
    control.audit.ended(trail, 200)
    assert [(one["event"], one["allowed"]) for one in records] == [
        ("decision", True),
        ("decision", True),
        ("decision", False),
        ("end", True),
    ]
    assert len({one["request"] for one in records}) == 1
    assert "duration_ms" not in records[0]
    assert records[2]["duration_ms"] == 0
    end = records[3]
    assert (end["principal"], end["action"], end["resource"]) == (
        "token:operator",
        "manage",
        "topic:clicks",
    )
    assert (end["status"], end["duration_ms"], end["origin"]) == (200, 0, "127.0.0.1:5000")


def _principal(*roles: str, kind: PrincipalKind = PrincipalKind.USER) -> Principal:
    return Principal(kind, "a", roles)


@pytest.mark.parametrize(
    ("principal", "action", "resource", "is_allowed"),
    [
        (_principal("admin"), "read", "topic:audit", True),
        (_principal("admin"), "manage", "topic:audit", True),
        (_principal("admin"), "write", "topic:audit", False),
        (_principal("admin"), "manage", "datasource:audit", True),
        (_principal("admin"), "write", "channel:audit/a", True),
        (_principal("operator"), "read", "topic:audit", True),
        (_principal("operator"), "read", "channel:audit/a", True),
        (_principal("operator"), "write", "channel:audit/a", False),
        (_principal("operator"), "manage", "topic:audit", False),
        (_principal("operator"), "manage", "datasource:audit", False),
        (_principal("operator"), "write", "datasource:audit", False),
        (_principal("publisher"), "write", "topic:audit", False),
        (_principal("publisher"), "write", "topic:audits", True),
        (_principal("consumer"), "read", "topic:audit", False),
        (_principal("consumer"), "read", "channel:audit/a", False),
        (_principal("consumer"), "read", "channel:audits/a", True),
        (_principal("consumer"), "read", "topic:audit.dead-letter", False),
        (_principal("consumer"), "read", "channel:audit.dead-letter/a", False),
        (_principal("operator"), "read", "topic:audit.dead-letter", True),
        (_principal("publisher"), "write", "topic:audit.dead-letter", False),
        (_principal("admin"), "write", "topic:audit.dead-letter", True),
        (_principal("analyst"), "read", "datasource:audit", False),
        (_principal("analyst"), "read", "datasource:clicks", True),
        (_principal("analyst", "auditor"), "read", "datasource:audit", True),
        (_principal("auditor"), "read", "datasource:audit", False),
        (_principal("partly", "auditor"), "read", "datasource:audit", False),
        (_principal(kind=PrincipalKind.PROCESS), "write", "topic:audit", True),
        (_principal(kind=PrincipalKind.NOBODY), "read", "topic:audit", False),
    ],
    ids=str,
)
def test_records_need_a_right_on_access(
    principal: Principal, action: str, resource: str, is_allowed: bool
) -> None:
    policy = parse_policy(
        '[roles.auditor]\nallow = ["read system:access"]\n[roles.partly]\n'
        'allow = ["read datasource:*"]\nrow_filters.audit = "process = \'flow\'"',
        "access.toml",
    )
    target = Resource.parse(resource)
    decision = AuditOptions("audit").decide(policy, principal, Action(action), target)
    assert decision.allowed == is_allowed, decision.reason
    without = AuditOptions().decide(policy, principal, Action(action), target)
    assert without == policy.decide(principal, Action(action), target)


def test_a_filter_on_the_audit_needs_the_right_as_well() -> None:
    policy = parse_policy(
        '[roles.partly]\nallow = ["read datasource:*"]\nrow_filters.audit = "a = 1"', "access.toml"
    )
    target = Resource.parse("datasource:audit")
    one = AuditOptions("audit").decide(policy, _principal("partly"), Action.READ, target)
    assert one.rows is None, "SQL must show nothing, too"
