"""InvokeHTTP, against a real server."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.flow.processor import PropertyValue, RelationshipRetry
from penstock.flow.processors.http.invoke_http import InvokeHTTP
from penstock.testing.flow import ProcessorRunner
from tests.kits.this_host_kit import this_host_listed


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


class Handler(BaseHTTPRequestHandler):
    """Answers with the status in the path, and with what it was sent."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str], bytes]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        status = int(self.path.split("?")[0].rsplit("/", 1)[1])
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.seen.append((self.command, self.path, dict(self.headers), body))
        if status == 599:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.headers.get("X-To", "/200"))
        answer = body * 2 or b"answer"
        self.send_header("Content-Type", "text/answer")
        self.send_header("Set-Cookie", "secret=1")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def base() -> Iterator[str]:
    Handler.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


def runner_of(**properties: PropertyValue) -> ProcessorRunner[InvokeHTTP]:
    return ProcessorRunner(InvokeHTTP, {"url": "${url}", **properties})


def test_the_answer_is_a_flowfile(base: str) -> None:
    with runner_of(**{"X-Who": "${who}", "token": "t0ken"}) as runner:
        runner.enqueue(b"kept", url=f"http://{base}/200?a=1", who="Ada")
        runner.run()
        [original], [response] = runner.sent("original"), runner.sent("response")
        assert (original.content, response.content) == (b"kept", b"answer")
        assert original.attributes["invokehttp.status.code"] == "200"
        assert response.attributes["mime.type"] == "text/answer"
        assert response.attributes["invokehttp.header.content-length"] == "6"
        assert "invokehttp.header.set-cookie" not in response.attributes
        assert response.attributes["who"] == "Ada"
        method, path, headers, body = Handler.seen[0]
        assert (method, path, body) == ("GET", "/200?a=1", b"")
        assert (headers["X-Who"], headers["Authorization"]) == ("Ada", "Bearer t0ken")


def test_content_is_sent_with_its_length_and_type(base: str) -> None:
    with runner_of(method="POST") as runner:
        data = b"x" * (3 << 20)
        runner.enqueue(data, {"url": f"http://{base}/201", "mime.type": "text/x"})
        runner.enqueue(b"", {"url": f"http://{base}/200"})
        runner.run(2)
        assert [len(sent.content) for sent in runner.sent("response")] == [6 << 20, 6]
        assert Handler.seen[0][2]["Content-Type"] == "text/x"
        assert Handler.seen[0][2]["Content-Length"] == str(3 << 20)
        assert Handler.seen[1][2]["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("status", "relationship"),
    [
        (302, "no.retry"),
        (404, "no.retry"),
        (429, "retry"),
        (500, "retry"),
        (503, "retry"),
        (599, "failure"),
    ],
)
def test_each_answer_has_its_way(base: str, status: int, relationship: str) -> None:
    with runner_of() as runner:
        runner.enqueue(b"kept", url=f"http://{base}/{status}")
        runner.run()
        [sent] = runner.sent(relationship)
        assert sent.content == b"kept"
        assert sent.attributes["error.reason"]
        assert sent.is_penalized is (relationship != "no.retry")


def test_retries_of_the_flow_apply(base: str) -> None:
    with ProcessorRunner(
        InvokeHTTP, {"url": f"http://{base}/503"}, retries={"retry": RelationshipRetry(1)}
    ) as runner:
        runner.enqueue(b"x")
        runner.run()
        assert runner.counts() == {}
        runner.advance(60_000)
        runner.run()
        assert runner.counts() == {"retry": 1}


def test_redirects_may_be_followed(base: str) -> None:
    with runner_of(follow_redirects=True) as runner:
        runner.enqueue(url=f"http://{base}/302")
        runner.run()
        assert runner.sent("original")[0].attributes["invokehttp.status.code"] == "200"


def test_an_answer_that_is_too_large_fails(base: str) -> None:
    with runner_of(maximum_response="5 B") as runner:
        runner.enqueue(url=f"http://{base}/200")
        runner.run()
        [failed] = runner.sent("failure")
        assert "maximum_response" in failed.attributes["error.reason"]
        assert runner.counts() == {"failure": 1}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "no url",
        "ftp://x/y",
        "http://",
        "http://[::1",
        "http://a:99999/",
        "file:///etc/passwd",
        "http://a\nb",
        "http://127.0.0.1:99999/",
        "http://xn--/",
        "http://.",
        "https://a..b/",
        f"http://{'a' * 64}/",
    ],
)
def test_what_is_no_url_fails(url: str) -> None:
    with runner_of() as runner:
        runner.enqueue(b"kept", url=url)
        runner.run()
        assert runner.sent("failure")[0].attributes["error.reason"]


def test_a_line_break_in_a_header_fails(base: str) -> None:
    with runner_of(**{"X-Who": "${who}"}) as runner:
        runner.enqueue(url=f"http://{base}/200", who="a\r\nX-Evil: 1")
        runner.run()
        assert "line break" in runner.sent("failure")[0].attributes["error.reason"]
        assert Handler.seen == []


@pytest.mark.parametrize("status", [200, 404, 500, 599])
def test_no_secret_is_seen_anywhere(
    base: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with runner_of(username="ada", password="hidden1") as runner:
        runner.enqueue(b"", {"where": f"{base}/{status}?key=hidden2"})
        runner.restart({"url": "http://ada:hidden3@${where}", "password": "hidden1"})
        runner.run()
        seen = [dict(s.attributes) for name in runner.counts() for s in runner.sent(name)]
        for attributes in seen:
            attributes.pop("where")
        assert seen
        assert "hidden" not in f"{seen}{caplog.text}"


def test_a_header_that_is_no_ascii_fails(base: str) -> None:
    with runner_of(**{"X-Who": "${who}"}) as runner:
        runner.enqueue(url=f"http://{base}/200", who="Ådå")
        runner.run()
        assert runner.counts() == {"failure": 1}


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with runner_of() as runner:
        runner.enqueue(url=f"http://127.0.0.1:{port}/x")
        runner.run()
        [failed] = runner.sent("failure")
        assert failed.is_penalized
        assert f"http://127.0.0.1:{port}/x: " in failed.attributes["error.reason"]


def test_without_an_input_it_asks_by_itself(base: str) -> None:
    with ProcessorRunner(InvokeHTTP, {"url": f"http://{base}/200"}, has_input=False) as runner:
        runner.run(2)
        assert runner.counts() == {"original": 2, "response": 2}


@pytest.mark.parametrize("target", ["http://xn--/", "http://.", f"http://{'a' * 64}/", "http://["])
def test_a_redirect_to_a_host_without_a_valid_name_fails(base: str, target: str) -> None:
    with runner_of(follow_redirects=True, **{"X-To": target}) as runner:
        runner.enqueue(url=f"http://{base}/302")
        runner.run()
        assert base in runner.sent("failure")[0].attributes["error.reason"]
