"""HTTP response that sends the rows of a query, chunk by chunk as the client reads them.

Owns the end of an answer: its files are deleted when the last row was sent or the client
disconnects. A thread does this, because there may be many files, and the loop serves all clients.
The next chunk is made when the previous one is being sent, so at most one waits in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from penstock.core.loop_tasks import start_job

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from penstock.spark.sql.service import SqlResult

ENGINE_HEADER: Final = "X-Penstock-Engine"
"""Header of an answer: the engine that answered."""


class SqlAnswer(StreamingResponse):
    """Sends the rows of a result.

    Args:
        result: Result to close at the end.
        chunks: Its rows in the requested format.
        on_abandoned: Called when the answer ends before all of it was sent: the client left or
            stopped reading, a row could not be written, or the server stops.
        headers: Headers of the response.
        media_type: Its content type.
    """

    def __init__(
        self,
        result: SqlResult,
        chunks: Iterator[bytes],
        on_abandoned: Callable[[], None],
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        super().__init__(chunks, headers=headers, media_type=media_type)
        self._result = result
        self._on_abandoned = on_abandoned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        is_complete = False

        async def watched(message: Message) -> None:
            nonlocal is_complete
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                is_complete = True

        try:
            await super().__call__(scope, receive, watched)
        finally:
            # Before the files are deleted, where a cancel may end this task.
            if not is_complete:
                self._on_abandoned()
            await close_on_thread(self._result)


async def close_on_thread(result: SqlResult) -> None:
    """Delete the files of an answer on a thread, even if the caller is cancelled meanwhile."""
    if result.is_in_files:
        await asyncio.shield(close_soon(result))


def close_soon(result: SqlResult) -> asyncio.Task[None]:
    """Start to delete the files of an answer on a thread; for callbacks of the event loop.

    If the loop ends first, the files are deleted with the folder of all answers.
    """
    return start_job("end of an answer", run_in_threadpool(result.close))
