"""HTTP API of flows: apply, start, stop, status.

Owns paths and parameters, and how many commands may wait; `queues` owns those of queues.
`penstock.flow.controller` does the work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

import penstock
from penstock.core.clock import Clock
from penstock.core.errors import Unavailable
from penstock.core.http_errors import error_body
from penstock.flow.controller.applied_flow import AppliedFlow
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.diff import FlowChange
from penstock.flow.graph.export import to_yaml, without_secrets
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.graph.yaml_reader import read_flow
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.endpoints import (
    Body,
    Endpoint,
    EndpointCall,
    EndpointParameter,
    open_api,
    routes_of,
)
from penstock.services.api.flow import flow_json
from penstock.services.api.flow.queues import NOT_THERE, QueueEndpoints

_COMMANDS_MAX: Final = 8
_BUSY: Final = {503: "Too many commands wait, or the flow is not open: try again."}
_TARGET: Final = EndpointParameter("target", "which component or group, by its id or name")
_YAML: Final = "application/yaml"


class FlowRoutes:
    """The routes of the flow service.

    A semaphore limits how many commands wait for the flow at once, because each occupies a thread.
    Read requests, and `terminate`, which ends the waits, are never blocked by it.

    Args:
        controller: Returns the flow; raises `Unavailable` while it is not open.
        clock: Clock.
    """

    def __init__(self, controller: Callable[[], FlowController], clock: Clock) -> None:
        self._controller = controller
        self._turns = threading.BoundedSemaphore(_COMMANDS_MAX)
        queues = QueueEndpoints(controller, clock).all()
        self.endpoints = [*self._flow_endpoints(), *self._run_endpoints(), *queues]

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        description = Endpoint(
            "GET", "/flow/openapi.json", "Describe this API.", lambda _call: self.description()
        )
        return routes_of([*self.endpoints, description])

    def description(self) -> dict[str, object]:
        """Return the description of the API in OpenAPI."""
        return open_api("Penstock: flows", penstock.__version__, self.endpoints)

    def _flow_endpoints(self) -> list[Endpoint]:
        flow = Body("The flow, in YAML or JSON.", "application/yaml")
        file = EndpointParameter("file", "name of the file, for problems", default="")
        return [
            Endpoint(
                "GET",
                "/flow",
                "Show the flow that runs.",
                self._show,
                [
                    EndpointParameter(
                        "format", "json with the revision, or yaml as a file", default="json"
                    )
                ],
            ),
            Endpoint(
                "PUT",
                "/flow",
                "Make this the flow that runs.",
                self._apply,
                [
                    EndpointParameter("revision", "the revision that was changed", type="integer"),
                    EndpointParameter("dryRun", "only report what would change", type="boolean"),
                    file,
                ],
                flow,
                _BUSY,
            ),
            Endpoint(
                "POST",
                "/flow/validate",
                "Check whether a flow could be applied.",
                self._validate,
                [file],
                flow,
            ),
            Endpoint("GET", "/flow/status", "Show the state of the flow.", self._status),
            Endpoint(
                "GET",
                "/flow/bulletins",
                "List warnings and errors of components.",
                self._bulletins,
                [
                    EndpointParameter("after", "only bulletins after this number", default="0"),
                    EndpointParameter("component", "only bulletins of one component, by its id"),
                ],
            ),
        ]

    def _run_endpoints(self) -> list[Endpoint]:
        one = EndpointParameter("target", _TARGET.about, required=True)
        table: list[tuple[str, str, Callable[[EndpointCall], object], EndpointParameter]] = [
            ("start", "Start a component, a group or everything.", self._start, _TARGET),
            ("stop", "Stop a component, a group or everything.", self._stop, _TARGET),
            ("run-once", "Trigger a stopped processor once.", self._run_once, one),
            (
                "terminate",
                "Abandon the threads of a processor that does not stop.",
                self._terminate,
                one,
            ),
        ]
        errors = {**NOT_THERE, **_BUSY}
        return [
            Endpoint("POST", f"/flow/{name}", about, answer, [target], errors=errors)
            for name, about, answer, target in table
        ]

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Count a command that may wait for a long time."""
        if not self._turns.acquire(blocking=False):
            raise Unavailable(
                f"busy: {_COMMANDS_MAX} commands to the flow wait for an answer; try again, or "
                "terminate a processor that does not stop"
            )
        try:
            yield
        finally:
            self._turns.release()

    def _flow(self) -> FlowController:
        return self._controller()

    def _start(self, call: EndpointCall) -> object:
        with self._turn():
            return {"started": list(self._flow().start(call.get("target")))}

    def _stop(self, call: EndpointCall) -> object:
        with self._turn():
            return {"stopped": list(self._flow().stop(call.get("target")))}

    def _run_once(self, call: EndpointCall) -> object:
        with self._turn():
            self._flow().run_once(call.text("target"))
        return {}

    def _terminate(self, call: EndpointCall) -> object:
        self._flow().terminate(call.text("target"))
        return {}

    def _show(self, call: EndpointCall) -> object:
        flow = self._flow()
        if call.text("format") != "yaml":
            return flow_json.applied_json(flow.applied)
        text = to_yaml(without_secrets(flow.applied.flow, flow.types))
        return PlainTextResponse(text, media_type=_YAML)

    def _apply(self, call: EndpointCall) -> object:
        flow = self._flow()
        try:
            read = read_flow(call.body, call.text("file"))
            revision = None if call.get("revision") is None else call.number("revision", 0, 1 << 53)
            if call.flag("dryRun"):
                flow.check(read.flow, read.places)
                changes = flow.diff(read.flow)
            else:
                with self._turn():
                    changes = flow.apply(read.flow, revision=revision, places=read.places)
        except InvalidFlow as error:
            return _refused(error)
        return _changed(flow.applied, list(changes))

    def _validate(self, call: EndpointCall) -> object:
        try:
            read = read_flow(call.body, call.text("file"))
            self._flow().check(read.flow, read.places)
        except InvalidFlow as error:
            return _refused(error)
        return {"valid": True, "name": read.flow.name}

    def _status(self, _call: EndpointCall) -> object:
        flow = self._flow()
        return flow_json.status_json(flow.status(), flow.events)

    def _bulletins(self, call: EndpointCall) -> object:
        board = self._flow().bulletins
        found = board.read(after=call.number("after", 0, 1 << 53), component=call.get("component"))
        return {"count": board.count, "bulletins": [flow_json.bulletin_json(one) for one in found]}


def _refused(error: InvalidFlow) -> Response:
    problems = [flow_json.problem_json(problem) for problem in error.problems]
    return JsonResponse({**error_body(error), "problems": problems}, 400)


def _changed(applied: AppliedFlow, changes: list[FlowChange]) -> flow_json.Json:
    return {
        "revision": applied.revision,
        "running": applied.wanted.all_running,
        "changes": [flow_json.change_json(change) for change in changes],
    }
