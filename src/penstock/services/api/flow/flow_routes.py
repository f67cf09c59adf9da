"""HTTP API of flows: apply, start, stop, status.

Owns paths and parameters, and how many commands may wait; `queues` owns those of queues.
`penstock.flow.controller` does the work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

import penstock
from penstock.core.access.rules import Action
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.core.http_errors import error_body
from penstock.flow.controller.applied_flow import AppliedFlow
from penstock.flow.controller.controller import FlowController
from penstock.flow.controller.flow_owner import have_same_rights
from penstock.flow.graph.diff import FlowChange
from penstock.flow.graph.export import to_yaml, without_secrets
from penstock.flow.graph.flow_comments import FlowComments, comments_of, with_comments
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.graph.yaml_reader import ReadFlow, read_flow
from penstock.flow.queue.queue_size import QueueSize
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
from penstock.services.api.flow.components import ComponentEndpoints
from penstock.services.api.flow.flow_access import (
    owner_of_flow,
    permitted_flow,
    required_by_flow,
)
from penstock.services.api.flow.flow_summary import (
    ALL_OPEN_MAX,
    NODES_MAX,
    RecentStatus,
    SummaryRequest,
    parse_open_groups,
    parse_open_keys,
    summary_json,
)
from penstock.services.api.flow.provenance import ProvenanceEndpoints
from penstock.services.api.flow.queues import NOT_THERE, QueueEndpoints

if TYPE_CHECKING:
    from penstock.services.host.provenance_service import ProvenanceLookups

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
        provenance: Returns the record of provenance; None: it is not kept.
        datasource: Name of the datasource of provenance; empty: there is none.
    """

    def __init__(
        self,
        controller: Callable[[], FlowController],
        clock: Clock,
        provenance: Callable[[], ProvenanceLookups | None] = lambda: None,
        datasource: str = "",
    ) -> None:
        self._controller = controller
        self._recent = RecentStatus(clock)
        self._turns = threading.BoundedSemaphore(_COMMANDS_MAX)
        queues = QueueEndpoints(controller, clock).all()
        components = ComponentEndpoints(controller).all()
        records = ProvenanceEndpoints(controller, provenance, datasource).all()
        runs = self._run_endpoints()
        self.endpoints = [*self._flow_endpoints(), *runs, *components, *queues, *records]

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
                    EndpointParameter(
                        "reportInvalid",
                        "with dryRun: answer 200 with the problems of an invalid flow",
                        type="boolean",
                    ),
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
            Endpoint(
                "GET",
                "/flow/status",
                "Show the state of the flow.",
                self._status,
                [
                    EndpointParameter("summary", "one entry for each closed group", type="boolean"),
                    EndpointParameter(
                        "open",
                        "with summary: JSON list of paths of open groups; default: all of a flow of"
                        f" up to {ALL_OPEN_MAX} components, otherwise none",
                    ),
                    EndpointParameter(
                        "openKeys",
                        "instead of open, for short URLs: the CRC-32 of each path in UTF-8, in"
                        " hexadecimal digits, with a full stop after each; a full stop alone: none",
                    ),
                    EndpointParameter(
                        "max", "with summary: most components and groups", type="integer"
                    ),
                    EndpointParameter("search", "with summary: list components with this text"),
                    EndpointParameter("part", "with summary: show the part with this id, too"),
                ],
            ),
            Endpoint(
                "GET",
                "/flow/bulletins",
                "List warnings and errors of components.",
                self._bulletins,
                [
                    EndpointParameter("after", "only bulletins after this number", default="0"),
                    EndpointParameter("component", "only bulletins of one component, by its id"),
                    EndpointParameter("limit", "only the newest, this many", type="integer"),
                ],
            ),
        ]

    def _run_endpoints(self) -> list[Endpoint]:
        one = EndpointParameter("target", f"{_TARGET.about}; / is everything", required=True)
        table: list[tuple[str, str, Callable[[EndpointCall], object], EndpointParameter]] = [
            ("start", "Start a component, a group or everything.", self._start, _TARGET),
            ("stop", "Stop a component, a group or everything.", self._stop, _TARGET),
            ("run-once", "Trigger stopped processors once.", self._run_once, one),
            (
                "terminate",
                "Abandon the threads of processors that do not stop.",
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
            self._recent.forget()

    def _flow(self, call: EndpointCall, action: Action) -> FlowController:
        return permitted_flow(self._controller, call, action)

    def _start(self, call: EndpointCall) -> object:
        with self._turn():
            return {"started": list(self._flow(call, Action.WRITE).start(call.get("target")))}

    def _stop(self, call: EndpointCall) -> object:
        with self._turn():
            return {"stopped": list(self._flow(call, Action.WRITE).stop(call.get("target")))}

    def _run_once(self, call: EndpointCall) -> object:
        with self._turn():
            flow = self._flow(call, Action.WRITE)
            return _outcomes(flow, "ran", flow.run_once(call.text("target")))

    def _terminate(self, call: EndpointCall) -> object:
        flow = self._flow(call, Action.WRITE)
        try:
            return _outcomes(flow, "terminated", flow.terminate(call.text("target")))
        finally:
            self._recent.forget()

    def _show(self, call: EndpointCall) -> object:
        flow = self._flow(call, Action.READ)
        if call.text("format") != "yaml":
            return flow_json.applied_json(flow.applied, _shown(call, flow.applied.owner))
        applied = flow.applied
        text = to_yaml(without_secrets(applied.flow, flow.types))
        return PlainTextResponse(with_comments(text, applied.comments), media_type=_YAML)

    def _apply(self, call: EndpointCall) -> object:
        revision = None if call.get("revision") is None else call.number("revision", 0, 1 << 53)
        is_reported = call.flag("reportInvalid")
        if is_reported and not call.flag("dryRun"):
            raise InvalidRequest("it is for a check: add dryRun=true", place="reportInvalid")
        flow = self._controller()
        if flow.applied.revision or revision:
            flow = self._flow(call, Action.MANAGE)
        else:
            # Nothing was applied yet, so the right on the new flow is enough. A flow that another
            # request applies meanwhile has another revision.
            revision = 0
        try:
            read = _permitted(call)
            owner, before = owner_of_flow(call.access, read.flow), flow.applied
            comments = _comments(call.body, read, flow, loads=not call.flag("dryRun"))
            waiting: dict[str, QueueSize] = {}
            if call.flag("dryRun"):
                flow.check(read.flow, read.places)
                changes = flow.diff(read.flow)
                waiting = _waiting(flow, changes)
            else:
                with self._turn():
                    changes = flow.apply(
                        read.flow,
                        revision=revision,
                        places=read.places,
                        owner=owner,
                        comments=comments,
                    )
        except InvalidFlow as error:
            return _refused(error, 200 if is_reported else 400)
        return {
            **_changed(flow.applied, changes, waiting),
            "commentsChanged": comments != before.comments,
            "owner": _shown(call, owner),
            "previousOwner": _shown(call, before.owner) if before.revision else None,
            "allRestart": bool(before.revision)
            and not have_same_rights(call.access.control, before.owner, owner),
        }

    def _validate(self, call: EndpointCall) -> object:
        flow = self._controller()
        if flow.applied.revision:
            flow = self._flow(call, Action.MANAGE)
        try:
            # The check reads parameters from files, and its messages show values of properties.
            read = _permitted(call)
            flow.check(read.flow, read.places)
            _comments(call.body, read, flow, loads=False)
        except InvalidFlow as error:
            return _refused(error)
        return {"valid": True, "name": read.flow.name}

    def _status(self, call: EndpointCall) -> object:
        flow = self._flow(call, Action.READ)
        wanted = _summary_request(call)
        status = flow.status() if wanted is None else self._recent.of(flow)
        if wanted is not None:
            return {
                **flow_json.head_json(status, _shown(call, status.owner)),
                **summary_json(status, wanted),
            }
        return flow_json.status_json(status, _shown(call, status.owner), flow.events)

    def _bulletins(self, call: EndpointCall) -> object:
        board = self._flow(call, Action.READ).bulletins
        found = board.read(after=call.number("after", 0, 1 << 53), component=call.get("component"))
        if call.get("limit") is not None:
            found = found[-call.number("limit", 1, 1 << 53) :]
        listed = [flow_json.bulletin_json(one, board.names.get(one.component, "")) for one in found]
        return {"count": board.count, "bulletins": listed}


def _summary_request(call: EndpointCall) -> SummaryRequest | None:
    """Return the summary that a request is for; None: it is for the whole status.

    Raises:
        InvalidRequest: A parameter is wrong, or has no meaning without `summary`.
    """
    if not call.flag("summary"):
        for name in ("open", "openKeys", "max", "search", "part"):
            if call.get(name) is not None:
                raise InvalidRequest("it is for a summary: add summary=true", place=name)
        return None
    return SummaryRequest(
        parse_open_groups(call.get("open")),
        parse_open_keys(call.get("openKeys")),
        NODES_MAX if call.get("max") is None else call.number("max", 0, NODES_MAX),
        call.get("search") or "",
        call.get("part") or "",
    )


def _shown(call: EndpointCall, owner: str) -> str:
    """Return the owner of a flow as people see it."""
    return owner or call.access.control.server_user.id


def _permitted(call: EndpointCall) -> ReadFlow:
    """Return the flow in the body if the principal has all rights that it needs.

    Raises:
        Forbidden: It does not.
        InvalidFlow: The flow cannot be read.
    """
    read = read_flow(call.body, call.text("file"))
    for action, resource in required_by_flow(read.flow):
        call.access.require(action, resource)
    return read


def _comments(
    document: bytes, read: ReadFlow, flow: FlowController, *, loads: bool
) -> FlowComments:
    """Return the comments of a flow's file, without the values of sensitive properties.

    With `loads`, code of users is imported, which knows its sensitive properties; without it, only
    the comments of a check may have their values.
    """
    types = flow.types if loads else flow.types.without_imports()
    named = {processor.type for _, processor in FlowIndex.of(read.flow).processors}
    declared = [one.sensitive for name in named if (one := types.find(name)) is not None]
    return comments_of(document, read.places, frozenset[str]().union(*declared))


def _refused(error: InvalidFlow, status: int = 400) -> Response:
    problems = [flow_json.problem_json(problem) for problem in error.problems]
    return JsonResponse({**error_body(error), "problems": problems}, status)


def _changed(
    applied: AppliedFlow, changes: Sequence[FlowChange], waiting: Mapping[str, QueueSize]
) -> flow_json.Json:
    return {
        "revision": applied.revision,
        "running": applied.wanted.all_running,
        "changes": [flow_json.change_json(one, waiting.get(one.id)) for one in changes],
    }


def _waiting(flow: FlowController, changes: Sequence[FlowChange]) -> dict[str, QueueSize]:
    """Return what waits in the connections that changes would remove, by their ids."""
    found: dict[str, QueueSize] = {}
    for change in changes:
        if change.must_be_empty:
            with contextlib.suppress(NotFound):  # removed meanwhile
                found[change.id] = flow.queue(change.id).size
    return found


def _outcomes(flow: FlowController, done: str, outcomes: Mapping[str, str]) -> flow_json.Json:
    """Return which components a command concerned, and why it refused others of a group."""
    return {
        done: [one for one, reason in outcomes.items() if not reason],
        "refused": [
            {"id": one, "name": flow.inspection.name_of(one), "reason": reason}
            for one, reason in outcomes.items()
            if reason
        ],
    }
