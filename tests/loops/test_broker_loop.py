"""The broker's event loop: the first use of everything, audited in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import trustme

from reference.openapi import groups
from tests.broker.test_lookupd_registration import Nsqlookupd
from tests.broker.test_tcp_auth import AuthServer
from tests.broker.v2_kit import V2, batch, sized
from tests.loops import loop_audit_kit

PROGRAM = """
import dataclasses, json, sys
from penstock.broker.options import BrokerOptions
from penstock.broker.lookupd.announcer import LookupOptions
from penstock.broker.security.auth_servers import AuthOptions
from penstock.broker.security.tls import TlsOptions
from penstock.broker.server import run_broker
from penstock.storage.queue.disk_queue import DiskQueueOptions

said = json.loads(sys.argv[1])
options = BrokerOptions(
    folder=said["folder"], http_port=0, https_port=0, tcp_port=0, tcp_socket=said["socket"],
    min_free_bytes=0, mem_queue_size=10, retention_interval_ms=100,
    tls=TlsOptions(certificate=said["cert"], key=said["key"]),
    lookup=LookupOptions(tcp_addresses=(said["lookupd"],)),
    auth=AuthOptions(addresses=(said["auth"],)),
)
def say(server):
    broker = server.broker
    print(broker.http_port, broker.https_port, broker.tcp_port, flush=True)

run_broker(options, DiskQueueOptions(max_bytes_per_file=8192), on_ready=say)
"""


class Http:
    """Requests to one port, each on a connection of its own."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port, self._tls = port, tls

    def __call__(self, method: str, target: str, body: bytes = b"") -> bytes:
        made = (
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            if self._tls is None
            else http.client.HTTPSConnection("localhost", self._port, timeout=30, context=self._tls)
        )
        made.request(method, target, body)
        answer = made.getresponse()
        data = answer.read()
        made.close()
        assert answer.status < 500, (method, target, answer.status, data)
        return data


def use_http(ask: Http) -> None:
    """Ask for each path, as it should be asked and without its parameters."""
    for group in groups():
        for route in group.routes if group.server == "broker" else ():
            ask(route.method, route.path.partition("{")[0])
    for number in range(30):
        ask("POST", "/mpub?topic=t", b"one\ntwo\n" + b"x" * 500)
        ask("POST", f"/pub?topic=t&durable=true&key={number}", b"three")
    ask("POST", "/pub?topic=t&defer=50", b"later")
    ask("POST", "/pub?topic=t&producer=p&sequence=1", b"once")
    ask("POST", "/mpub?topic=t&binary=true", batch(b"a", b"b")[4:])
    ask("POST", "/pub?topic=e%23ephemeral", b"x")
    for _ in range(5):
        ask("POST", "/mpub?topic=e%23ephemeral", b"1\n2\n3\n4\n5\n6\n7\n8")
    ask("POST", "/topic/create?topic=many&partitions=3")
    for target in ("to=beginning", "to=offset&offset=1", "to=timestamp&timestamp=0"):
        ask("POST", f"/channel/create?topic=t&channel=c&{target}")
        ask("POST", f"/channel/seek?topic=t&channel=c&{target}")
    for target in (
        *("/stats", "/stats?format=json", "/info", "/config/log_level", "/lookup?topic=t"),
        *("/channels?topic=t", "/offsets?topic=t&timestamp=0", "/fetch?topic=t&offset=0"),
        *("/offsets?topic=t&durable=true", "/offsets?topic=t&after=100000&wait_ms=50"),
        *(
            "/peek?topic=t&offset=0",
            "/peek?topic=t&channel=c&state=waiting",
            "/topic/configure?topic=t",
        ),
    ):
        ask("GET", target)
    ask("PUT", "/config/log_level", b"info")
    ask("POST", "/topic/configure?topic=t&max_attempts=1&dead_letter_topic=dead&max_bytes=1000000")
    ask("POST", "/cursor?topic=t&name=me&offset=0")
    ask("DELETE", "/cursor?topic=t&name=me")
    for verb in ("pause", "unpause", "empty"):
        ask("POST", f"/channel/{verb}?topic=t&channel=c")
        ask("POST", f"/topic/{verb}?topic=t")


def use_tcp(client: V2, topic: str) -> None:
    """Use each command once, and some wrongly."""
    assert client.ask(b"AUTH\n", sized(b"secret"))
    name = topic.encode()
    assert client.ask(b"PUB " + name + b"\n", sized(b"a")) == b"OK"
    assert client.ask(b"DPUB " + name + b" 50\n", sized(b"b")) == b"OK"
    for _ in range(3):
        assert client.ask(b"MPUB " + name + b"\n", batch(*[b"x" * 200] * 10)) == b"OK"
    client.subscribe(topic, "c", ready=5)
    first, second, third = client.message(), client.message(), client.message()
    client.send(b"TOUCH %s\n" % first.id)
    client.send(b"REQ %s 0\n" % second.id, b"REQ %s 20\n" % third.id)
    client.finish(first.id)
    for _ in range(5):
        client.finish(client.message().id)
    client.send(b"NOP\n", b"CLS\n")


def test_the_first_use_of_everything_blocks_the_loop_nowhere_but_where_it_may(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    report = tmp_path / "found"
    report.touch()
    with ExitStack() as stack:
        lookupd = Nsqlookupd()
        stack.callback(lookupd.stop)
        lookupd.channels["t"] = ["inherited"]
        auth = stack.enter_context(AuthServer())
        threading.Thread(target=auth.serve_forever, args=(0.01,)).start()
        stack.callback(auth.shutdown)
        said = {
            "folder": str(tmp_path / "topics"),
            "socket": str(tmp_path / "socket"),
            "cert": str(tmp_path / "cert.pem"),
            "key": str(tmp_path / "key.pem"),
            "lookupd": f"localhost:{lookupd.port}",
            "auth": f"http://localhost:{auth.server_port}/auth?installation=one",
        }
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(said)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | loop_audit_kit.variables(report),
        )
        stack.enter_context(process)
        stack.callback(process.send_signal, signal.SIGTERM)
        assert process.stdout is not None
        http_port, https_port, tcp_port = map(int, process.stdout.readline().split())
        ask = Http(http_port)
        lookupd.wait(lambda known: known is not None)
        use_http(ask)
        use_http(Http(https_port, trusting))
        negotiated: tuple[dict[str, object], ...] = (
            {},
            {"snappy": True},
            {"deflate": True},
            {"sample_rate": 90},
        )
        for number, fields in enumerate(negotiated):
            client = stack.enter_context(V2(tcp_port))
            if fields:
                client.identify(feature_negotiation=True, client_id="c", **fields)
            if not {"snappy", "deflate"} & fields.keys():
                use_tcp(client, f"tcp{number}")
        secure = stack.enter_context(V2(tcp_port))
        secure.identify(feature_negotiation=True, tls_v1=True)
        secure.socket = trusting.wrap_socket(secure.socket, server_hostname="localhost")
        assert secure.answer() == b"OK"
        use_tcp(secure, "secure")
        local = socket.socket(socket.AF_UNIX)
        local.connect(said["socket"])
        local.close()
        ask("PUT", "/config/nsqlookupd_tcp_addresses", b"[]")
        for topic in ("t", "many", "e%23ephemeral"):
            ask("POST", f"/topic/delete?topic={topic}")
        stats = json.loads(ask("GET", "/stats?format=json"))
        assert stats["loop_stall_ms"]["max"] >= 0
    assert process.returncode == 0
    assert loop_audit_kit.found_in(report) == []
