"""The broker's process: the broker's event loop beside the main thread, which waits for signals."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import TypeVar

import uvloop

from penstock.broker.options import BrokerOptions
from penstock.broker.server import BrokerServer
from penstock.services.config import Options
from penstock.services.host.datafolder import DataFolder
from penstock.services.lifecycle import Handler, Lifecycle, Stage
from penstock.services.roles.runtime import RoleContext

T = TypeVar("T")


class LoopThread:
    """An asyncio loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the loop and return its result."""
        result: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return result.result()

    def stop(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


def options_of(options: Options) -> BrokerOptions:
    """Return what a broker is told by the options of a Penstock."""
    return BrokerOptions(
        folder=str(DataFolder(options.data_dir).topics),
        host=options.broker_http.host,
        http_port=options.broker_http.port,
        token=options.token,
        retention_ms=options.topic_retention_ms,
        retention_bytes=options.topic_retention_bytes,
    )


def compose(context: RoleContext) -> Lifecycle:
    """Put the process together."""
    options = options_of(context.options)
    server = BrokerServer(
        options,
        clock=context.clock,
        listener=context.listener,
        tcp_listener=context.tcp_listener,
    )
    loop = LoopThread()
    lifecycle = Lifecycle()
    lifecycle.add_handler(Handler("event loop", loop.start, loop.stop))
    lifecycle.add_handler(
        Handler("broker", lambda: loop.run(server.start()), lambda: loop.run(server.stop())),
        Stage.SERVER,
    )
    lifecycle.add_handler(Handler("readiness", context.say_ready), Stage.ANNOUNCEMENTS)
    return lifecycle
