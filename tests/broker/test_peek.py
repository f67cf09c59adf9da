"""Messages looked at without being taken."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from penstock.broker import message_id
from penstock.broker.channel.channel_state import ChannelState
from penstock.broker.channel.message_states import MessageState, offsets_in
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, sized

if TYPE_CHECKING:
    from penstock.broker.options import BrokerOptions

HOUR = 3_600_000


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0)


def peek(broker: RunningBroker, query: str = "") -> dict[str, object]:
    answer = broker.ask("GET", f"/peek?topic=t{query}")
    assert answer.status == 200, answer
    document: dict[str, object] = json.loads(answer.body)
    return document


@pytest.mark.parametrize(("kind", "tried"), [("deferred", False), ("requeued", True)])
def test_very_many_that_wait_are_looked_through_a_few_in_a_turn(kind: str, tried: bool) -> None:
    state = ChannelState([0, 0])
    ids = [message_id.of(offset % 2, offset) for offset in range(60_000)]
    for number in reversed(ids):
        state.retries.put(number, 1_000, int(tried))
    turns = 0

    async def look() -> list[int]:
        nonlocal turns
        looking = asyncio.create_task(offsets_in(state, MessageState(kind), 1, 1_001, 3))
        while not looking.done():
            turns += 1
            if turns == 2:
                state.retries.remove([message_id.of(1, 1_003)])  # finished meanwhile
            await asyncio.sleep(0)
        return looking.result()

    assert asyncio.run(look()) == [1_001, 1_005, 1_007]
    assert turns > 60_000 // 5_000
    other = MessageState.DEFERRED if tried else MessageState.REQUEUED
    assert asyncio.run(offsets_in(state, other, 1, 0, 3)) == []


def shown(document: dict[str, object], *names: str) -> list[tuple[object, ...]]:
    messages = document["messages"]
    assert isinstance(messages, list)
    return [tuple(message.get(name) for name in names) for message in messages]


def test_each_message_says_how_it_stands(broker: RunningBroker, client: V2) -> None:
    client.publish("t", b"finished", b"in flight", b"requeued")
    assert client.ask(b"DPUB t %d\n" % HOUR, sized(b"deferred")) == b"OK"
    client.subscribe("t", "c", ready=4)
    messages = [client.message() for _ in range(3)]
    # The channel knows what is deferred once it had room for it.
    while not peek(broker, "&channel=c&state=deferred")["messages"]:
        pass
    client.finish(messages[0].id)
    client.send(b"REQ %s %d\n" % (messages[2].id, HOUR))
    client.ready(1)
    client.send(b"FIN ffffffffffffffff\n")
    assert client.error()
    assert client.ask(b"DPUB t %d\n" % HOUR, sized(b"\xff\x00")) == b"OK"
    client.publish("t", b"new")
    document = peek(broker, "&channel=c&offset=0")
    assert shown(document, "offset", "state", "attempts", "body") == [
        (0, "finished", 0, "finished"),
        (1, "in_flight", 1, "in flight"),
        (2, "requeued", 1, "requeued"),
        (3, "deferred", 0, "deferred"),
        (4, "deferred", 0, None),
        (5, "new", 0, "new"),
    ]
    assert (document["earliest"], document["latest"], document["next_offset"]) == (0, 6, 6)
    rows = shown(document, "id", "due", "body_base64", "timestamp")
    assert [row[0] for row in rows] == [f"{number:016x}" for number in range(6)]
    now_ms = broker.server.broker.clock.now_ms()
    dues = [row[1] for row in rows]
    assert dues[0] is dues[5] is None
    assert all(isinstance(due, int) and now_ms < due <= now_ms + HOUR for due in dues[1:5])
    assert rows[4][2] == base64.b64encode(b"\xff\x00").decode()
    assert rows[0][3] == messages[0].time_ns
    # By itself it begins where the channel has something to do, and nothing was taken.
    assert shown(peek(broker, "&channel=c&count=1"), "offset") == [(1,)]
    for state, offset in {"in_flight": 1, "requeued": 2, "deferred": 3}.items():
        assert shown(peek(broker, f"&channel=c&state={state}"), "offset") == [(offset,)]
    assert shown(peek(broker, "&channel=c&state=deferred&offset=4"), "offset") == []
    client.finish(messages[1].id)
    assert client.message().body == b"new"


def test_a_look_is_bounded_and_goes_on(broker: RunningBroker, client: V2) -> None:
    client.publish("t", *(b"%d" % number * 100 for number in range(5)))
    first = peek(broker, "&count=2")
    assert (shown(first, "offset"), first["next_offset"]) == ([(0,), (1,)], 2)
    second = peek(broker, "&offset=2&max_bytes=150")
    assert (shown(second, "offset"), second["next_offset"]) == ([(2,)], 3)
    assert shown(peek(broker, "&offset=3&max_bytes=0"), "offset") == [(3,)]
    last = peek(broker, "&offset=5")
    assert (last["messages"], last["next_offset"]) == ([], 5)
    assert shown(peek(broker, "&count=0"), "offset") == []
    assert "state" not in first["messages"][0]  # type: ignore[index]
