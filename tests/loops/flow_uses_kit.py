"""The first use of everything in a flow: each endpoint of its API, and processors with a loop."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, cast

from penstock.core.errors import PenstockError
from penstock.services.api.flow.provenance import PROVENANCE, REPLAY, REPLAYS
from tests.kits.ports_kit import kept_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.services.json_client import JsonClient

TOKEN = "secret"
# Messages of ListenHTTP go through the broker to two consumers: the first finds the broker of its
# service, the second asks a lookup service.
FLOW = """
name: loops
parameters:
  token: {{file: '{token}'}}
processors:
  Listen:
    type: ListenHTTP
    properties:
      host: localhost
      port: {port}
      token: '#{{token}}'
      path: /events
      maximum_size: 3 MB
      header_attributes: x-.*
  Publish:
    type: PublishTopic
    properties: {{topic: heard, key: '${{http.path}}', message: line}}
    auto_terminated: [success, failure]
  Own: {{type: ConsumeTopic, properties: {{topic: heard, channel: own}}}}
  Found:
    type: ConsumeTopic
    properties: {{topic: heard, channel: found, lookup: 'http://localhost:{lookup}'}}
  Keep: {{type: LogAttribute, enabled: false, auto_terminated: success}}
  Make: {{type: GenerateFlowFile, enabled: true, schedule: every 1 hour}}
connections:
  - {{from: Listen.success, to: Publish}}
  - {{from: Own.success, to: Keep}}
  - {{from: Found.success, to: Keep}}
  - {{from: Make.success, to: Keep}}
"""
# Bodies that ListenHTTP takes: in memory, in chunks, and large enough for a file. Each line becomes
# a message.
BODIES = (b"small", [b"in ", b"chunks"], (b"x" * 500_000 + b"\n") * 3)
MESSAGES = 5
OWN, FOUND, MADE = "Own.success -> Keep", "Found.success -> Keep", "Make.success -> Keep"


class _Lookup(BaseHTTPRequestHandler):
    """Answers as nsqlookupd, which knows one broker."""

    tcp_port = 0

    def do_GET(self) -> None:
        known = {"broadcast_address": "localhost", "tcp_port": self.tcp_port}
        body = json.dumps({"channels": [], "producers": [known]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Write nothing."""


@contextmanager
def lookup_service(tcp_port: int) -> Iterator[int]:
    """Serve the address of a broker as nsqlookupd does; give the port."""
    handler = type("Lookup", (_Lookup,), {"tcp_port": tcp_port})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def use_flows(
    flows: JsonClient, broker: JsonClient, tcp_port: int, folder: Path, until: Callable[..., object]
) -> None:
    """Apply a flow, send to it and ask of it whatever can be asked.

    Args:
        flows: The flow service's API; it records provenance.
        broker: The broker's HTTP API.
        tcp_port: Where the broker speaks NSQ's protocol.
        folder: Gets a file with the token of ListenHTTP.
        until: Waits until a function returns something.
    """
    asked: set[tuple[str, str]] = set()

    def ask(method: str, path: str, body: str = "", **query: object) -> dict[str, object]:
        asked.add((method, path))
        answer = flows.request(method, path, body.encode(), query=query)
        return answer if isinstance(answer, dict) else {}

    def queued(connection: str) -> object:
        return ask("GET", "/flow/queue", connection=connection)["queued"]

    # A channel gets what is published after it was made.
    broker.post("/topic/create", query={"topic": "heard"})
    for channel in ("own", "found"):
        broker.post("/channel/create", query={"topic": "heard", "channel": channel})
    token = folder / "token"
    token.write_text(TOKEN)
    with lookup_service(tcp_port) as lookup, kept_port() as port:
        text = FLOW.format(port=port, token=token, lookup=lookup)
        ask("POST", "/flow/validate", text, file="loops.yaml")
        ask("PUT", "/flow", text, dryRun="true")
        revision = ask("PUT", "/flow", text)["revision"]
        ask("POST", "/flow/run-once", target="Make")
        ask("POST", "/flow/start")
        _use_listener(port, until)
        for connection in (OWN, FOUND):
            until(connection, lambda one=connection: queued(one) == MESSAGES)
        ask("GET", "/flow/queue/count", connection=OWN, attribute="topic.name")
        ask("GET", "/flow/queue", connection=OWN, attribute="topic.name", value="heard")
        until("what is made", lambda: queued(MADE))
        ask("GET", "/flow/queue/status", connection=OWN)
        ask("GET", "/flow/component", target="Own")
        ask("GET", "/flow/state", target="Own")
        _use_first_flowfile(ask, until)
        drop = ask("POST", "/flow/queue/drop", connection=OWN)["request"]
        ask("GET", "/flow/queue/drop", request=drop)
        ask("DELETE", "/flow/queue/drop", request=drop)
        # A change of what runs, and a second start of the processors that have loops.
        ask("PUT", "/flow", text.replace("3 MB", "4 MB"), revision=revision)
        _use_listener(port, until)
        ask("POST", "/flow/stop", target="Listen")
        ask("POST", "/flow/terminate", target="Listen")
        ask("POST", "/flow/stop")
        until("the end of Make", lambda: ask("DELETE", "/flow/state", target="Make"))
        ask("GET", "/flow")
        ask("GET", "/flow", format="yaml")
        ask("GET", "/flow/status")
        ask("GET", "/flow/bulletins", component="Listen")
        described = ask("GET", "/flow/openapi.json")["paths"]
    assert isinstance(described, dict)
    every = {(method.upper(), path) for path in described for method in described[path]}
    assert every <= asked
    _use_wrongly(flows, every)


def _use_first_flowfile(
    ask: Callable[..., dict[str, object]], until: Callable[..., object]
) -> None:
    """Read the content and the lineage of a FlowFile, and replay it."""
    [first] = cast(
        "list[dict[str, object]]", ask("GET", "/flow/queue", connection=OWN, limit=1)["flowFiles"]
    )
    number = first["id"]
    ask("GET", "/flow/queue/content", connection=OWN, flowFile=number)
    until("its events", lambda: ask("GET", PROVENANCE, flowfile=number)["events"])
    ask("GET", PROVENANCE, topic="heard", partition=0, offset=0)
    assert ask("POST", REPLAY, flowfile=number, key="again")["parent"] == number
    ask("GET", REPLAYS, component="Own")
    ask("POST", REPLAYS, component="Own")


def _use_listener(port: int, until: Callable[..., object]) -> None:
    """Send bodies that are taken, and requests of each kind that is refused."""

    def send(method: str, path: str, body: bytes | list[bytes], token: str = TOKEN) -> int:
        connection = http.client.HTTPConnection("localhost", port, timeout=30)
        headers = {"Authorization": f"Bearer {token}", "X-Kind": "k", "Content-Type": "text/plain"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
        finally:
            connection.close()
        return answer.status

    until("ListenHTTP", lambda: send("POST", "/events", b"", token="wrong") == 401)
    for body in BODIES:
        until("room in the flow", lambda body=body: send("POST", "/events", body) == 200)
    assert send("POST", "/elsewhere", b"") == 404
    assert send("GET", "/events", b"") == 405
    assert send("POST", "/events", b"x" * (5 << 20)) == 413


def _use_wrongly(flows: JsonClient, every: set[tuple[str, str]]) -> None:
    """Ask for each endpoint without what it needs, and with what it does not know."""
    for method, path in sorted(every):
        for target in (path, f"{path}?nothing=1", f"{path}?target=x", f"{path}?connection=x"):
            if (method, target) == ("POST", "/flow/start"):
                continue
            try:
                flows.request(method, target, b"name: [" if method in {"PUT", "POST"} else b"")
            except PenstockError:
                continue
