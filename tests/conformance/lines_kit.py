"""The drivers' side of the conversation with a test: lines of JSON on stdin and stdout.

A request is ``{"number": 1, "do": "publish", "with": {...}}`` and is answered by
``{"number": 1, "value": ...}`` or ``{"number": 1, "error": "..."}``. A message that a consumer
gets is ``{"consumer": "c", "id": "...", "attempts": 1, "body": "..."}``; bodies are text, a
character for each byte.

Runs in the environment of the clients, and knows nothing of Penstock.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import IO, Any

# What a client prints must not come between the lines.
_output: IO[str] = sys.stdout
sys.stdout = sys.stderr


def say(**line: object) -> None:
    """Send a line."""
    _output.write(json.dumps(line) + "\n")
    _output.flush()


def tell(consumer: str, identity: bytes | str, attempts: int, body: bytes) -> None:
    """Say that a consumer got a message."""
    if isinstance(identity, bytes):
        identity = identity.decode()
    say(consumer=consumer, id=identity, attempts=attempts, body=body.decode("latin-1"))


def encoded(bodies: list[str]) -> list[bytes]:
    """Return bodies as a client takes them."""
    return [body.encode("latin-1") for body in bodies]


async def serve(driver: object) -> None:
    """Carry out what the test asks, each request as a method of the driver, until stdin ends."""
    reader = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(_carry_out(driver, json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


async def _carry_out(driver: object, request: dict[str, Any]) -> None:
    try:
        value = await getattr(driver, request["do"])(**request["with"])
        say(number=request["number"], value=value)
    except Exception as error:  # noqa: BLE001 - the test judges what a client raises
        say(number=request["number"], error=f"{type(error).__name__}: {error}")
