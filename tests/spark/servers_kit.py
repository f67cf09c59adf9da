"""HTTP servers for tests of the data sources: a router's routes, and a broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from starlette.routing import BaseRoute

from penstock.broker.options import BrokerOptions
from penstock.broker.server import BrokerServer
from penstock.services.api.asgi import application
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from tests.harness.access_kit import rules_with, with_token


class Served:
    """Serves routes on a free port, to those who know the token if there is one."""

    def __init__(self, routes: Sequence[BaseRoute], token: str | None = None) -> None:
        listener = listen(HostPort("127.0.0.1", 0), "--http")
        self._server = HttpServer(
            application(routes, access=with_token(token), rules=rules_with(routes)), listener
        )
        self.url = f"http://127.0.0.1:{self._server.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """Run a broker on a thread of its own and give its address."""
    server = BrokerServer(BrokerOptions(folder=str(folder), http_port=0))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(120)
        yield f"http://127.0.0.1:{server.http_port}"
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(120)
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(120)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
