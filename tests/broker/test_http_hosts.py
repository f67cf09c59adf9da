"""Which requests a server answers by their `Host` and `Origin`, as rules and over real sockets."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.http_server.host_policy import HostPolicy, normalized_host, parse_authority
from penstock.broker.lookupd.announcer import LookupOptions
from penstock.broker.options import BrokerOptions
from penstock.core.errors import InvalidRequest
from tests.broker.broker_kit import RunningBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLICY = HostPolicy(
    ["Penstock.example", "10.1.2.3", "fd00::5", "*.cluster.local", "bücher.example"]
)
LOCAL = "192.0.2.7"


def status(
    *headers: tuple[bytes, bytes],
    method: bytes = b"GET",
    target: bytes = b"/",
    version: str = "1.1",
    local: str = LOCAL,
) -> int:
    refusal = POLICY.refusal(method, target, version, headers, local)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host",
    [
        *(b"localhost", b"LocalHost:8888", b"localhost.", b"localhost:", b"127.0.0.1:1"),
        *(b"127.9.9.9", b"[::1]", b"[::1]:4151", b"[0:0:0:0:0:0:0:1]", b"[::ffff:127.0.0.1]:80"),
        *(b"penstock.example", b"PENSTOCK.EXAMPLE.:4151", b"10.1.2.3:80", b"[FD00:0::5]:99"),
        *(b"a.cluster.local", b"a.b.cluster.local:80", b"xn--bcher-kva.example"),
        *(b"192.0.2.7:4151", b"192.0.2.7"),
    ],
)
def test_own_hosts_are_answered(host: bytes) -> None:
    assert status((b"host", host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        *(b"evil.example", b"evil.example:8888", b"localhost.evil.example", b"localhostx"),
        *(b"xlocalhost", b"127.0.0.1.nip.io", b"penstock.example.evil.example", b"0.0.0.0"),
        *(b"10.1.2.4", b"[::]", b"[fd00::6]", b"cluster.local", b"evilcluster.local", b"127.1"),
        *(b"0x7f.1", b"2130706433", b"192.0.2.8"),
    ],
)
def test_other_hosts_are_refused(host: bytes) -> None:
    assert status((b"host", host)) == 403


@pytest.mark.parametrize(
    "host",
    [
        *(b"", b" ", b":80", b"user@localhost", b"localhost@evil.example", b"localhost/x"),
        *(b"localhost:x", b"localhost:-1", b"localhost:99999", b"localhost:123456", b"::1"),
        *(b"[::1", b"::1]", b"[localhost]", b"[::1%eth0]", b"[::1]x", b"localhost localhost"),
        *(b"localhost,evil.example", b"a..b", b".localhost", b"localhost..", b"loc\xe4lhost"),
        *(b"http://localhost", b"localhost#", b"localhost?", b"-", b"a" * 10_000),
    ],
)
def test_malformed_hosts_are_refused(host: bytes) -> None:
    assert status((b"host", host)) == 400


def test_a_request_has_one_host() -> None:
    assert status() == 400
    assert status((b"host", b"localhost"), (b"host", b"localhost")) == 400
    assert status((b"host", b"localhost"), (b"host", b"evil.example")) == 400
    assert status(version="1.0") == 400
    assert status(version="1.0", target=b"/ping") == 200
    assert status(version="1.0", target=b"/status/health", method=b"HEAD") == 200
    assert status(version="1.0", target=b"/status/ready") == 200
    assert status(version="1.0", target=b"/ping", method=b"POST") == 400
    assert status(version="1.1", target=b"/ping") == 400
    assert status((b"host", b"evil.example"), version="1.0", target=b"/ping") == 403


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"http://localhost:8888/pub", 200),
        (b"HTTP://LOCALHOST:8888/pub", 200),
        (b"http://evil.example/pub", 400),
        (b"http://localhost:8888@evil.example/pub", 400),
        (b"http://evil.example@localhost:8888/pub", 400),
        (b"//evil.example/pub", 200),  # a path: that no such route exists is another answer
        (b"*", 200),
    ],
)
def test_an_absolute_target_names_the_same_host(target: bytes, expected: int) -> None:
    assert status((b"host", b"localhost:8888"), target=target) == expected


def test_a_connection_to_every_interface_is_answered_by_its_own_address() -> None:
    assert status((b"host", b"[2001:db8::1]"), local="2001:db8:0::1") == 200
    assert status((b"host", b"198.51.100.1"), local="::ffff:198.51.100.1") == 200
    wildcard = HostPolicy.of_addresses(["0.0.0.0"], [])
    name = socket.gethostname().encode()
    assert wildcard.refusal(b"GET", b"/", "1.1", [(b"host", name)], LOCAL) is None
    assert wildcard.refusal(b"GET", b"/", "1.1", [(b"host", b"0.0.0.0")], LOCAL) is not None


OWN = (b"host", b"localhost:8888")
PROXIED = [(b"host", b"penstock.example")]
SAME_SITE = (b"sec-fetch-site", b"same-site")
SAME_ORIGIN = (b"sec-fetch-site", b"same-origin")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([OWN], 200),
        ([OWN, (b"origin", b"http://localhost:8888")], 200),
        ([OWN, (b"origin", b"HTTP://LOCALHOST:8888")], 200),
        ([OWN, (b"origin", b"http://localhost:3000")], 403),
        ([OWN, (b"origin", b"http://localhost")], 403),
        ([OWN, (b"origin", b"http://127.0.0.1:8888")], 403),
        ([OWN, (b"origin", b"http://evil.example")], 403),
        ([OWN, (b"origin", b"http://evil.example@localhost:8888")], 403),
        ([OWN, (b"origin", b"null")], 403),
        ([OWN, (b"origin", b"")], 403),
        ([OWN, (b"origin", b"file://")], 403),
        ([OWN, (b"origin", b"chrome-extension://localhost:8888")], 403),
        ([OWN, (b"origin", b"http://localhost:8888"), (b"origin", b"http://evil.example")], 403),
        ([OWN, (b"sec-fetch-site", b"cross-site")], 403),
        ([OWN, (b"sec-fetch-site", b"same-site")], 403),
        ([OWN, (b"sec-fetch-site", b"same-origin")], 200),
        ([OWN, (b"sec-fetch-site", b"none")], 200),
        ([(b"host", b"penstock.example"), (b"origin", b"https://penstock.example")], 200),
        ([(b"host", b"penstock.example"), (b"origin", b"http://penstock.example")], 200),
        ([(b"host", b"penstock.example:80"), (b"origin", b"http://penstock.example")], 200),
        # Behind a proxy with TLS: a page of the same host without it, and the own page.
        ([*PROXIED, (b"origin", b"http://penstock.example"), SAME_SITE], 403),
        ([*PROXIED, (b"origin", b"https://penstock.example"), SAME_ORIGIN], 200),
        ([(b"host", b"penstock.example"), (b"origin", b"https://penstock.example:8443")], 403),
        ([(b"host", b"[::1]:8888"), (b"origin", b"http://[::1]:8888")], 200),
    ],
)
def test_pages_of_other_sites_change_nothing(
    headers: list[tuple[bytes, bytes]], expected: int
) -> None:
    for method in (b"POST", b"PUT", b"DELETE", b"PATCH", b"TRACE"):
        assert status(*headers, method=method) == expected
    for method in (b"GET", b"HEAD", b"OPTIONS"):
        assert status(*headers, method=method) == 200


@given(st.binary(max_size=60))
def test_any_bytes_are_a_host_or_none(value: bytes) -> None:
    found = parse_authority(value)
    assert found is None or normalized_host(found.host) == found.host
    assert status((b"host", value)) in {200, 400, 403}


@pytest.mark.parametrize("name", ["", "*", "a:80", "http://a", "a/b", "a b", "[::1", "-a"])
def test_names_that_are_not_hosts_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a host"):
        HostPolicy([name])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder: Path = tmp_path_factory.mktemp("hosts")
    options = BrokerOptions(folder=str(folder), http_port=0, allowed_hosts=("allowed.example",))
    named = replace(options, lookup=LookupOptions(broadcast_address="told.example"))
    with RunningBroker(named) as running:
        running.ask("POST", "/topic/create?topic=t")
        yield running


@pytest.mark.parametrize(
    "target",
    [
        *("/pub?topic=t", "/mpub?topic=t", "/topic/create?topic=new", "/topic/empty?topic=t"),
        *("/topic/delete?topic=t", "/topic/pause?topic=t", "/channel/create?topic=t&channel=new"),
    ],
)
def test_the_broker_refuses_pages_of_other_sites(broker: RunningBroker, target: str) -> None:
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
    ):
        answer = broker.ask("POST", target, b"x", headers)
        assert answer.status == 403, headers
        assert orjson.loads(answer.body)["message"] in {"ORIGIN_NOT_ALLOWED", "HOST_NOT_ALLOWED"}
        assert "x-penstock-detail" in answer.headers
    assert list(broker.server.broker.topics) == [broker.server.broker.topics.get("t")]
    assert not broker.server.broker.topics.get("t").channels
    assert broker.stored("t") == [[]]


def test_the_broker_answers_to_the_names_that_it_tells(broker: RunningBroker) -> None:
    own = f"http://127.0.0.1:{broker.server.http_port}"
    assert broker.ask("POST", "/topic/create?topic=t", headers={"Origin": own}).status == 200
    for host in ("told.example", "allowed.example:99", "localhost"):
        assert broker.ask("GET", "/stats?format=json", headers={"Host": host}).status == 200
    stats = orjson.loads(broker.ask("GET", "/stats?format=json").body)
    assert stats["http"]["refused"].keys() <= {"host", "origin"}
    assert stats["http"]["connections"] >= 1


def test_the_rest_of_a_connection_is_served_after_a_refusal(broker: RunningBroker) -> None:
    port = broker.server.http_port
    refused = b"POST /pub?topic=t HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1\r\n\r\nx"
    served = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(refused * 3 + served)
        with client.makefile("rb") as file:
            answers = file.read()
    assert answers.count(b"HTTP/1.1 403 ") == 3
    assert answers.endswith(b"OK")
