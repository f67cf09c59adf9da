"""Quotas of publishers and of connections, over HTTP and NSQ's protocol."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.protocol.commands import Publish
from penstock.broker.security.rights import WRITE_TOPIC, ConnectionRights
from penstock.broker.tcp.client_session import ClientSession
from penstock.broker.tcp.command_handler import PublishCommands
from penstock.core.access.access_control import AccessControl
from penstock.core.access.principal import parse_principal
from penstock.testing.clock import VirtualClock
from tests.broker.broker_access_kit import AheadClock, Installation, bearer
from tests.broker.broker_kit import RunningBroker
from tests.broker.stepped_loop_kit import run_stepped
from tests.broker.v2_kit import V2, batch, sized

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.broker.broker import Broker
    from penstock.broker.tcp.authorizer import Authorizer
    from penstock.broker.tcp.tcp_connection import TcpConnection
    from tests.broker.broker_kit import Answer

# At once: 10,000 messages, 10,000 KiB.
RULES = """
[roles.slow]
allow = ["write topic:*"]

[roles.slow.quotas]
messages_per_second = 1000
bytes_per_second = "1000 KiB"

[roles.few]
allow = ["write topic:*", "read channel:*"]

[roles.few.quotas]
connections = 2
"""


class HeldClock(AheadClock):
    """Its monotonic time is what a test says: so refusals and delays do not depend on real time."""

    def monotonic_s(self) -> float:
        return self.ahead_ms / 1000


class World:
    def __init__(self, installation: Installation, running: RunningBroker) -> None:
        self.installation = installation
        self.running = running
        self.port = running.server.broker.tcp_port
        self._names = 0

    def token(self, *roles: str) -> str:
        """A token of a principal of its own, which has used nothing."""
        self._names += 1
        return self.installation.token(f"t{self._names}", *roles)

    def publish(self, token: str, count: int, topic: str = "t", size: int = 1) -> Answer:
        body = b"\n".join([b"x" * size] * count)
        return self.running.ask("POST", f"/mpub?topic={topic}", body, bearer(token))

    def stored(self, topic: str) -> int:
        return sum(map(len, self.running.stored(topic)))

    def later(self, seconds: float) -> None:
        self.installation.clock.ahead_ms += round(seconds * 1000)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    installation = Installation(tmp_path_factory.mktemp("access"), HeldClock())
    installation.rules(RULES)
    folder: Path = tmp_path_factory.mktemp("broker") / "topics"
    options = BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)
    with RunningBroker(options, access=installation.control) as running:
        yield World(installation, running)


@pytest.fixture(autouse=True)
def _same_rules(world: World) -> Iterator[None]:
    yield
    world.installation.rules(RULES)


def signed_in(world: World, token: str) -> V2:
    client = V2(world.port)
    assert json.loads(client.ask(b"AUTH\n", sized(token.encode())))["identity"]
    return client


def multi_publish(client: V2, topic: str, message: bytes, count: int) -> None:
    assert client.ask(b"MPUB %s\n" % topic.encode(), batch(*[message] * count)) == b"OK"


def delays(world: World) -> float:
    return world.installation.control.quotas.refusals._delays.value


# HTTP


def test_a_publish_over_the_rate_gets_429_with_the_time_of_the_next(world: World) -> None:
    token = world.token("slow")
    assert world.publish(token, 9_000, "rate").status == 200
    refused = world.publish(token, 2_500, "rate")
    assert refused.status == 429
    assert json.loads(refused.body) == {"message": "QUOTA_EXCEEDED"}
    assert refused.headers["retry-after"] == "2"
    assert refused.headers["x-penstock-detail"].endswith(
        "publishes more than its quota messages_per_second allows: publish again after 2 s, or ask"
        " an administrator for a larger quota"
    )
    assert world.stored("rate") == 9_000
    assert world.publish(token, 1_000, "rate").status == 200  # smaller ones may pass
    one = world.running.ask("POST", "/pub?topic=rate", b"x", bearer(token))
    assert (one.status, one.headers["retry-after"]) == (429, "1")
    world.later(2)
    assert world.publish(token, 2_000, "rate").status == 200
    # Another principal has its own.
    assert world.publish(world.token("slow"), 10_000, "rate").status == 200


def test_bytes_count_without_the_separators(world: World) -> None:
    token = world.token("slow")
    for _ in range(2):
        assert world.publish(token, 5, "bytes", 999 << 10).status == 200
    binary = batch(b"y" * (4 << 10), b"z" * (6 << 10))[4:]
    found = world.running.ask("POST", "/mpub?topic=bytes&binary=true", binary, bearer(token))
    assert found.status == 200
    refused = world.running.ask("POST", "/pub?topic=bytes", b"y", bearer(token))
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert "its quota bytes_per_second allows" in refused.headers["x-penstock-detail"]


def test_a_batch_that_is_never_allowed_is_too_large(world: World) -> None:
    token = world.token("slow")
    refused = world.publish(token, 10_001, "large")
    assert (refused.status, json.loads(refused.body)) == (413, {"message": "QUOTA_EXCEEDED"})
    assert "send smaller batches" in refused.headers["x-penstock-detail"]
    assert world.running.server.broker.topics.find("large") is None


def test_publishers_without_quota_and_other_requests_are_not_limited(world: World) -> None:
    token = world.token("slow", "operator")
    assert world.publish(token, 10_000, "free").status == 200
    assert world.publish(token, 1, "free").status == 429
    assert world.running.ask("GET", "/offsets?topic=free", None, bearer(token)).status == 200
    publisher = world.token("publisher")
    for _ in range(3):
        assert world.publish(publisher, 9_000, "free").status == 200


def test_quotas_change_while_a_client_is_connected(world: World) -> None:
    token = world.token("slow")
    with signed_in(world, token) as client:
        before = delays(world)
        multi_publish(client, "change", b"x", 10_000)
        world.installation.rules(RULES.replace("1000\n", "'many'\n"))
        assert world.publish(token, 1, "change").status == 429
        world.installation.rules(RULES.replace("messages_per_second = 1000\n", ""))
        assert world.publish(token, 9_000, "change").status == 200
        multi_publish(client, "change", b"x", 9_000)
        assert delays(world) == before
    assert world.stored("change") == 28_000


# NSQ's protocol


def test_a_publish_over_the_rate_is_answered_later_and_stored_once(world: World) -> None:
    before = delays(world)
    with signed_in(world, world.token("slow")) as client:
        multi_publish(client, "late", b"x", 10_000)
        assert delays(world) == before
        # Each waits for 20 ms more; what is behind them waits, too, in its order.
        for number in range(3):
            client.send(b"MPUB late\n", batch(*[b"%d" % number] * 20))
        client.send(b"PUB late\n", sized(b"3"), b"DPUB late 1\n", sized(b"4"), b"NOP\n")
        for _ in range(5):
            assert client.answer() == b"OK"
    assert delays(world) - before == 5
    (messages,) = world.running.stored("late")
    assert messages[10_000:] == [b"0"] * 20 + [b"1"] * 20 + [b"2"] * 20 + [b"3", b"4"]


def test_consecutive_publishes_wait_each_for_itself(world: World) -> None:
    before = delays(world)
    with signed_in(world, world.token("slow")) as client:
        multi_publish(client, "pipe", b"x", 9_950)
        client.send(*[b"PUB pipe\n" + sized(b"y")] * 100)
        for _ in range(100):
            assert client.answer() == b"OK"
    assert delays(world) - before == 50
    assert world.stored("pipe") == 10_050


def test_a_delay_of_more_than_half_a_minute_is_refused_and_stores_nothing(world: World) -> None:
    token = world.token("slow")
    with signed_in(world, token) as client:
        multi_publish(client, "never", b"x", 9_000)
        client.send(b"MPUB never\n", batch(*[b"y"] * 31_001))
        frame = client.frame()
        assert frame is not None
        assert frame.kind == 1
        assert frame.data.startswith(b"E_MPUB_FAILED MPUB failed token:t")
        assert b"publish again after 31 s" in frame.data
        assert client.closed()
    with signed_in(world, token) as client:
        multi_publish(client, "never", b"z", 1_000)  # the refused one was not counted
        client.send(b"MPUB never\n", batch(*[b"y"] * 40_001))
        frame = client.frame()
        assert frame is not None
        assert b"send smaller batches" in frame.data
    assert world.stored("never") == 10_000


def test_a_client_that_leaves_while_it_waits_has_published_nothing(world: World) -> None:
    before = delays(world)
    token = world.token("slow")
    name = f"token:t{world._names}"
    with signed_in(world, token) as client:
        multi_publish(client, "gone", b"x", 10_000)
        client.send(b"MPUB gone\n", batch(*[b"y"] * 29_000))  # which waits for 29 s
        while delays(world) == before:  # until the broker has read it
            time.sleep(0.01)
    while world.installation.control.quotas.connections.count(name):
        world.publish(world.token("publisher"), 1, "other")
    assert world.stored("gone") == 10_000


class Kept:
    """The parts of a broker and of a connection that a publish uses; it notes when each happens."""

    def __init__(self, control: AccessControl, clock: VirtualClock) -> None:
        self.clock = clock
        self.stored: list[tuple[float, bytes]] = []
        self.answers: list[float] = []
        self.session = ClientSession(0)
        self.rights = ConnectionRights(control, clock)
        self.publisher = self.topics = self.output = self

    def find(self, _name: str) -> Kept:
        return self

    def when_room(self, _topic: object, _size_bytes: int) -> None: ...

    def append_batch(self, _topic: object, messages: list[bytes], *_: object, **__: object) -> None:
        self.stored += [(self.clock.monotonic_s(), one) for one in messages]

    def must_wait(self, _topic: object, *, requested: bool) -> bool:
        return requested

    def send(self, answer: bytes) -> None:
        self.answers += [self.clock.monotonic_s()] * answer.count(b"OK")

    def check(self, *_: object) -> None: ...


def test_pipelined_publishes_of_a_slow_principal_are_never_too_many(tmp_path: Path) -> None:
    clock = VirtualClock()
    (tmp_path / "access").mkdir(mode=0o700)
    rules = "[roles.one]\nallow = ['write *']\nquotas.messages_per_second = 1\n"
    (tmp_path / "access" / "access.toml").write_text(rules)
    kept = Kept(AccessControl(tmp_path / "access", clock), clock)
    alice = replace(parse_principal("user:alice"), roles=("one",))
    kept.rights.require(alice, WRITE_TOPIC, "t")
    handler = PublishCommands(cast("Broker", kept), cast("Authorizer", kept))
    bodies = [b"%d" % number for number in range(100)]

    async def publish() -> None:
        waiting = handler.publish(cast("TcpConnection", kept), Publish("t", bodies))
        assert waiting is not None
        await waiting

    run_stepped(clock, publish())
    assert [body for _, body in kept.stored] == bodies
    assert [at_s for at_s, _ in kept.stored] == kept.answers
    assert kept.answers == pytest.approx([max(0.0, number - 9.0) for number in range(100)], abs=0.1)


# Connections


def test_connections_are_counted_from_auth_to_their_end(world: World) -> None:
    token = world.token("few")
    with signed_in(world, token) as first, signed_in(world, token) as second:
        with V2(world.port) as third:
            third.send(b"AUTH\n", sized(token.encode()))
            frame = third.frame()
            assert frame is not None
            text = frame.data.decode()
            assert text.startswith("E_AUTH_FAILED AUTH failed token:t")
            assert text.endswith(
                " has as many connections to this process as its quota connections allows (2):"
                " close one, or ask an administrator for a larger quota"
            )
            assert third.closed()
        first.publish("few", b"x")
        second.publish("few", b"x")
        with signed_in(world, world.token("few")):  # another principal
            pass
        world.installation.rules(RULES.replace("connections = 2", "connections = 3"))
        with signed_in(world, token) as another:
            another.publish("few", b"x")
    connections = world.installation.control.quotas.connections
    name = f"token:t{world._names - 1}"
    while connections.count(name):
        world.publish(world.token("publisher"), 1, "other")
    with signed_in(world, token) as again:
        again.publish("few", b"x")


def test_a_refused_login_is_no_connection(world: World) -> None:
    token = world.token("few")
    for _ in range(4):
        with V2(world.port) as client:
            client.send(b"AUTH\n", sized(b"penstock_x_" + b"0" * 43))
            frame = client.frame()
            assert frame is not None
            assert frame.data.startswith(b"E_UNAUTHORIZED")
    with signed_in(world, token) as one, signed_in(world, token) as two:
        one.publish("few", b"x")
        two.publish("few", b"x")
