"""A broker on a thread of its own, and raw HTTP to it."""

from __future__ import annotations

import asyncio
import http.client
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

import uvloop

from penstock.broker.server import BrokerServer
from penstock.core.loop_tasks import watch_loop
from tests.kits.answers_kit import check_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.broker.options import BrokerOptions
    from penstock.core.access.access_control import AccessControl
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.disk_queue import DiskQueueOptions

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]


class RunningBroker:
    """Start with ``with``; `run` executes a coroutine on the broker's loop."""

    def __init__(
        self,
        options: BrokerOptions,
        queue_options: DiskQueueOptions | None = None,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        access: AccessControl | None = None,
        free_bytes: Callable[[], int] = lambda: 1 << 40,
    ) -> None:
        self.server = BrokerServer(
            options, queue_options, fs=fs, clock=clock, access=access, free_bytes=free_bytes
        )
        self._loop = uvloop.new_event_loop()
        watch_loop(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._log_level = logging.getLogger("penstock").level
        self._thread.start()
        try:
            self.run(self.server.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.server.stop())
        finally:
            self._end()

    def _end(self) -> None:
        logging.getLogger("penstock").setLevel(self._log_level)  # a request may have changed it
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http_port}"

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.server.http_port, timeout=120)

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request; the answer has to be as the OpenAPI document describes it."""
        connection = self.connect()
        try:
            connection.request(method, target, body, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, response.read(), found)
        finally:
            connection.close()
        kind = answer.headers.get("content-type", "")
        check_answer(method, target, answer.status, kind, answer.body)
        return answer

    def stored(self, topic: str) -> list[list[bytes]]:
        """The messages of each stream partition."""
        queues = self.server.broker.topics.get(topic).queues
        return [
            [
                message
                for block in queue.read(queue.earliest, 1 << 30)
                for message in block.messages.to_pylist()
            ]
            for queue in queues
        ]
