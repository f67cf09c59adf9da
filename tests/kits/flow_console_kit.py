"""A flow with everything that the console shows of flows, served by the process of the test."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.static_pages import ConsoleRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from penstock.storage.disk import OsFileSystem
from tests.harness.access_kit import with_token

BINARY = bytes(range(256)) * 300
MARKUP = "<img src=x onerror=alert(1)>"

FLOW = f"""\
name: shop
processors:
  Make:
    type: Samples
    schedule: cron 0 0 13 * * ?
    comments: 'Makes {MARKUP}'
    properties: {{password: '#{{password}}'}}
  Refuse: {{type: Refuses, penalty_duration: 1 h}}
  Hang: {{type: Hangs}}
  Fail: {{type: Fails, schedule: every 1 hour, auto_terminated: success}}
  End: {{type: LogAttribute, auto_terminated: success}}
groups:
  '{MARKUP}':
    processors:
      One: {{type: GenerateFlowFile, auto_terminated: success}}
      Two: {{type: GenerateFlowFile, auto_terminated: success}}
parameters: {{password: {{env: SHOP_PASSWORD}}}}
connections:
  - {{from: Make.success, to: Refuse}}
  - {{from: Refuse.failure, to: End}}
"""


class Samples(Processor):
    """Makes a FlowFile of each kind that is hard to show."""

    input = InputRequirement.FORBIDDEN
    password = Property(str, default="", sensitive=True, about="Its password.")
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context
        contents = {
            "lines.json": b'{"page": "/1"}\n{"page": "<b>"}\n',
            "binary": BINARY,
            MARKUP: MARKUP.encode(),
        }
        for name, content in contents.items():
            flowfile = session.create(attributes={"filename": name, "large": MARKUP * 2_400})
            with session.write(flowfile) as out:
                out.write(content)
            session.transfer(flowfile, self.success)
        session.state.set({"made": str(len(contents)), MARKUP: MARKUP})


class Refuses(Processor):
    """Penalizes one FlowFile in its input, and leaves it there."""

    input = InputRequirement.REQUIRED
    failure = Relationship("None.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context
        flowfile = session.get()
        if flowfile is not None:
            session.penalize(flowfile)
            session.transfer(flowfile)


class Hangs(Processor):
    """Does not return before the test ends."""

    input = InputRequirement.FORBIDDEN

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context, session
        RELEASED.wait(600)


class Fails(Processor):
    """Raises an error with markup."""

    input = InputRequirement.FORBIDDEN
    success = Relationship("None.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context, session
        raise ValueError(f"cannot read {MARKUP}")


RELEASED = threading.Event()
KINDS = {kind.__name__: kind for kind in (Samples, Refuses, Hangs, Fails)}


class ProxiedApp:
    """An application behind a proxy that serves it below a path, and nothing else.

    Args:
        app: The application, which does not know the path.
        below: The path; empty: there is no proxy.
    """

    def __init__(self, app: ASGIApp, below: str) -> None:
        self._app = app
        self._below = below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on without the path."""
        if scope["type"] == "http":
            if not scope["path"].startswith(f"{self._below}/"):
                await PlainTextResponse("nothing is served here", 404)(scope, receive, send)
                return
            path = scope["path"].removeprefix(self._below)
            raw = scope["raw_path"].removeprefix(self._below.encode())
            scope = {**scope, "path": path, "raw_path": raw}
        await self._app(scope, receive, send)


class ServedFlow:
    """The console over a flow.

    Attributes:
        flow: The flow.
        url: Address of the console.

    Args:
        folder: Folder of the flow.
        text: The flow in YAML.
        port: Port of the console; 0: any.
        below: Path of a proxy below which the console is served, such as `/a/path`; empty: none.
    """

    def __init__(self, folder: Path, text: str = FLOW, port: int = 0, below: str = "") -> None:
        numbers = itertools.count()
        self.flow = FlowController.open(
            str(folder),
            fs=OsFileSystem(),
            clock=SystemClock(),
            registry=ProcessorRegistry({**BUILTIN, **KINDS}),
            new_uuid=lambda: f"u{next(numbers)}",
            environment={"SHOP_PASSWORD": "hunter2"},
            # `Hangs` takes all of this time; the others stop within it, on a slow machine, too.
            options=ControllerOptions(stop_limit_s=5.0, close_limit_s=1.0),
        )
        self.apply(text)
        self._live = LiveAnswers()
        routes = [
            *ConsoleRoutes().routes(),
            *LoginRoutes().routes(),
            *self._live.routes(),
            *FlowRoutes(lambda: self.flow, SystemClock()).routes(),
        ]
        app = application(routes, access=with_token(None), accepts_sessions=True)
        self._server = HttpServer(
            ProxiedApp(app, below), listen(HostPort("127.0.0.1", port), "--http")
        )
        self._server.start()
        self.url = f"http://127.0.0.1:{self._server.port}{below}"

    def apply(self, text: str) -> None:
        """Apply a flow."""
        read = read_flow(text.encode())
        self.flow.apply(read.flow, places=read.places)

    def close(self) -> None:
        """Stop the server and the flow."""
        RELEASED.set()
        self._live.close()
        self._server.stop()
        self.flow.close()
