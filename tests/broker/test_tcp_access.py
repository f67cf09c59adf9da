"""The rights of the commands of NSQ's protocol: each role, hostile clients, removed rights."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.options import BrokerOptions
from penstock.broker.protocol.connection_state import ClientEvent
from penstock.broker.tcp.server import TcpServer
from tests.broker.broker_access_kit import ROLES, Installation
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, batch, sized

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONSUMERS = frozenset({"admin", "operator", "consumer"})
PUBLISHERS = frozenset({"admin", "operator", "publisher"})

# Each command that needs a right: what is sent, the answer, and the roles that may execute it.
COMMANDS: dict[ClientEvent, tuple[bytes, frozenset[str]]] = {
    ClientEvent.PUB: (b"PUB t\n" + sized(b"x"), PUBLISHERS),
    ClientEvent.MPUB: (b"MPUB t\n" + batch(b"x"), PUBLISHERS),
    ClientEvent.DPUB: (b"DPUB t 5\n" + sized(b"x"), PUBLISHERS),
    ClientEvent.SUB: (b"SUB t c\n", CONSUMERS),
}
# Commands for messages of a channel, which SUB has allowed, and those that need no right.
WITHOUT_RIGHT = {
    *(ClientEvent.RDY, ClientEvent.FIN, ClientEvent.REQ, ClientEvent.TOUCH, ClientEvent.CLS),
    *(ClientEvent.IDENTIFY, ClientEvent.AUTH, ClientEvent.NOP),
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("access"))
    made.rules(
        """
[roles.team]
allow = ["write topic:clicks*", "read channel:clicks/team-*"]
deny = ["* topic:clicks-secret"]

[principals]
"user:alice" = ["team"]
"token:team" = ["team"]
"""
    )
    made.user("alice", "correct: horse")
    return made


@pytest.fixture(scope="module")
def tokens(installation: Installation) -> dict[str, str]:
    made = {role: installation.token(f"{role}-token", role) for role in ROLES}
    made["team"] = installation.token("team")
    made["none"] = installation.token("none")
    return made


@pytest.fixture(scope="module")
def guarded(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker") / "topics"
    options = BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)
    with RunningBroker(options, access=installation.control) as running:
        yield running


@pytest.fixture
def port(guarded: RunningBroker) -> int:
    return guarded.server.broker.tcp_port


def authenticate(client: V2, secret: str | bytes) -> dict[str, object]:
    data = secret.encode() if isinstance(secret, str) else secret
    answer: dict[str, object] = json.loads(client.ask(b"AUTH\n", sized(data)))
    return answer


def outcome(client: V2) -> str:
    """The text of an error, or nothing if a command is answered; messages are passed over."""
    frame = client.frame()
    while frame is not None and frame.kind == 2:
        frame = client.frame()
    assert frame is not None, "closed"
    return "" if frame.kind == 0 else frame.data.decode()


def test_each_command_is_swept() -> None:
    commands = {event for event in ClientEvent if event.value.isupper()}
    assert commands == COMMANDS.keys() | WITHOUT_RIGHT


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("role", [*ROLES, "none"])
def test_each_role_may_execute_the_commands_of_the_table(
    port: int, tokens: dict[str, str], role: str, command: ClientEvent
) -> None:
    sent, roles = COMMANDS[command]
    with V2(port) as client:
        authenticate(client, tokens[role])
        client.send(sent)
        found = outcome(client)
        if role in roles:
            assert not found
        else:
            channel = "c" if command is ClientEvent.SUB else ""
            assert found == f'E_UNAUTHORIZED AUTH failed for {command.value} on "t" "{channel}"'
            assert client.closed()


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_executed_before_auth(port: int, command: ClientEvent) -> None:
    with V2(port) as client:
        assert json.loads(client.identify(feature_negotiation=True))["auth_required"] is True
        client.send(COMMANDS[command][0])
        assert outcome(client) == f"E_AUTH_FIRST AUTH required before {command.value}"
        assert client.closed()


def test_who_is_let_in_is_named(port: int, tokens: dict[str, str]) -> None:
    with V2(port) as client:
        assert authenticate(client, tokens["team"]) == {
            "identity": "token:team",
            "identity_url": "",
            "permission_count": 1,
        }
    with V2(port) as client:
        assert authenticate(client, "alice:correct: horse")["identity"] == "user:alice"
        client.publish("clicks", b"x")


NOT_ALLOWED = [
    b"PUB orders\n" + sized(b"x"),
    b"PUB clicks-secret\n" + sized(b"x"),
    b"MPUB xclicks\n" + batch(b"x"),
    b"DPUB orders#ephemeral 5\n" + sized(b"x"),
    b"SUB clicks other\n",
    b"SUB clicks team\n",
    b"SUB orders team-1\n",
    b"SUB clicks-secret team-1\n",
]


@pytest.mark.parametrize("sent", NOT_ALLOWED)
def test_the_topics_and_channels_of_others_are_refused(
    guarded: RunningBroker, port: int, tokens: dict[str, str], sent: bytes
) -> None:
    with V2(port) as client:
        authenticate(client, tokens["team"])
        client.publish("clicks", b"allowed")
        client.publish("clicks#ephemeral", b"allowed")
        client.send(sent)
        assert outcome(client).startswith("E_UNAUTHORIZED AUTH failed for ")
        assert client.closed()
    # A topic that may not be written is not created either.
    assert guarded.server.broker.topics.find("orders") is None
    assert guarded.server.broker.topics.find("clicks-secret") is None


SECRETS_THAT_LET_NOBODY_IN = [
    b"",
    b"x",
    b"penstock_",
    b"penstock_operator_" + b"0" * 43,
    b"alice",
    b"alice:",
    b":",
    b"alice:wrong",
    b"bob:correct: horse",
    b"\xff\xfe:\xff",
    b"alice:correct: horse\0",
    b"alice:" + b"x" * 10_000,
    b"x" * 1_000_000,
    b"%",
    "\uff41lice:correct: horse".encode(),  # a wide letter
]


@pytest.mark.parametrize("secret", SECRETS_THAT_LET_NOBODY_IN)
def test_secrets_that_let_nobody_in(port: int, secret: bytes) -> None:
    with V2(port) as client:
        client.send(b"AUTH\n", sized(secret))
        assert outcome(client).startswith(("E_UNAUTHORIZED", "E_AUTH_FIRST", "E_BAD_BODY"))
        assert client.closed()


def test_a_large_body_is_not_read_before_auth(
    guarded: RunningBroker, port: int, tokens: dict[str, str]
) -> None:
    """Otherwise clients without a credential could hold the memory of all publishers."""
    head = b"PUB clicks\n" + (500_000).to_bytes(4, "big")
    with V2(port) as client:
        client.send(head, b"x")
        assert outcome(client) == "E_AUTH_FIRST AUTH required before a large body"
        assert client.closed()
    for secret in (tokens["team"], "alice:correct: horse"):
        with V2(port) as client:  # AUTH may still be running when the body begins
            client.send(b"AUTH\n", sized(secret.encode()), head, b"x" * 500_000)
            assert client.answer().startswith(b"{")
            assert client.answer() == b"OK"
    assert guarded.server.broker.budget.held_bytes == 0


def test_an_auth_that_is_announced_as_huge_is_refused(port: int) -> None:
    with V2(port) as client:
        client.send(b"AUTH\n", (1 << 31).to_bytes(4, "big"))
        assert outcome(client).startswith("E_BAD_BODY")
        assert client.closed()


def test_auth_twice_is_refused_and_gives_no_second_principal(
    port: int, tokens: dict[str, str]
) -> None:
    for second in (tokens["admin"], tokens["team"], "alice:correct: horse", "x"):
        with V2(port) as client:
            authenticate(client, tokens["team"])
            client.send(b"AUTH\n", sized(second.encode()))
            assert outcome(client) == "E_INVALID AUTH already set"
            assert client.closed()


def test_auth_after_sub_is_refused(port: int, tokens: dict[str, str]) -> None:
    with V2(port) as client:
        authenticate(client, tokens["consumer"])
        client.subscribe("clicks", "c")
        client.send(b"AUTH\n", sized(tokens["admin"].encode()))
        assert outcome(client) == "E_INVALID cannot AUTH in current state"
        assert client.closed()


def test_commands_behind_a_slow_auth_wait_for_it(port: int) -> None:
    """They are in one packet, and a password takes a while."""
    publish = b"PUB clicks\n" + sized(b"x")
    with V2(port) as client:
        client.send(b"AUTH\n", sized(b"alice:correct: horse"), publish)
        assert client.answer().startswith(b"{")
        assert client.answer() == b"OK"
    with V2(port) as client:
        client.send(b"AUTH\n", sized(b"alice:another wrong one"), publish)
        assert outcome(client).startswith("E_UNAUTHORIZED")
        assert client.closed()


def test_a_publisher_reads_nothing(
    guarded: RunningBroker, port: int, tokens: dict[str, str]
) -> None:
    with V2(port) as client:
        authenticate(client, tokens["publisher"])
        client.publish("clicks", b"x")
        client.send(b"SUB clicks c\n")
        assert outcome(client).startswith("E_UNAUTHORIZED")
    headers = {"Authorization": f"Bearer {tokens['publisher']}"}
    for target in ("/peek?topic=clicks", "/fetch?topic=clicks&offset=0", "/offsets?topic=clicks"):
        assert guarded.ask("GET", target, None, headers).status == 403
    stats = guarded.ask("GET", "/stats?format=json", None, headers)
    assert json.loads(stats.body)["topics"] == []


def test_a_consumer_publishes_nothing_even_after_sub(port: int, tokens: dict[str, str]) -> None:
    with V2(port) as client:
        authenticate(client, tokens["consumer"])
        client.subscribe("clicks", "c", ready=0)
        client.send(b"PUB clicks\n", sized(b"x"))
        assert outcome(client).startswith("E_UNAUTHORIZED")
        assert client.closed()


SENT_BY_STRANGERS = st.lists(
    st.sampled_from(
        [
            *(sent.replace(b" t", b" strange") for sent, _ in COMMANDS.values()),
            b"IDENTIFY\n" + sized(b'{"feature_negotiation": true}'),
            b"AUTH\n" + sized(b"penstock_strange_secret"),
            *(b"RDY 1\n", b"FIN 0123456789abcdef\n", b"CLS\n", b"NOP\n"),
        ]
    ),
    max_size=6,
)


@given(SENT_BY_STRANGERS)
def test_no_sequence_of_commands_without_a_credential_changes_anything(
    guarded: RunningBroker, sent: list[bytes]
) -> None:
    with V2(guarded.server.broker.tcp_port) as client:
        client.try_send(*sent, b"PUB strange\n", sized(b"x"))
        while (frame := client.frame()) is not None:
            assert frame.kind != 2
            assert frame.data != b"OK"
    assert guarded.server.broker.topics.find("strange") is None


# -- rights that end


def end_refused(broker: RunningBroker) -> None:
    """Do what the server does once in a second."""
    server = broker.server.broker.clients
    assert isinstance(server, TcpServer)
    broker.run(server.end_refused_consumers())


def test_a_removed_token_ends_its_connections(
    guarded: RunningBroker, port: int, installation: Installation
) -> None:
    token = installation.token("leaver", "admin")
    with V2(port) as publisher, V2(port) as consumer, V2(port) as other:
        for client in (publisher, consumer):
            authenticate(client, token)
        authenticate(other, installation.token("stayer", "admin"))
        publisher.publish("leaving", b"1")
        consumer.subscribe("leaving", "c", ready=1)
        other.subscribe("leaving", "d", ready=0)
        assert consumer.message().body == b"1"
        installation.remove_token("leaver")
        end_refused(guarded)
        assert outcome(consumer) == "E_UNAUTHORIZED AUTH is no longer valid"
        assert consumer.closed()
        publisher.send(b"PUB leaving\n", sized(b"2"))
        assert outcome(publisher) == 'E_UNAUTHORIZED AUTH failed for PUB on "leaving" ""'
        with V2(port) as replayed:
            replayed.send(b"AUTH\n", sized(token.encode()))
            assert outcome(replayed).startswith("E_UNAUTHORIZED")
        assert other.ask(b"PUB leaving\n", sized(b"3")) == b"OK"
    assert guarded.stored("leaving") == [[b"1", b"3"]]


def test_a_user_whose_password_changes_is_let_in_no_longer(
    guarded: RunningBroker, port: int, installation: Installation
) -> None:
    installation.user("carol", "first password", "admin")
    with V2(port) as consumer, V2(port) as publisher:
        authenticate(consumer, "carol:first password")
        authenticate(publisher, "carol:first password")
        consumer.subscribe("t", "c")
        publisher.publish("t", b"x")
        installation.change_password("carol", "second password")
        end_refused(guarded)
        assert outcome(consumer).startswith("E_UNAUTHORIZED")
        publisher.send(b"PUB t\n", sized(b"x"))
        assert outcome(publisher).startswith("E_UNAUTHORIZED")
    with V2(port) as client:
        client.send(b"AUTH\n", sized(b"carol:first password"))
        assert outcome(client).startswith("E_UNAUTHORIZED")
    with V2(port) as client:
        authenticate(client, "carol:second password")


def test_a_changed_role_applies_to_open_connections(options: BrokerOptions, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "access")
    rules = '[roles.r]\nallow = ["{}"]\n[principals]\n"token:team" = ["r"]\n'
    token = installation.token("team")
    options = dataclasses.replace(options, tcp_port=0)
    with RunningBroker(options, access=installation.control) as broker:
        installation.rules(rules.format("read,write *"))
        port = broker.server.broker.tcp_port
        with V2(port) as consumer, V2(port) as kept, V2(port) as publisher:
            for client in (consumer, kept, publisher):
                authenticate(client, token)
            consumer.subscribe("t", "c")
            kept.subscribe("t", "d", ready=0)
            publisher.publish("t", b"x")
            end_refused(broker)
            publisher.publish("t", b"x")
            installation.rules(rules.format("read channel:t/d"))
            end_refused(broker)
            assert outcome(consumer) == "E_UNAUTHORIZED AUTH is no longer valid"
            assert kept.ask(b"CLS\n") == b"CLOSE_WAIT"
            publisher.send(b"PUB t\n", sized(b"x"))
            assert outcome(publisher).startswith("E_UNAUTHORIZED")


def test_an_expired_token_ends_its_connections(options: BrokerOptions, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "access")
    token = installation.token("ci", "admin", lasts_ms=600_000)
    options = dataclasses.replace(options, tcp_port=0)
    with RunningBroker(options, access=installation.control, clock=installation.clock) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as consumer, V2(port) as publisher:
            for client in (consumer, publisher):
                authenticate(client, token)
            consumer.subscribe("t", "c")
            publisher.publish("t", b"1", b"2")
            end_refused(broker)
            installation.clock.ahead_ms = 480_000
            publisher.publish("t", b"3")
            installation.clock.ahead_ms = 600_000
            publisher.send(b"PUB t\n", sized(b"4"))
            assert outcome(publisher).startswith("E_UNAUTHORIZED")
            # The server itself ends the consumer, within seconds.
            started = time.monotonic()
            assert outcome(consumer) == "E_UNAUTHORIZED AUTH is no longer valid"
            assert time.monotonic() - started < 20
        assert broker.stored("t") == [[b"1", b"2", b"3"]]


# -- nothing configured


def test_the_own_user_needs_no_auth(options: BrokerOptions) -> None:
    with (
        RunningBroker(dataclasses.replace(options, tcp_port=0)) as broker,
        V2(broker.server.broker.tcp_port) as client,
    ):
        assert json.loads(client.identify(feature_negotiation=True))["auth_required"] is False
        client.publish("t", b"x")
        client.subscribe("t", "c", ready=1)
        assert client.message().body == b"x"


def test_the_own_user_needs_auth_once_a_credential_exists(
    options: BrokerOptions, tmp_path: Path
) -> None:
    installation = Installation(tmp_path / "access")
    options = dataclasses.replace(options, tcp_port=0)
    with RunningBroker(options, access=installation.control) as broker:
        port = broker.server.broker.tcp_port
        operator = (installation.folder / "operator.token").read_text().strip()
        with V2(port) as consumer, V2(port) as publisher, V2(port) as command_line:
            consumer.subscribe("t", "c")
            publisher.publish("t", b"x")
            assert authenticate(command_line, operator)["identity"] == "token:operator"
            token = installation.token("first", "publisher")
            end_refused(broker)
            assert outcome(consumer) == "E_UNAUTHORIZED AUTH is no longer valid"
            publisher.send(b"PUB t\n", sized(b"x"))
            assert outcome(publisher) == "E_AUTH_FIRST AUTH required before PUB"
            command_line.publish("t", b"y")
        with V2(port) as client:
            assert json.loads(client.identify(feature_negotiation=True))["auth_required"] is True
            authenticate(client, token)
            client.publish("t", b"z")


def test_clients_of_a_unix_socket_are_known_by_their_user(
    options: BrokerOptions, tmp_path: Path
) -> None:
    import socket

    path = str(tmp_path / "s")
    installation = Installation(tmp_path / "access")
    options = dataclasses.replace(options, tcp_socket=path)
    with RunningBroker(options, access=installation.control):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(path)
            client.sendall(b"  V2PUB t\n" + sized(b"x"))
            assert client.recv(100).endswith(b"OK")
        installation.token("first", "admin")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(path)
            client.sendall(b"  V2PUB t\n" + sized(b"x"))
            assert b"E_AUTH_FIRST" in client.recv(100)
