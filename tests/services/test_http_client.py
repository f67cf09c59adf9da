"""Answers that no server of Penstock gives: endless ones, and truncated ones."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.core.errors import InvalidRequest, NotReachable
from penstock.services import json_client
from penstock.services.json_client import AnswerTooLarge, JsonClient
from penstock.services.sql_client import ask


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[JsonClient]:
    """Return a client of a server that answers one request with these bytes, and disconnects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as peer, contextlib.suppress(OSError):  # the client left
                peer.recv(65_536)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield JsonClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=30)
        finally:
            thread.join()


ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n" + b"1" * (8 << 20)


def test_a_longer_answer_than_any_of_penstock_is_not_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_client, "_ANSWER_BYTES_MAX", 1 << 20)
    text = (
        r"^GET http://127.0.0.1:\d+/status was answered with more than 1,048,576 bytes, the limit"
        " of an answer that is kept in memory: request less at once, or check that"
    )
    with answering(ENDLESS) as client, pytest.raises(AnswerTooLarge, match=text):
        client.get("/status")


def test_a_forwarded_request_whose_answer_is_too_large_is_refused_without_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_client, "_ANSWER_BYTES_MAX", 1 << 20)
    text = r"^GET /rows\?all was answered with more than 1,048,576 bytes, .*: request less at once$"
    with answering(ENDLESS) as client, pytest.raises(InvalidRequest, match=text):
        client.relay("GET", "/rows?all", b"", {})


def test_rows_that_have_no_room_in_memory_are_refused_with_another_way_to_get_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_client, "_ANSWER_BYTES_MAX", 1 << 20)
    text = "with more than 1,048,576 bytes, .*: select fewer rows or columns, or print them as"
    with answering(ENDLESS) as client, pytest.raises(InvalidRequest, match=text):
        ask(client, "SELECT 1")


def test_a_truncated_answer_is_none() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    with (
        answering(head + b"1234") as client,
        pytest.raises(NotReachable, match=r"does not answer .*IncompleteRead"),
    ):
        client.get("/status")
    with answering(head + b"123456789") as client:
        assert client.get("/status") == 123_456_789
