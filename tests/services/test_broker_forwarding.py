"""The router forwards requests to the broker, which decides for the principal of each request."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import httpx
import pytest

from penstock.broker.options import BrokerOptions
from penstock.services.api.asgi import application
from penstock.services.api.router import (
    BROKER,
    BROKER_REQUESTS_OF_ONE_MAX,
    RouterParts,
    RouterRoutes,
)
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import ReadyState
from penstock.testing.clock import VirtualClock
from tests.broker.broker_kit import RunningBroker
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.harness.metadata_kit import open_metadata
from tests.services.places_kit import FixedPlaces

pytestmark = pytest.mark.anyio
OF_NO_SCRIPT = {"application/json", "application/octet-stream"}
RULES = """
[roles.clicks]
allow = ["read,write topic:clicks", "read channel:clicks/*"]
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Rig:
    """A broker, and a router of the same installation."""

    def __init__(self, folder: Path) -> None:
        self.kit = AccessFolderKit(folder / "access", RULES)
        options = BrokerOptions(folder=str(folder / "broker"), http_port=0, tcp_port=0)
        self.broker = RunningBroker(options, access=self.kit.control)
        self.broker.__enter__()
        self.places = FixedPlaces(HostPort("127.0.0.1", self.broker.server.http_port))
        clock = VirtualClock()
        self.store = open_metadata(folder, clock)
        parts = RouterParts(
            self.store,
            LeaseDirectory(self.store.leases),
            HostPort("127.0.0.1", 8888),
            self.places,
            lambda: ReadyState("router", ()),
            clock,
            bearer=self.kit.control.key.process_bearer(),
        )
        self.app = application(RouterRoutes(parts).routes(), access=self.kit.control)

    async def ask(
        self, role: str, method: str, path: str, body: bytes | None = None
    ) -> httpx.Response:
        headers = as_principal(self.kit.control, "user:alice", role)
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
            return await client.request(method, BROKER + path, content=body, headers=headers)

    def close(self) -> None:
        self.store.close()
        self.broker.__exit__()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


async def test_requests_and_answers_pass_unchanged(rig: Rig) -> None:
    for topic in ("clicks", "orders"):
        answer = await rig.ask("admin", "POST", f"/mpub?topic={topic}", b"one\ntwo")
        assert (answer.status_code, answer.content) == (200, b"OK")
    listed = (await rig.ask("admin", "GET", "/stats/topics?order=messages&limit=1")).json()
    assert (listed["found"], len(listed["page"])) == (2, 1)
    peeked = (await rig.ask("admin", "GET", "/peek?topic=clicks&count=1")).json()
    assert [message["body"] for message in peeked["messages"]] == ["one"]
    put = await rig.ask("admin", "PUT", "/config/log_level", b"debug")
    assert put.status_code == 200


async def test_the_broker_decides_for_the_principal(rig: Rig) -> None:
    for topic in ("clicks", "orders"):
        await rig.ask("admin", "POST", f"/pub?topic={topic}", b"one")
    listed = (await rig.ask("clicks", "GET", "/stats/topics")).json()
    assert [row["topic_name"] for row in listed["page"]] == ["clicks"]
    statuses = {
        f"{method} {path}": (await rig.ask("clicks", method, path, b"x")).status_code
        for method, path in (
            ("POST", "/pub?topic=clicks"),
            ("POST", "/pub?topic=orders"),
            ("GET", "/peek?topic=orders"),
            ("POST", "/topic/delete?topic=clicks"),
            ("PUT", "/config/log_level"),
        )
    }
    assert list(statuses.values()) == [200, 403, 403, 403, 403], statuses


async def test_the_audit_of_the_broker_names_the_client(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "penstock.audit"):
        assert (await rig.ask("clicks", "GET", "/peek?topic=orders")).status_code == 403
    refused = [json.loads(one.getMessage()) for one in caplog.records if one.name.endswith("audit")]
    # httpx gives requests to an application this address.
    assert [one["origin"] for one in refused if one["event"] == "decision"] == ["127.0.0.1:123"]


@pytest.mark.parametrize("path", ["%2Fpeek?topic=clicks", "%2F@127.0.0.1/peek?topic=clicks"])
async def test_the_path_to_forward_is_not_escaped(rig: Rig, path: str) -> None:
    assert (await rig.ask("admin", "GET", path)).status_code == 404


async def test_readers_that_wait_do_not_hold_up_other_requests(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def relay(*_: object) -> tuple[int, Message, bytes]:
        assert answered.wait(120)
        return 200, Message(), b""

    monkeypatch.setattr(JsonClient, "relay", relay)
    waiting = [asyncio.ensure_future(rig.ask("admin", "GET", "/fetch")) for _ in range(60)]
    try:
        headers = as_principal(rig.kit.control, "user:alice", "admin")
        transport = httpx.ASGITransport(rig.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
            answer = await asyncio.wait_for(
                client.get("/druid/coordinator/v1/rules", headers=headers), 100
            )
        assert answer.status_code == 200
    finally:
        answered.set()
        statuses = [(await one).status_code for one in waiting]
        assert statuses.count(200) == BROKER_REQUESTS_OF_ONE_MAX
        assert set(statuses) == {200, 429}


async def test_a_message_cannot_run_as_a_script_of_the_console(rig: Rig) -> None:
    await rig.ask("admin", "POST", "/pub?topic=clicks&durable=1", b"alert(1)")
    shown = await rig.ask("admin", "GET", "/message?topic=clicks&offset=0&partition=0")
    refused = await rig.ask("publisher", "GET", "/message?topic=clicks&offset=0&partition=0")
    assert (shown.status_code, shown.content, refused.status_code) == (200, b"alert(1)", 403)
    for answer in (shown, refused):
        assert answer.headers["content-type"].split(";")[0] in OF_NO_SCRIPT
        # Otherwise a browser runs a script whatever its type.
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_errors_keep_their_description(rig: Rig) -> None:
    answer = await rig.ask("admin", "GET", "/peek?topic=absent")
    assert answer.status_code == 404
    assert answer.json() == {"message": "TOPIC_NOT_FOUND"}
    assert "absent" in answer.headers["X-Penstock-Detail"]
    assert (await rig.ask("admin", "GET", "/nothing")).status_code == 404


async def test_a_broker_that_is_away_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.places, "http", lambda: HostPort("127.0.0.1", 1))
    answer = await rig.ask("admin", "GET", "/topics")
    assert answer.status_code == 503
    assert "the broker does not answer" in answer.json()["error"]
