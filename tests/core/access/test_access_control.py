"""Access control of a process: authentication, files that change, and refusals."""

from __future__ import annotations

import json
import logging
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from penstock.core.access.access_control import READ_S, AccessControl
from penstock.core.access.access_folder import AccessFolder, AccessReader
from penstock.core.access.audit import REFUSALS_PER_SECOND_MAX
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.last_used import read_last_used
from penstock.core.access.passwords import PasswordChecks
from penstock.core.access.policy import Policy
from penstock.core.access.principal import NOBODY, Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.clock import SystemClock
from penstock.core.errors import Forbidden, Unauthenticated, Unavailable
from penstock.core.metrics import MetricRegistry
from penstock.testing.clock import VirtualClock

HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("correct horse")
OTHER_HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("other horse")
CLICKS = Resource(ResourceKind.TOPIC, "clicks")
ACCESS = Resource(ResourceKind.SYSTEM, "access")
RULES = """
[roles.team]
allow = ["read,write topic:clicks"]
[principals]
"user:alice" = ["team"]
"""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def folder(tmp_path: Path) -> AccessFolder:
    return AccessFolder(tmp_path / "access")


@pytest.fixture
def control(folder: AccessFolder, clock: VirtualClock) -> AccessControl:
    return AccessControl(folder.path, clock, process="router")


@pytest.fixture
def commands(folder: AccessFolder, clock: VirtualClock) -> CredentialFile:
    return CredentialFile(folder.credentials, clock)


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, object]]]:
    found: list[dict[str, object]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(record.getMessage()))

    handler = Keep()
    logger = logging.getLogger("penstock.audit")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield found
    logger.setLevel(level)
    logger.removeHandler(handler)


def write_rules(folder: AccessFolder, text: str) -> None:
    folder.rules.write_text(text)


# Configured or not


def test_without_configuration_only_the_owner_is_let_in(control: AccessControl) -> None:
    assert not control.is_configured
    owner = control.of_owner()
    assert owner
    assert owner.kind is PrincipalKind.OWNER
    control.require(owner, Action.MANAGE, ACCESS)
    with pytest.raises(
        Unauthenticated, match=r"only the user who runs the server.*penstock user add"
    ):
        control.require(NOBODY, Action.READ, CLICKS)


@pytest.mark.parametrize("what", ["rules", "user", "token", "shared"])
def test_once_something_is_configured_the_user_id_grants_nothing(
    folder: AccessFolder, clock: VirtualClock, commands: CredentialFile, what: str
) -> None:
    control = AccessControl(folder.path, clock, shared_token=b"s" * (what == "shared"))
    owner = AccessControl.open().of_owner()
    assert owner
    match what:
        case "rules":
            write_rules(folder, "")
        case "user":
            commands.add_user("alice", HASH)
        case "token":
            commands.add_token("ci")
    control.refresh()
    assert control.is_configured
    assert control.of_owner() is None
    # A connection that was opened before.
    with pytest.raises(Forbidden):
        control.require(owner, Action.READ, CLICKS)
    with pytest.raises(Unauthenticated, match="penstock login"):
        control.require(NOBODY, Action.READ, CLICKS)


def test_an_open_control_lets_everyone_do_everything() -> None:
    control = AccessControl.open()
    owner = control.of_owner()
    assert control.is_open
    assert owner
    for action in Action:
        control.require(owner, action, ACCESS)
    assert control.authenticator.of_bearer(b"x") is None
    control.start()
    control.refresh()
    control.close()


# Credentials


def test_tokens_are_let_in_until_they_expire_or_are_removed(
    control: AccessControl, commands: CredentialFile, clock: VirtualClock
) -> None:
    token = commands.add_token("ci", ("publisher",), expires_ms=clock.now_ms() + 1_000)
    bearer = token.text.encode()
    assert control.authenticator.of_bearer(bearer) is None
    control.refresh()
    principal = control.authenticator.of_bearer(bearer)
    assert principal
    assert principal.id == "token:ci"
    control.require(principal, Action.WRITE, CLICKS)
    for wrong in (
        bearer[:-1],
        bearer + b"x",
        bearer.upper(),
        b"",
        b"Bearer " + bearer,
        b"x" * 9_999,
    ):
        assert control.authenticator.of_bearer(wrong) is None
    clock.advance(1.0)
    assert control.authenticator.of_bearer(bearer) is None
    with pytest.raises(Forbidden):
        control.require(principal, Action.WRITE, CLICKS)


def test_a_removed_token_loses_its_rights_on_open_connections(
    control: AccessControl, commands: CredentialFile
) -> None:
    token = commands.add_token("ci", ("publisher",))
    control.refresh()
    before = control.generation
    principal = control.authenticator.of_bearer(token.text.encode())
    assert principal
    commands.remove_token("ci")
    commands.add_token("ci", ("admin",))  # another token of the same name
    control.refresh()
    assert control.generation > before
    assert control.authenticator.of_bearer(token.text.encode()) is None
    assert not control.decide(principal, Action.WRITE, CLICKS).allowed


def test_the_scope_of_a_token_narrows_its_roles(
    control: AccessControl, commands: CredentialFile
) -> None:
    token = commands.add_token("ci", ("admin",), ("read topic:clicks",))
    control.refresh()
    principal = control.authenticator.of_bearer(token.text.encode())
    assert principal
    assert control.decide(principal, Action.READ, CLICKS).allowed
    assert not control.decide(principal, Action.WRITE, CLICKS).allowed


def test_without_users_no_password_is_hashed(
    control: AccessControl, commands: CredentialFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def is_correct(_self: PasswordChecks, _hash: str | None, password: str) -> bool:
        hashed.append(password)
        return False

    monkeypatch.setattr(PasswordChecks, "is_correct", is_correct)
    assert control.authenticator.of_password("alice", "correct horse") is None
    assert hashed == []
    commands.add_user("bob", HASH)
    control.refresh()
    assert control.authenticator.of_password("alice", "correct horse") is None
    assert hashed == ["correct horse"], "its time would reveal that there is no alice"


def test_passwords_are_let_in_until_they_change(
    control: AccessControl, commands: CredentialFile, folder: AccessFolder
) -> None:
    commands.add_user("alice", HASH)
    write_rules(folder, RULES)
    control.refresh()
    assert control.authenticator.password_is_known("alice", "correct horse") is None
    principal = control.authenticator.of_password("alice", "correct horse")
    assert principal
    assert principal == control.authenticator.password_is_known("alice", "correct horse")
    control.require(principal, Action.WRITE, CLICKS)
    for user, password in (
        ("alice", "other horse"),
        ("bob", "correct horse"),
        ("", ""),
        ("\0", "x"),
    ):
        assert control.authenticator.of_password(user, password) is None
        assert control.authenticator.password_is_known(user, password) is None
    commands.set_password("alice", OTHER_HASH)
    control.refresh()
    assert control.authenticator.password_is_known("alice", "correct horse") is None
    assert control.authenticator.of_password("alice", "correct horse") is None
    with pytest.raises(Forbidden):
        control.require(principal, Action.WRITE, CLICKS)
    assert control.authenticator.of_password("alice", "other horse")
    commands.remove_user("alice")
    control.refresh()
    assert control.authenticator.password_is_known("alice", "other horse") is None


def test_certificates_have_the_roles_of_the_file(
    control: AccessControl, folder: AccessFolder
) -> None:
    write_rules(folder, "[principals]\n'certificate:collector-1' = ['publisher']")
    control.refresh()
    known, unknown = (
        control.authenticator.of_certificate("collector-1"),
        control.authenticator.of_certificate("collector-2"),
    )
    assert known
    assert unknown
    assert control.decide(known, Action.WRITE, CLICKS).allowed
    assert not control.decide(unknown, Action.WRITE, CLICKS).allowed
    for name in ("", "a\nb", "a" * 201):
        assert control.authenticator.of_certificate(name) is None


def test_the_shared_token_is_an_admin(folder: AccessFolder, clock: VirtualClock) -> None:
    control = AccessControl(folder.path, clock, shared_token="höhle".encode())
    principal = control.authenticator.of_bearer("höhle".encode())
    assert principal
    assert principal.id == "token:shared"
    control.require(principal, Action.MANAGE, ACCESS)
    assert control.authenticator.of_bearer(b"hohle") is None


def test_the_operator_token_is_an_admin_as_long_as_its_file_exists(
    control: AccessControl, folder: AccessFolder
) -> None:
    bearer = folder.operator_token.read_text().strip().encode()
    principal = control.authenticator.of_bearer(bearer)
    assert principal
    assert principal.id == "token:operator"
    control.require(principal, Action.MANAGE, ACCESS)
    assert not control.is_configured
    folder.operator_token.unlink()
    control.refresh()
    assert control.authenticator.of_bearer(bearer) is None
    assert not control.decide(principal, Action.MANAGE, ACCESS).allowed


# Processes and tasks


def test_processes_and_tasks_of_the_installation_have_tokens(
    control: AccessControl, folder: AccessFolder, clock: VirtualClock, tmp_path: Path
) -> None:
    overlord = AccessControl(folder.path, clock, process="overlord")
    principal = overlord.authenticator.of_bearer(control.key.process_bearer().encode())
    assert principal
    assert (principal.id, principal.scope) == ("process:router", None)
    overlord.require(principal, Action.MANAGE, ACCESS)
    task = overlord.authenticator.of_bearer(control.key.task_bearer("index_é 1").encode())
    assert task
    assert (task.id, task.scope) == ("task:index_é 1", None)
    assert not overlord.decide(task, Action.READ, CLICKS).allowed
    stranger = AccessControl(tmp_path / "other", clock)
    assert stranger.authenticator.of_bearer(control.key.process_bearer().encode()) is None


def test_a_peon_accepts_tokens_for_its_task_alone(
    control: AccessControl, clock: VirtualClock
) -> None:
    peon = AccessControl.for_task("t1", control.key.peon_key("t1"), clock)
    caller = peon.authenticator.of_bearer(control.key.peon_bearer("t1").encode())
    assert caller
    peon.require(caller, Action.MANAGE, ACCESS)
    assert peon.of_owner() is None
    for other in (
        control.key.peon_bearer("t2"),
        control.key.task_bearer("t1"),
        control.key.process_bearer(),
    ):
        assert peon.authenticator.of_bearer(other.encode()) is None
    # It makes no tokens, and what its callers send counts nowhere else.
    for made in (
        peon.key.process_bearer,
        lambda: peon.key.task_bearer("t1"),
        lambda: peon.key.peon_key("t1"),
    ):
        with pytest.raises(Unavailable, match=r"no process.key"):
            made()
    assert control.authenticator.of_bearer(control.key.peon_bearer("t1").encode()) is None


def test_processes_that_start_at_once_use_the_same_secrets(folder: AccessFolder) -> None:
    """Threads stand for processes: each has its own descriptor of the lock."""
    found: set[tuple[str, str]] = set()
    together = threading.Barrier(8)

    def run() -> None:
        together.wait()
        control = AccessControl(folder.path, SystemClock())
        found.add((control.key.process_bearer(), folder.operator_token.read_text().strip()))

    in_threads([run] * 8)
    assert len(found) == 1
    for secret in (folder.operator_token, folder.process_key):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def in_threads(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Files that change


def test_rules_take_effect_once_the_file_rests(folder: AccessFolder) -> None:
    """An editor may have written the first half of the file, without the rule that denies."""
    reader = AccessReader(folder)
    folder.path.mkdir()
    write_rules(folder, RULES)
    first = reader.read(must_rest=True)
    assert first.policy.principals
    write_rules(folder, RULES + "'user:bob' = ['team']\n")
    assert reader.read(must_rest=True) is first
    write_rules(folder, RULES + "'user:bob' = ['team']\n'user:carol' = ['team']\n")
    assert reader.read(must_rest=True) is first
    second = reader.read(must_rest=True)
    assert second.policy.principals.keys() == {"user:alice", "user:bob", "user:carol"}
    assert second.generation == first.generation + 1
    assert reader.read(must_rest=True) is second
    folder.rules.unlink()
    assert reader.read(must_rest=True) is second
    assert not reader.read(must_rest=True).has_rules


@pytest.mark.parametrize("what", ["rules", "user"])
def test_access_stays_configured_until_a_restart(
    folder: AccessFolder, clock: VirtualClock, commands: CredentialFile, what: str
) -> None:
    """Some editors delete a file before they write it again."""
    control = AccessControl(folder.path, clock)
    if what == "rules":
        write_rules(folder, RULES)
    else:
        commands.add_user("alice", HASH)
    control.refresh()
    (folder.rules if what == "rules" else folder.credentials).unlink()
    for _ in range(3):
        control.refresh()
        assert control.is_configured
        assert control.of_owner() is None
    assert AccessControl(folder.path, clock).of_owner()


def test_an_invalid_file_changes_nothing_and_is_reported_once(
    folder: AccessFolder, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    registry = MetricRegistry()
    control = AccessControl(folder.path, clock, registry=registry)

    def invalid_files() -> object:
        return {one.name: one.value for one in registry.snapshot()}["penstock_access_invalid_files"]

    write_rules(folder, RULES)
    control.refresh()
    alice = Principal(PrincipalKind.USER, "alice")
    assert (control.decide(alice, Action.WRITE, CLICKS).allowed, invalid_files()) == (True, 0)
    write_rules(folder, RULES.replace("write topic", "wrte topic"))
    for _ in range(3):
        control.refresh()
    assert control.decide(alice, Action.WRITE, CLICKS).allowed
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(lines) == 1
    assert f"{folder.rules}: roles.team.allow[0]: unknown action 'wrte'" in lines[0]
    assert lines[0].endswith("the previous content of the file stays in force")
    assert (len(control.problems), invalid_files()) == (1, 1)
    write_rules(folder, RULES.replace("read,write", "read"))
    control.refresh()
    assert not control.decide(alice, Action.WRITE, CLICKS).allowed
    assert (control.problems, invalid_files()) == ((), 0)


def test_a_first_file_that_is_invalid_changes_nothing(
    control: AccessControl, folder: AccessFolder
) -> None:
    write_rules(folder, "x")
    folder.credentials.write_text("x")
    folder.credentials.chmod(0o600)
    control.refresh()
    assert len(control.problems) == 2
    assert not control.is_configured
    assert control.of_owner()


@pytest.mark.parametrize("damaged", ["rules", "credentials", "readable"])
def test_a_process_that_starts_with_an_invalid_file_lets_in_admins_alone(
    folder: AccessFolder, clock: VirtualClock, commands: CredentialFile, damaged: str
) -> None:
    token = commands.add_token("ci", ("publisher",))
    match damaged:
        case "rules":
            write_rules(folder, "[roles.a]\nalow = []")
        case "credentials":
            folder.credentials.write_text("{}")
        case _:
            folder.credentials.chmod(0o644)
    control = AccessControl(folder.path, clock)
    assert control.is_configured
    assert control.of_owner() is None
    principal = control.authenticator.of_bearer(token.text.encode())
    if damaged == "rules":
        assert principal
        decision = control.decide(principal, Action.WRITE, CLICKS)
        assert not decision.allowed
        assert "unknown key 'alow'" in decision.reason
    else:
        assert principal is None
    operator = control.authenticator.of_bearer(folder.operator_token.read_text().strip().encode())
    assert operator
    control.require(operator, Action.MANAGE, ACCESS)
    process = control.authenticator.of_bearer(control.key.process_bearer().encode())
    assert process
    control.require(process, Action.MANAGE, ACCESS)


def test_correcting_only_the_permissions_is_noticed(
    folder: AccessFolder, clock: VirtualClock, commands: CredentialFile
) -> None:
    token = commands.add_token("ci")
    folder.credentials.chmod(0o644)
    control = AccessControl(folder.path, clock)
    assert control.authenticator.of_bearer(token.text.encode()) is None
    folder.credentials.chmod(0o600)
    control.refresh()
    assert control.authenticator.of_bearer(token.text.encode())


def test_a_damaged_process_key_changes_nothing_while_running(
    control: AccessControl, folder: AccessFolder
) -> None:
    before = control.key.process_bearer()
    folder.process_key.write_text("x")
    control.refresh()
    assert control.key.process_bearer() == before
    folder.process_key.unlink()
    control.refresh()
    assert control.key.process_bearer() == before
    folder.make_secrets(SystemClock())
    control.refresh()
    assert control.key.process_bearer() != before


def test_the_thread_reads_changes_and_writes_the_last_use(
    control: AccessControl, folder: AccessFolder, commands: CredentialFile, clock: VirtualClock
) -> None:
    control.start()
    control.start()
    token = commands.add_token("ci", ("publisher",))
    while control.authenticator.of_bearer(token.text.encode()) is None:
        clock.advance(1.0)
    commands.add_token("unused")
    used_ms = clock.now_ms()
    last_used = folder.last_used / "router.json"
    while not last_used.exists():
        clock.advance(1.0)
    assert json.loads(last_used.read_text()) == {"token:ci": used_ms}
    assert stat.S_IMODE(last_used.stat().st_mode) == 0o600
    clock.advance(5.0)
    control.authenticator.of_bearer(token.text.encode())
    control.close()
    assert json.loads(last_used.read_text()) == {"token:ci": clock.now_ms()}


def test_the_last_use_that_cannot_be_written_is_no_failure(
    control: AccessControl, folder: AccessFolder, caplog: pytest.LogCaptureFixture
) -> None:
    control.start()
    folder.last_used.write_text("a file in the way")
    control.authenticator.of_bearer(folder.operator_token.read_text().strip().encode())
    control.close()
    assert "the last use of credentials is not stored" in caplog.text


def test_the_last_use_survives_a_restart_and_a_second_process_of_the_same_name(
    folder: AccessFolder, commands: CredentialFile, clock: VirtualClock
) -> None:
    tokens = [commands.add_token(name, ("publisher",)) for name in ("monthly", "hourly", "gone")]
    used: dict[str, int] = {}
    for token, name in zip(tokens, ("monthly", "hourly", "gone"), strict=True):
        one = AccessControl(folder.path, clock, process="worker")
        one.start()
        assert one.authenticator.of_bearer(token.text.encode())
        used[f"token:{name}"] = clock.now_ms()
        one.close()
        clock.advance(1.0)
    assert read_last_used(folder.last_used) == used
    commands.remove_token("gone")
    last = AccessControl(folder.path, clock, process="worker")
    last.start()
    assert last.authenticator.of_bearer(tokens[1].text.encode())
    last.close()
    assert read_last_used(folder.last_used) == {
        "token:monthly": used["token:monthly"],
        "token:hourly": clock.now_ms(),
    }


def test_a_last_use_that_could_not_be_written_is_written_later(
    folder: AccessFolder, clock: VirtualClock
) -> None:
    control = AccessControl(folder.path, clock, process="router")
    folder.last_used.write_text("a file in the way")
    control.authenticator.of_bearer(folder.operator_token.read_text().strip().encode())
    used_ms = clock.now_ms()
    control.authenticator.write_last_used(folder.last_used, "router")
    folder.last_used.unlink()
    control.authenticator.write_last_used(folder.last_used, "router")
    assert read_last_used(folder.last_used) == {"token:operator": used_ms}


# Audit


def test_the_audit_has_refusals_and_changes_but_not_messages(
    control: AccessControl, folder: AccessFolder, records: list[dict[str, object]]
) -> None:
    operator = control.authenticator.of_bearer(folder.operator_token.read_text().strip().encode())
    process = control.authenticator.of_bearer(control.key.process_bearer().encode())
    assert operator
    assert process
    records.clear()
    channel = Resource(ResourceKind.CHANNEL, "clicks/a")
    datasource = Resource(ResourceKind.DATASOURCE, "clicks")
    for action, resource in (
        (Action.READ, CLICKS),
        (Action.WRITE, CLICKS),
        (Action.WRITE, channel),
        (Action.READ, datasource),
    ):
        control.require(operator, action, resource)
    control.require(process, Action.MANAGE, ACCESS)
    assert records == []
    control.require(operator, Action.MANAGE, CLICKS, origin="127.0.0.1:5000")
    control.require(operator, Action.WRITE, datasource)
    control.require(operator, Action.RUN_CODE, Resource(ResourceKind.SYSTEM, "code"))
    control.require(operator, Action.READ_EXTERNAL, Resource(ResourceKind.SYSTEM, "inputs"))
    with pytest.raises(Forbidden):
        control.require(Principal(PrincipalKind.USER, "eve"), Action.READ, CLICKS)
    assert [(one["principal"], one["action"], one["allowed"]) for one in records] == [
        ("token:operator", "manage", True),
        ("token:operator", "write", True),
        ("token:operator", "run-code", True),
        ("token:operator", "read-external", True),
        ("user:eve", "read", False),
    ]
    assert records[0] == {
        "time": records[0]["time"],
        "event": "decision",
        "principal": "token:operator",
        "action": "manage",
        "resource": "topic:clicks",
        "allowed": True,
        "reason": "role admin allows it: * *",
        "process": "router",
        "host": socket.gethostname(),
        "origin": "127.0.0.1:5000",
    }


def test_logins_are_recorded_without_secrets(
    control: AccessControl,
    commands: CredentialFile,
    records: list[dict[str, object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    commands.add_user("alice", HASH)
    token = commands.add_token("ci")
    control.refresh()
    secret = token.text.rpartition("_")[2]
    for _ in range(3):
        control.authenticator.of_password("alice", "correct horse", origin="h:1")
    control.authenticator.of_password("alice", "battery staple")
    control.authenticator.of_password("correct horse", "staple battery")
    control.authenticator.of_bearer(token.text.encode())
    control.authenticator.of_bearer(token.text.encode()[:-1])
    assert [(one["event"], one["principal"], one["allowed"]) for one in records] == [
        ("login", "user:alice", True),
        ("login", "user:alice", False),
        ("login", "user", False),
        ("login", "token", False),
    ]
    for hidden in ("horse", "staple", "battery", secret[:20]):
        assert hidden not in caplog.text
    assert control.audit.failed_logins.value == 3


def test_hostile_names_stay_in_one_bounded_line(
    control: AccessControl, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    name = (
        'a"}\n2026-11-29 10:00:00 INFO penstock.audit: {"allowed": true\u2028\x1b[31m' + "x" * 9_999
    )
    with pytest.raises(Unauthenticated):
        control.require(NOBODY, Action.READ, Resource(ResourceKind.TOPIC, name))
    line = caplog.records[-1].getMessage()
    assert line.isprintable()
    assert line.isascii()
    assert len(line) < 2_000
    assert json.loads(line)["allowed"] is False


def test_a_flood_of_refusals_is_limited_and_counted(
    control: AccessControl, clock: VirtualClock, records: list[dict[str, object]]
) -> None:
    for _ in range(REFUSALS_PER_SECOND_MAX + 7):
        with pytest.raises(Unauthenticated):
            control.require(NOBODY, Action.READ, CLICKS)
    assert len(records) == REFUSALS_PER_SECOND_MAX
    clock.advance(1.0)
    with pytest.raises(Unauthenticated):
        control.require(NOBODY, Action.READ, CLICKS)
    assert records[-1]["left_out"] == 7
    assert control.audit.denied.value == REFUSALS_PER_SECOND_MAX + 8


def test_new_rules_are_given_to_a_check_until_it_could_check_them(
    control: AccessControl, folder: AccessFolder, clock: VirtualClock
) -> None:
    seen: list[int] = []
    answers = [False, True]

    def check(policy: Policy) -> bool:
        seen.append(len(policy.own_roles))
        return answers.pop(0) if answers else True

    control.on_rules = check
    control.start()
    try:
        for _ in range(5):
            clock.wait_for_waiting(1)
            clock.advance(READ_S)
        clock.wait_for_waiting(1)
        assert seen == [0, 0], "the first check could not be made"
        folder.rules.write_text(RULES)
        for _ in range(5):
            clock.advance(READ_S)
            clock.wait_for_waiting(1)
        assert seen == [0, 0, 1]
    finally:
        control.close()
