"""Attacks with credentials: forged, stolen, expired, removed, of one task, and spoofed principals.

And from where: another user of the host, a web page in the owner's browser, and a proxy.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.http_server import authentication
from penstock.core.access.access_control import AccessControl
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.principal import PRINCIPAL_HEADER, Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource, ResourceKind, Rule
from penstock.core.clock import SystemClock
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import as_principal
from tests.kits.raw_http_kit import answer_to
from tests.services.attacks_kit import DAY, MARK, AttackedInstallation, P, segment
from tests.services.overlord_kit import Api, served

WORKERS = f"{P}/workers"
ADMIN_CLAIMS = (
    '{"id":"user:root","roles":["admin"]}',
    '{"id":"owner:root"}',
    '{"id":"process:router"}',
    '{"id":"process:overlord","roles":["admin"]}',
    '{"id":"token:operator","roles":["admin"]}',
    '{"id":"task:t-payments","scope":["* *"]}',
    "user:root",
    "",
    "{}",
    "[]",
)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedInstallation]:
    made = AttackedInstallation(tmp_path_factory.mktemp("attacked"))
    yield made
    made.close()


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def basic(text: bytes) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text).decode()}


# A principal that the sender only claims to be


@pytest.mark.parametrize("claim", ADMIN_CLAIMS)
@pytest.mark.parametrize("sender", ["token", "task", "operator", "nobody"])
def test_nobody_but_a_process_speaks_for_others(
    attacked: AttackedInstallation, sender: str, claim: str
) -> None:
    control = attacked.kit.control
    headers = {
        "token": lambda: bearer(CredentialFile(
            attacked.kit.folder / "credentials.json", SystemClock()
        ).add_token(f"t{abs(hash(claim))}", ("viewer",), None, None).text),
        "task": lambda: bearer(control.key.task_bearer("t-clicks")),
        "operator": lambda: bearer((attacked.kit.folder / "operator.token").read_text().strip()),
        "nobody": dict,
    }[sender]()  # fmt: skip
    control.refresh()
    for name in (PRINCIPAL_HEADER, PRINCIPAL_HEADER.lower(), PRINCIPAL_HEADER.upper()):
        answer = attacked.overlord.get(WORKERS, headers={**headers, name: claim})
        assert answer.status_code == 403
        assert MARK not in answer.text


@pytest.mark.parametrize("claim", ADMIN_CLAIMS)
def test_what_a_client_claims_is_not_passed_on_by_the_router(
    attacked: AttackedInstallation, claim: str
) -> None:
    """Not even below a name that servers write in another way."""
    headers = as_principal(attacked.kit.control, "user:eve", "nothing")
    for more in ({"X_Penstock_Principal": claim}, {"X-Druid-Author": claim}):
        answer = attacked.router.get(WORKERS, headers={**headers, **more})
        assert answer.status_code == 403


@pytest.mark.parametrize("api", ["router", "overlord"])
@pytest.mark.parametrize("claim", ["user:root", "token:operator", "root", "x) user:root", ""])
def test_a_change_is_stored_with_who_made_it(
    attacked: AttackedInstallation, claim: str, api: str
) -> None:
    headers = {**as_principal(attacked.kit.control, "user:eve", "keeper"), "X-Druid-Author": claim}
    path = f"{P}/compaction/config/datasources/clicks"
    asked: Api = getattr(attacked, api)
    assert asked.post(path, json={"dataSource": "clicks"}, headers=headers).status_code == 200
    newest = asked.get(f"{path}/history", headers=as_principal(
        attacked.kit.control, "user:eve", "analyst-clicks"
    )).json()[0]  # fmt: skip
    author = newest["auditInfo"]["author"]
    assert author == (f"user:eve (X-Druid-Author: {claim})" if claim else "user:eve")


@pytest.mark.parametrize(
    "claim",
    [
        *("", "x", "{}", "[]", "null", "1", '"user:a"', '{"id":1}', '{"id":""}', '{"id":"user:"}'),
        *('{"id":"root:a"}', '{"id":"user:a b"}', '{"id":"user:a","roles":"admin"}'),
        *('{"id":"user:a","roles":[1]}', '{"id":"user:a","scope":"* *"}', '{"id":"user:a","x":1}'),
        *('{"id":"user:a","scope":["all"]}', '{"id":"user:a","expires":"never"}'),
        *('{"id":"user:a","expires":true}', '{"id":"user:a\\u0000"}', "[" * 100_000),
    ],
)
def test_a_malformed_principal_of_a_process_is_refused(
    attacked: AttackedInstallation, claim: str
) -> None:
    headers = bearer(attacked.kit.control.key.process_bearer())
    answer = attacked.overlord.get(WORKERS, headers={**headers, PRINCIPAL_HEADER: claim})
    assert answer.status_code == 400


def test_a_principal_that_is_passed_on_keeps_its_limits(attacked: AttackedInstallation) -> None:
    process = bearer(attacked.kit.control.key.process_bearer())
    admin = Principal(PrincipalKind.TOKEN, "ci", ("admin",))
    narrow = replace(admin, scope=(Rule.parse("read topic:clicks"),))
    for principal, status in (
        (admin, 200),
        (narrow, 403),
        (replace(admin, scope=()), 403),
        (replace(admin, expires_ms=1), 403),
        (replace(admin, roles=("admin", "gone")), 403),
    ):
        headers = {**process, PRINCIPAL_HEADER: principal.to_header()}
        assert attacked.overlord.get(WORKERS, headers=headers).status_code == status, principal
        assert attacked.router.get(WORKERS, headers=headers).status_code == status, principal


# Forged and stolen tokens


def forged(control: AccessControl) -> list[str]:
    process, task = control.key.process_bearer(), control.key.task_bearer("t-clicks")
    kind, name, made, signature = process.split("_")
    later = str(int(made) + 3_600)
    more = control.key.task_bearer("t-clicks", [Rule.parse("read topic:clicks")])
    return [
        *(process[:-1], process + "0", process.swapcase(), process[::-1], f" {process} x"),
        *(f"{kind}_{name}_{made}_", f"{kind}__{made}_{signature}", f"{kind}_{name}_{signature}"),
        f"{kind}_{name}_{made}_{'0' * len(signature)}",
        *(f"{kind}_{name}_{later}_{signature}", f"{kind}_{name}_0{made}_{signature}"),
        f"{kind}_{b'overlord'.hex()}_{made}_{signature}",
        control.key.peon_bearer("t-clicks"),
        control.key.peon_bearer("t-clicks").replace("peon", "task"),
        control.key.peon_bearer("t-clicks").replace("peon", "process"),
        task.replace("task", "process"),
        process.replace("process", "task"),
        task.replace(b"t-clicks".hex(), b"t-payments".hex()),
        more.replace(b"read topic:clicks".hex(), b"* *".hex()),
        more.replace(b"read topic:clicks".hex(), ""),
        "penstock_operator_" + "0" * 43,
        *("penstock_operator_", "penstock__", "operator", "shared", "null", "undefined", "*"),
        "penstock-process_" + "00" * 4_000 + "_00",
    ]


NUMBER_FORGED = 29


@pytest.mark.parametrize("number", range(NUMBER_FORGED))
def test_a_forged_token_lets_nobody_in(attacked: AttackedInstallation, number: int) -> None:
    made = forged(attacked.kit.control)
    assert len(made) == NUMBER_FORGED
    answer = attacked.overlord.get(WORKERS, headers=bearer(made[number]))
    assert answer.status_code == 401
    assert made[number].strip() not in answer.text


PASSWORDS = [
    *(b"", b":", b"alice", b"alice:", b":correct horse", b"alice:correct hors"),
    *(b"alice:correct horse ", b" alice:correct horse", b"ALICE:correct horse"),
    *(b"alice\0:correct horse", b"alice:correct horse\0", b"\xff:\xff", b"alice:CORRECT HORSE"),
    *(b"root:correct horse", b"token:operator:x", b"user:alice:correct horse"),
    *(b"alice:" + b"x" * 5_000, "\uff41lice:correct horse".encode()),
    b"alice:$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$aGFzaA",
]


@pytest.mark.parametrize("shown", PASSWORDS)
def test_a_wrong_password_lets_nobody_in(attacked: AttackedInstallation, shown: bytes) -> None:
    assert attacked.overlord.get(WORKERS, headers=basic(shown)).status_code == 401


@pytest.mark.parametrize("how", ["expires", "removed", "roles", "scope"])
def test_a_stolen_token_ends_with_its_right(tmp_path: Path, how: str) -> None:
    clock = VirtualClock()
    folder = tmp_path / "access"
    control = AccessControl(folder, clock)
    file = CredentialFile(folder / "credentials.json", clock)
    scope = ("read topic:clicks",) if how == "scope" else None
    roles = () if how == "roles" else ("viewer",)
    text = file.add_token("ci", roles, scope, clock.now_ms() + 60_000).text
    (folder / "access.toml").write_text('[principals]\n"token:ci" = ["viewer"]\n')
    control.refresh()
    principal = control.authenticator.of_bearer(text.encode())
    assert principal is not None
    cluster = Resource(ResourceKind.SYSTEM, "cluster")
    allowed = control.decide(principal, Action.READ, cluster).allowed
    assert allowed == (how != "scope")
    match how:
        case "expires":
            clock.advance(60)
        case "removed":
            file.remove_token("ci")
        case "roles":
            (folder / "access.toml").write_text("[principals]\n")
    control.refresh()
    # Neither the principal that a connection remembers, nor the token on a new one.
    assert not control.decide(principal, Action.READ, cluster).allowed
    again = control.authenticator.of_bearer(text.encode())
    assert again is None or not control.decide(again, Action.READ, cluster).allowed


@pytest.mark.parametrize("api", ["router", "overlord"])
@pytest.mark.parametrize("kind", ["process", "task"])
@pytest.mark.parametrize("hours", [1, 24, 24 * 365, -1])
def test_a_token_of_a_process_that_was_stolen_long_ago_lets_nobody_in(
    attacked: AttackedInstallation, kind: str, hours: int, api: str
) -> None:
    """Also one of a host whose clock is far ahead."""
    then = VirtualClock(SystemClock().now_ms() - hours * 3_600_000)
    thief = AccessControl(attacked.kit.folder, then, process="router")
    stolen = thief.key.process_bearer() if kind == "process" else thief.key.task_bearer("t-clicks")
    asked: Api = getattr(attacked, api)
    for path in (WORKERS, f"{P}/leader"):
        answer = asked.get(path, headers=bearer(stolen))
        assert answer.status_code == 401
        assert stolen not in answer.text
    body = {"task": "t-clicks", "action": {"type": "lockList"}}
    assert asked.post(f"{P}/action", json=body, headers=bearer(stolen)).status_code == 401


# The token of one task


FOREIGN = str(segment("payments").id)
COUNTS = dict.fromkeys(
    ("processed", "unparseable", "thrownAwayLate", "thrownAwayEarly", "thrownAwayFiltered"), 0
)
PUBLISH = {
    "type": "segmentTransactionalInsert",
    "sequenceName": "t-clicks",
    "segments": [],
    "startMetadata": None,
    "endMetadata": None,
    "counts": COUNTS,
}
ROW = {
    "id": "payments_x",
    "dataSource": "payments",
    "interval": DAY,
    "version": "2013-01-01T00:00:00.000Z",
    "partitionNumber": 0,
    "corePartitions": 0,
    "payload": {},
}
OWN_ACTIONS: list[Mapping[str, object]] = [
    {"type": "retrieveSegmentsById", "segments": [FOREIGN]},
    {"type": "segmentNuke", "segments": [FOREIGN]},
    {"type": "markSegmentsToUpgrade", "segments": [FOREIGN]},
    {"type": "segmentListUsed", "dataSource": "payments", "intervals": [DAY]},
    {"type": "segmentListUsed", "dataSource": "clicks-secret", "intervals": [DAY]},
    {"type": "segmentListUnused", "dataSource": "payments", "interval": DAY},
    {"type": "markSegmentsAsUnused", "dataSource": "payments", "interval": "2020-01-01/2020-01-02"},
    {"type": "segmentAllocate", "sequenceName": "t-payments", "intervals": [DAY]},
    {"type": "segmentAllocate", "sequenceName": "t-click", "intervals": [DAY]},
    {**PUBLISH, "sequenceName": "t-payments"},
    {**PUBLISH, "segments": [ROW]},
    {"type": "lockRelease", "interval": "2020-01-01/2020-01-02"},
    {"type": "shutdown"},
    {"type": "submit", "task": {}},
    {"type": "__class__"},
    {},
]


@pytest.mark.parametrize("number", range(len(OWN_ACTIONS)))
def test_the_token_of_a_task_reaches_no_other_datasource(
    attacked: AttackedInstallation, number: int
) -> None:
    headers = bearer(attacked.kit.control.key.task_bearer("t-clicks"))
    before = attacked.state()
    for body in (
        {"task": "t-clicks", "action": OWN_ACTIONS[number]},
        {"task": "t-clicks", "action": OWN_ACTIONS[number], "dataSource": "payments"},
    ):
        answer = attacked.overlord.post(f"{P}/action", json=body, headers=headers)
        assert answer.status_code in {200, 400, 404}
        assert MARK not in answer.text
    assert attacked.state() == before


@pytest.mark.parametrize("number", range(len(OWN_ACTIONS)))
@pytest.mark.parametrize("task", ["t-payments", "t-clicks-secret", "", "t-clicks ", "no-such"])
def test_the_token_of_a_task_sends_no_action_of_another(
    attacked: AttackedInstallation, task: str, number: int
) -> None:
    headers = bearer(attacked.kit.control.key.task_bearer("t-clicks"))
    body = {"task": task, "action": OWN_ACTIONS[number]}
    assert attacked.overlord.post(f"{P}/action", json=body, headers=headers).status_code == 403


@pytest.mark.parametrize("api", ["router", "overlord"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"{P}/task/t-clicks", None),
        ("GET", f"{P}/task/t-clicks/log", None),
        ("GET", f"{P}/supervisor/clicks", None),
        ("POST", f"{P}/supervisor/clicks/suspend", None),
        ("POST", f"{P}/task/t-clicks/shutdown", None),
        ("POST", f"{P}/task", {"type": "noop", "dataSource": "clicks"}),
        ("GET", WORKERS, None),
        ("GET", f"{P}/leader", None),
        ("GET", f"{P}/isLeader", None),
        ("GET", f"{P}/tasks", None),
        ("GET", "/metrics", None),
    ],
)
def test_the_token_of_a_task_is_no_user_of_its_datasource(
    attacked: AttackedInstallation, api: str, method: str, path: str, body: object
) -> None:
    control = attacked.kit.control
    rules = [Rule.parse("read topic:clicks"), Rule.parse("write topic:bad")]
    asked: Api = getattr(attacked, api)
    for shown in (control.key.task_bearer("t-clicks"), control.key.task_bearer("t-clicks", rules)):
        more = {} if body is None else {"json": body}
        if api == "router" and path == "/metrics":
            continue
        answer = asked(method, path, headers=bearer(shown), **more)
        assert answer.status_code in {403, 404}


# From where


@pytest.fixture(scope="module")
def owners_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The overlord of an owner who has configured nothing, on loopback."""
    with closing(AttackedInstallation(tmp_path_factory.mktemp("owner"))) as made:
        folder = tmp_path_factory.mktemp("unconfigured") / "access"
        app = made.world.make_app(access=AccessControl(folder, SystemClock()))
        with served(made.world, app) as address:
            yield address.port


def request(
    method: str, path: str, port: int, *lines: str, host: str = "localhost:{port}"
) -> bytes:
    body = b"[]"
    head = [f"{method} {path} HTTP/1.1", f"Host: {host.format(port=port)}", "Connection: close"]
    more = [f"Content-Length: {len(body)}"] if method == "POST" else []
    text = "\r\n".join([*head, *more, *(one.format(port=port) for one in lines), "", ""])
    return text.encode() + (body if method == "POST" else b"")


def test_the_owner_is_let_in(owners_port: int) -> None:
    assert b" 200 " in answer_to(owners_port, request("GET", WORKERS, owners_port))[:20]


FOREIGN_ORIGINS = [
    *("http://evil.example", "https://evil.example", "null", "http://localhost.evil.example"),
    *("http://localhost", "http://localhost:1", "https://localhost:1", "file://"),
    *("http://127.0.0.1:1", "http://localhost:{port}.evil.example", "http://evil@localhost:1"),
    *("http://[::1]:1", "chrome-extension://abc", "http://0.0.0.0:{port}", "data:text/html,x"),
]
FORMS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_page_of_another_site_posts_nothing(owners_port: int, origin: str) -> None:
    """Simple requests, which a browser sends without asking first."""
    for kind, command in itertools.product(FORMS, ("suspendAll", "terminateAll")):
        lines = [f"Origin: {origin}", *([f"Content-Type: {kind}"] if kind else [])]
        sent = request("POST", f"{P}/supervisor/{command}", owners_port, *lines)
        answer = answer_to(owners_port, sent)
        assert b" 403 " in answer[:20]
        assert b"access-control-allow" not in answer.lower()


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "x"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_a_form_of_another_site_posts_nothing(owners_port: int, site: str, method: str) -> None:
    path = f"{P}/supervisor/terminateAll"
    sent = request(method, path, owners_port, f"Sec-Fetch-Site: {site}")
    assert answer_to(owners_port, sent)[:12].endswith((b" 403", b" 405"))


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:{port}",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ),
        *("localhost:{port}@evil.example", "169.254.169.254", "10.0.0.1:{port}", "rebind.network"),
        *("127.0.0.1.nip.io", "localhost%00.evil.example", "xn--localhst-f1a", "[::ffff:10.0.0.1]"),
        *("penstock", "metadata.google.internal", "localhost,evil.example", "0", "2130706434"),
    ],
)
def test_a_name_that_was_bound_to_loopback_reads_nothing(owners_port: int, host: str) -> None:
    for path in (WORKERS, f"{P}/supervisor", "/status", "/status/properties"):
        answer = answer_to(owners_port, request("GET", path, owners_port, host=host))
        assert answer[:12].endswith((b" 403", b" 400")), answer[:200]
        assert b"version" not in answer.partition(b"\r\n\r\n")[2]


def test_a_page_is_not_allowed_by_a_preflight(owners_port: int) -> None:
    for method in ("POST", "DELETE", "PUT", "GET"):
        lines = ["Origin: http://evil.example", f"Access-Control-Request-Method: {method}"]
        lines.append(f"Access-Control-Request-Headers: authorization, {PRINCIPAL_HEADER}")
        answer = answer_to(owners_port, request("OPTIONS", WORKERS, owners_port, *lines))
        assert b"access-control-allow" not in answer.lower()
        assert not answer.startswith(b"HTTP/1.1 2")


@pytest.mark.parametrize(
    "line",
    [
        *(
            "Forwarded: for=127.0.0.1",
            "X-Forwarded-For: 127.0.0.1",
            "X-Forwarded-For:",
            "Via: 1.1 x",
        ),
        *("X-Real-IP: 127.0.0.1", "x-forwarded-proto: http", "X-Forwarded-Host: localhost"),
        *("X-Forwarded-Port: 1", "X-Forwarded-Server: x", "X-Forwarded: x", "forwarded:"),
        *("VIA: HTTP/1.0 fred", "X-Forwarded-Prefix: /", "X-Forwarded-User: root"),
    ],
)
def test_what_came_over_a_proxy_is_not_the_owners(owners_port: int, line: str) -> None:
    answer = answer_to(owners_port, request("GET", WORKERS, owners_port, line))
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_another_user_of_the_host_is_nobody(
    owners_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it sends: the kernel reports its user id."""
    monkeypatch.setattr(authentication, "peer_user", lambda _transport: 65_534)
    for line in (
        *("X: y", "Authorization: Bearer operator", "Authorization: Basic cm9vdDpyb290"),
        *(f"{PRINCIPAL_HEADER}: " + '{{"id":"owner:root"}}', "Cookie: session=1", "From: root"),
        *("Host-User: 0", "X-Remote-User: root", "Remote-User: root", "X-WEBAUTH-USER: root"),
    ):
        answer = answer_to(owners_port, request("GET", WORKERS, owners_port, line))
        assert answer[:12].endswith((b" 401", b" 403")), line
    assert b" 200 " in answer_to(owners_port, request("GET", "/status/health", owners_port))[:20]


@pytest.mark.parametrize("user", [None, 0, 65_534, 2**32 - 1])
def test_an_unknown_peer_is_nobody(
    owners_port: int, monkeypatch: pytest.MonkeyPatch, user: int | None
) -> None:
    monkeypatch.setattr(authentication, "peer_user", lambda _transport: user)
    own = authentication.own_user_id()
    answer = answer_to(owners_port, request("GET", WORKERS, owners_port))
    assert answer.startswith(b"HTTP/1.1 200 " if user == own else b"HTTP/1.1 401 ")


def test_errors_repeat_no_credential(attacked: AttackedInstallation) -> None:
    secret = "penstock_abc_" + "s3cr3t" * 7
    for headers in (bearer(secret), basic(b"alice:" + secret.encode()), {"Authorization": secret}):
        answer = attacked.overlord.get(WORKERS, headers=headers)
        assert answer.status_code == 401
        assert "s3cr3t" not in answer.text + json.dumps(dict(answer.headers))
