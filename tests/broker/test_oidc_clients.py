"""Tokens of an issuer at the broker: its HTTP API and `AUTH` of NSQ's protocol."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.security import peers
from penstock.broker.security.peers import KeyWaits
from penstock.broker.tcp.server import TcpServer
from penstock.core.access.oidc_keys import PAUSE_S, REFRESH_S
from penstock.core.errors import Unavailable
from tests.broker.broker_access_kit import Installation, bearer
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, sized
from tests.kits.oidc_kit import IssuerServer, ec_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAY_S = 86_400


def wait_until(is_so: Callable[[], object]) -> None:
    until = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


class Served:
    """A broker, its issuer, and a clock that can be put forward."""

    def __init__(self, folder: Path) -> None:
        self.installation = Installation(folder / "access")
        self.issuer = IssuerServer(self.installation.clock, ec_key())
        self.installation.rules(
            self.issuer.rules('groups_claim = "groups"')
            + '[oidc.work.groups]\nreaders = ["consumer"]\n'
            + '[principals]\n"oidc:alice" = ["publisher"]\n'
        )
        self.control = self.installation.control
        self.control.start()
        options = BrokerOptions(folder=str(folder / "topics"), http_port=0, tcp_port=0)
        self.broker = RunningBroker(options, access=self.control)

    def text(self, subject: str = "alice", **more: object) -> str:
        end_s = self.installation.clock.now_ms() // 1000 + DAY_S
        return self.issuer.token(subject, **{"exp": end_s, **more}).decode()  # type: ignore[arg-type]

    def publish(self, token: str, topic: str = "clicks") -> int:
        return self.broker.ask("POST", f"/pub?topic={topic}", b"x", bearer(token)).status

    def auth(self, client: V2, token: str) -> str:
        client.send(b"AUTH\n", sized(token.encode()))
        frame = client.frame()
        assert frame
        return frame.data.decode()

    def pass_s(self, seconds: float) -> None:
        self.installation.clock.ahead_ms += int(seconds * 1000)

    def read_keys_again(self) -> None:
        """Have a request with an unknown key cause a read."""
        self.pass_s(PAUSE_S)
        assert self.publish(self.text(header={"kid": "unknown"})) in {401, 503}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("oidc"))
    with made.broker, pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "KEY_WAIT_S", 25.0)  # on a busy machine a read may take seconds
        wait_until(lambda: made.publish(made.text()) == 200)
        yield made
    made.issuer.close()
    made.control.close()


def test_http_takes_a_token_of_the_issuer(served: Served) -> None:
    assert served.publish(served.text()) == 200
    assert served.publish(served.text("bob")) == 403
    assert served.publish(served.text("bob", groups=["publisher"])) == 403
    target = "/peek?topic=clicks"
    headers = bearer(served.text("bob", groups=["readers"]))
    assert served.broker.ask("GET", target, None, headers).status == 200
    assert served.broker.ask("GET", target, None, bearer(served.text())).status == 403


@pytest.mark.parametrize(
    "more",
    [
        {"aud": "other"},
        {"iss": "https://other.example.com"},
        {"exp": 1},
        {"header": {"alg": "none"}},
        {"header": {"alg": "HS256"}},
        {"header": {"kid": "no-such-key"}},
        {"key": ec_key("attacker"), "header": {"kid": "ec"}},
    ],
)
def test_http_and_nsq_refuse_other_tokens(served: Served, more: dict[str, Any]) -> None:
    token = served.text(**more)
    answer = served.broker.ask("POST", "/pub?topic=clicks", b"x", bearer(token))
    assert (answer.status, json.loads(answer.body)["message"]) == (401, "UNAUTHORIZED")
    detail = answer.headers["x-penstock-detail"]
    assert detail.startswith("the ")
    assert not any(part in detail for part in token.split("."))
    with V2(served.broker.server.broker.tcp_port) as client:
        assert served.auth(client, token) == "E_UNAUTHORIZED AUTH no authorizations found"
        assert client.closed()


def test_nsq_takes_a_token_of_the_issuer(served: Served) -> None:
    port = served.broker.server.broker.tcp_port
    with V2(port) as client:
        assert json.loads(served.auth(client, served.text()))["identity"] == "oidc:alice"
        client.publish("clicks", b"x")
        client.send(b"SUB clicks c\n")
        frame = client.frame()
        assert frame
        assert frame.data.startswith(b"E_UNAUTHORIZED")
    with V2(port) as client:
        served.auth(client, served.text("bob", groups=["readers"]))
        client.subscribe("clicks", "c", ready=0)


def test_a_request_with_a_new_key_is_served_after_a_read(served: Served) -> None:
    served.issuer.keys = [ec_key(), ec_key("second"), ec_key("third")]
    served.pass_s(PAUSE_S)
    assert served.publish(served.text(key=ec_key("second"))) == 200
    served.issuer.keys.append(ec_key("fourth"))
    served.pass_s(PAUSE_S)
    with V2(served.broker.server.broker.tcp_port) as client:
        client.send(b"AUTH\n", sized(served.text(key=ec_key("fourth")).encode()))
        client.send(b"PUB clicks\n", sized(b"behind it"))
        assert client.answer().startswith(b"{")
        assert client.answer() == b"OK"


def test_an_expired_token_on_an_open_connection_is_not_valid_any_more(served: Served) -> None:
    now_s = served.installation.clock.now_ms() // 1000
    token = served.text(exp=now_s + 600)
    connection = served.broker.connect()

    def status() -> int:
        connection.request("POST", "/pub?topic=clicks", b"x", bearer(token))
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert status() == 200
    assert status() == 200
    served.pass_s(631)
    assert status() == 401
    connection.close()
    assert served.publish(token) == 401


def test_a_withdrawn_key_ends_the_rights_of_open_connections(served: Served) -> None:
    served.issuer.keys = [ec_key(), ec_key("leaving")]
    served.read_keys_again()
    port = served.broker.server.broker.tcp_port
    server = served.broker.server.broker.clients
    assert isinstance(server, TcpServer)
    with V2(port) as consumer, V2(port) as publisher, V2(port) as other:
        readers = {"groups": ["readers"]}
        served.auth(consumer, served.text("bob", key=ec_key("leaving"), **readers))
        served.auth(other, served.text("bob", **readers))
        served.auth(publisher, served.text(key=ec_key("leaving")))
        publisher.publish("clicks", b"x")
        consumer.subscribe("clicks", "c", ready=0)
        other.subscribe("clicks", "d", ready=0)
        served.issuer.keys = [ec_key()]
        served.read_keys_again()
        served.broker.run(server.end_refused_consumers())
        frame = consumer.frame()
        assert frame
        assert frame.data == b"E_UNAUTHORIZED AUTH is no longer valid"
        publisher.send(b"PUB clicks\n", sized(b"x"))
        frame = publisher.frame()
        assert frame
        assert frame.data.startswith(b"E_")
        other.send(b"NOP\n", b"CLS\n")
        frame = other.frame()
        assert frame
        assert frame.data == b"CLOSE_WAIT"


def test_while_the_issuer_is_down_known_keys_count_and_others_get_503(served: Served) -> None:
    served.issuer.is_down = True
    try:
        served.pass_s(REFRESH_S)
        unknown = served.text(key=ec_key("unknown"))
        answer = served.broker.ask("POST", "/pub?topic=clicks", b"x", bearer(unknown))
        assert answer.status == 503
        assert "its issuer does not answer: try again" in answer.headers["x-penstock-detail"]
        with V2(served.broker.server.broker.tcp_port) as client:
            assert served.auth(client, unknown) == "E_AUTH_FAILED AUTH failed"
        assert served.publish(served.text()) == 200
    finally:
        served.issuer.is_down = False


def test_requests_wait_for_seconds_and_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "KEY_WAIT_S", 0.05)
    monkeypatch.setattr(peers, "_KEY_WAITS_MAX", 3)
    installation = Installation(tmp_path / "access")
    with IssuerServer(installation.clock) as issuer:
        issuer.hangs = True
        installation.rules(issuer.rules())
        installation.control.start()

        async def ask_many() -> list[object]:
            waits = KeyWaits(installation.control)
            asked = [waits.principal(issuer.token(str(n))) for n in range(5)]
            return await asyncio.gather(*asked, return_exceptions=True)

        found = asyncio.run(ask_many())
        assert all(isinstance(one, Unavailable) for one in found)
        assert [str(one).startswith("too many requests wait") for one in found] == [
            *(False, False, False),
            *(True, True),
        ]
    installation.control.close()
