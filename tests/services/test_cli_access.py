"""Commands of access: users, tokens, roles, explanations, logins, and the tokens they send."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path

import argon2
import pytest

from penstock.core.access import passwords
from penstock.core.access.access_control import AccessControl
from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.browser_logins import BrowserLogins
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.services.cli import exit_codes, output, server_tokens
from penstock.services.cli.access import local_access
from penstock.services.cli.entry import run
from penstock.services.cli.server_tokens import Logins, operator_token_for, origin_of
from penstock.services.host.data_folder import DataFolder
from tests.services.test_cli import FakeServer, server

__all__ = ["server"]

Capture = pytest.CaptureFixture[str]
PASSWORD = "correct horse"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AccessFolder:
    """Return the folder of access of an otherwise empty data folder."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(passwords, "PasswordHasher", lambda: argon2.PasswordHasher(1, 8, 1))
    data = DataFolder(tmp_path)
    data.prepare()
    return AccessFolder(data.access)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


class Stdin(io.StringIO):
    """Standard input with a text."""


def said(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    *arguments: str,
    code: int = exit_codes.OK,
    stdin: str = "",
) -> tuple[str, str]:
    """Run a command; return what it wrote to standard output and to standard error."""
    monkeypatch.setattr(sys, "stdin", Stdin(stdin))
    capsys.readouterr()
    ended = run(list(arguments))
    written = capsys.readouterr()
    assert ended == code, written.err
    return written.out, written.err


def test_users_are_added_listed_changed_and_removed(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = said(
        *(capsys, monkeypatch, "user", "add", "alice", "--role", "analyst"), stdin=f"{PASSWORD}\n"
    )
    assert out == "added user alice with the role analyst\n"
    assert "access is configured now" in err
    assert stat.S_IMODE(folder.credentials.stat().st_mode) == 0o600
    control = AccessControl(folder.path, SystemClock(), process="router")
    assert control.authenticator.of_password("alice", PASSWORD)
    control.start()
    control.close()  # writes the last use
    _, err = said(capsys, monkeypatch, "user", "add", "bob", stdin=PASSWORD)
    assert err == ""
    folder.rules.write_text("[principals]\n'user:bob' = ['viewer', 'publisher']")
    out, _ = said(capsys, monkeypatch, "user", "list", "--json")
    alice, bob = json.loads(out)
    assert (alice["user"], alice["roles"], bob["roles"]) == (
        "alice",
        ["analyst"],
        ["viewer", "publisher"],
    )
    assert alice["last used"]
    assert bob["last used"] is None
    out, _ = said(capsys, monkeypatch, "user", "list")
    assert "viewer, publisher" in out
    out, _ = said(capsys, monkeypatch, "user", "password", "alice", stdin="other horse")
    assert out == "changed the password of user alice\n"
    control.refresh()
    assert control.authenticator.of_password("alice", PASSWORD) is None
    assert control.authenticator.of_password("alice", "other horse")
    said(capsys, monkeypatch, "user", "remove", "bob", code=exit_codes.USAGE)
    out, err = said(capsys, monkeypatch, "user", "remove", "bob", "--yes")
    assert out == "removed user bob\n"
    assert "still gives roles to user:bob" in err
    said(capsys, monkeypatch, "user", "remove", "alice", "-y")
    out, _ = said(capsys, monkeypatch, "user", "list")
    assert out == "no users; add one with: penstock user add NAME\n"


def test_tokens_are_shown_once(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("token", "add", "ci", "--role", "publisher", "--scope", "write topic:a")
    out, err = said(capsys, monkeypatch, *arguments, "--expires", "90d")
    token = out.strip()
    assert out == f"{token}\n"  # alone, for a program
    assert "it is shown only now" in err
    control = AccessControl(folder.path, SystemClock())
    principal = control.authenticator.of_bearer(token.encode())
    assert principal
    assert principal.expires_ms
    assert abs(principal.expires_ms - SystemClock().now_ms() - 90 * 86_400_000) < 3_600_000
    out, _ = said(capsys, monkeypatch, "token", "list", "--json")
    (listed,) = json.loads(out)
    assert (listed["token"], listed["roles"], listed["scope"]) == (
        "ci",
        ["publisher"],
        ["write topic:a"],
    )
    assert token.rpartition("_")[2] not in out
    assert "sha256" not in out
    out, _ = said(capsys, monkeypatch, "token", "add", "other", "--expires", "2999-01-01", "--json")
    assert json.loads(out)["secret"].startswith(f"penstock_{json.loads(out)['id']}_")
    out, _ = said(capsys, monkeypatch, "token", "list")
    assert "2999-01-01T00:00:00.000Z" in out
    said(capsys, monkeypatch, "token", "remove", "ci", "--yes")
    control.refresh()
    assert control.authenticator.of_bearer(token.encode()) is None


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (("user", "add", "a:b"), PASSWORD, "'a:b' is not a valid name"),
        (("user", "add", "bob"), "short", "the password has 5 characters: use 8 to 1,000"),
        (("user", "add", "bob"), "", "the password is empty"),
        (("user", "add", "bob"), "two\nlines of text", "more than one line"),
        (("user", "add", "bob"), "x" * 20_000, "more than one line"),
        (("user", "add", "bob", "--role", "analist"), PASSWORD, "did you mean 'analyst'"),
        (("user", "add", "alice"), PASSWORD, "user alice exists already"),
        (("user", "password", "bob"), PASSWORD, "user 'bob' does not exist"),
        (("user", "remove", "bob", "--yes"), "", "user 'bob' does not exist"),
        (("token", "add", "operator"), "", "is reserved"),
        (("token", "add", "x", "--scope", "read"), "", "'read' is not a rule"),
        (("token", "add", "x", "--expires", "soon"), "", "neither a duration nor a time"),
        (("token", "add", "x", "--expires", "2001-01-01"), "", "has passed"),
        (("token", "remove", "x", "--yes"), "", "token 'x' does not exist"),
        (("role", "show", "x"), "", "role 'x' does not exist"),
        (("access", "check", "alice", "read", "topic:a"), "", "PRINCIPAL: 'alice' does not name"),
        (("access", "check", "user:a", "reed", "topic:a"), "", "ACTION: unknown action"),
        (("access", "check", "user:a", "read", "topics:a"), "", "RESOURCE: unknown kind"),
        (("access", "check", "user:a", "read", "topic:*"), "", "is a pattern"),
    ],
)
def test_mistakes_are_explained_and_change_nothing(
    folder: AccessFolder,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    stdin: str,
    message: str,
) -> None:
    said(capsys, monkeypatch, "user", "add", "alice", stdin=PASSWORD)
    before = folder.credentials.read_bytes()
    monkeypatch.setattr(sys, "stdin", Stdin(stdin))
    assert run(list(arguments)) in {exit_codes.USAGE, exit_codes.FAILED}
    written = capsys.readouterr()
    assert message in written.err
    assert folder.credentials.read_bytes() == before
    assert PASSWORD not in written.out + written.err


def test_a_password_is_never_an_argument(capsys: Capture, folder: AccessFolder) -> None:
    assert run(["user", "add", "alice", "--password", PASSWORD]) == exit_codes.USAGE
    assert run(["user", "add", "alice", PASSWORD]) == exit_codes.USAGE


def test_a_password_is_read_twice_from_a_terminal_without_echo(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    entries = [PASSWORD, "correct hrose"]
    prompts: list[str] = []

    def getpass(prompt: str) -> str:
        prompts.append(prompt)
        return entries[len(prompts) - 1]

    monkeypatch.setattr("getpass.getpass", getpass)
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(InvalidRequest, match="the two entries of the password differ"):
        output.read_secret("password", repeat=True)
    assert prompts == ["password: ", "password again: "]


def test_roles_are_listed_and_shown(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(capsys, monkeypatch, "user", "add", "alice", "--role", "viewer", stdin=PASSWORD)
    said(capsys, monkeypatch, "token", "add", "ci")
    folder.rules.write_text(
        "[roles.team]\nabout = 'A team'\nallow = ['read topic:a*']\ndeny = ['* topic:ab']\n"
        "[principals]\n'token:ci' = ['team']\n'certificate:c' = ['team', 'viewer']\n"
    )
    out, _ = said(capsys, monkeypatch, "role", "list", "--json")
    roles = {role["role"]: role for role in json.loads(out)}
    assert next(iter(roles)) == "team"
    assert (roles["team"]["ready-made"], roles["admin"]["ready-made"]) == (False, True)
    out, _ = said(capsys, monkeypatch, "role", "show", "team")
    assert out == (
        "team: A team\n  allow  read topic:a*\n  deny   * topic:ab\n"
        "  for    certificate:c, token:ci\n"
    )
    folder.rules.write_text(
        "[roles.part]\nrow_filters.'a*' = 'n > 1'\nmasks.a.email = 'hash'\n"
        "[principals]\n'token:ci' = ['part', 'analyst']\n'certificate:c' = ['viewer']\n"
    )
    out, _ = said(capsys, monkeypatch, "role", "show", "part")
    assert out == (
        "part\n  rows   of a* where n > 1\n  mask   of a, column email: hash\n  for    token:ci\n"
    )
    arguments = ("access", "check", "token:ci", "read", "datasource:a")
    out, _ = said(capsys, monkeypatch, *arguments)
    assert out.startswith(
        "token:ci may read datasource:a: only with SQL: rows where (n > 1), with email as hash\n"
    )
    out, _ = said(capsys, monkeypatch, *arguments, "--json")
    assert {"allowed": True, "only_sql": True}.items() <= json.loads(out).items()
    out, _ = said(capsys, monkeypatch, "role", "show", "viewer", "--json")
    assert json.loads(out)["principals"] == ["certificate:c", "user:alice"]
    out, _ = said(capsys, monkeypatch, "role", "show", "operator")
    assert out.endswith("  for    no principal\n")


def test_quotas_of_a_role_and_of_a_principal_are_shown(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(capsys, monkeypatch, "token", "add", "ci", "--role", "publisher")
    folder.rules.write_text(
        "[roles.slow.quotas]\nmessages_per_second = 100\nbytes_per_second = '1 MiB'\n"
        "[roles.few.quotas]\nconnections = 3\nmessages_per_second = 2000\n"
        "[principals]\n'token:ci' = ['few', 'slow']\n"
    )
    out, _ = said(capsys, monkeypatch, "role", "show", "slow")
    assert out == (
        "slow\n  quota  messages_per_second: 100\n  quota  bytes_per_second: 1 MiB\n"
        "  for    token:ci\n"
    )
    arguments = ("access", "check", "token:ci", "write", "topic:a")
    out, _ = said(capsys, monkeypatch, *arguments)
    expected = "its quotas: messages_per_second 100, bytes_per_second 1 MiB, connections 3"
    assert expected in out.splitlines()
    out, _ = said(capsys, monkeypatch, *arguments, "--json")
    assert json.loads(out)["quotas"] == {
        "messages_per_second": "100",
        "bytes_per_second": "1 MiB",
        "connections": "3",
    }
    out, _ = said(capsys, monkeypatch, "access", "check", "token:operator", "read", "topic:a")
    assert "quotas" not in out


def test_a_misspelt_column_of_a_filter_or_mask_is_reported(
    folder: AccessFolder,
    server: FakeServer,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_URL", server.url)
    folder.make_secrets(SystemClock())
    rules = "[roles.part]\nallow = ['read datasource:a']\nrow_filters.a = 'n > 1'\n{}\n"
    folder.rules.write_text(rules.format("[principals]\n'user:eve' = ['part']"))
    arguments = ("access", "check", "user:eve", "read", "datasource:a")
    out, _ = said(capsys, monkeypatch, *arguments)
    assert "WARNING the columns of a are not checked: " in out
    columns = [{"col_name": "__time"}, {"col_name": "N"}, {"col_name": "email"}]
    server.answers["/druid/v2/sql"] = (200, columns)
    out, _ = said(capsys, monkeypatch, *arguments)
    assert "WARNING" not in out
    assert json.loads(server.asked[-1][3]) == {"query": 'DESCRIBE "a"'}
    masks = "masks.a.emial = 'hash'\n[principals]\n'user:eve' = ['part']"
    folder.rules.write_text(rules.format(masks))
    out, _ = said(capsys, monkeypatch, *arguments)
    assert (
        "WARNING a mask for datasource 'a' names the column 'emial', which does not exist (did you"
        " mean 'email'?), so it hides nothing: correct access.toml\n"
    ) in out
    out, _ = said(capsys, monkeypatch, *arguments, "--json")
    assert "'emial'" in json.loads(out)["absentColumns"]


def test_roles_of_groups_are_shown(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(capsys, monkeypatch, "token", "add", "ci")
    folder.rules.write_text(
        "[oidc.work]\nissuer = 'https://login.example.com'\naudience = 'penstock'\n"
        "groups_claim = 'groups'\n[oidc.work.groups]\ndata = ['viewer', 'analyst']\n"
        "[principals]\n'oidc:bob' = ['viewer']\n"
    )
    out, _ = said(capsys, monkeypatch, "role", "show", "viewer")
    assert out.endswith("  for    oidc:bob, group data of work\n")
    out, _ = said(capsys, monkeypatch, "role", "show", "analyst", "--json")
    assert (json.loads(out)["principals"], json.loads(out)["groups"]) == (
        [],
        ["group data of work"],
    )
    out, _ = said(
        *(capsys, monkeypatch, "access", "check", "oidc:bob", "read", "datasource:x"),
        code=exit_codes.FAILED,
    )
    assert "groups in its token may give it more roles" in out


def test_a_decision_is_explained(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*arguments: str, code: int = exit_codes.OK) -> str:
        return said(capsys, monkeypatch, "access", "check", *arguments, code=code)[0]

    assert check("owner:me", "manage", "system:access").startswith("owner:me may manage")
    said(capsys, monkeypatch, "user", "add", "alice", "--role", "publisher", stdin=PASSWORD)
    said(capsys, monkeypatch, "token", "add", "ci", "--role", "admin", "--scope", "read topic:a")
    folder.rules.write_text(
        "[roles.team]\nallow = ['read topic:a']\ndeny = ['* topic:b']\n"
        "[principals]\n'user:alice' = ['team']\n'oidc:carol' = ['team']"
    )
    assert check("user:alice", "read", "topic:a") == (
        "user:alice may read topic:a: role team allows it: read topic:a\n"
        "its roles: publisher, team\n"
    )
    assert check("user:alice", "write", "topic:b", code=exit_codes.FAILED) == (
        "user:alice may not write topic:b: role team denies it: * topic:b\n"
        "its roles: publisher, team\n"
    )
    assert "may not manage" in check("owner:me", "manage", "topic:a", code=exit_codes.FAILED)
    assert "may read" in check("token:ci", "read", "topic:a")
    assert "the scope" in check("token:ci", "read", "topic:c", code=exit_codes.FAILED)
    assert "may manage" in check("token:operator", "manage", "system:access")
    carol = check("oidc:carol", "read", "topic:a")
    assert carol.endswith("access.toml names no issuer: no program can log in as oidc:carol\n")
    gone = check("user:dave", "read", "topic:a", code=exit_codes.FAILED)
    assert "there is no user dave" in gone
    found = json.loads(check("user:alice", "write", "topic:b", "--json", code=exit_codes.FAILED))
    assert (found["allowed"], found["role"], found["rule"], found["roles"]) == (
        False,
        "team",
        "* topic:b",
        ["publisher", "team"],
    )
    folder.rules.write_text("[roles.team]\nalow = []")
    _, err = said(
        *(capsys, monkeypatch, "access", "check", "user:alice", "read", "topic:a"),
        code=exit_codes.USAGE,
    )
    assert f"{folder.rules}: roles.team: unknown key 'alow'" in err


def test_commands_need_a_data_folder_of_this_user(
    folder: AccessFolder, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    _, err = said(
        *(capsys, monkeypatch, "user", "list", "--data-dir", str(tmp_path / "empty")),
        code=exit_codes.USAGE,
    )
    assert "is not the data folder of a Penstock" in err
    assert list((tmp_path / "empty").iterdir()) == []
    monkeypatch.setattr(local_access.os, "geteuid", lambda: os.getuid() + 1)
    _, err = said(capsys, monkeypatch, "token", "add", "ci", code=exit_codes.USAGE)
    assert "run the command as the other user" in err
    assert not folder.credentials.exists()


def test_the_folder_of_the_option_is_used(
    folder: AccessFolder, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("PENSTOCK_ACCESS_FOLDER", str(shared))
    said(capsys, monkeypatch, "token", "add", "ci")
    assert (shared / "credentials.json").exists()
    assert not folder.credentials.exists()


def test_times_of_other_files_do_not_break_a_list(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(capsys, monkeypatch, "token", "add", "ci")
    folder.last_used.mkdir()
    for name, text in (
        ("a", "["),
        ("b", "[1]"),
        ("c", '{"token:ci": "x"}'),
        ("d", '{"token:ci": 1000}'),
        ("e", '{"token:ci": 2000}'),
    ):
        (folder.last_used / f"{name}.json").write_text(text)
    out, _ = said(capsys, monkeypatch, "token", "list", "--json")
    assert json.loads(out)[0]["last used"] == "1970-01-01T00:00:02.000Z"


# Tokens that commands send


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://h", "http://h:80"),
        ("https://H/x?y", "https://h:443"),
        ("h:8888", "http://h:8888"),
        ("http://[::1]:1", "http://[::1]:1"),
    ],
)
def test_a_server_is_its_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "url", ["", "ftp://h", "http://", "http://h:99999", "http://h:x", "http://u:p@h"]
)
def test_other_texts_are_no_server(url: str) -> None:
    with pytest.raises(InvalidRequest):
        origin_of(url)


def test_a_login_is_sent_to_its_server_alone(
    server: FakeServer,
    home: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.answers["/status"] = (200, {"broker_http": server.url})
    server.answers["/stats"] = (200, {"topics": []})
    out, _ = said(capsys, monkeypatch, "login", server.url, stdin="secret-1\n")
    file = home / "penstock" / "logins.json"
    assert out == f"kept a token for {server.url} in {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    said(capsys, monkeypatch, "status", "--url", server.url)
    said(capsys, monkeypatch, "topic", "list", "--url", server.url)
    said(capsys, monkeypatch, "topic", "list")
    assert set(server.tokens) == {"Bearer secret-1"}
    server.tokens.clear()
    other = server.url.replace("127.0.0.1", "localhost")
    said(capsys, monkeypatch, "topic", "list", "--broker-url", other)
    monkeypatch.setenv("PENSTOCK_TOKEN", "given")
    said(capsys, monkeypatch, "topic", "list", "--url", server.url)
    assert server.tokens == [None, "Bearer given", "Bearer given"]
    monkeypatch.delenv("PENSTOCK_TOKEN")
    server.tokens.clear()
    said(capsys, monkeypatch, "logout", server.url)
    said(capsys, monkeypatch, "topic", "list", "--url", server.url)
    assert set(server.tokens) == {None}
    _, err = said(capsys, monkeypatch, "logout", server.url, code=exit_codes.FAILED)
    assert "no token is kept" in err


def test_a_token_that_the_server_refuses_is_not_kept(
    server: FakeServer, home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/status"] = (401, {"error": "no", "errorCode": "unauthorized"})
    _, err = said(
        capsys, monkeypatch, "login", server.url, stdin="alice:wrong", code=exit_codes.USAGE
    )
    assert "does not accept this token (no): copy it again, or create one" in err
    assert not home.exists()
    for token in ("with space", "höhle", "x" * 2_001, ""):
        said(capsys, monkeypatch, "login", server.url, stdin=token, code=exit_codes.USAGE)
    assert not home.exists()
    server.answers["/status"] = (403, {"error": "no", "errorCode": "forbidden"})
    out, _ = said(capsys, monkeypatch, "login", server.url, stdin="narrow")
    assert "which may not read its status" in out


def test_a_token_is_not_sent_without_tls_to_another_host(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, err = said(
        *(capsys, monkeypatch, "login", "http://192.0.2.1:8888"),
        stdin="x",
        code=exit_codes.USAGE,
    )
    assert "has no TLS" in err
    assert not home.exists()


def test_a_link_for_a_browser_is_made_on_the_host(
    folder: AccessFolder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make_secrets(SystemClock())
    _, err = said(capsys, monkeypatch, "login", "--link", code=exit_codes.NOT_REACHABLE)
    assert "no Penstock runs" in err
    here = ("login", "http://127.0.0.1:8888", "--link")
    out, err = said(capsys, monkeypatch, *here)
    assert (out, "no login is needed" in err) == ("http://127.0.0.1:8888\n", True)
    said(capsys, monkeypatch, "token", "add", "ci", "--role", "viewer")
    out, err = said(capsys, monkeypatch, *here)
    server, _, code = out.strip().partition("/login?code=")
    assert server == "http://127.0.0.1:8888"
    assert "within 10 minutes" in err
    logins = BrowserLogins(folder.path, SystemClock())
    link = logins.link(code)
    assert link is not None
    assert link.principal == "token:operator"
    url, named = "https://penstock.example.com/", "token:ci"
    out, _ = said(capsys, monkeypatch, "login", url, "--link", "--principal", named)
    server, _, code = out.strip().partition("/login?code=")
    link = logins.link(code)
    assert link is not None
    assert (server, link.principal) == ("https://penstock.example.com:443", "token:ci")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "name the server"),
        (["http://127.0.0.1:8888", "--principal", "token:ci"], "--principal needs --link"),
        (["http://h", "--link", "--principal", "owner:root"], "has no stored credential"),
        (["http://h", "--link", "--principal", "alice"], "write KIND:NAME"),
    ],
)
def test_a_wrong_login_is_explained(
    folder: AccessFolder,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    reason: str,
) -> None:
    folder.make_secrets(SystemClock())
    _, err = said(capsys, monkeypatch, "login", *arguments, code=exit_codes.USAGE)
    assert reason in err


def test_a_damaged_file_of_logins_is_reported(
    server: FakeServer, home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = Logins(os.environ, SystemClock())
    logins.keep(origin_of(server.url), "a")
    for content in (b"{", b"[]", b'{"a": 1}', b"\xff"):
        logins.path.write_bytes(content)
        _, err = said(capsys, monkeypatch, "topic", "list", code=exit_codes.USAGE)
        assert f"{logins.path}: it is damaged: delete it and log in again" in err
    logins.path.chmod(0o644)
    _, err = said(capsys, monkeypatch, "topic", "list", code=exit_codes.USAGE)
    assert "chmod 600" in err


def test_the_operator_token_is_sent_to_the_server_of_the_data_folder(
    server: FakeServer, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = AccessFolder(tmp_path / "access")
    folder.make_secrets(SystemClock())
    operator = folder.operator_token.read_text().strip()
    server.answers["/stats"] = (200, {"topics": []})
    said(capsys, monkeypatch, "topic", "list")
    assert server.tokens == [f"Bearer {operator}"]
    server.tokens.clear()
    # Not to a server that is named: it may be anyone's.
    server.answers["/status"] = (200, {"broker_http": server.url})
    said(capsys, monkeypatch, "topic", "list", "--url", server.url)
    said(capsys, monkeypatch, "topic", "list", "--broker-url", server.url)
    assert set(server.tokens) == {None}


def test_the_operator_token_is_not_sent_to_a_program_of_another_user(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = AccessFolder(tmp_path / "access")
    assert operator_token_for(server.url, folder.path) is None
    folder.make_secrets(SystemClock())
    assert operator_token_for(server.url, folder.path)
    port = server.url.rpartition(":")[2]
    assert operator_token_for(f"http://localhost:{port}", folder.path)
    assert operator_token_for(f"http://192.0.2.1:{port}", folder.path) is None
    assert operator_token_for(f"http://example.com:{port}", folder.path) is None
    assert operator_token_for("http://127.0.0.1:1", folder.path) is None
    listing = (tmp_path / "tcp").write_text
    row = "0: 0100007F:{port:04X} 00000000:0000 0A 0:0 0:0 0 {user} 0 1 1"
    for users, is_sent in ((["{own}"], True), (["12345"], False), (["{own}", "12345"], False)):
        rows = [row.format(port=int(port), user=one.format(own=os.getuid())) for one in users]
        listing("\n".join(["header", *rows]))
        monkeypatch.setattr(server_tokens, "_LISTENERS", (str(tmp_path / "tcp"), "/missing"))
        assert (operator_token_for(server.url, folder.path) is not None) == is_sent
    folder.operator_token.chmod(0o644)
    assert operator_token_for(server.url, folder.path) is None


def test_with_the_shared_token_alone_the_owner_needs_a_credential(
    folder: AccessFolder, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("access", "check", "owner:penstock", "read", "topic:a")
    assert " may read " in said(capsys, monkeypatch, *asked)[0]
    file = tmp_path / "token"
    file.write_text("s" * 40)
    file.chmod(0o600)
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(file))
    out, _ = said(capsys, monkeypatch, *asked, code=exit_codes.FAILED)
    assert "the user id grants nothing" in out
