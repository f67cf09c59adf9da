"""Links and sessions of browsers: used once, expire, end with their credential."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.access.access_control import AccessControl
from penstock.core.access.browser_logins import (
    BROWSER_LOGINS_FILE,
    LINK_MS,
    LINKS_MAX,
    SESSION_MS,
    SESSIONS_MAX,
    BrowserLogins,
)
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.log_format import LogFormatter

ALICE = Principal(PrincipalKind.USER, "alice", credential="f" * 32)
TOPIC = Resource.parse("topic:clicks")


class SetClock(SystemClock):
    """A clock whose wall time is set."""

    ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def logins(tmp_path: Path, clock: SetClock) -> BrowserLogins:
    made = BrowserLogins(tmp_path / "access", clock)
    made.use({ALICE.id: ALICE})
    return made


def test_a_code_is_used_once(logins: BrowserLogins) -> None:
    code = logins.new_link(ALICE)
    assert logins.link(code) is not None, "a look does not use it"
    redeemed = logins.redeem(code)
    assert redeemed is not None
    session, principal = redeemed
    assert principal == replace(ALICE, expires_ms=SetClock.ms + SESSION_MS)
    assert logins.principal(session) == principal
    assert logins.redeem(code) is None
    assert logins.link(code) is None


def test_a_code_is_used_once_by_routers_at_once(tmp_path: Path, clock: SetClock) -> None:
    folder = tmp_path / "access"
    code = BrowserLogins(folder, clock).new_link(ALICE)
    routers = [BrowserLogins(folder, clock) for _ in range(8)]
    for router in routers:
        router.use({ALICE.id: ALICE})
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: one.redeem(code), routers))
    assert sum(one is not None for one in found) == 1


def test_a_link_and_a_session_expire(logins: BrowserLogins, clock: SetClock) -> None:
    late, used = logins.new_link(ALICE), logins.new_link(ALICE)
    redeemed = logins.redeem(used)
    assert redeemed is not None
    clock.ms += LINK_MS
    assert logins.redeem(late) is None
    clock.ms += SESSION_MS - LINK_MS - 1
    assert logins.principal(redeemed[0]) is not None
    clock.ms += 1
    assert logins.principal(redeemed[0]) is None


def test_a_session_that_another_router_ends_has_ended(tmp_path: Path, clock: SetClock) -> None:
    one, two = (BrowserLogins(tmp_path / "access", clock) for _ in range(2))
    one.use({ALICE.id: ALICE})
    two.use({ALICE.id: ALICE})
    redeemed = one.redeem(two.new_link(ALICE))
    assert redeemed is not None
    two.refresh()
    two.end(redeemed[0])
    assert two.principal(redeemed[0]) is None
    one.refresh()
    assert one.principal(redeemed[0]) is None


@pytest.mark.parametrize("code", ["", "a", "a" * 43, "ä" * 43, "\0" * 43, "a" * 100_000])
def test_a_wrong_code_is_nothing_and_writes_nothing(
    tmp_path: Path, logins: BrowserLogins, code: str
) -> None:
    logins.new_link(ALICE)
    file = tmp_path / "access" / BROWSER_LOGINS_FILE
    before = file.stat().st_mtime_ns
    assert logins.link(code) is None
    assert logins.redeem(code) is None
    assert logins.principal(code) is None
    logins.end(code)
    assert file.stat().st_mtime_ns == before


def test_the_file_has_hashes_alone_and_belongs_to_its_owner(
    tmp_path: Path, logins: BrowserLogins
) -> None:
    code, other = logins.new_link(ALICE), logins.new_link(ALICE)
    redeemed = logins.redeem(code)
    assert redeemed is not None
    file = tmp_path / "access" / BROWSER_LOGINS_FILE
    content = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(secret not in content for secret in (code, other, redeemed[0]))
    stored = json.loads(content)
    for digest in (*stored["links"], *stored["sessions"]):
        assert logins.redeem(digest) is None
        assert logins.principal(digest) is None


def test_there_is_a_maximum_of_each(logins: BrowserLogins, clock: SetClock) -> None:
    first = logins.redeem(logins.new_link(ALICE))
    assert first is not None
    clock.ms += 1
    codes = []
    for _ in range(LINKS_MAX + 1):
        codes.append(logins.new_link(ALICE))
        clock.ms += 1
    assert logins.link(codes[0]) is None
    assert logins.link(codes[1]) is not None
    assert SESSIONS_MAX >= LINKS_MAX
    assert logins.principal(first[0]) is not None


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff", b"[]", b'{"format":2}', b'{"format":1,"more":{}}', b"[" * 10**5),
        b'{"format":1,"sessions":{"x":{"principal":"root","credential":"f","expires":9}}}',
    ],
)
def test_a_damaged_file_ends_all_logins_and_is_reported(
    tmp_path: Path, logins: BrowserLogins, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    redeemed = logins.redeem(logins.new_link(ALICE))
    assert redeemed is not None
    file = tmp_path / "access" / BROWSER_LOGINS_FILE
    file.write_bytes(content)
    logins.refresh()
    logins.refresh()
    assert logins.principal(redeemed[0]) is None
    assert len(caplog.records) == 1
    assert "delete it, and log in again" in LogFormatter().format(caplog.records[0])
    with pytest.raises(InvalidRequest, match="delete it"):
        logins.new_link(ALICE)
    file.unlink()
    assert logins.redeem(logins.new_link(ALICE)) is not None


def test_a_file_that_others_can_read_has_no_logins(tmp_path: Path, logins: BrowserLogins) -> None:
    code = logins.new_link(ALICE)
    (tmp_path / "access" / BROWSER_LOGINS_FILE).chmod(0o644)
    assert logins.link(code) is None


# With access control


def control(folder: Path) -> AccessControl:
    return AccessControl(folder, SystemClock(), process="router")


def session_of(access: AccessControl, principal_id: str) -> str:
    access.refresh()
    logins = access.browser_logins
    assert logins is not None
    redeemed = logins.redeem(logins.new_link(logins.known[principal_id]))
    assert redeemed is not None
    assert redeemed[1].id == principal_id
    return redeemed[0]


def principal_of(access: AccessControl, session: str) -> Principal | None:
    assert access.browser_logins is not None
    return access.browser_logins.principal(session)


def test_a_session_has_the_rights_of_its_credential_now(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    access = control(folder)
    file = CredentialFile(folder / "credentials.json", SystemClock())
    file.add_token("ci", ("publisher",), ("write topic:clicks",))
    session = session_of(access, "token:ci")
    principal = principal_of(access, session)
    assert principal is not None
    assert access.decide(principal, Action.WRITE, TOPIC).allowed
    assert not access.decide(principal, Action.WRITE, replace(TOPIC, name="other")).allowed
    (folder / "access.toml").write_text(
        '[roles.no]\ndeny = ["* *"]\n[principals]\n"token:ci"=["no"]'
    )
    access.refresh()
    assert not access.decide(principal, Action.WRITE, TOPIC).allowed
    file.remove_token("ci")
    access.refresh()
    assert principal_of(access, session) is None
    assert not access.decide(principal, Action.WRITE, TOPIC).allowed
    file.add_token("ci", ("admin",))
    access.refresh()
    assert principal_of(access, session) is None, "another token of the same name"


def test_a_session_outlives_a_restart_of_the_router(tmp_path: Path) -> None:
    session = session_of(control(tmp_path / "access"), "token:operator")
    assert principal_of(control(tmp_path / "access"), session) is not None


def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    access = control(folder)
    soon_ms = SystemClock().now_ms() + 60_000
    file = CredentialFile(folder / "credentials.json", SystemClock())
    file.add_token("ci", ("publisher",), None, soon_ms)
    principal = principal_of(access, session_of(access, "token:ci"))
    assert principal is not None
    assert principal.expires_ms == soon_ms


def test_a_changed_password_ends_the_sessions_of_its_user(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    access = control(folder)
    file = CredentialFile(folder / "credentials.json", SystemClock())
    file.add_user("alice", "$argon2id$v=19$m=8,t=1,p=1$" + "a" * 30, ("viewer",))
    session = session_of(access, "user:alice")
    assert principal_of(access, session) is not None
    file.set_password("alice", "$argon2id$v=19$m=8,t=1,p=1$" + "b" * 30)
    access.refresh()
    assert principal_of(access, session) is None


def test_a_session_of_another_installation_is_nothing(tmp_path: Path) -> None:
    one, two = control(tmp_path / "one"), control(tmp_path / "two")
    session = session_of(one, "token:operator")
    assert principal_of(one, session) is not None
    assert principal_of(two, session) is None
    (tmp_path / "two" / BROWSER_LOGINS_FILE).write_bytes(
        (tmp_path / "one" / BROWSER_LOGINS_FILE).read_bytes()
    )
    (tmp_path / "two" / BROWSER_LOGINS_FILE).chmod(0o600)
    two.refresh()
    assert principal_of(two, session) is None, "its operator has another token"
