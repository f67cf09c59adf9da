"""Requests on an event loop: what can be no server's address is an error like any other."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from penstock.core.async_http_client import AsyncHttpClient, shown_server
from penstock.core.errors import PenstockError, Unavailable


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/auth",
        "http://127.0.0.1:99999/auth",
        f"http://{'x' * 64}:1/auth",
        "http://a..b:1/auth",
        "http://:1/auth",
        "ftp://127.0.0.1:1/auth",
    ],
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_address_that_can_be_none_is_an_error_of_ours(url: str, run: object) -> None:
    async def ask() -> None:
        asker = AsyncHttpClient(1.0, 1.0, 1_000)
        with pytest.raises(PenstockError):
            await asker.get(url, {"secret": "s"})
        with pytest.raises(PenstockError):
            await asker.post(url, b"{}")
        with pytest.raises(PenstockError):
            await asker.fetch(url)

    assert callable(run)
    run(ask())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:secret@h:4161/lookup?topic=t", "http://h:4161"),
        ("HTTPS://u:sec@ret@[::1]:1", "HTTPS://[::1]:1"),
        ("http://secret@h?x=a@secret", "http://h"),
        ("http://h:4161", "http://h:4161"),
        ("http://u:secret/x@h:1/", "…"),
        ("http://u:secret@h:99999/", "http://h:99999"),
        ("http://u:secret@[::1/", "…"),
        ("u:secret@h:1", "…"),
    ],
)
def test_errors_show_the_server_of_an_address_without_its_password(url: str, shown: str) -> None:
    assert shown_server(url) == shown
    with pytest.raises(PenstockError) as raised:
        asyncio.run(AsyncHttpClient(1e-9, 1e-9, 1_000).fetch(url))
    assert "secret" not in str(raised.value)


def test_the_time_for_a_connection_is_named_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(*_arguments: object, **_named: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", hang)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/auth: no connection within 0\.01 s"):
        asyncio.run(AsyncHttpClient(0.01, 1_000.0, 1_000).get("http://127.0.0.1:1/auth", {}))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_answer_that_switches_to_another_protocol_is_an_error_of_ours(run: object) -> None:
    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(switch, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(Unavailable, match="HttpParserUpgrade"):
                await AsyncHttpClient(30.0, 30.0, 1_000).fetch(f"http://127.0.0.1:{port}/lookup")

    assert callable(run)
    run(ask())
