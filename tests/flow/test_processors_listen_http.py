"""ListenHTTP, over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
import trustme

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.flow.processor import PropertyValue
from penstock.flow.processor.processor import InvalidConfiguration
from penstock.flow.processors.http.listen_http import ListenHTTP
from penstock.flow.processors.topics.service_addresses import SERVICE
from penstock.testing.flow import ProcessorRunner

Answer = tuple[int, bytes]
AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("localhost", "127.0.0.1")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def runner_of(**properties: PropertyValue) -> ProcessorRunner[ListenHTTP]:
    return ProcessorRunner(ListenHTTP, {"port": 0, "path": "/events", **properties})


def send(
    runner: ProcessorRunner[ListenHTTP],
    body: bytes | Iterator[bytes] = b"",
    *,
    method: str = "POST",
    path: str = "/events",
    **headers: str,
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", runner.processor.bound_port, timeout=120)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_body_is_a_flowfile_and_is_answered_when_it_is_durable(
    threads: ThreadPoolExecutor,
) -> None:
    with runner_of(header_attributes="x-.*|authorization") as runner:
        sending = threads.submit(
            send, runner, b"hello", path="/events?a=1", **{"X-Kind": "k", "Content-Type": "text/x"}
        )
        runner.run_when_woken()
        assert sending.result()[0] == 200
        assert runner.durable_commits == 1
        [sent] = runner.sent("success")
        assert sent.content == b"hello"
        named = ("http.method", "http.path", "http.query", "http.remote.host", "mime.type")
        values = [sent.attributes[name] for name in named]
        assert values == ["POST", "/events", "a=1", "127.0.0.1", "text/x"]
        assert sent.attributes["http.header.x-kind"] == "k"


def test_large_and_empty_and_chunked_bodies(threads: ThreadPoolExecutor) -> None:
    with runner_of(methods="PUT") as runner:
        large = b"x" * (3 << 20)
        for body in (large, b"", iter([b"a" * 70_000] * 30)):
            sending = threads.submit(send, runner, body, method="PUT")
            runner.run_when_woken()
            assert sending.result()[0] == 200
        assert [len(sent.content) for sent in runner.sent("success")] == [3 << 20, 0, 2_100_000]


def test_requests_that_wait_are_one_commit(threads: ThreadPoolExecutor) -> None:
    with runner_of() as runner:
        sendings = [threads.submit(send, runner, b"%d" % number) for number in range(8)]
        while runner.counts().get("success", 0) < 8:
            runner.run_when_woken()
        assert {sending.result()[0] for sending in sendings} == {200}
        assert sorted(sent.content for sent in runner.sent("success")) == [
            b"%d" % number for number in range(8)
        ]


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        ({"path": "/other"}, 404),
        ({"method": "GET"}, 405),
        ({"body": b"x" * 11}, 413),
        ({"body": iter([b"x" * 6] * 2)}, 413),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer wröng".encode().decode("latin-1")}, 401),
        ({"Authorization": ""}, 401),
    ],
)
def test_what_is_not_allowed_is_refused(request_of: dict[str, object], status: int) -> None:
    with runner_of(maximum_size="10 B", token="right") as runner:
        headers = {"Authorization": "Bearer right", **request_of}
        given, text = send(runner, **headers)  # type: ignore[arg-type]
        assert given == status
        if status == 413:
            assert text.startswith(b"a body may have at most 10 bytes: split it")
        runner.run()
        assert runner.counts() == {}


def test_back_pressure_is_answered_503() -> None:
    with runner_of() as runner:
        runner.fill("success")
        status, text = send(runner, b"x")
        assert (status, text) == (
            503,
            b"the outgoing connection of the flow is full: try again later\n",
        )
        runner.run()
        assert runner.counts() == {}


def test_what_nobody_takes_in_time_is_answered_503_and_never_taken() -> None:
    with runner_of(answer_timeout="10 ms") as runner:
        assert send(runner, b"x")[0] == 503
        runner.run()
        assert runner.counts() == {}


def test_too_many_requests_at_once_are_refused(threads: ThreadPoolExecutor) -> None:
    with runner_of(maximum_requests=1) as runner:
        first = threads.submit(send, runner, b"1")
        assert runner._host.woken.wait(120)
        assert send(runner, b"2")[0] == 503
        runner.run_when_woken()
        assert first.result()[0] == 200


def test_a_commit_that_fails_is_answered_503(threads: ThreadPoolExecutor) -> None:
    def full() -> None:
        raise Unavailable("full")

    with runner_of() as runner:
        runner.before_commit(full)
        sending: Future[Answer] = threads.submit(send, runner, b"x")
        with pytest.raises(Unavailable):
            runner.run_when_woken()
        assert sending.result()[0] == 503
        runner.before_commit(lambda: None)
        assert runner.counts() == {}


def test_each_request_is_answered_though_an_answer_raises(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The senders behind it waited without a limit, and kept their places."""
    with runner_of(maximum_requests=3) as runner:
        sendings = [threads.submit(send, runner, b"%d" % number) for number in range(3)]
        while len(runner.processor._receiver._waiting) < 3:
            assert runner._host.woken.wait(120)
        loop = runner.processor._loop._loop
        call = loop.call_soon_threadsafe
        failures = [MemoryError("no room")]

        def fail_once(*given: Callable[[], object]) -> object:
            if failures:
                raise failures.pop()
            return call(*given)

        monkeypatch.setattr(loop, "call_soon_threadsafe", fail_once)
        with pytest.raises(MemoryError):
            runner.run()
        assert [sending.result()[0] for sending in sendings] == [200] * 3
        runner._host.woken.clear()
        again = threads.submit(send, runner, b"4")
        runner.run_when_woken()
        assert again.result()[0] == 200


def test_a_request_that_wakes_no_trigger_leaves_nothing(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed among those that wait, with a closed body, and failed the next trigger."""
    with runner_of() as runner:
        sink = runner.processor._receiver._sink
        with monkeypatch.context() as patched:
            patched.setattr(sink, "wake", no_room)
            assert send(runner, b"x")[0] == 500
        sending = threads.submit(send, runner, b"y")
        runner.run_when_woken()
        assert sending.result()[0] == 200
        assert [sent.content for sent in runner.sent("success")] == [b"y"]


def no_room() -> NoReturn:
    raise MemoryError("no room")


def test_a_stop_answers_what_waits(threads: ThreadPoolExecutor) -> None:
    with runner_of() as runner:
        sending = threads.submit(send, runner, b"x")
        assert runner._host.woken.wait(120)
        runner.stop()
        assert sending.result()[0] == 503
        runner.start()
        again = threads.submit(send, runner, b"y")
        while runner.counts() == {}:
            runner.run_when_woken()
        assert again.result()[0] == 200


def test_a_processor_that_is_terminated_leaves_its_port() -> None:
    with runner_of() as runner:
        port = runner.processor.bound_port
        runner.processor.on_unscheduled(runner.context)  # and no on_stopped
        serving = runner.processor._server._serving
        assert serving is not None
        runner.processor._loop.run(asyncio.wait_for(asyncio.shield(serving), 100), 120)
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_sender_that_goes_away_leaves_nothing() -> None:
    with runner_of() as runner:
        with socket.create_connection(("127.0.0.1", runner.processor.bound_port)) as connection:
            connection.sendall(
                b"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"
            )
        assert send(runner, method="GET")[0] == 405  # it still answers
        runner.run()
        assert runner.counts() == {}


def test_odd_requests_are_answered(threads: ThreadPoolExecutor) -> None:
    with runner_of(answer_timeout="50 ms") as runner:
        for head in (
            b"POST /events HTTP/1.1\r\nHost: [",
            b"GARBAGE",
            b"POST //events?%ff HTTP/1.1",
        ):
            address = ("127.0.0.1", runner.processor.bound_port)
            with socket.create_connection(address, timeout=120) as connection:
                connection.sendall(head + b"\r\nContent-Length: 0\r\n\r\n")
                assert b" 500 " not in connection.recv(100)
        sending = threads.submit(send, runner, b"fine")
        runner.run_when_woken()
        assert sending.result()[0] in {200, 503}


def test_a_port_that_is_taken_fails_the_start() -> None:
    with runner_of() as runner:
        second = runner_of(port=runner.processor.bound_port)
        with pytest.raises(Unavailable, match="cannot listen"):
            second.start()
        second.close()


def test_a_certificate_that_is_none_fails_the_start() -> None:
    runner = runner_of(certificate="/no/such.pem")
    with pytest.raises(InvalidRequest, match="certificate"):
        runner.start()
    runner.close()


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("listen") / "server.pem"
    CERTIFICATE.private_key_and_cert_chain_pem.write_to_path(path)
    return path


@pytest.mark.parametrize("given", [(), ("token",), ("certificate",)])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_an_address_of_other_hosts_needs_a_certificate_and_a_token(
    host: str, given: tuple[str, ...], pem: Path
) -> None:
    values = {"token": "s", "certificate": str(pem)}
    runner = runner_of(host=host, **{name: values[name] for name in given})
    lacks = " and ".join(name for name in ("certificate", "token") if name not in given)
    with pytest.raises(InvalidRequest, match=rf"^host: .*set {lacks}, or listen on 127"):
        runner.start()


def test_with_both_or_if_the_service_allows_it_other_hosts_may_send(
    pem: Path, threads: ThreadPoolExecutor
) -> None:
    with runner_of(host="0.0.0.0", certificate=str(pem), token="s") as runner:
        tls = ssl.create_default_context()
        AUTHORITY.configure_trust(tls)
        port = runner.processor.bound_port
        secure = http.client.HTTPSConnection("127.0.0.1", port, timeout=120, context=tls)
        secure.request("POST", "/events", b"x", {"Authorization": "Bearer s"})
        runner.run_when_woken()
        assert secure.getresponse().status == 200
        secure.close()
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            plain.sendall(b"POST /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with suppress(ConnectionResetError):
                assert plain.recv(100) == b""
    before = SERVICE.addresses()
    SERVICE.set(dataclasses.replace(before, insecure=True))
    try:
        with runner_of(host="0.0.0.0") as runner:
            sending = threads.submit(send, runner, b"x")
            runner.run_when_woken()
            assert sending.result()[0] == 200
    finally:
        SERVICE.set(before)


def test_what_will_not_do_is_refused() -> None:
    wrong = {"port": 70_000, "path": "x", "methods": "GET", "answer_status": 500}
    for name, value in wrong.items():
        places = {p.place for p in ListenHTTP.problems({"port": 1, "path": "/", name: value})}
        assert places == {name}


def test_pages_of_other_sites_and_foreign_hosts_are_refused(threads: ThreadPoolExecutor) -> None:
    with runner_of(allowed_hosts="hooks.example, *.cluster.example") as runner:
        for headers in (
            {"Host": "evil.example"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert send(runner, b"x", **headers)[0] == 403
        for host in ("hooks.example", "a.cluster.example:80", "localhost"):
            sending = threads.submit(send, runner, b"x", Host=host)
            runner.run_when_woken()
            assert sending.result()[0] == 200
        assert len(runner.sent("success")) == 3
    with pytest.raises(InvalidConfiguration, match="allowed_hosts: "):
        ListenHTTP(port=0, allowed_hosts="a:80")
