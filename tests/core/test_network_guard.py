"""Where inputs and flows may connect to: the rule, and the connections that follow it."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.guarded_connections import (
    RefusedDestination,
    ServiceNetworkGuard,
    is_of_this_host,
)
from penstock.core.guarded_http import GuardedTransport
from penstock.core.network_guard import (
    Address,
    HostEntry,
    NetworkDestination,
    NetworkGuard,
    canonical_host,
    url_destination,
)
from penstock.core.store_urls import check_store_url, store_destinations

OWN = 8888
LAN = "10.1.2.3"
"""An address of an interface of this host."""


def refusal(
    host: str,
    addresses: Sequence[str] = (),
    port: int = 80,
    entries: Sequence[str] = ("*",),
) -> str | None:
    """Return the decision, with an address that stands for itself."""
    found = [ip_address(one) for one in addresses or (host.strip("[]"),)]
    here = {one for one in found if str(one) == LAN}
    return NetworkGuard.of(entries, [OWN]).refusal(
        NetworkDestination("http", host, port), found, here
    )


THIS_HOST = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::127.0.0.1", LAN]
THIS_HOST += ["64:ff9b::7f00:1", "2002:7f00:1::1"]
LINK_LOCAL = ["169.254.169.254", "169.254.1.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254"]
METADATA = ["fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"]
NOWHERE = ["0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "255.255.255.255", "240.0.0.1", "ff02::1"]
ORDINARY = [
    "8.8.8.8",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "2001:db8::1",
    "fd00::1",
]


@pytest.mark.parametrize("address", [*THIS_HOST, *LINK_LOCAL, *METADATA, *NOWHERE])
def test_special_addresses_are_refused_by_default(address: str) -> None:
    assert refusal("example.org", [address])
    assert refusal("example.org", ["8.8.8.8", address]), "each address of a name counts"
    assert refusal(address)


@pytest.mark.parametrize("address", ORDINARY)
def test_public_and_private_addresses_are_allowed_by_default(address: str) -> None:
    assert refusal("example.org", [address]) is None
    assert refusal(address) is None


@pytest.mark.parametrize("address", [*THIS_HOST, *LINK_LOCAL, *METADATA])
def test_a_name_never_opens_a_special_address(address: str) -> None:
    """The owner of a listed name decides where it leads."""
    assert refusal("db.example.org", [address], entries=["*", "*.example.org:80", "db.example.org"])


@pytest.mark.parametrize("address", THIS_HOST)
@pytest.mark.parametrize(
    "entry",
    [
        "*:*",
        "127.0.0.0/8:*",
        "localhost:*",
        "[::1]:*",
        f"{LAN}:*",
        "10.0.0.0/8:*",
        f"localhost:{OWN}",
    ],
)
def test_own_ports_are_never_allowed(address: str, entry: str) -> None:
    assert refusal("example.org", [address], port=OWN, entries=[entry, "*"])


@pytest.mark.parametrize(
    ("entries", "host", "address", "port"),
    [
        (["localhost:5432"], "localhost", "127.0.0.1", 5432),
        (["localhost:5432"], "localhost", "::1", 5432),
        (["localhost:*"], "db", "127.0.1.1", 9),
        (["127.0.0.1:9000"], "minio.test", "127.0.0.1", 9000),
        (["[::1]:9000"], "::1", "::1", 9000),
        ([f"{LAN}:9000"], "host", LAN, 9000),
        (["169.254.169.254"], "169.254.169.254", "169.254.169.254", 80),
        (["fe80::/10"], "printer", "fe80::1%eth0", 80),
        (["fd00:ec2::254"], "x", "fd00:ec2::254", 80),
        (["example.org"], "EXAMPLE.org.", "8.8.8.8", 80),
        (["*.example.org"], "a.b.example.org", "8.8.8.8", 80),
        (["*.example.org:443"], "a.example.org", "8.8.8.8", 443),
        (["bücher.example"], "xn--bcher-kva.example", "8.8.8.8", 80),
        (["10.0.0.0/8"], "db", "10.0.0.1", 5432),
        (["10.0.0.0/8:5432"], "db", "10.0.0.1", 5432),
        (["*:443"], "db", "10.0.0.1", 443),
    ],
)
def test_what_is_listed_is_allowed(entries: list[str], host: str, address: str, port: int) -> None:
    assert refusal(host, [address], port, entries) is None


@pytest.mark.parametrize(
    ("entries", "host", "address", "port"),
    [
        (["example.org"], "example.com", "8.8.8.8", 80),
        (["example.org"], "a.example.org", "8.8.8.8", 80),
        (["*.example.org"], "example.org", "8.8.8.8", 80),
        (["*.example.org"], "evilexample.org", "8.8.8.8", 80),
        (["example.org:443"], "example.org", "8.8.8.8", 80),
        (["example.org"], "8.8.8.8", "8.8.8.8", 80),
        (["10.0.0.0/8"], "db", "192.168.0.1", 80),
        (["10.0.0.0/8"], "host", LAN, 80),
        (["localhost:5432"], "localhost", "127.0.0.1", 5433),
        (["127.0.0.1:5432"], "localhost", "::1", 5432),
        (["*:443"], "example.org", "8.8.8.8", 80),
        ([], "example.org", "8.8.8.8", 80),
        (["0.0.0.1:*"], "x", "0.0.0.1", 80),
        (["224.0.0.0/4"], "x", "224.0.0.1", 80),
    ],
)
def test_what_is_not_listed_is_refused(
    entries: list[str], host: str, address: str, port: int
) -> None:
    reason = refusal(host, [address], port, entries)
    assert reason is not None
    assert "--reachable-hosts" in reason or "not the address of a host" in reason


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "",
            ":",
            "a b",
            "a:",
            "a:0",
            "a:65536",
            "a:x",
            "http://a",
            "a/b",
            "10.0.0.1/8",
            "*a",
            "*.",
        ),
        *(
            "localhost",
            "127.0.0.1",
            "::1",
            "127.0.0.0/8",
            "0.0.0.0/0",
            "::/0",
            "[::1]",
            "[::1",
            "[::1]x",
        ),
        *("0x7f.1:80", "2130706433:1", "a..b", "*.*.a", "user@host", "a\\b", "-a"),
    ],
)
def test_invalid_entries_are_refused(entry: str) -> None:
    with pytest.raises(InvalidRequest):
        HostEntry.parse(entry)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Example.ORG.", "example.org"),
        ("localhost.", "localhost"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("①②⑦.0.0.1", "127.0.0.1"),
        ("127。0。0。1", "127.0.0.1"),
        ("\uff4c\uff4fcalhost", "localhost"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("_sql._tcp.example", "_sql._tcp.example"),
    ],
)
def test_hosts_have_one_form(text: str, host: str) -> None:
    assert canonical_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        *(
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "127.1",
            "127.0.1",
            "127.0.0.0x1",
        ),
        *(
            "0x7F.1.",
            "1",
            "a.0x1",
            "example.1",
            "",
            ".",
            "a..b",
            "a b",
            "a\\b",
            "a@b",
            "a%2eb",
            "a/b",
        ),
        *("a\nb", "\ud800", "[::1", "::1]", "a:80", "x" * 64, "a." * 200, "-a", "127.0.0.256"),
    ],
)
def test_other_notations_of_hosts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        canonical_host(text)


@given(st.ip_addresses(), st.integers(1, 65_535))
def test_the_rule_agrees_with_a_naive_one(address: Address, port: int) -> None:
    """By default: global and private addresses of hosts, and nothing else."""
    guard = NetworkGuard.of(["*"])
    to = NetworkDestination("x", str(address), port)
    allowed = guard.refusal(to, [address], ()) is None
    inner = address
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        inner = address.ipv4_mapped
    special = inner.is_loopback or inner.is_link_local or inner.is_multicast
    special = special or inner.is_unspecified
    if isinstance(inner, IPv4Address):
        special = special or inner.is_reserved or str(inner).startswith("0.")
    if special:
        assert not allowed
    elif isinstance(inner, IPv4Address) and str(inner) not in METADATA:
        assert allowed
    assert guard.refusal(to, [address], {address}) is not None


@pytest.mark.parametrize(
    "url",
    [
        "http://a\\@127.0.0.1/",
        "http://127.0.0.1\\@a/",
        "http://a@b@127.0.0.1/",
        "http://a\t.b/",
        "http://a b/",
        "http:///path",
        "http://a:99999/",
        "http://a:x/",
        "http://[::1/",
    ],
)
def test_ambiguous_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        url_destination(url)


def test_the_host_of_a_url_follows_the_user() -> None:
    assert url_destination("http://good.example@127.0.0.1:81/x@y").host == "127.0.0.1"
    assert url_destination("https://a/b").port == 443
    assert url_destination("sftp://u@h/b", 22) == NetworkDestination("sftp", "h", 22)


@pytest.mark.parametrize(
    ("url", "options", "found"),
    [
        ("s3://bucket/a", {}, []),
        ("s3://bucket/a", {"endpoint_url": "http://127.0.0.1:9000"}, [("127.0.0.1", 9000)]),
        ("s3://b/a", {"client_kwargs": {"endpoint_url": "https://h/"}}, [("h", 443)]),
        ("sftp://u@h/b", {}, [("h", 22)]),
        ("sftp://h/b", {"port": 8888}, [("h", 8888)]),
        ("ftp://h/b", {"host": "127.0.0.1"}, [("h", 21), ("127.0.0.1", 21)]),
        ("hdfs://nn/b", {}, [("nn", 8020)]),
        ("abfs://box/b", {}, []),
        ("abfss://box@h/b", {}, [("h", 443)]),
        ("az://b/a", {"connection_string": "A=b;BlobEndpoint=http://h:1/x;C=d"}, [("h", 1)]),
        ("gs://b/a", {"endpoint_url": "h:4443"}, [("h", 4443)]),
        ("/a/b", {}, []),
    ],
)
def test_stores_name_hosts_in_urls_and_options(
    url: str, options: dict[str, object], found: list[tuple[str, int]]
) -> None:
    assert [(one.host, one.port) for one in store_destinations(url, options)] == found


@pytest.mark.parametrize(
    "options",
    [
        {"proxy": "http://h"},
        {"config_kwargs": {"proxies": {"https": "127.0.0.1:1"}}},
        {"data_proxy": "x"},
        {"endpoint_url": "http://a@b@c"},
    ],
)
def test_options_with_proxies_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        list(store_destinations("s3://b/a", options))


@pytest.mark.parametrize("url", ["http://h/a", "https://h/a"])
def test_stores_are_not_read_by_http(url: str) -> None:
    """Its file system follows redirects to any host."""
    with pytest.raises(InvalidRequest, match="type http"):
        check_store_url(url)


# Connections


def guard_of(
    *answers: str, entries: Sequence[str] = ("*",)
) -> tuple[ServiceNetworkGuard, list[str]]:
    """Return a guard with a name server that gives the answers in turn, and its questions."""
    asked: list[str] = []

    def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        answer = answers[min(len(asked), len(answers)) - 1]
        if not answer:
            raise socket.gaierror(errno.ENOENT, "unknown")
        return answer.split()

    guard = ServiceNetworkGuard(resolve, lambda address: address.is_loopback)
    guard.set(NetworkGuard.of(entries))
    return guard, asked


@contextmanager
def web_server(location: str = "") -> Iterator[int]:
    """Serve an answer, or a redirect; give the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if location else 200)
            self.send_header("Location", location)
            body = self.headers["Host"].encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()


def client(guard: ServiceNetworkGuard) -> httpx.Client:
    transport = GuardedTransport(ssl.create_default_context(), guard)
    return httpx.Client(transport=transport, trust_env=False, follow_redirects=True, timeout=60)


def test_a_name_is_resolved_once_for_a_connection() -> None:
    """A second answer, which a name server may give to whoever checked the first, is not used."""
    with web_server() as port:
        guard, asked = guard_of("127.0.0.1", "10.255.255.1", entries=[f"localhost:{port}"])
        with client(guard) as web:
            answer = web.get(f"http://rebind.example:{port}/")
        assert answer.text == f"rebind.example:{port}", "the name stays that of the request"
        assert asked == ["rebind.example"]


def test_a_redirect_is_checked() -> None:
    with web_server("http://169.254.169.254/latest/meta-data/") as port:
        guard = ServiceNetworkGuard()
        guard.set(NetworkGuard.of(["*", f"localhost:{port}"]))
        with client(guard) as web, pytest.raises(RefusedDestination, match="metadata service"):
            web.get(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    "target",
    [
        "http://localhost:{}/",
        "http://[::ffff:127.0.0.1]:{}/",
        "http://[::1]:{}/",
        "http://127.1:{}/",
    ],
)
def test_a_redirect_to_an_own_port_is_refused(target: str) -> None:
    with web_server() as own, web_server(target.format(own)) as port:
        guard = ServiceNetworkGuard()
        guard.set(NetworkGuard.of(["*", "localhost:*"], [own]))
        with client(guard) as web, pytest.raises(InvalidRequest):
            web.get(f"http://127.0.0.1:{port}/")


def test_the_next_address_is_tried() -> None:
    with web_server() as port:
        guard, _ = guard_of("127.0.0.2 127.0.0.1", entries=[f"localhost:{port}"])
        with client(guard) as web:
            assert web.get(f"http://two.example:{port}/").status_code == 200


def test_errors_of_connections_are_those_of_httpx() -> None:
    with web_server() as port:
        pass
    guard, _ = guard_of("127.0.0.1", entries=[f"localhost:{port}"])
    with client(guard) as web, pytest.raises(httpx.ConnectError):
        web.get(f"http://gone.example:{port}/")
    guard, _ = guard_of("")
    with client(guard) as web, pytest.raises(httpx.ConnectError):
        web.get("http://unknown.example/")


def test_a_name_that_cannot_be_resolved_is_checked_as_a_name() -> None:
    """Libraries resolve some names by themselves, such as those of Hadoop's name services."""
    guard, _ = guard_of("", entries=["nameservice1"])
    guard.check(NetworkDestination("hdfs", "nameservice1", 8020))
    with pytest.raises(RefusedDestination):
        guard.check(NetworkDestination("hdfs", "other", 8020))


def test_addresses_of_interfaces_belong_to_this_host() -> None:
    assert is_of_this_host(ip_address("127.0.0.1"))
    assert not is_of_this_host(ip_address("192.0.2.1"))
    assert not is_of_this_host(ip_address("2001:db8::1"))
