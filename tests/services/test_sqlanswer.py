"""The response that sends the rows of a query: its end, whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.services.api.sql_answer import SqlAnswer
from penstock.spark.sql.service import SqlResult

if TYPE_CHECKING:
    from starlette.types import Message, Scope

pytestmark = pytest.mark.anyio

# With this version a failed send is an OSError, which the server raises when the client left.
SCOPE: Scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
RESULT = SqlResult(pa.table({"a": [1]}), ("int",), truncated=False)


class Sending:
    """An answer of two chunks, and how often its abandonment was reported."""

    def __init__(self, *, chunk_error: Exception | None = None) -> None:
        self.abandoned = 0
        self.sent: list[Message] = []
        self.answer = SqlAnswer(RESULT, self._chunks(chunk_error), self._abandon, {}, "text/plain")

    def _chunks(self, error: Exception | None) -> Iterator[bytes]:
        yield b"first"
        if error is not None:
            raise error
        yield b"second"

    def _abandon(self) -> None:
        self.abandoned += 1

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def test_a_whole_answer_is_not_abandoned() -> None:
    sending = Sending()
    await sending.answer(SCOPE, sending.receive, sending.send)
    assert [one.get("body") for one in sending.sent] == [None, b"first", b"second", b""]
    assert sending.abandoned == 0


async def test_an_answer_is_abandoned_that_cannot_be_written() -> None:
    sending = Sending(chunk_error=MemoryError("once"))
    with pytest.raises(MemoryError):
        await sending.answer(SCOPE, sending.receive, sending.send)
    assert sending.abandoned == 1


async def test_an_answer_is_abandoned_whose_connection_fails() -> None:
    sending = Sending()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("connection reset")

    with pytest.raises(Exception, match=r"^$"):  # Starlette's ClientDisconnect
        await sending.answer(SCOPE, sending.receive, send)
    assert sending.abandoned == 1


async def test_an_answer_is_abandoned_that_is_cancelled() -> None:
    sending = Sending()
    waits = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            waits.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(sending.answer(SCOPE, sending.receive, send))
    async with asyncio.timeout(30):
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sending.abandoned == 1
