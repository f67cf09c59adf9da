"""The HTTP API, status by status: NSQ's where NSQ has it."""

from __future__ import annotations

import logging
import socket
import struct
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.http.app import BrokerHttpApp
from tests.broker.broker_kit import RunningBroker

if TYPE_CHECKING:
    from penstock.broker.options import BrokerOptions

BATCH = struct.pack(">ii", 1, 2) + b"hi"

# method, target, body, status, answer; the topic `t` exists.
CHANNEL_NOT_FOUND = b'{"message":"CHANNEL_NOT_FOUND"}'
TABLE: list[tuple[str, str, bytes | None, int, bytes]] = [
    ("GET", "/ping", None, 200, b"OK"),
    ("GET", "/nothing", None, 404, b'{"message":"NOT_FOUND"}'),
    ("GET", "/pub?topic=t", None, 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
    ("PUT", "/ping", None, 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
    ("OPTIONS", "/ping", None, 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
    ("GET", "/PING", None, 404, b'{"message":"NOT_FOUND"}'),
    ("GET", "//ping", None, 404, b'{"message":"NOT_FOUND"}'),
    ("GET", "/debug/pprof/goroutine", None, 404, b'{"message":"NOT_FOUND"}'),
    ("PUT", "/debug/setblockrate", b"1", 404, b'{"message":"NOT_FOUND"}'),
    ("POST", "/debug/freememory", b"", 404, b'{"message":"NOT_FOUND"}'),
    ("POST", "/pub?topic=t", b"hi", 200, b"OK"),
    ("POST", "/pub?topic=new", b"hi", 200, b"OK"),
    ("POST", "/pub?topic=t", b"", 400, b'{"message":"MSG_EMPTY"}'),
    ("POST", "/pub", b"", 400, b'{"message":"MSG_EMPTY"}'),
    ("POST", "/pub", b"hi", 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/pub?topic=", b"hi", 400, b'{"message":"INVALID_TOPIC"}'),
    ("POST", "/pub?topic=../x", b"hi", 400, b'{"message":"INVALID_TOPIC"}'),
    ("POST", "/pub?topic=%2e%2e", b"hi", 400, b'{"message":"INVALID_TOPIC"}'),
    ("POST", "/pub?topic=.", b"hi", 400, b'{"message":"INVALID_TOPIC"}'),
    ("POST", "/pub?topic=" + "x" * 65, b"hi", 400, b'{"message":"INVALID_TOPIC"}'),
    ("POST", "/pub?topic=a%23ephemeral", b"hi", 200, b"OK"),
    ("POST", "/pub?topic=%zz", b"hi", 400, b'{"message":"INVALID_REQUEST"}'),
    ("POST", "/pub?topic=%ff", b"hi", 400, b'{"message":"INVALID_REQUEST"}'),
    ("POST", "/pub?topic=t;a=b", b"hi", 400, b'{"message":"INVALID_REQUEST"}'),
    ("POST", "/pub?topic=t&defer=100", b"hi", 200, b"OK"),
    ("POST", "/pub?topic=t&defer=3600000", b"hi", 200, b"OK"),
    ("POST", "/pub?topic=t&defer=3600001", b"hi", 400, b'{"message":"INVALID_DEFER"}'),
    ("POST", "/pub?topic=t&defer=-1", b"hi", 400, b'{"message":"INVALID_DEFER"}'),
    ("POST", "/pub?topic=t&defer=x", b"hi", 400, b'{"message":"INVALID_DEFER"}'),
    ("POST", "/pub?topic=t&partition=1", b"hi", 200, b"OK"),
    ("POST", "/pub?topic=t&partition=2", b"hi", 400, b'{"message":"INVALID_PARTITION"}'),
    ("POST", "/pub?topic=t&partition=-1", b"hi", 400, b'{"message":"INVALID_PARTITION"}'),
    ("POST", "/pub?topic=t&key=k&durable=1", b"hi", 200, b"OK"),
    ("POST", "/pub?topic=t&producer=p", b"hi", 400, b'{"message":"MISSING_ARG_SEQUENCE"}'),
    ("POST", "/pub?topic=t&sequence=1", b"hi", 400, b'{"message":"MISSING_ARG_PRODUCER"}'),
    ("POST", "/pub?topic=t&producer=p&sequence=x", b"hi", 400, b'{"message":"INVALID_SEQUENCE"}'),
    ("POST", "/pub?topic=t&producer=/&sequence=1", b"hi", 400, b'{"message":"INVALID_PRODUCER"}'),
    ("POST", "/pub?topic=t", b"x" * 101, 413, b'{"message":"MSG_TOO_BIG"}'),
    ("POST", "/mpub?topic=t", b"a\n\nb\n", 200, b"OK"),
    ("POST", "/mpub?topic=t", b"", 200, b"OK"),
    ("POST", "/mpub", b"a", 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/mpub?topic=%20", b"a", 400, b'{"message":"INVALID_TOPIC"}'),
    ("POST", "/mpub?topic=t", b"x" * 101, 413, b'{"message":"MSG_TOO_BIG"}'),
    ("POST", "/mpub?topic=t", b"x\n" * 501, 413, b'{"message":"BODY_TOO_BIG"}'),
    ("POST", "/mpub?topic=t&binary=true", BATCH, 200, b"OK"),
    ("POST", "/mpub?topic=t&binary=1", BATCH, 200, b"OK"),
    ("POST", "/mpub?topic=t&binary=yes", BATCH, 200, b"OK"),
    ("POST", "/mpub?topic=t&binary=0", b"a", 200, b"OK"),
    ("POST", "/mpub?topic=t&binary=false", b"a", 200, b"OK"),
    ("POST", "/mpub?topic=t&binary=1", b"", 413, b'{"message":"BAD_BODY"}'),
    ("POST", "/mpub?topic=t&binary=1", BATCH + b"x", 413, b'{"message":"BAD_BODY"}'),
    ("POST", "/mpub?topic=t&binary=1", BATCH[:-1], 413, b'{"message":"BAD_MESSAGE"}'),
    ("GET", "/lookup", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("GET", "/lookup?topic=none", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("GET", "/channels", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("GET", "/channels?topic=t", None, 200, b'{"channels":["c"]}'),
    ("GET", "/channels?topic=none", None, 200, b'{"channels":[]}'),
    ("POST", "/topics", None, 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
    ("POST", "/topic/create?topic=c", None, 200, b""),
    ("POST", "/topic/create?topic=t", None, 200, b""),
    ("POST", "/topic/create?topic=t&partitions=2", None, 200, b""),
    ("POST", "/topic/create?topic=t&partitions=3", None, 409, b'{"message":"CONFLICT"}'),
    ("POST", "/topic/create?topic=c&partitions=0", None, 400, b'{"message":"INVALID_PARTITIONS"}'),
    ("POST", "/topic/create?topic=c&partitions=a", None, 400, b'{"message":"INVALID_PARTITIONS"}'),
    (
        "POST",
        "/topic/create?topic=c&partitions=9999",
        None,
        400,
        b'{"message":"INVALID_PARTITIONS"}',
    ),
    ("POST", "/topic/create", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/topic/create?topic=a/b", None, 400, b'{"message":"INVALID_TOPIC"}'),
    ("POST", "/topic/delete?topic=t", None, 200, b""),
    ("POST", "/topic/delete", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/topic/delete?topic=none", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("POST", "/topic/empty?topic=t", None, 200, b""),
    ("POST", "/topic/empty?topic=none", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("POST", "/topic/empty?topic=a/b", None, 400, b'{"message":"INVALID_TOPIC"}'),
    ("POST", "/topic/empty", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/topic/pause?topic=t", None, 200, b""),
    ("POST", "/topic/unpause?topic=t", None, 200, b""),
    ("POST", "/topic/pause?topic=none", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("POST", "/topic/unpause", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/topic/empty?topic=t&purge=1", None, 200, b""),
    ("GET", "/topic/configure", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/topic/configure?topic=none", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("POST", "/topic/configure?topic=t&durable=2", None, 400, b'{"message":"INVALID_DURABLE"}'),
    ("POST", "/topic/configure?topic=t&color=red", None, 400, b'{"message":"INVALID_OPTION"}'),
    *(
        entry
        for what in ("create", "delete", "empty", "pause", "unpause")
        for entry in (
            ("POST", f"/channel/{what}?topic=t&channel=c", None, 200, b""),
            ("POST", f"/channel/{what}", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
            (
                "POST",
                f"/channel/{what}?topic=a/b&channel=c",
                None,
                400,
                b'{"message":"INVALID_ARG_TOPIC"}',
            ),
            (
                "POST",
                f"/channel/{what}?topic=&channel=c",
                None,
                400,
                b'{"message":"INVALID_ARG_TOPIC"}',
            ),
            (
                "POST",
                f"/channel/{what}?topic=none",
                None,
                400,
                b'{"message":"MISSING_ARG_CHANNEL"}',
            ),
            (
                "POST",
                f"/channel/{what}?topic=none&channel=a:b",
                None,
                400,
                b'{"message":"INVALID_ARG_CHANNEL"}',
            ),
            (
                "POST",
                f"/channel/{what}?topic=none&channel=c",
                None,
                404,
                b'{"message":"TOPIC_NOT_FOUND"}',
            ),
            ("GET", f"/channel/{what}", None, 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
        )
    ),
    ("POST", "/channel/seek", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/channel/seek?topic=t&channel=none&to=end", None, 404, CHANNEL_NOT_FOUND),
    ("POST", "/channel/seek?topic=t&channel=c", None, 400, b'{"message":"MISSING_ARG_TO"}'),
    ("POST", "/channel/seek?topic=t&channel=c&to=me", None, 400, b'{"message":"INVALID_TO"}'),
    (
        "POST",
        "/channel/seek?topic=t&channel=c&to=end&partition=2",
        None,
        400,
        b'{"message":"INVALID_PARTITION"}',
    ),
    (
        "POST",
        "/channel/create?topic=t&channel=new&to=timestamp",
        None,
        400,
        b'{"message":"MISSING_ARG_TIMESTAMP"}',
    ),
    *(
        (
            "POST",
            f"/channel/{what}?topic=t&channel=none",
            None,
            404,
            b'{"message":"CHANNEL_NOT_FOUND"}',
        )
        for what in ("delete", "empty", "pause", "unpause")
    ),
    ("GET", "/config/max_msg_size", None, 200, b"100"),
    ("GET", "/config/sync_timeout", None, 200, b"2000000000"),
    ("GET", "/config/deflate", None, 200, b"true"),
    ("GET", "/config/nsqlookupd_tcp_addresses", None, 200, b"[]"),
    ("GET", "/config/tls_client_auth_policy", None, 200, b"none"),
    ("GET", "/config/queue_scan_worker_pool_max", None, 400, b'{"message":"INVALID_OPTION"}'),
    ("GET", "/config/", None, 404, b'{"message":"NOT_FOUND"}'),
    ("GET", "/config/a/b", None, 404, b'{"message":"NOT_FOUND"}'),
    ("POST", "/config/log_level", None, 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
    ("PUT", "/config/log_level", b"", 413, b'{"message":"INVALID_VALUE"}'),
    ("PUT", "/config/log_level", b"x" * 101, 413, b'{"message":"INVALID_VALUE"}'),
    ("PUT", "/config/log_level", b"loud", 400, b'{"message":"INVALID_VALUE"}'),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b"[]", 200, b"[]"),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b"x:1", 400, b'{"message":"INVALID_VALUE"}'),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b"[1]", 400, b'{"message":"INVALID_VALUE"}'),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b'["x"]', 400, b'{"message":"INVALID_VALUE"}'),
    ("PUT", "/config/max_msg_size", b"1", 400, b'{"message":"INVALID_OPTION"}'),
    ("GET", "/stats?format=xml", None, 400, b'{"message":"INVALID_FORMAT"}'),
    ("GET", "/offsets", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("GET", "/offsets?topic=none", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("GET", "/offsets?topic=t&after=0", None, 400, b'{"message":"INVALID_AFTER"}'),
    ("GET", "/offsets?topic=t&after=2:0", None, 400, b'{"message":"INVALID_AFTER"}'),
    ("GET", f"/offsets?topic=t&after=0:{'9' * 5000}", None, 400, b'{"message":"INVALID_AFTER"}'),
    ("POST", "/pub?topic=new&defer=5s", b"x", 400, b'{"message":"INVALID_DEFER"}'),
    ("POST", "/pub?topic=new&partition=x", b"x", 400, b'{"message":"INVALID_PARTITION"}'),
    ("POST", "/pub?topic=new&partition=1", b"x", 400, b'{"message":"INVALID_PARTITION"}'),
    ("POST", "/mpub?topic=new&partition=1", b"x", 400, b'{"message":"INVALID_PARTITION"}'),
    ("POST", "/pub?topic=new&producer=p", b"x", 400, b'{"message":"MISSING_ARG_SEQUENCE"}'),
    ("GET", "/offsets?topic=t&wait_ms=x", None, 400, b'{"message":"INVALID_WAIT_MS"}'),
    ("GET", "/offsets?topic=t&timestamp=x", None, 400, b'{"message":"INVALID_TIMESTAMP"}'),
    ("GET", "/fetch?topic=t&offset=0", None, 200, b""),
    ("GET", "/fetch?topic=t", None, 400, b'{"message":"MISSING_ARG_OFFSET"}'),
    ("GET", "/fetch?topic=t&offset=1", None, 404, b'{"message":"OFFSET_NOT_FOUND"}'),
    ("GET", "/fetch?topic=t&offset=0&partition=2", None, 400, b'{"message":"INVALID_PARTITION"}'),
    ("GET", "/fetch?topic=none&offset=0", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("GET", "/peek", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("GET", "/peek?topic=none", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("GET", "/peek?topic=t&channel=none", None, 404, CHANNEL_NOT_FOUND),
    ("GET", "/peek?topic=t&partition=2", None, 400, b'{"message":"INVALID_PARTITION"}'),
    ("GET", "/peek?topic=t&offset=1", None, 404, b'{"message":"OFFSET_NOT_FOUND"}'),
    ("GET", "/peek?topic=t&count=-1", None, 400, b'{"message":"INVALID_COUNT"}'),
    ("GET", "/peek?topic=t&channel=c&state=new", None, 400, b'{"message":"INVALID_STATE"}'),
    ("GET", "/peek?topic=t&state=deferred", None, 400, b'{"message":"MISSING_ARG_CHANNEL"}'),
    ("GET", "/peek?topic=t&json_path=id", None, 400, b'{"message":"INVALID_JSON_PATH"}'),
    ("GET", "/peek?topic=t&timestamp=x", None, 400, b'{"message":"INVALID_TIMESTAMP"}'),
    ("GET", "/message?topic=t&offset=0", None, 404, b'{"message":"OFFSET_NOT_FOUND"}'),
    ("GET", "/message?topic=t", None, 400, b'{"message":"MISSING_ARG_OFFSET"}'),
    ("POST", "/topic/redrive", None, 400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ("POST", "/topic/redrive?topic=none", None, 404, b'{"message":"TOPIC_NOT_FOUND"}'),
    ("POST", "/topic/redrive?topic=t&offset=1", None, 404, b'{"message":"NOT_FOUND"}'),
    ("POST", "/topic/redrive?topic=t&to=t", None, 400, b'{"message":"INVALID_TO"}'),
    ("POST", "/topic/redrive?topic=t&end=x", None, 400, b'{"message":"INVALID_END"}'),
    ("POST", "/cursor?topic=t&name=c&offset=0", None, 200, b""),
    ("POST", "/cursor?topic=t&name=c&offset=1", None, 400, b'{"message":"INVALID_OFFSET"}'),
    ("POST", "/cursor?topic=t&name=../c&offset=0", None, 400, b'{"message":"INVALID_NAME"}'),
    ("POST", "/cursor?topic=t&offset=0", None, 400, b'{"message":"MISSING_ARG_NAME"}'),
    ("DELETE", "/cursor?topic=t&name=none", None, 200, b""),
]


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return replace(options, max_message_bytes=100, max_body_bytes=1000)


def test_every_request_of_the_table_is_answered_as_it_says(broker: RunningBroker) -> None:
    wrong = []
    for method, target, body, status, expected in TABLE:
        broker.ask("POST", "/topic/create?topic=t&partitions=2")
        broker.ask("POST", "/topic/empty?topic=t&purge=1")
        broker.ask("POST", "/channel/create?topic=t&channel=c")
        before = [q.latest for q in broker.server.broker.topics.get("t").queues]
        names = {topic.name for topic in broker.server.broker.topics}
        place = target.replace("offset=0", f"offset={before[0]}")
        place = place.replace("offset=1", f"offset={before[0] + 1}")
        answer = broker.ask(method, place, body)
        if (answer.status, answer.body) != (status, expected):
            wrong.append((method, target, answer))
        if target != "/ping" and answer.headers.get("x-nsq-content-type") != "nsq; version=1.0":
            wrong.append((method, target, answer))
        if status != 200:
            assert answer.headers["content-type"] == "application/json; charset=utf-8"
            detail = answer.headers["x-penstock-detail"]
            assert detail
            if "TOO_BIG" in str(expected):
                assert "raise the broker's max_" in detail
            # Bad input changes nothing.
            assert before == [q.latest for q in broker.server.broker.topics.get("t").queues]
            assert names == {topic.name for topic in broker.server.broker.topics}
    assert not wrong


def test_a_wrong_method_is_told_the_right_ones(broker: RunningBroker) -> None:
    assert broker.ask("GET", "/pub?topic=t").headers["allow"] == "POST"
    assert broker.ask("POST", "/config/log_level", b"").headers["allow"] == "GET, PUT"


def test_the_table_covers_every_route(broker: RunningBroker) -> None:
    routes = {
        (method, path)
        for path, methods in BrokerHttpApp(broker.server.broker).routes.items()
        for method in methods
    }
    tried = {(method, target.partition("?")[0]) for method, target, *_ in TABLE}
    tried |= {(method, "/config/<option>") for method, path in tried if path[:8] == "/config/"}
    # Other tests check the answers of these.
    elsewhere = {"/info", "/stats", "/stats/topics", "/topics", "/nodes", "/debug", "/status/ready"}
    assert routes - tried == {("GET", path) for path in elsewhere} - tried


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=120))
def test_any_body_is_one_batch_or_changes_nothing(broker: RunningBroker, body: bytes) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    before = broker.stored("t")[0]
    answer = broker.ask("POST", "/mpub?topic=t&binary=true", body)
    added = broker.stored("t")[0][len(before) :]
    assert (answer.status == 200) == bool(added)
    if answer.status != 200:
        assert answer.body in {b'{"message":"BAD_BODY"}', b'{"message":"BAD_MESSAGE"}'}
    else:
        parts = [struct.pack(">i", len(message)) + message for message in added]
        assert body == struct.pack(">i", len(added)) + b"".join(parts)


def test_info_and_stats_have_nsqs_fields(broker: RunningBroker) -> None:
    broker.ask("POST", "/topic/create?topic=b&partitions=2")
    broker.ask("POST", "/mpub?topic=a", b"one\ntwo\n")
    broker.ask("POST", "/topic/pause?topic=b")
    info = orjson.loads(broker.ask("GET", "/info").body)
    assert info["http_port"] == broker.server.http_port
    assert {"version", "broadcast_address", "hostname", "tcp_port", "start_time"} <= set(info)
    stats = orjson.loads(broker.ask("GET", "/stats?format=json").body)
    assert (stats["health"], stats["producers"]) == ("OK", None)
    assert stats["memory"]["heap_in_use_bytes"] > 0
    assert [topic["topic_name"] for topic in stats["topics"]] == ["a", "b"]
    first, second = stats["topics"]
    assert (first["depth"], first["message_count"], first["message_bytes"]) == (2, 2, 6)
    assert (first["channels"], first["paused"], second["paused"]) == ([], False, True)
    assert first["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    assert [entry["latest"] for entry in first["partitions"]] == [2]
    one = orjson.loads(broker.ask("GET", "/stats?format=json&topic=b&include_mem=false").body)
    assert [topic["topic_name"] for topic in one["topics"]] == ["b"]
    assert "memory" not in one
    assert orjson.loads(broker.ask("GET", "/stats?format=json&topic=x").body)["topics"] is None
    text = broker.ask("GET", "/stats").body.decode()
    assert "Health: OK" in text
    assert "*P [b" in text


def test_a_body_in_chunks_is_counted_while_it_is_read(broker: RunningBroker) -> None:
    def chunks(total: int) -> bytes:
        return (
            b"".join(b"%x\r\n%s\r\n" % (50, b"x" * 50) for _ in range(total // 50)) + b"0\r\n\r\n"
        )

    head = b"POST /%s HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n"
    for target, total, expected in (
        (b"pub?topic=t", 100, b"200"),
        (b"pub?topic=t", 150, b"413"),
        (b"mpub?topic=t", 1050, b"413"),
    ):
        with socket.create_connection(("127.0.0.1", broker.server.http_port)) as client:
            client.sendall(head % target + chunks(total))
            assert client.recv(4096).split()[1] == expected
    assert broker.stored("t") == [[b"x" * 100]]


def test_a_client_that_leaves_in_the_middle_publishes_nothing(broker: RunningBroker) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    with socket.create_connection(("127.0.0.1", broker.server.http_port)) as client:
        client.sendall(
            b"POST /mpub?topic=t HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 6\r\n\r\nabc\n"
        )
    assert broker.ask("POST", "/pub?topic=t", b"after").status == 200
    assert broker.stored("t") == [[b"after"]]
    stats = orjson.loads(broker.ask("GET", "/stats?format=json").body)
    assert stats["publishing"]["held_bytes"] == 0


def test_the_token_is_asked_for_everywhere_but_at_ping(options: BrokerOptions) -> None:
    with RunningBroker(replace(options, token="secret")) as broker:
        assert broker.ask("GET", "/ping").status == 200
        for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}):
            for method, target in (("GET", "/stats"), ("POST", "/pub?topic=t")):
                answer = broker.ask(method, target, b"x" if method == "POST" else None, given)
                assert (answer.status, answer.body) == (401, b'{"message":"UNAUTHORIZED"}')
        right = {"Authorization": "Bearer secret"}
        assert broker.ask("POST", "/pub?topic=t", b"x", right).status == 200
        assert broker.stored("t") == [[b"x"]]


def test_a_key_has_one_stream_partition_and_others_take_turns(broker: RunningBroker) -> None:
    broker.ask("POST", "/topic/create?topic=t&partitions=4")
    for key in "abcdefgh":
        for number in range(3):
            target = "/pub?" + urlencode({"topic": "t", "key": key})
            assert broker.ask("POST", target, f"{key}{number}".encode()).status == 200
    stored = broker.stored("t")
    assert len([part for part in stored if part]) > 1
    for key in "abcdefgh":
        assert [f"{key}{n}".encode() for n in range(3)] in [
            [m for m in part if m[:1] == key.encode()] for part in stored
        ]
    broker.ask("POST", "/topic/create?topic=u&partitions=4")
    for _ in range(8):
        broker.ask("POST", "/pub?topic=u", b"x")
    assert broker.stored("u") == [[b"x", b"x"]] * 4


def test_the_log_level_is_changed_while_the_broker_runs(broker: RunningBroker) -> None:
    log = logging.getLogger("penstock")
    before = log.level
    try:
        for word, number in (("debug", b"1"), ("WARN", b"3"), ("fatal", b"5")):
            answer = broker.ask("PUT", "/config/log_level", word.encode())
            assert (answer.status, answer.body) == (200, number)
            assert broker.ask("GET", "/config/log_level").body == number
        assert log.level == logging.CRITICAL
    finally:
        log.setLevel(before)
