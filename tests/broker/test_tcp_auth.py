"""AUTH: what authorization servers say, and what follows for each command."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.options import BrokerOptions
from penstock.broker.security.auth_servers import AuthMethod, AuthOptions, auth_url
from penstock.broker.security.permissions import NamePattern, Permissions
from penstock.broker.tcp.server import TcpServer
from penstock.core.access.access_control import AccessControl
from penstock.core.access.audit import AuditOptions
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from tests.broker.broker_access_kit import AheadClock, Installation
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, batch, sized

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}


class AuthServer(ThreadingHTTPServer):
    """Answers what the test says, and notes what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.answer: bytes = b""
        self.asked: list[dict[str, str]] = []
        self.allow(EVERYTHING)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def allow(self, *grants: object, ttl: int = 3600, identity: str = "robin") -> None:
        document = {"ttl": ttl, "identity": identity, "identity_url": "http://who"}
        self.answer = json.dumps({**document, "authorizations": grants}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: AuthServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        assert url.path == "/auth"
        self._reply(parse_qs(url.query, keep_blank_values=True))

    def do_POST(self) -> None:
        self._reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _reply(self, question: dict[str, list[str]]) -> None:
        self.server.asked.append({name: values[0] for name, values in question.items()})
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def options(options: BrokerOptions, server: AuthServer) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0, auth=AuthOptions(addresses=(server.address,)))


@pytest.fixture
def port(broker: RunningBroker) -> int:
    return broker.server.broker.tcp_port


def authenticate(client: V2, secret: bytes = b"secret") -> dict[str, object]:
    answer: dict[str, object] = json.loads(client.ask(b"AUTH\n", sized(secret)))
    return answer


def test_who_is_let_in_does_what_it_may(port: int, server: AuthServer) -> None:
    with V2(port) as client:
        assert json.loads(client.identify(feature_negotiation=True))["auth_required"] is True
        assert authenticate(client) == {
            "identity": "robin",
            "identity_url": "http://who",
            "permission_count": 1,
        }
        client.subscribe("t", "c", ready=5)
        with V2(port) as producer:
            authenticate(producer)
            producer.publish("t", b"x")
            assert producer.ask(b"MPUB t\n", batch(b"y")) == b"OK"
        assert [client.message().body for _ in range(2)] == [b"x", b"y"]
    assert server.asked[0] == {
        "remote_ip": "127.0.0.1",
        "tls": "false",
        "secret": "secret",
        "common_name": "",
    }
    assert len(server.asked) == 2


COMMANDS = [
    (b"PUB t\n" + sized(b"x"), "PUB", ""),
    (b"MPUB t\n" + batch(b"x"), "MPUB", ""),
    (b"DPUB t 5\n" + sized(b"x"), "DPUB", ""),
    (b"SUB t c\n", "SUB", "c"),
]


@pytest.mark.parametrize(("sent", "name", "channel"), COMMANDS)
def test_without_auth_and_without_permission(
    broker: RunningBroker, port: int, server: AuthServer, sent: bytes, name: str, channel: str
) -> None:
    with V2(port) as client:
        client.send(sent)
        assert client.error() == f"E_AUTH_FIRST AUTH required before {name}"
        assert client.closed()
    server.allow({**EVERYTHING, "topic": "^other$"})
    with V2(port) as client:
        authenticate(client)
        client.send(sent)
        assert client.error() == f'E_UNAUTHORIZED AUTH failed for {name} on "t" "{channel}"'
        assert client.closed()
    assert broker.server.broker.topics.find("t") is None


def test_to_publish_and_to_subscribe_are_two_permissions(port: int, server: AuthServer) -> None:
    server.allow(
        {"topic": "^in$", "channels": [".*"], "permissions": ["publish"]},
        {"topic": "^out$", "channels": ["^mine_"], "permissions": ["subscribe"]},
    )

    def client() -> V2:
        made = V2(port)
        assert authenticate(made)["permission_count"] == 2
        return made

    with client() as producer:
        producer.publish("in", b"x")
        producer.send(b"PUB out\n", sized(b"x"))
        assert producer.error().startswith("E_UNAUTHORIZED")
    with client() as consumer:
        consumer.subscribe("out", "mine_1")
    with client() as other:
        other.send(b"SUB out yours\n")
        assert other.error().startswith("E_UNAUTHORIZED")


@pytest.mark.parametrize(
    ("status", "answer", "code"),
    [
        (403, b"{}", "E_AUTH_FAILED AUTH failed"),
        (200, b"no JSON", "E_AUTH_FAILED AUTH failed"),
        (200, b"x" * 2_000_000, "E_AUTH_FAILED AUTH failed"),
        (200, b'{"ttl": 0, "authorizations": []}', "E_AUTH_FAILED AUTH failed"),
        (200, b'{"ttl": 9, "authorizations": []}', "E_UNAUTHORIZED AUTH no authorizations found"),
        (200, b'{"ttl": 9}', "E_UNAUTHORIZED AUTH no authorizations found"),
    ],
)
def test_answers_that_let_nobody_in(
    port: int, server: AuthServer, status: int, answer: bytes, code: str
) -> None:
    server.status, server.answer = status, answer
    with V2(port) as client:
        client.send(b"AUTH\n", sized(b"s"))
        assert client.error() == code
        assert client.closed()


def test_a_second_auth_is_refused(port: int) -> None:
    with V2(port) as client:
        authenticate(client)
        client.send(b"AUTH\n", sized(b"s"))
        assert client.error() == "E_INVALID AUTH already set"


def test_the_next_server_is_asked_when_one_does_not_answer(
    options: BrokerOptions, server: AuthServer
) -> None:
    auth = AuthOptions(addresses=("127.0.0.1:1", f"http://{server.address}/auth"))
    with RunningBroker(dataclasses.replace(options, auth=auth)) as broker:
        for _ in range(8):  # whichever is asked first
            with V2(broker.server.broker.tcp_port) as client:
                authenticate(client)


def test_asked_by_post_with_lists(options: BrokerOptions, server: AuthServer) -> None:
    auth = dataclasses.replace(options.auth, method=AuthMethod.POST)
    with (
        RunningBroker(dataclasses.replace(options, auth=auth)) as broker,
        V2(broker.server.broker.tcp_port) as client,
    ):
        authenticate(client, "€uro & more".encode())
    assert server.asked[0]["secret"] == "€uro & more"


def test_the_server_is_asked_again_when_its_answer_has_expired(
    options: BrokerOptions, server: AuthServer
) -> None:
    clock = AheadClock()
    with (
        RunningBroker(options, clock=clock) as broker,
        V2(broker.server.broker.tcp_port) as client,
    ):
        server.allow(EVERYTHING, ttl=60)
        authenticate(client)
        client.publish("t", b"1", b"2")
        assert len(server.asked) == 1
        clock.ahead_ms = 60_000
        client.publish("t", b"3")
        assert [asked["secret"] for asked in server.asked] == ["secret", "secret"]
        server.allow({**EVERYTHING, "topic": "^other$"}, ttl=60)
        client.publish("t", b"still valid")
        clock.ahead_ms = 120_000
        client.send(b"PUB t\n", sized(b"4"))
        assert client.error().startswith("E_UNAUTHORIZED")
    assert broker.server.options == options


def test_a_server_that_is_gone_at_the_end_of_its_answer_lets_nobody_on(
    options: BrokerOptions, server: AuthServer
) -> None:
    clock = AheadClock()
    with (
        RunningBroker(options, clock=clock) as broker,
        V2(broker.server.broker.tcp_port) as client,
    ):
        server.allow(EVERYTHING, ttl=60)
        authenticate(client)
        server.status = 500
        clock.ahead_ms = 60_000
        client.send(b"SUB t c\n")
        assert client.error() == "E_AUTH_FAILED AUTH failed"
        assert client.closed()


def test_the_brokers_token_opens_everything_beside_the_servers(
    options: BrokerOptions, server: AuthServer
) -> None:
    server.allow()
    with RunningBroker(dataclasses.replace(options, token="token")) as broker:
        with V2(broker.server.broker.tcp_port) as client:
            assert authenticate(client, b"token")["identity"] == "token:shared"
            client.publish("t", b"x")
        assert server.asked == []
        with V2(broker.server.broker.tcp_port) as client:
            client.send(b"AUTH\n", sized(b"other"))
            assert client.error() == "E_UNAUTHORIZED AUTH no authorizations found"


def test_credentials_of_penstock_open_beside_the_servers(
    options: BrokerOptions, server: AuthServer, tmp_path: Path
) -> None:
    installation = Installation(tmp_path / "access")
    server.allow({**EVERYTHING, "topic": "^other$"})
    with RunningBroker(options, access=installation.control) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as client:  # as with nsqd, the servers decide about everyone
            client.send(b"PUB t\n", sized(b"x"))
            assert client.error() == "E_AUTH_FIRST AUTH required before PUB"
        installation.user("alice", "correct horse", "publisher")
        secrets = (installation.token("ci", "publisher"), "alice:correct horse")
        for text, name in zip(secrets, ("token:ci", "user:alice"), strict=True):
            with V2(port) as client:
                assert authenticate(client, text.encode())["identity"] == name
                client.publish("t", b"x")
        assert server.asked == []
        for secret in (b"unknown", b"alice:unknown"):
            with V2(port) as client:
                assert authenticate(client, secret)["identity"] == "robin"
                client.publish("other", b"x")
                client.send(b"PUB t\n", sized(b"x"))
                assert client.error().startswith("E_UNAUTHORIZED")
        assert [asked["secret"] for asked in server.asked] == ["unknown", "alice:unknown"]


def test_servers_do_not_decide_about_records_of_the_audit(
    options: BrokerOptions, tmp_path: Path
) -> None:
    """Otherwise whoever may publish everywhere could forge them."""
    folder = tmp_path / "access"
    access = AccessControl(folder, SystemClock(), process="broker", audit=AuditOptions("audit"))
    with RunningBroker(options, access=access) as broker:
        for first, rest in ((b"PUB audit\n", sized(b"x")), (b"SUB audit.dead-letter c\n", b"")):
            with V2(broker.server.broker.tcp_port) as client:
                authenticate(client)
                client.publish("audits", b"x")
                client.send(first, rest)
                assert client.error().startswith("E_UNAUTHORIZED")
        assert broker.stored("audits") == [[b"x", b"x"]]


def test_what_a_certificate_was_allowed_does_not_count_after_auth(
    options: BrokerOptions, server: AuthServer, tmp_path: Path
) -> None:
    installation = Installation(tmp_path / "access")
    installation.rules('[principals]\n"certificate:robin" = ["publisher"]\n')
    server.allow({**EVERYTHING, "topic": "^other$"})
    with (
        RunningBroker(options, access=installation.control) as broker,
        V2(broker.server.broker.tcp_port) as client,
    ):
        connections = broker.server.broker.clients
        assert isinstance(connections, TcpServer)
        client.ask(b"IDENTIFY\n", sized(b"{}"))
        (connection,) = connections.connections.values()
        connection.session.common_name = "robin"  # as if it had presented a certificate
        connection.session.generation = -1
        client.publish("t", b"x")
        authenticate(client)
        client.publish("other", b"x")
        client.send(b"PUB t\n", sized(b"x"))
        assert client.error().startswith("E_UNAUTHORIZED")


def test_without_servers_and_token_auth_is_disabled(options: BrokerOptions) -> None:
    with (
        RunningBroker(dataclasses.replace(options, auth=AuthOptions())) as broker,
        V2(broker.server.broker.tcp_port) as client,
    ):
        client.send(b"AUTH\n", sized(b"s"))
        assert client.error() == "E_AUTH_DISABLED AUTH disabled"


# -- permissions alone


def permissions(**entry: object) -> Permissions:
    document = {"ttl": 1, "authorizations": [{**EVERYTHING, **entry}]}
    return Permissions.parse(json.dumps(document).encode(), 0)


def test_a_pattern_may_match_anywhere_as_in_nsq() -> None:
    found = permissions(topic="log", channels=["^archive$"])
    assert found.allows("weblogs", "archive")
    assert not found.allows("weblogs", "archive2")
    assert not found.allows("web", "archive")
    assert not found.allows("logs", "")  # an empty channel must match, too
    assert found.expires_ms == 1000


def test_a_pattern_that_would_take_for_ever_elsewhere() -> None:
    assert not permissions(topic="^(a+)+$").allows("a" * 63 + "!", "c")
    assert not permissions(topic="^(.*a){20}$").allows("a" * 19 + "b" * 45, "c")


@pytest.mark.parametrize(
    "entry",
    [
        {"topic": "("},
        {"topic": "(?=x)"},
        {"topic": "x{1001}"},
        {"topic": "x" * 1025},
        {"topic": r"\pL"},
        {"topic": r"^[\P{L}]$"},
        {"channels": ["x+" * 100] * 41},
        {"topic": 7},
        {"channels": ["["]},
        {"channels": "c"},
        {"channels": [None]},
        {"channels": ["c"] * 1001},
        {"permissions": ["admin"]},
        {"permissions": [["publish"]]},
        {"permissions": "publish"},
    ],
)
def test_entries_that_are_refused(entry: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="authorizations"):
        permissions(**entry)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'"x"',
        b"{}",
        b'{"ttl": true}',
        b'{"ttl": 1.5}',
        b'{"ttl": -1}',
        b'{"ttl": 99999999999}',
        b'{"ttl": 1, "identity": 7}',
        b'{"ttl": 1, "authorizations": {}}',
        b'{"ttl": 1, "authorizations": [7]}',
        b'{"ttl": 1, "authorizations": [' + b",".join([b"{}"] * 1001) + b"]}",
    ],
)
def test_answers_that_are_refused(answer: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Permissions.parse(answer, 0)


def test_an_answer_of_very_many_patterns_is_refused() -> None:
    grants = [{"topic": "t", "channels": ["c"] * 999, "permissions": []}] * 11
    with pytest.raises(InvalidRequest, match="more than 10000 patterns"):
        Permissions.parse(json.dumps({"ttl": 1, "authorizations": grants}).encode(), 0)


@given(
    st.builds(
        "".join,
        st.tuples(
            st.sampled_from(["", "^"]),
            st.sampled_from(["", ".*"]),
            st.text("ab._-#", max_size=4).map(lambda text: text.replace(".", "\\.")),
            st.sampled_from(["", ".*"]),
            st.sampled_from(["", "$"]),
        ),
    ),
    st.text("ab._-#", max_size=6),
)
def test_plain_patterns_mean_what_they_mean_to_a_regular_expression(
    pattern: str, name: str
) -> None:
    found = NamePattern.parse(pattern)
    assert found.literal is not None
    assert found.matches(name) == bool(re.search(pattern, name))
    searched = NamePattern.parse(f"(?:{pattern})")
    assert searched.literal is None
    assert searched.matches(name) == found.matches(name)


def test_what_is_searched_for_is_searched_for_once() -> None:
    plain, searched = permissions(topic="^t$"), permissions(topic="^t[0-9]$")
    assert not plain.takes_long("t", "")
    assert searched.takes_long("t1", "c")
    assert searched.allows("t1", "c")
    assert not searched.takes_long("t1", "c")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ttl", "authorizations", "topic", "channels", "permissions", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_answer_is_read_or_refused(answer: object) -> None:
    try:
        found = Permissions.parse(json.dumps(answer).encode(), 0)
    except InvalidRequest:
        return
    assert found.allows("t", "c") in {True, False}


def test_many_names_are_asked_about_and_few_remembered() -> None:
    found = permissions(topic="^t[0-9]*5$", permissions=["publish"])
    answers = [found.allows(f"t{number}", "") for number in range(3000)]
    assert answers == [str(number).endswith("5") for number in range(3000)]
    assert len(found._verdicts) <= 1024


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "ftp://x/", "h:80/path", "h:x"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT or a URL"):
        auth_url(address)
