"""Messages for traces, read from a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import orjson
import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.broker.options import BrokerOptions
from penstock.core.errors import InvalidRequest, NotFound
from penstock.services.api.traces.topic_messages import TopicMessages, id_text, parse_message_id
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.option_values import HostPort
from tests.broker.broker_kit import RunningBroker
from tests.services.places_kit import FixedPlaces


def test_messages_are_read_by_offset_and_in_parts(tmp_path: Path) -> None:
    options = BrokerOptions(folder=str(tmp_path / "topics"), http_port=0)
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        for first in range(0, 30, 10):
            client.publish("t", [b"%03d" % at for at in range(first, first + 10)], partition=0)
        place = FixedPlaces(HostPort("127.0.0.1", broker.server.http_port))
        messages = TopicMessages(cast("BrokerFinder", place), None)
        assert messages.topic("t").partitions[0].latest == 30
        one = messages.one("t", 0, 17)
        assert one is not None
        assert (one.base_offset, one.messages.to_pylist()) == (17, [b"017"])
        assert one.append_time_ms > 0
        assert messages.one("t", 0, 30) is None
        with pytest.raises(NotFound):
            messages.topic("none")
        # Blocks are whole, but what is before the start or after the end is left out.
        seen: list[bytes] = []
        at, parts = 3, 0
        while at < 25:
            read = messages.read("t", 0, at, 25, 1)
            assert read.slices[0].base_offset == at
            seen += [body for piece in read.slices for body in piece.messages.to_pylist()]
            at, parts = read.next_offset, parts + 1
        assert seen == [b"%03d" % at for at in range(3, 25)]
        assert parts == 3
        client.publish("letters", [b"\xff", b"[]", letter(3), letter(7)], partition=0)
        assert messages.dead_letter("letters", ("t", 0, 7), one.append_time_ms, 1 << 20) == (0, 3)
        assert messages.dead_letter("letters", ("t", 1, 7), one.append_time_ms, 1 << 20) is None
        assert messages.dead_letter("letters", ("t", 0, 7), 1 << 43, 1 << 20) is None
        assert not messages.is_redriven("letters", 0, 3)
        redrive = "/topic/redrive?topic=letters&partition=0&offset=3&end=4"
        assert broker.ask("POST", redrive).status == 200
        assert messages.is_redriven("letters", 0, 3)
        assert not messages.is_redriven("none", 0, 3)


def letter(offset: int) -> bytes:
    return orjson.dumps(
        {"topic": "t", "partition": 0, "offset": offset, "reason": "x", "message_base64": "AAAA"}
    )


def test_an_id_has_the_place_of_its_message() -> None:
    for place in ((0, 0), (3, 17), ((1 << 15) - 1, (1 << 48) - 1)):
        assert parse_message_id(id_text(*place)) == place
    for text in ("", "0", "g" * 16, "8" + "0" * 15, "é" * 16):
        with pytest.raises(InvalidRequest):
            parse_message_id(text)
