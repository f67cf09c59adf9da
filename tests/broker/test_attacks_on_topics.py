"""Attacks on topics and channels: a publisher who wants to read, a consumer of other channels.

Also a member of the team on the page about access, whose role denies one topic, a thief of a token,
and a replayed publish. Each request is refused, changes nothing, and shows nothing of a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.broker.options import BrokerOptions
from tests.broker.broker_access_kit import Installation, bearer
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, batch, sized

MARK = b"marked7f3a"
TOPICS = ("clicks", "clicks-secret", "orders")
RULES = """
[roles.clicks-team]
allow = ["read,write topic:clicks*", "read,write channel:clicks*", "manage channel:clicks*"]
deny = ["* topic:clicks-secret"]
[roles.one-channel]
allow = ["read,write channel:orders/mine"]
[roles.publisher-orders]
allow = ["write topic:orders"]
[roles.manager]
allow = ["manage topic:orders", "manage channel:orders/mine"]
"""
WHO = ("clicks-team", "one-channel", "publisher-orders", "manager", "viewer", "analyst")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("access"))
    made.rules(RULES)
    assert made.control.problems == ()
    return made


@pytest.fixture(scope="module")
def tokens(installation: Installation) -> dict[str, str]:
    return {role: installation.token(f"of-{role}", role) for role in (*WHO, "admin")}


@pytest.fixture(scope="module")
def broker(
    installation: Installation, tokens: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker") / "topics"
    options = BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)
    with RunningBroker(options, access=installation.control) as running:
        admin = bearer(tokens["admin"])
        for topic in TOPICS:
            running.ask("POST", f"/pub?topic={topic}", MARK + topic.encode(), admin)
            for channel in ("mine", "theirs"):
                target = f"/channel/create?topic={topic}&channel={channel}"
                assert running.ask("POST", target, None, admin).status == 200
            target = f"/cursor?topic={topic}&name=backup&offset=0"
            assert running.ask("POST", target, None, admin).status == 200
        yield running


def state(broker: RunningBroker, tokens: dict[str, str]) -> object:
    """Topics, their messages and channels, as an administrator sees them."""
    found = json.loads(
        broker.ask("GET", "/stats?format=json", headers=bearer(tokens["admin"])).body
    )
    topics = {
        one["topic_name"]: (
            one["depth"],
            one["message_count"],
            one["paused"],
            sorted((c["channel_name"], c["depth"], c["paused"]) for c in one["channels"]),
        )
        for one in found["topics"]
    }
    return topics, [broker.stored(topic) for topic in TOPICS]


def count(broker: RunningBroker, topic: str) -> int:
    return sum(map(len, broker.stored(topic)))


READS = (
    *("/peek?topic={t}", "/peek?topic={t}&channel={c}", "/fetch?topic={t}&offset=0"),
    *("/offsets?topic={t}", "/fetch?topic={t}&offset=0&partition=0", "/topic/configure?topic={t}"),
)
CHANNELS = (
    *(("POST", f"/channel/{verb}?topic={{t}}&channel={{c}}") for verb in ("create", "delete")),
    *(("POST", f"/channel/{verb}?topic={{t}}&channel={{c}}") for verb in ("empty", "pause")),
    *(("POST", f"/channel/{verb}?topic={{t}}&channel={{c}}") for verb in ("unpause",)),
    ("POST", "/channel/seek?topic={t}&channel={c}&to=start"),
    ("POST", "/cursor?topic={t}&name=backup&offset=1"),
    ("DELETE", "/cursor?topic={t}&name=backup"),
)
ENCODED = ("clicks%2dsecret", "clicks-secre%74", "%63licks-secret")
WRITES = (
    *(("POST", f"/topic/{verb}?topic={{t}}") for verb in ("delete", "empty", "pause", "unpause")),
    ("POST", "/topic/configure?topic={t}&dead_letter_topic=clicks"),
    *(("POST", "/pub?topic={t}"), ("POST", "/mpub?topic={t}"), ("POST", "/topic/create?topic={t}")),
)


def attacks() -> Iterator[tuple[str, str, str]]:
    """Who, method and target."""
    # The team: the topic that its role denies, also through its channels.
    for target in READS:
        yield "clicks-team", "GET", target.format(t="clicks-secret", c="mine")
        yield "clicks-team", "GET", target.format(t="orders", c="mine")
    for method, target in (*CHANNELS, *WRITES):
        yield "clicks-team", method, target.format(t="clicks-secret", c="theirs")
        yield "clicks-team", method, target.format(t="orders", c="theirs")
    # A consumer of one channel: neither the topic nor the other channels and cursors.
    for target in READS:
        yield "one-channel", "GET", target.format(t="orders", c="theirs")
    for method, target in (*CHANNELS, *WRITES):
        yield "one-channel", method, target.format(t="orders", c="theirs")
    for verb in ("delete", "empty", "pause", "unpause"):
        yield "one-channel", "POST", f"/channel/{verb}?topic=orders&channel=mine"
    # A publisher, a manager who may not read, and those who see only states.
    for who in ("publisher-orders", "manager", "viewer", "analyst"):
        for target in READS:
            yield who, "GET", target.format(t="orders", c="mine")
        for method, target in CHANNELS:
            if who != "manager" or "seek" in target or "cursor" in target or "create" in target:
                yield who, method, target.format(t="orders", c="theirs")
        for method, target in WRITES:
            is_own = (who == "publisher-orders" and "pub?" in target) or "create" in target
            if who in {"viewer", "analyst"} or (who == "publisher-orders" and not is_own):
                yield who, method, target.format(t="orders")
    for who in ("clicks-team", "one-channel", "publisher-orders", "manager"):
        for method, target in (
            *(("GET", "/info"), ("GET", "/config/log_level"), ("PUT", "/config/log_level")),
            ("PUT", "/config/nsqlookupd_tcp_addresses"),
        ):
            yield who, method, target
    # The manager may configure its topic, but not send the dead letters elsewhere.
    for topic in ("clicks", "clicks-secret", "new"):
        target = f"/topic/configure?topic=orders&dead_letter_topic={topic}"
        yield "manager", "POST", target
    # Spellings.
    for name in (
        "clicks%2dsecret",
        "clicks-secre%74",
        "%63licks-secret",
        "clicks-secret&topic=clicks",
    ):
        for target in READS:
            yield "clicks-team", "GET", target.replace("topic={t}", f"topic={name}").format(c="c")


ATTACKS = list(attacks())


def test_there_are_many_different_attacks() -> None:
    assert len(set(ATTACKS)) == len(ATTACKS) > 140


@pytest.mark.parametrize(("who", "method", "target"), ATTACKS)
def test_an_attack_on_a_topic_is_refused(
    broker: RunningBroker, tokens: dict[str, str], who: str, method: str, target: str
) -> None:
    answer = broker.ask(method, target, b"x" if method != "GET" else None, bearer(tokens[who]))
    assert (answer.status, json.loads(answer.body)) == (403, {"message": "FORBIDDEN"})
    assert MARK not in answer.body
    assert MARK.decode() not in str(answer.headers)


def test_no_attack_changes_a_topic(broker: RunningBroker, tokens: dict[str, str]) -> None:
    before = state(broker, tokens)
    for who, method, target in ATTACKS:
        broker.ask(method, target, b"x" if method != "GET" else None, bearer(tokens[who]))
        broker.ask(method, target, b"x" if method != "GET" else None)
    assert state(broker, tokens) == before


COMMANDS = [
    *(("clicks-team", b"SUB clicks-secret mine\n"), ("clicks-team", b"SUB orders mine\n")),
    *(("clicks-team", b"SUB clicks-secret new\n"), ("clicks-team", b"SUB new new\n")),
    *(("one-channel", b"SUB orders theirs\n"), ("one-channel", b"SUB orders min\n")),
    *(("one-channel", b"SUB orders mine2\n"), ("one-channel", b"SUB clicks mine\n")),
    *(("one-channel", b"SUB orders Mine\n"), ("one-channel", b"SUB orders mine#ephemeral\n")),
    *((who, b"SUB orders mine\n") for who in ("publisher-orders", "manager", "viewer", "analyst")),
    *((who, b"PUB orders\n" + sized(b"x")) for who in ("clicks-team", "one-channel", "manager")),
    ("clicks-team", b"PUB clicks-secret\n" + sized(b"x")),
    ("clicks-team", b"MPUB clicks-secret\n" + batch(b"x")),
    ("clicks-team", b"DPUB clicks-secret 5\n" + sized(b"x")),
    ("publisher-orders", b"PUB clicks\n" + sized(b"x")),
    ("publisher-orders", b"PUB orders2\n" + sized(b"x")),
    ("publisher-orders", b"PUB orders#ephemeral\n" + sized(b"x")),
    ("publisher-orders", b"PUB Orders\n" + sized(b"x")),
    *(("viewer", b"PUB orders\n" + sized(b"x")), ("analyst", b"MPUB orders\n" + batch(b"x"))),
]


@pytest.mark.parametrize(("who", "command"), COMMANDS)
def test_a_command_beyond_the_rights_of_a_client_is_refused(
    broker: RunningBroker, tokens: dict[str, str], who: str, command: bytes
) -> None:
    before = state(broker, tokens)
    with V2(broker.server.broker.tcp_port) as client:
        client.send(b"AUTH\n", sized(tokens[who].encode()), command, b"RDY 1\n")
        assert client.answer().startswith(b"{")
        assert client.error().startswith("E_UNAUTHORIZED AUTH failed for ")
        assert client.closed()
    assert state(broker, tokens) == before


def test_a_client_finishes_no_message_of_another(
    broker: RunningBroker, tokens: dict[str, str]
) -> None:
    port = broker.server.broker.tcp_port
    with V2(port) as owner, V2(port) as thief:
        for client, who in ((owner, "admin"), (thief, "one-channel")):
            client.ask(b"AUTH\n", sized(tokens[who].encode()))
        owner.subscribe("orders", "theirs")
        publish = "/pub?topic=orders"
        assert broker.ask("POST", publish, b"y", bearer(tokens["admin"])).status == 200
        taken = owner.message()
        thief.subscribe("orders", "mine", ready=0)
        for command in (b"FIN ", b"TOUCH "):
            thief.send(command + taken.id + b"\n")
            assert thief.error().startswith(("E_FIN_FAILED", "E_TOUCH_FAILED"))
        thief.send(b"REQ " + taken.id + b" 0\n")
        assert thief.error().startswith("E_REQ_FAILED")
        owner.finish(taken.id)


def test_a_replayed_publish_has_no_second_effect(
    broker: RunningBroker, tokens: dict[str, str]
) -> None:
    headers = bearer(tokens["publisher-orders"])
    before = count(broker, "orders")
    for _ in range(3):
        target = "/pub?topic=orders&partition=0&producer=p1&sequence=7"
        assert broker.ask("POST", target, b"once", headers).status == 200
    assert count(broker, "orders") == before + 1


def test_a_publish_is_not_replayed_with_a_token_that_ended(
    broker: RunningBroker, installation: Installation, tokens: dict[str, str]
) -> None:
    text = installation.token("short", "publisher-orders", lasts_ms=60_000)
    assert broker.ask("POST", "/pub?topic=orders", b"x", bearer(text)).status == 200
    before = state(broker, tokens)
    installation.remove_token("short")
    assert broker.ask("POST", "/pub?topic=orders", b"x", bearer(text)).status == 401
    with V2(broker.server.broker.tcp_port) as client:
        client.send(b"AUTH\n", sized(text.encode()))
        assert client.error().startswith("E_UNAUTHORIZED")
    assert state(broker, tokens) == before
