"""Search in messages: what matches, and how far one request reads."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.memory.memory_queue import MemoryQueue
from penstock.broker.message_filter import (
    MessageFilter,
    ScanLimits,
    StoredMessage,
    parse_path,
    scan_messages,
)
from penstock.core.errors import InvalidRequest
from penstock.storage.queue.disk_queue import DiskQueueOptions
from penstock.testing.clock import VirtualClock
from tests.broker.broker_kit import RunningBroker

BODY = json.dumps(
    {"user": {"id": 7, "name": "Zoë"}, "items": [{"unit price": 1.5}, None], "ok": True}
).encode()
LETTER = json.dumps(
    {
        "topic": "t",
        "partition": 0,
        "offset": 1,
        "reason": "no time",
        "message_base64": base64.b64encode(BODY).decode(),
    }
).encode()


def matches(body: bytes, contains: str = "", path: str = "", equals: str | None = None) -> bool:
    return MessageFilter.of(contains, path, equals).matches(StoredMessage(0, 0, 0, body))


@pytest.mark.parametrize(
    ("path", "equals", "found"),
    [
        ("$", None, True),
        ("$.user.id", None, True),
        ("$.user.id", "7", True),
        ("$.user.id", "8", False),
        ("$.user.name", "Zoë", True),
        ("$['user']['name']", "Zoë", True),
        ('$["items"][0]["unit price"]', "1.5", True),
        ("$.items[1]", "null", True),
        ("$.items[0]", '{"unit price":1.5}', True),
        ("$.items[2]", None, False),
        ("$.items.user", None, False),
        ("$.ok", "true", True),
        ("$.ok", "True", False),
        ("$.user[0]", None, False),
    ],
)
def test_a_value_at_a_path(path: str, equals: str | None, found: bool) -> None:
    assert matches(BODY, "", path, equals) is found
    # The message in a dead letter is searched, too.
    assert matches(LETTER, "", path, equals) is found or path == "$"


def test_a_text() -> None:
    assert matches(LETTER, '"id": 7')
    assert matches(LETTER, "no time")
    assert matches(LETTER, "", "$.reason", "no time")
    assert not matches(LETTER, '"id": 8')
    assert matches(BODY, "unit", "$.ok")
    assert not matches(BODY, "unknown", "$.ok")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\x00", b"[" * 100_000, b"7", b'"' * 5])
def test_bodies_that_are_not_json_do_not_match(body: bytes) -> None:
    assert not matches(body, "", "$.a")
    assert matches(body)


@pytest.mark.parametrize(
    "path", ["user", "", "$..id", "$.*", "$.a[-1]", "$.a[?@.b]", "$.a[0:2]", "$.", "$" + ".a" * 999]
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="not a JSON path"):
        parse_path(path)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    batch=st.integers(1, 7),
    count=st.integers(1, 5),
    found_bytes=st.integers(1, 60),
    messages=st.integers(1, 9),
    read_bytes=st.integers(1, 90),
)
def test_requests_find_each_message_once(
    sizes: list[int], batch: int, count: int, found_bytes: int, messages: int, read_bytes: int
) -> None:
    queue = MemoryQueue(DiskQueueOptions(), VirtualClock())
    bodies = [b"%d" % (number % 3) * size for number, size in enumerate(sizes)]
    for start in range(0, len(bodies), batch):
        queue.append(bodies[start : start + batch])
    limits = ScanLimits(count, found_bytes, messages, read_bytes)
    wanted = [number for number in range(len(bodies)) if number % 3 == 1]
    position, found = 0, []
    while position < len(bodies):
        result = scan_messages(queue, position, len(bodies), lambda m: b"1" in m.body, limits)
        assert position < result.next_offset <= len(bodies)
        assert result.scanned <= messages
        assert len(result.found) <= count
        assert sum(len(one.body) for one in result.found[1:]) <= found_bytes
        found += [one.offset for one in result.found]
        position = result.next_offset
    assert found == wanted


def test_peek_filters_on_the_server(broker: RunningBroker) -> None:
    bodies = b"\n".join(b'{"n":%d,"even":%s}' % (n, b"01"[n % 2 : n % 2 + 1]) for n in range(50))
    assert broker.ask("POST", "/mpub?topic=t", bodies).status == 200

    def peek(query: str) -> tuple[list[int], int, int]:
        found = json.loads(broker.ask("GET", f"/peek?topic=t&{query}").body)
        offsets = [one["offset"] for one in found["messages"]]
        return offsets, found["next_offset"], found["scanned"]

    assert peek("json_path=$.even&equals=0&count=3&offset=10") == ([10, 12, 14], 15, 5)
    assert peek('contains="n":4') == ([4, 40, 41, 42, 43, 44, 45, 46, 47, 48], 49, 49)
    assert peek("contains=absent") == ([], 50, 50)
    assert peek("timestamp=99999999999999") == ([], 50, 0)
    assert peek("timestamp=0&count=1") == ([0], 1, 1)


def test_large_and_binary_bodies_are_cut(broker: RunningBroker) -> None:
    bodies = ["ä".encode() * 3, b"\xff" * 5, b"ab\xff", b"x" * 1_000_000, LETTER]
    for body in bodies:
        assert broker.ask("POST", "/pub?topic=t", body).status == 200
    found = json.loads(broker.ask("GET", "/peek?topic=t&body_bytes=3").body)["messages"]
    assert [one["size"] for one in found] == [len(body) for body in bodies]
    shown = [one.get("body", one.get("body_base64")) for one in found]
    assert shown == ["ä", "////", "YWL/", "xxx", LETTER[:3].decode()]
    assert found[4]["dead_letter"]["size"] == len(BODY)
    whole = [broker.ask("GET", f"/message?topic=t&offset={offset}") for offset in range(5)]
    assert [one.body for one in whole] == bodies
    assert {one.headers["content-type"] for one in whole} == {"application/octet-stream"}
    original = "/message?topic=t&original=1&offset="
    assert broker.ask("GET", f"{original}4").body == BODY
    assert broker.ask("GET", f"{original}3").status == 404
