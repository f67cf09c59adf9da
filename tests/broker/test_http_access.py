"""The rights of the broker's HTTP routes: each role on each route, and hostile requests."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest

from penstock.broker.http import app as app_module
from penstock.broker.http.access_rules import ACCESS_RULES, CONFIG, OnChannel, OnTopic, Unruled
from penstock.broker.http.app import BrokerHttpApp
from penstock.broker.http_server.authentication import HttpAuthenticator, HttpPeer
from penstock.broker.topics.placement import BatchProducer
from penstock.core.access.access_control import AccessControl
from penstock.core.access.derived_tokens import CLOCKS_DIFFER_S
from penstock.core.access.principal import NOBODY, Principal, PrincipalKind
from penstock.core.access.rules import Rule
from penstock.core.clock import SystemClock
from penstock.core.errors import Forbidden, Unauthenticated
from tests.broker.broker_access_kit import ROLES, Installation, basic, bearer
from tests.broker.broker_kit import Answer, RunningBroker
from tests.broker.v2_kit import V2

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.broker.options import BrokerOptions

EVERYONE = frozenset(ROLES)
SEERS = frozenset({"admin", "operator", "viewer"})
READERS = frozenset({"admin", "operator", "consumer"})
WRITERS = frozenset({"admin", "operator", "publisher"})
MANAGERS = frozenset({"admin", "operator"})

# Each request, and the roles that may send it. No topic has the name, so those who may get another
# error, and nothing is changed.
ALLOWED: dict[tuple[str, str], frozenset[str]] = {
    ("GET", "/info"): EVERYONE,
    ("GET", "/stats?format=json"): EVERYONE,
    ("GET", "/stats/topics"): EVERYONE,
    ("POST", "/pub?topic=none"): WRITERS,
    ("POST", "/mpub?topic=none&partition=x"): WRITERS,
    ("POST", "/topic/create?topic=none&partitions=0"): WRITERS,
    ("POST", "/topic/delete?topic=none"): MANAGERS,
    ("POST", "/topic/empty?topic=none"): MANAGERS,
    ("POST", "/topic/pause?topic=none"): MANAGERS,
    ("POST", "/topic/unpause?topic=none"): MANAGERS,
    ("GET", "/topic/configure?topic=none"): READERS,
    ("POST", "/topic/configure?topic=none"): MANAGERS,
    ("POST", "/topic/redrive?topic=none"): MANAGERS,
    ("POST", "/channel/create?topic=none&channel=c"): READERS,
    ("POST", "/channel/delete?topic=none&channel=c"): MANAGERS,
    ("POST", "/channel/empty?topic=none&channel=c"): MANAGERS,
    ("POST", "/channel/seek?topic=none&channel=c&to=end"): READERS,
    ("POST", "/channel/pause?topic=none&channel=c"): MANAGERS,
    ("POST", "/channel/unpause?topic=none&channel=c"): MANAGERS,
    ("GET", "/config/log_level"): SEERS,
    ("PUT", "/config/log_level"): MANAGERS,
    ("GET", "/lookup?topic=none"): EVERYONE,
    ("GET", "/topics"): EVERYONE,
    ("GET", "/channels?topic=none"): EVERYONE,
    ("GET", "/nodes"): EVERYONE,
    ("GET", "/debug"): EVERYONE,
    ("GET", "/offsets?topic=none"): READERS,
    ("GET", "/peek?topic=none"): READERS,
    ("GET", "/peek?topic=none&channel=c"): READERS,
    ("GET", "/message?topic=none&offset=0"): READERS,
    ("GET", "/fetch?topic=none&offset=0"): READERS,
    ("POST", "/cursor?topic=none&name=c&offset=0"): READERS,
    ("DELETE", "/cursor?topic=none&name=c"): READERS,
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("access"))
    made.rules(
        """
[roles.clicks-team]
allow = ["read,write,manage topic:clicks*", "* channel:clicks/*"]
deny = ["* topic:clicks-secret"]

[principals]
"token:clicks" = ["clicks-team"]
"user:alice" = ["clicks-team"]
"""
    )
    made.user("alice", "correct horse")
    return made


@pytest.fixture(scope="module")
def tokens(installation: Installation) -> dict[str, str]:
    made = {role: installation.token(f"{role}-token", role) for role in ROLES}
    made["clicks"] = installation.token("clicks")
    made["scoped"] = installation.token("scoped", "admin", scope=("read topic:clicks",))
    made["none"] = installation.token("none")
    return made


@pytest.fixture(scope="module")
def guarded(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """A broker with topics and channels, which only principals may use."""
    from penstock.broker.options import BrokerOptions

    folder = tmp_path_factory.mktemp("broker") / "topics"
    options = BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)
    with RunningBroker(options, access=installation.control) as running:
        headers = bearer(installation.token("setup", "admin"))
        for topic in ("clicks", "clicks-secret", "orders"):
            running.ask("POST", f"/pub?topic={topic}", b"secret of " + topic.encode(), headers)
            running.ask("POST", f"/channel/create?topic={topic}&channel=c", None, headers)
        yield running


def code_of(answer: Answer) -> str:
    return str(json.loads(answer.body)["message"])


def test_each_route_is_swept() -> None:
    swept = {
        (CONFIG if "/config/" in target else target.partition("?")[0], method)
        for method, target in ALLOWED
    }
    open_routes = {("/ping", "GET"), ("/status/ready", "GET")}
    table = {(path, method) for path, methods in ACCESS_RULES.items() for method in methods}
    assert swept | open_routes == table
    for path, method in table:
        assert (ACCESS_RULES[path][method] is Unruled.OPEN) == ((path, method) in open_routes)


@pytest.mark.parametrize("role", [*ROLES, "none", "wrong", "nobody"])
def test_each_role_may_use_the_routes_of_the_table(
    guarded: RunningBroker, tokens: dict[str, str], role: str
) -> None:
    headers = bearer(tokens.get(role, "penstock_wrong_secret"))
    if role == "nobody":
        headers = {}
    connection = guarded.connect()
    found, expected = {}, {}
    for (method, target), roles in ALLOWED.items():
        connection.request(method, target, b"", headers)
        answer = connection.getresponse()
        body = answer.read()
        status = answer.status if answer.status in {401, 403} else 0
        found[method, target] = status
        if role in {"nobody", "wrong"}:
            expected[method, target] = 401
        elif role == "none":  # lists are empty for it
            expected[method, target] = 0 if roles is EVERYONE and "/info" not in target else 403
        else:
            expected[method, target] = 0 if role in roles else 403
        if status:
            assert b"secret" not in body
            assert json.loads(body) == {"message": {401: "UNAUTHORIZED", 403: "FORBIDDEN"}[status]}
    connection.close()
    assert found == expected


def test_open_routes_need_nothing(guarded: RunningBroker) -> None:
    assert guarded.ask("GET", "/ping").body == b"OK"
    assert guarded.ask("GET", "/status/ready").status == 200
    assert guarded.ask("GET", "/ping", headers=bearer("wrong")).body == b"OK"


def test_a_route_without_a_rule_is_not_built(
    guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {path: rule for path, rule in ACCESS_RULES.items() if path != "/peek"}
    monkeypatch.setattr(app_module, "ACCESS_RULES", rules)
    with pytest.raises(LookupError, match="GET /peek has no rule"):
        BrokerHttpApp(guarded.server.broker)


NAMED = [
    (method, path)
    for path, methods in ACCESS_RULES.items()
    for method, rule in methods.items()
    if isinstance(rule, OnTopic | OnChannel)
]


@pytest.mark.parametrize(("method", "path"), NAMED)
def test_a_topic_that_cannot_exist_is_refused_by_each_route(
    guarded: RunningBroker, tokens: dict[str, str], method: str, path: str
) -> None:
    """The rule of a route leaves such names to the route."""
    for topic in (None, "", "x" * 65, "a%20b", "clicks/c", "%E2%84%AA", "%00", "..", "*"):
        query = "channel=c&name=c&to=end&offset=0"
        if topic is not None:
            query += f"&topic={topic}"
        answer = guarded.ask(method, f"{path}?{query}", b"x", bearer(tokens["clicks"]))
        assert 400 <= answer.status < 500, topic
        if "channel" in path:
            query = f"topic=clicks&to=end&channel={topic or ''}"
            answer = guarded.ask(method, f"{path}?{query}", b"x", bearer(tokens["clicks"]))
            assert 400 <= answer.status < 500, topic


# -- one topic's team


SAME_TOPIC = [
    "topic=clicks",
    "topic=%63licks",
    "topic=clicks&topic=orders",  # the first counts
    "topic=clicks&topic=",
    "x=topic&topic=clicks",
    "topic=clicks#topic=orders",
]
OTHER_TOPIC = [
    "topic=orders",
    "topic=%6frders",
    "topic=orders&topic=clicks",
    "topic=clicks-secret",
    "topic=clicks%2dsecret",
    "topic=clicks%2Dsecret&topic=clicks",
]


@pytest.mark.parametrize("query", SAME_TOPIC)
def test_the_rule_reads_the_topic_as_the_route_does(
    guarded: RunningBroker, tokens: dict[str, str], query: str
) -> None:
    answer = guarded.ask("GET", f"/peek?{query}", headers=bearer(tokens["clicks"]))
    assert answer.status == 200
    assert json.loads(answer.body)["topic"] == "clicks"


@pytest.mark.parametrize("query", OTHER_TOPIC)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/peek", "/fetch", "/offsets", "/topic/configure")),
        *(("POST", path) for path in ("/pub", "/mpub", "/topic/create", "/topic/delete")),
        *(("POST", f"/topic/{verb}") for verb in ("empty", "pause", "unpause", "configure")),
        *(("POST", f"/channel/{verb}") for verb in ("create", "delete", "empty", "pause", "seek")),
        *(("POST", "/cursor"), ("DELETE", "/cursor")),
    ],
)
def test_no_spelling_reaches_the_topic_of_others(
    guarded: RunningBroker, tokens: dict[str, str], method: str, path: str, query: str
) -> None:
    if "secret" in query and ("/channel/" in path or path == "/cursor"):
        return  # the role allows channels of `clicks` alone, and denies topics
    target = f"{path}?{query}&channel=c&name=c&to=end&offset=0"
    answer = guarded.ask(method, target, b"x", bearer(tokens["clicks"]))
    assert (answer.status, code_of(answer)) == (403, "FORBIDDEN")
    assert b"secret of" not in answer.body


@pytest.mark.parametrize(
    "target",
    [
        "/PEEK?topic=orders",
        "/peek/?topic=orders",
        "//peek?topic=orders",
        "/./peek?topic=orders",
        "/ping/../peek?topic=orders",
        "/peek%3ftopic=orders",
        "/config/../peek?topic=orders",
        "/ping%00/peek?topic=orders",
    ],
)
def test_no_spelling_of_a_path_goes_around_its_rule(
    guarded: RunningBroker, tokens: dict[str, str], target: str
) -> None:
    for headers in ({}, bearer(tokens["publisher"])):
        answer = guarded.ask("GET", target, headers=headers)
        assert answer.status in {400, 401, 403, 404}


def test_an_ephemeral_topic_has_the_rules_of_its_whole_name(
    guarded: RunningBroker, tokens: dict[str, str]
) -> None:
    headers = bearer(tokens["clicks"])
    assert guarded.ask("POST", "/pub?topic=clicks%23ephemeral", b"x", headers).status == 200
    assert guarded.ask("POST", "/pub?topic=orders%23ephemeral", b"x", headers).status == 403
    # Without the escape the fragment does not belong to the name.
    assert guarded.ask("POST", "/pub?topic=orders#ephemeral", b"x", headers).status == 403


def test_messages_of_another_topic_are_not_diverted_by_dead_letters(
    guarded: RunningBroker, tokens: dict[str, str]
) -> None:
    headers = bearer(tokens["clicks"])
    target = "/topic/configure?topic=clicks&dead_letter_topic"
    assert guarded.ask("POST", f"{target}=orders", None, headers).status == 403
    assert guarded.ask("POST", f"{target}=clicks-dead", None, headers).status == 200
    assert guarded.ask("POST", f"{target}=", None, headers).status == 200


def test_lists_and_statistics_show_what_may_be_read(
    guarded: RunningBroker, tokens: dict[str, str]
) -> None:
    def document(target: str, who: str) -> dict[str, object]:
        answer = guarded.ask("GET", target, headers=bearer(tokens[who]))
        assert answer.status == 200
        return cast("dict[str, object]", json.loads(answer.body))

    def topics(who: str) -> set[str]:
        found = document("/stats?format=json", who)["topics"]
        assert isinstance(found, list)
        return {one["topic_name"] for one in found if "#" not in one["topic_name"]}

    everything = {"clicks", "clicks-secret", "orders"}
    assert topics("viewer") == topics("admin") == topics("consumer") == everything
    assert topics("clicks") == topics("scoped") == {"clicks"}
    assert topics("publisher") == topics("analyst") == topics("none") == set()
    assert document("/stats?format=json&topic=orders", "clicks")["topics"] is None
    assert "memory" in document("/stats?format=json", "viewer")
    assert "memory" not in document("/stats?format=json", "consumer")
    assert "clicks" in str(document("/topics", "clicks")["topics"])
    for target in ("/topics", "/nodes", "/debug", "/channels?topic=orders"):
        assert "orders" not in str(document(target, "clicks"))
        assert "secret" not in str(document(target, "clicks"))
    assert document("/channels?topic=clicks", "clicks") == {"channels": ["c"]}
    assert document("/channels?topic=clicks", "scoped") == {"channels": []}
    text = guarded.ask("GET", "/stats", headers=bearer(tokens["clicks"])).body
    assert b"[clicks " in text
    assert b"orders" not in text
    assert b"Memory:" not in text


def test_a_topic_that_may_not_be_seen_looks_like_one_that_does_not_exist(
    guarded: RunningBroker, tokens: dict[str, str]
) -> None:
    headers = bearer(tokens["publisher"])
    existing = guarded.ask("GET", "/lookup?topic=orders", headers=headers)
    missing = guarded.ask("GET", "/lookup?topic=absent", headers=headers)
    assert existing.status == missing.status == 404
    assert existing.body == missing.body
    for path in ("peek", "fetch", "offsets"):
        answers = [
            guarded.ask("GET", f"/{path}?topic={topic}&offset=0", headers=headers)
            for topic in ("orders", "absent")
        ]
        assert answers[0].status == answers[1].status == 403
        assert answers[0].body == answers[1].body


def test_the_clients_of_others_are_not_shown(
    guarded: RunningBroker, tokens: dict[str, str]
) -> None:
    with V2(guarded.server.broker.tcp_port) as both:
        both.ask(b"AUTH\n", len(tokens["admin"]).to_bytes(4, "big"), tokens["admin"].encode())
        both.publish("orders", b"x")
        both.publish("clicks", b"x")
        both.subscribe("clicks", "c")
        shown = guarded.ask("GET", "/stats?format=json", headers=bearer(tokens["clicks"]))
        document = json.loads(shown.body)
        client = document["topics"][0]["channels"][0]["clients"][0]
        assert client["pub_counts"] == [{"topic": "clicks", "count": 1}]
        assert client["auth_identity"] == "token:admin-token"
        assert document["producers"] is None
        full = json.loads(
            guarded.ask("GET", "/stats?format=json", headers=bearer(tokens["viewer"])).body
        )
        assert len(full["producers"][0]["pub_counts"]) == 2


# -- credentials


def test_a_user_and_password_let_in(guarded: RunningBroker) -> None:
    target = "/peek?topic=clicks"
    assert guarded.ask("GET", target, headers=basic("alice", "correct horse")).status == 200
    assert guarded.ask("GET", target, headers=basic("alice", "wrong horse")).status == 401
    assert guarded.ask("GET", target, headers=basic("bob", "correct horse")).status == 401
    assert (
        guarded.ask("GET", "/peek?topic=orders", None, basic("alice", "correct horse")).status
        == 403
    )


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        "Bearer",
        "Bearer ",
        "bearer penstock_x_y",
        "Basic",
        "Basic !!!",
        "Basic YWxpY2U=",
        "Basic /w==",
        "Digest username=alice",
        "Negotiate",
        "Bearer " + "x" * 60_000,
        "Bearer token with spaces",
        "Basic " + "QQ" * 20_000,
    ],
)
def test_headers_that_let_nobody_in(guarded: RunningBroker, header: str) -> None:
    answer = guarded.ask("GET", "/topics", headers={"Authorization": header})
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Basic realm="penstock", charset="UTF-8"'


def test_the_scheme_is_compared_without_case(
    guarded: RunningBroker, tokens: dict[str, str]
) -> None:
    for scheme in ("bearer", "BEARER", "Bearer  "):
        headers = {"Authorization": f"{scheme} {tokens['viewer']}"}
        assert guarded.ask("GET", "/topics", headers=headers).status == 200


def test_the_principal_of_a_connection_changes_with_its_credential(
    guarded: RunningBroker, tokens: dict[str, str]
) -> None:
    connection = guarded.connect()

    def status(headers: dict[str, str]) -> int:
        connection.request("GET", "/peek?topic=orders", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    expected = {"admin": 200, "publisher": 403, "consumer": 200, "clicks": 403}
    for _ in range(3):
        for who, wanted in expected.items():
            assert status(bearer(tokens[who])) == wanted
            assert status({}) == 401
            assert status(bearer("wrong")) == 401
            assert status(basic("alice", "correct horse")) == 403
            assert status(bearer(tokens[who])) == wanted
    connection.close()


def test_a_removed_token_stops_working_on_its_open_connection(
    guarded: RunningBroker, installation: Installation
) -> None:
    token = installation.token("short-lived", "admin")
    connection = guarded.connect()

    def status() -> int:
        connection.request("GET", "/peek?topic=orders", headers=bearer(token))
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert [status(), status()] == [200, 200]
    installation.remove_token("short-lived")
    assert status() == 401
    connection.close()


def test_an_expired_token_stops_working_on_its_open_connection(
    options: BrokerOptions, tmp_path: Path
) -> None:
    installation = Installation(tmp_path / "access")
    token = installation.token("ci", "admin", lasts_ms=60_000)
    with RunningBroker(options, access=installation.control, clock=installation.clock) as broker:
        connection = broker.connect()

        def status(connection: http.client.HTTPConnection) -> int:
            connection.request("POST", "/pub?topic=t", b"x", headers=bearer(token))
            answer = connection.getresponse()
            answer.read()
            return answer.status

        assert [status(connection), status(connection)] == [200, 200]
        installation.clock.ahead_ms = 60_000
        assert status(connection) in {401, 403}
        connection.close()
        stolen = broker.connect()  # a replay on a new connection
        assert status(stolen) == 401
        stolen.close()
        assert broker.stored("t") == [[b"x", b"x"]]


def test_a_waiting_reader_whose_token_is_removed_learns_nothing(
    guarded: RunningBroker, installation: Installation, tokens: dict[str, str]
) -> None:
    token = installation.token("waiting", "consumer")
    known = guarded.ask("GET", "/offsets?topic=clicks", headers=bearer(token))
    latest = json.loads(known.body)["partitions"][0]["latest"]
    connection = guarded.connect()
    target = f"/offsets?topic=clicks&after=0:{latest}&wait_ms=60000"
    connection.request("GET", target, headers=bearer(token))
    while not guarded.server.broker.waiting_readers:
        pass
    installation.remove_token("waiting")
    guarded.ask("POST", "/pub?topic=clicks", b"news", bearer(tokens["admin"]))
    answer = connection.getresponse()
    assert answer.status == 403
    assert b"latest" not in answer.read()
    connection.close()


def test_a_changed_password_ends_the_old_one(
    guarded: RunningBroker, installation: Installation
) -> None:
    installation.user("carol", "first password", "consumer")
    connection = guarded.connect()

    def status(password: str) -> int:
        connection.request("GET", "/peek?topic=orders", headers=basic("carol", password))
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert [status("first password"), status("first password")] == [200, 200]
    installation.change_password("carol", "second password")
    assert status("first password") == 401
    assert status("second password") == 200
    connection.close()


def test_a_role_that_is_changed_applies_at_once(options: BrokerOptions, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "access")
    token = installation.token("team")
    rules = '[roles.r]\nallow = ["write topic:{}"]\n[principals]\n"token:team" = ["r"]\n'
    with RunningBroker(options, access=installation.control) as broker:
        expected = [("*", 200), ("other", 403), ("t", 200)]
        for pattern, status in expected:
            installation.rules(rules.format(pattern))
            assert broker.ask("POST", "/pub?topic=t", b"x", bearer(token)).status == status


def test_principals_for_whom_a_process_asks(
    guarded: RunningBroker, installation: Installation, tokens: dict[str, str]
) -> None:
    alice = Principal(PrincipalKind.USER, "alice").to_header()
    process = bearer(installation.control.key.process_bearer())
    headers = {"X-Penstock-Principal": alice}
    assert guarded.ask("GET", "/peek?topic=clicks", None, headers | process).status == 200
    assert guarded.ask("GET", "/peek?topic=orders", None, headers | process).status == 403
    assert guarded.ask("GET", "/peek?topic=orders", None, process).status == 200
    broken = {"X-Penstock-Principal": "{"}
    assert guarded.ask("GET", "/peek?topic=orders", None, broken | process).status == 400
    admin = Principal(PrincipalKind.TOKEN, "x", ("admin",)).to_header()
    for who in ("publisher", "clicks", "admin", "none"):
        claimed = {"X-Penstock-Principal": admin} | bearer(tokens[who])
        assert guarded.ask("GET", "/peek?topic=orders", None, claimed).status == 403
    claimed = {"X-Penstock-Principal": admin}
    assert guarded.ask("GET", "/peek?topic=orders", None, claimed).status in {401, 403}


# -- nothing configured: the server's own user on this host


FORWARDED = [
    {"Forwarded": "for=1.2.3.4"},
    {"X-Forwarded-For": "127.0.0.1"},
    {"x-forwarded-host": "h"},
    {"X-Forwarded-Proto": "https"},
    {"X-Real-IP": "127.0.0.1"},
    {"Via": "1.1 proxy"},
]


def test_the_own_user_on_this_host_needs_nothing(broker: RunningBroker) -> None:
    assert broker.ask("POST", "/pub?topic=t", b"x").status == 200
    assert broker.ask("GET", "/stats").status == 200
    assert broker.ask("PUT", "/config/log_level", b"info").status == 200


@pytest.mark.parametrize("headers", FORWARDED)
def test_a_request_through_a_proxy_is_not_local(
    broker: RunningBroker, headers: dict[str, str]
) -> None:
    answer = broker.ask("POST", "/pub?topic=t", b"x", headers)
    assert answer.status == 401
    assert "penstock token add" in answer.headers["x-penstock-detail"]
    assert broker.server.broker.topics.find("t") is None


def test_the_own_user_needs_a_credential_once_one_exists(
    options: BrokerOptions, tmp_path: Path
) -> None:
    installation = Installation(tmp_path / "access")
    with RunningBroker(options, access=installation.control) as broker:
        connection = broker.connect()

        def status(headers: dict[str, str]) -> int:
            connection.request("POST", "/pub?topic=t", b"x", headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

        assert status({}) == 200
        token = installation.token("first", "admin")
        assert status({}) == 401
        assert status(bearer(token)) == 200
        installation.remove_token("first")
        assert status({}) == 401, "until the server is started again"
        connection.close()


CHILD = """
import os, socket, sys
os.setgroups([]); os.setgid(54321); os.setuid(54321)
def ask(port, data, end):
    with socket.socket() as one:
        one.settimeout(30)
        one.connect(("127.0.0.1", int(port)))
        one.sendall(data)
        found = b""
        while end not in found and (piece := one.recv(65536)):
            found += piece
        return found
http = b"POST /pub?topic=t HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 1\\r\\n\\r\\nx"
print(ask(sys.argv[1], http, b"}").split(b" ")[1].decode())
print(ask(sys.argv[2], b"  V2PUB t\\n\\0\\0\\0\\1x", b"PUB")[8:].decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_this_host_is_refused(options: BrokerOptions) -> None:
    with RunningBroker(dataclasses.replace(options, tcp_port=0)) as broker:
        ports = [str(broker.server.http_port), str(broker.server.broker.tcp_port)]
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", CHILD, *ports],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        )
        assert done.stdout.splitlines() == ["401", "E_AUTH_FIRST AUTH required before PUB"]
        assert broker.server.broker.topics.find("t") is None
        assert broker.ask("POST", "/pub?topic=t", b"x").status == 200


class Transport:
    """Facts about a connection, as a transport reports them."""

    def __init__(self, peer: object, own: object, **facts: object) -> None:
        self.facts = {"peername": peer, "sockname": own, **facts}

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.facts.get(name, default)


class Certificate:
    """An `ssl_object` whose client presented a certificate."""

    def __init__(self, name: str) -> None:
        self._name = name

    def getpeercert(self) -> dict[str, object]:
        return {"subject": ((("countryName", "XX"),), (("commonName", self._name),))}


def peer_of(transport: Transport) -> HttpPeer:
    return HttpPeer(cast("asyncio.BaseTransport", transport))


@pytest.mark.parametrize(
    ("client", "server"),
    [
        (("10.1.2.3", 50_000), ("10.1.2.4", 4151)),
        (("::ffff:10.1.2.3", 50_000, 0, 0), ("::", 4151, 0, 0)),
        (("fe80::1%eth0", 50_000, 0, 2), ("fe80::2", 4151, 0, 2)),
        (("127.0.0.1", 1), ("127.0.0.1", 2)),  # no such connection
        (None, None),
        ("", ""),
    ],
)
def test_a_peer_that_is_not_local_is_nobody(client: object, server: object) -> None:
    control = AccessControl(None, SystemClock())
    assert HttpAuthenticator(control).find({}, peer_of(Transport(client, server))) is NOBODY


def test_the_kernel_is_asked_once_per_connection() -> None:
    class Counted(Transport):
        count = 0

        def get_extra_info(self, name: str, default: object = None) -> object:
            self.count += name == "sockname"
            return super().get_extra_info(name, default)

    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            transport = Counted(accepted.getpeername(), accepted.getsockname(), socket=accepted)
            peer, control = peer_of(transport), AccessControl(None, SystemClock())
            authenticator = HttpAuthenticator(control)
            principals = [authenticator.find({}, peer) for _ in range(5)]
            assert [one.kind for one in principals if one] == [PrincipalKind.OWNER] * 5
            assert transport.count == 1
            # What is remembered is not taken from a proxy's request on the same connection.
            assert authenticator.find({b"via": b"1.1 x"}, peer) is NOBODY


def test_a_certificate_is_a_principal_once_something_is_configured(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "access")
    authenticator = HttpAuthenticator(installation.control)
    peer = peer_of(
        Transport(("10.0.0.1", 5), ("10.0.0.2", 6), ssl_object=Certificate("collector-1"))
    )
    found = authenticator.find({}, peer)
    assert found == Principal(PrincipalKind.CERTIFICATE, "collector-1")
    # A header counts alone, even if the certificate would be let in.
    with pytest.raises(Unauthenticated):
        authenticator.find({b"authorization": b"Bearer wrong"}, peer)
    with pytest.raises(Forbidden):
        authenticator.find({b"x-penstock-principal": b"{}"}, peer)


def test_a_token_that_changes_during_its_check_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = Installation(tmp_path / "access")
    control, peer, token = installation.control, HttpPeer(), installation.token("ci", "publisher")
    of_bearer = control.authenticator.of_bearer
    names: list[str] = []

    def of_bearer_and_change(shown: bytes, *, origin: str = "") -> Principal | None:
        found = of_bearer(shown, origin=origin)
        names.append(found.id if found else "")
        installation.rules(f'[roles.r{len(names)}]\nallow = ["read topic:a"]\n')
        return found

    monkeypatch.setattr(control.authenticator, "of_bearer", of_bearer_and_change)
    headers = {b"authorization": f"Bearer {token}".encode()}
    authenticator = HttpAuthenticator(control)
    first = authenticator.find(headers, peer)
    assert authenticator.find(headers, peer) == first
    assert len(names) == 2


def test_an_acting_token_ends_on_an_open_connection(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "access")
    installation.token("ci", "publisher")
    flow = AccessControl(installation.folder, installation.clock, process="flow")
    shown = f"Bearer {flow.key.represented_bearer('token:ci')}"
    authenticator, peer = HttpAuthenticator(installation.control), HttpPeer()
    found = authenticator.find({b"authorization": shown.encode()}, peer)
    assert found is not None
    assert (found.id, found.via) == ("token:ci", "process:flow")
    installation.clock.ahead_ms = (CLOCKS_DIFFER_S + 121) * 1000
    with pytest.raises(Unauthenticated, match="does not count"):
        authenticator.find({b"authorization": shown.encode()}, peer)


def test_an_open_control_asks_nobody() -> None:
    authenticator = HttpAuthenticator(AccessControl.open())
    for headers in ({}, {b"via": b"1.1 x"}):
        found = authenticator.find(headers, HttpPeer())
        assert found is not None
        assert found.kind is PrincipalKind.OWNER


def test_a_producer_belongs_to_the_principal_that_named_it(
    options: BrokerOptions, tmp_path: Path
) -> None:
    """Otherwise a high sequence number of one would make messages of the other look repeated."""
    installation = Installation(tmp_path / "access")
    mine, theirs = (bearer(installation.token(name, "publisher")) for name in ("mine", "theirs"))
    process = bearer(installation.control.key.process_bearer())
    installation.user("alice", "correct: horse", "publisher")
    acting = bearer(installation.control.key.represented_bearer("user:alice"))
    task = bearer(installation.control.key.task_bearer("t1", [Rule.parse("write topic:t")]))
    path = "/pub?topic=t&partition=0&producer=p&sequence="

    def is_repeated(headers: dict[str, str], sequence: int) -> bool:
        answer = broker.ask("POST", f"{path}{sequence}", b"x", headers)
        assert answer.status == 200
        return "x-penstock-repeated" in answer.headers

    with RunningBroker(options, access=installation.control) as broker:
        assert not is_repeated(theirs, 2**62)
        assert not is_repeated(mine, 1)
        assert is_repeated(mine, 1)
        assert not is_repeated(mine, 2)
        # Those of the installation belong to all its processes: replicas of a task share one, and
        # a flow keeps its own when its owner changes.
        assert not is_repeated(process, 5)
        assert is_repeated(task, 5)
        assert is_repeated(acting, 5)
        assert not is_repeated(basic("alice", "correct: horse"), 5)
        assert is_repeated(theirs, 7)


def test_producers_of_one_principal_do_not_displace_those_of_another(
    options: BrokerOptions, tmp_path: Path
) -> None:
    """Otherwise a repeated publish of the other would be stored twice."""
    installation = Installation(tmp_path / "access")
    mine, theirs = (bearer(installation.token(name, "publisher")) for name in ("mine", "theirs"))
    process = bearer(installation.control.key.process_bearer())

    def is_repeated(headers: dict[str, str], producer: str) -> bool:
        path = f"/pub?topic=t&partition=0&producer={producer}&sequence=5"
        answer = broker.ask("POST", path, b"x", headers)
        assert answer.status == 200
        return "x-penstock-repeated" in answer.headers

    with RunningBroker(options, access=installation.control) as broker:
        assert not is_repeated(mine, "p")
        assert not is_repeated(process, "p")
        for number in range(1_010):  # more than a stream partition remembers
            assert not is_repeated(theirs, f"p{number}")
        assert is_repeated(mine, "p")
        assert is_repeated(process, "p")
        assert is_repeated(theirs, "p1009")
        assert not is_repeated(theirs, "p0")


def test_a_producer_that_an_earlier_release_remembered_is_recognized() -> None:
    """It remembered the producers of all owners in the same way."""
    producer = BatchProducer.named("p", 5, "user:ann")
    known = {producer.name: 4}
    assert producer.last_sequence(known.get) == 4
    known[producer.mark[0]] = 5
    assert producer.last_sequence(known.get) == 5


def test_a_redrive_needs_the_right_to_publish_to_each_target(
    guarded: RunningBroker, tokens: dict[str, str]
) -> None:
    whole, part = bearer(tokens["admin"]), bearer(tokens["clicks"])
    letters = b"\n".join(
        b'{"topic":"%s","partition":0,"offset":1,"reason":"r","message_base64":"eA=="}' % topic
        for topic in (b"clicks", b"orders")
    )
    assert guarded.ask("POST", "/mpub?topic=clicks.letters", letters, whole).status == 200
    target = "/topic/redrive?topic=clicks.letters"
    before = [len(guarded.stored(topic)[0]) for topic in ("clicks", "orders")]
    assert guarded.ask("POST", target, None, part).status == 403  # it may not write to orders
    assert [len(guarded.stored(topic)[0]) for topic in ("clicks", "orders")] == before
    answer = guarded.ask("POST", f"{target}&origin=clicks", None, part)
    assert json.loads(answer.body)["redriven"] == {"clicks": 1}
    assert guarded.ask("POST", f"{target}&to=orders", None, part).status == 403
    # Neither a preview nor an error shows topics that it may not use.
    assert guarded.ask("POST", f"{target}&preview=1", None, part).status == 403
    assert guarded.ask("POST", f"{target}&to=nowhere", None, part).status == 403
    answer = guarded.ask("POST", target, None, whole)
    assert json.loads(answer.body)["redriven"] == {"orders": 1}
