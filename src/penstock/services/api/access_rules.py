"""Which right each HTTP route needs: one table for the APIs of all processes except the broker.

Owns the table, the rules that it has, and the check of a route's rule before the route answers.
`asgi.application` refuses to build a route without a rule, and a test refuses a rule without a
route. The reference page of the HTTP API shows the rights of this table. Does not own who asks
(`request_access`) and what roles allow (`core.access`).

A rule names a resource by the parameters of the route's path, as the route itself gets them:
decoded once, and compared in Unicode's normal form C. So a name has one meaning, however it is
written. If only the body or stored data determine the resource, the handler decides, with the rules
of `owned_access`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.routing import Route

from penstock.core.access.principal import PrincipalKind
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.services.api.error_forms import ICEBERG
from penstock.services.api.request_access import LOGIN, LOGOUT, access_of
from penstock.storage.metadata.tables.configuration import DEFAULT_RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

READ, WRITE, MANAGE = Action.READ, Action.WRITE, Action.MANAGE

STATUS: Final = Resource(ResourceKind.SYSTEM, "status")
METRICS: Final = Resource(ResourceKind.SYSTEM, "metrics")
MANUAL: Final = Resource(ResourceKind.SYSTEM, "manual")
CLUSTER: Final = Resource(ResourceKind.SYSTEM, "cluster")
QUERIES: Final = Resource(ResourceKind.SYSTEM, "queries")
PROCESSES: Final = Resource(ResourceKind.SYSTEM, "processes")
"""Routes for Penstock's own processes: a principal with this right has all rights."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The route needs an action on a resource.

    Attributes:
        action: The action.
        kind: Kind of the resource.
        name: Its name; with `is_parameter` the parameter of the path that has the name.
        is_parameter: Whether `name` is a parameter.
    """

    action: Action
    kind: ResourceKind
    name: str
    is_parameter: bool = False

    def resource(self, path_params: Mapping[str, object]) -> Resource:
        """Return the resource of a request."""
        return Resource(self.kind, str(path_params[self.name]) if self.is_parameter else self.name)

    def __str__(self) -> str:
        name = self.name.upper() if self.is_parameter else self.name
        return f"{self.action} {self.kind}:{name}"


@dataclass(frozen=True, slots=True)
class NeedsDefaultable:
    """The route needs an action on a datasource, or on the cluster for the default of all.

    The name `_default` stands for the rules of all datasources.
    """

    action: Action

    def resource(self, path_params: Mapping[str, object]) -> Resource:
        """Return the resource of a request."""
        name = str(path_params["datasource"])
        return CLUSTER if name == DEFAULT_RULES else Resource(ResourceKind.DATASOURCE, name)

    def __str__(self) -> str:
        return f"{self.action} datasource:DATASOURCE, for {DEFAULT_RULES} {self.action} {CLUSTER}"


@dataclass(frozen=True, slots=True)
class Free:
    """The route needs no right."""

    about: str

    def __str__(self) -> str:
        return self.about


@dataclass(frozen=True, slots=True)
class ByHandler:
    """The handler decides, or the process to which the router forwards the request.

    Attributes:
        about: The rights that it checks, for people.
    """

    about: str

    def __str__(self) -> str:
        return self.about


OPEN: Final = Free("nothing, not even a credential")
KNOWN: Final = Free("any valid credential, except that of a task")
OF_TASKS: Final = ByHandler(f"the credential of the task, or {MANAGE} {PROCESSES}")
"""Requests of a task's own process, whose principal is the task."""

RouteRule = Needs | NeedsDefaultable | Free | ByHandler
RouteRules = Mapping[tuple[str, str], RouteRule]


def _system(action: Action, resource: Resource) -> Needs:
    return Needs(action, resource.kind, resource.name)


def _datasource(action: Action) -> Needs:
    return Needs(action, ResourceKind.DATASOURCE, "datasource", is_parameter=True)


_LISTED: Final = ByHandler("read datasource:NAME for each entry")
_LOOKUPS_LISTED: Final = ByHandler("read lookup:NAME for each entry")
_LOOKUP_APPLIED: Final = ByHandler("write lookup:NAME, and what its input needs, as for a task")
_SEEN: Final = ByHandler("read datasource:NAME for each entry, also of a part of its rows")
_ONE_SEEN: Final = ByHandler("read datasource:DATASOURCE, also of a part of its rows")
_BODY: Final = ByHandler("read datasource:NAME of each datasource in the body")
_LOCKS_LISTED: Final = ByHandler(
    "read datasource:NAME for each entry, read task:TASK, or write on its datasource"
)
_TASKS_LISTED: Final = ByHandler("read task:TASK for each entry, or write on its datasource")
_SUPERVISORS_LISTED: Final = ByHandler(
    "read supervisor:ID for each entry, or write on its datasource"
)
_TASK_STATE: Final = ByHandler("read task:TASK, or write on its datasource")
_TASK_CONTENT: Final = ByHandler(
    "read task:TASK and read on its datasource, or write on its datasource"
)
_TASK_CONTROL: Final = ByHandler("manage task:TASK, or write on its datasource")
_SUPERVISOR_STATE: Final = ByHandler("read supervisor:ID, or write on its datasource")
_SUPERVISOR_CONTENT: Final = ByHandler(
    "read supervisor:ID and read on its datasource, or write on its datasource"
)
_SUPERVISOR_CONTROL: Final = ByHandler("manage supervisor:ID, or write on its datasource")
SUBMIT: Final = ByHandler(
    "write datasource:NAME, and what the inputs need: read datasource:NAME, read topic:NAME, "
    "read-external system:inputs"
)
_QUERY: Final = ByHandler("read datasource:NAME of the datasources in the query")
_OWN_QUERY: Final = ByHandler(f"one's own query, or {MANAGE} {QUERIES}")
SUBMIT_SUPERVISOR: Final = ByHandler(f"{SUBMIT}; for one that exists also {_SUPERVISOR_CONTROL}")
OWN_UPLOADS: Final = ByHandler("write datasource:NAME of any datasource; one's own uploads")
OF_INPUT: Final = ByHandler(
    "write datasource:NAME of any datasource, and what the input needs, as for a task"
)
FORWARDED: Final = ByHandler("the right of the route to which it is forwarded")
_FLOW_READ: Final = ByHandler("read flow:NAME")
_FLOW_WRITE: Final = ByHandler("write flow:NAME")
_FLOW_MANAGE: Final = ByHandler(
    "manage flow:NAME of the new flow and of the old one, if there is one, and what its processors"
    " need"
)

_INDEXER: Final = "/druid/indexer/v1"
_COORDINATOR: Final = "/druid/coordinator/v1"
_WORKER: Final = "/druid/worker/v1"
_DELTA: Final = "/penstock/v1/datasources/{datasource}/delta"
_INTERNAL: Final = "/druid-internal/v1"

_LOOKUPS: Final = "/penstock/v1/lookups"
_DRUID_LOOKUPS: Final = f"{_COORDINATOR}/lookups"


def _lookup(action: Action) -> Needs:
    return Needs(action, ResourceKind.LOOKUP, "lookup", is_parameter=True)


_OF_LOOKUPS: Final[RouteRules] = {
    ("GET", _LOOKUPS): _LOOKUPS_LISTED,
    ("POST", _LOOKUPS): _LOOKUP_APPLIED,
    ("GET", f"{_LOOKUPS}/{{lookup}}"): _lookup(READ),
    ("DELETE", f"{_LOOKUPS}/{{lookup}}"): _lookup(WRITE),
    ("POST", f"{_LOOKUPS}/{{lookup}}/refresh"): _lookup(WRITE),
    ("GET", f"{_DRUID_LOOKUPS}/config"): KNOWN,
    ("POST", f"{_DRUID_LOOKUPS}/config"): _LOOKUP_APPLIED,
    ("GET", f"{_DRUID_LOOKUPS}/config/{{tier}}"): _LOOKUPS_LISTED,
    ("GET", f"{_DRUID_LOOKUPS}/config/{{tier}}/{{lookup}}"): _lookup(READ),
    ("POST", f"{_DRUID_LOOKUPS}/config/{{tier}}/{{lookup}}"): _LOOKUP_APPLIED,
    ("DELETE", f"{_DRUID_LOOKUPS}/config/{{tier}}/{{lookup}}"): _lookup(WRITE),
    ("GET", f"{_DRUID_LOOKUPS}/status"): _LOOKUPS_LISTED,
    ("GET", f"{_DRUID_LOOKUPS}/status/{{tier}}"): _LOOKUPS_LISTED,
    ("GET", f"{_DRUID_LOOKUPS}/status/{{tier}}/{{lookup}}"): _lookup(READ),
}

_EVERY_PROCESS: Final[RouteRules] = {
    ("GET", "/status"): _system(READ, STATUS),
    ("GET", "/status/health"): OPEN,
    ("GET", "/status/ready"): OPEN,
    ("GET", "/status/properties"): _system(READ, STATUS),
    ("GET", "/status/selfDiscovered"): _system(READ, STATUS),
    ("GET", "/status/selfDiscovered/status"): _system(READ, STATUS),
    ("GET", "/metrics"): _system(READ, METRICS),
    ("GET", "/stats"): _system(READ, METRICS),
}

_ROUTER: Final[RouteRules] = {
    ("POST", "/druid/v2/sql"): _QUERY,
    ("POST", "/druid/v2/sql/avatica"): _QUERY,
    ("DELETE", "/druid/v2/sql/{query_id:path}"): _OWN_QUERY,
    ("POST", "/druid/v2"): _QUERY,
    ("DELETE", "/druid/v2/{query_id}"): _OWN_QUERY,
    ("GET", "/druid/v2/datasources"): _SEEN,
    ("GET", "/druid/v2/datasources/{datasource}"): _ONE_SEEN,
    ("POST", "/druid/v2/sql/statements"): _QUERY,
    ("GET", "/druid/v2/sql/statements/{query_id}"): _OWN_QUERY,
    ("DELETE", "/druid/v2/sql/statements/{query_id}"): _OWN_QUERY,
    ("GET", "/druid/v2/sql/statements/{query_id}/results"): ByHandler("one's own query"),
    ("GET", "/penstock/v1/queries"): _OWN_QUERY,
    ("POST", "/druid/v2/sql/task"): SUBMIT,
    **{(m, "/druid/indexer/{rest:path}"): FORWARDED for m in ("GET", "POST", "DELETE")},
    **{(m, f"{_COORDINATOR}/datasources/{{rest:path}}"): FORWARDED for m in ("POST", "DELETE")},
    **{(m, "/flow/{rest:path}"): FORWARDED for m in ("GET", "POST", "DELETE")},
    **{(m, "/penstock/v1/flow/{rest:path}"): FORWARDED for m in ("GET", "POST")},
    **{(m, "/penstock/v1/broker/{rest:path}"): FORWARDED for m in ("GET", "POST", "PUT", "DELETE")},
    ("GET", "/penstock/v1/uploads"): OWN_UPLOADS,
    ("POST", "/penstock/v1/uploads"): OWN_UPLOADS,
    ("DELETE", "/penstock/v1/uploads/{upload_id}"): OWN_UPLOADS,
    ("POST", "/penstock/v1/sample"): OF_INPUT,
    ("GET", "/penstock/v1/me"): KNOWN,
    ("GET", "/penstock/v1/live"): KNOWN,  # each path that is watched has its own rule
    ("GET", "/"): OPEN,
    ("GET", "/console/{path:path}"): OPEN,
    ("GET", "/openapi.json"): _system(READ, MANUAL),
    ("GET", "/docs"): OPEN,
    ("GET", "/docs/{path:path}"): OPEN,
    ("GET", LOGIN): OPEN,
    ("POST", LOGIN): OPEN,
    ("POST", LOGOUT): OPEN,
    ("GET", f"{_COORDINATOR}/rules"): _LISTED,
    ("GET", f"{_COORDINATOR}/rules/history"): _LISTED,
    ("GET", f"{_COORDINATOR}/rules/{{datasource}}"): NeedsDefaultable(READ),
    ("POST", f"{_COORDINATOR}/rules/{{datasource}}"): NeedsDefaultable(MANAGE),
    ("GET", f"{_COORDINATOR}/rules/{{datasource}}/history"): NeedsDefaultable(READ),
    ("GET", f"{_COORDINATOR}/leader"): KNOWN,
    ("GET", f"{_COORDINATOR}/isLeader"): KNOWN,
    ("GET", f"{_COORDINATOR}/servers"): _system(READ, STATUS),
    ("GET", f"{_COORDINATOR}/config"): _system(READ, STATUS),
    ("GET", f"{_COORDINATOR}/loadstatus"): _LISTED,
    ("GET", f"{_COORDINATOR}/datasources"): _LISTED,
    ("GET", f"{_COORDINATOR}/metadata/datasources"): _LISTED,
    **{
        ("GET", f"{_COORDINATOR}/{path}"): _datasource(READ)
        for path in (
            "datasources/{datasource}",
            "datasources/{datasource}/intervals",
            "datasources/{datasource}/intervals/{interval:path}",
            "datasources/{datasource}/segments",
            "datasources/{datasource}/segments/{segment:path}",
            "datasources/{datasource}/loadstatus",
            "metadata/datasources/{datasource}",
            "metadata/datasources/{datasource}/segments",
            "metadata/datasources/{datasource}/segments/{segment:path}",
            "metadata/datasources/{datasource}/unusedSegments",
        )
    },
    ("GET", "/penstock/v1/trace/message"): ByHandler(
        "read topic:TOPIC, and read datasource:NAME for each entry, without a row filter or mask"
    ),
    ("POST", "/penstock/v1/trace/row"): ByHandler(
        "read datasource:NAME, without a row filter or mask; read topic:TOPIC for messages"
    ),
    ("GET", "/penstock/v1/datasources"): _SEEN,
    ("GET", "/penstock/v1/datasources/{datasource}"): _ONE_SEEN,
    ("GET", "/penstock/v1/datasources/{datasource}/sums"): _datasource(READ),
    ("POST", "/penstock/v1/datasources/{datasource}/rules/preview"): NeedsDefaultable(READ),
    ("GET", "/penstock/v1/resources"): _system(READ, STATUS),
    ("GET", "/penstock/v1/datasources/{datasource}/timeline"): _datasource(READ),
    ("GET", "/penstock/v1/datasources/{datasource}/segments/timeline"): _datasource(READ),
    ("GET", "/penstock/v1/datasources/{datasource:path}/files"): _datasource(READ),
    ("GET", "/penstock/v1/datasources/{datasource:path}/changes"): _datasource(READ),
    ("GET", "/penstock/v1/datasources/{datasource:path}/cursors"): _datasource(READ),
    ("PUT", "/penstock/v1/datasources/{datasource:path}/cursors/{cursor}"): _datasource(READ),
    ("DELETE", "/penstock/v1/datasources/{datasource:path}/cursors/{cursor}"): _datasource(READ),
    ("GET", "/penstock/v1/datasources/{datasource:path}/writes"): _datasource(WRITE),
    ("POST", "/penstock/v1/datasources/{datasource:path}/writes/{task_id}/files"): _datasource(
        WRITE
    ),
    ("GET", _DELTA): _datasource(READ),
    ("POST", _DELTA): _datasource(MANAGE),
    ("DELETE", _DELTA): _datasource(MANAGE),
    ("POST", f"{_DELTA}/rebuild"): _datasource(MANAGE),
    ("GET", f"{ICEBERG}/config"): KNOWN,
    ("GET", f"{ICEBERG}/namespaces"): KNOWN,
    ("GET", f"{ICEBERG}/namespaces/{{namespace}}"): KNOWN,
    ("GET", f"{ICEBERG}/namespaces/{{namespace}}/tables"): _LISTED,
    ("GET", f"{ICEBERG}/namespaces/{{namespace}}/tables/{{datasource:path}}"): _datasource(READ),
    ("POST", f"{ICEBERG}/namespaces/{{namespace}}/tables/{{datasource:path}}"): _datasource(WRITE),
    ("POST", f"{ICEBERG}/namespaces/{{namespace}}/tables/{{datasource:path}}/plan"): _datasource(
        READ
    ),
    ("POST", f"{ICEBERG}/namespaces/{{namespace}}/tables/{{datasource:path}}/tasks"): _datasource(
        READ
    ),
}

_TASKS: Final[RouteRules] = {
    ("POST", f"{_INDEXER}/action"): OF_TASKS,
    ("POST", f"{_INDEXER}/task"): SUBMIT,
    ("GET", f"{_INDEXER}/task/{{task_id}}"): _TASK_CONTENT,
    ("GET", f"{_INDEXER}/task/{{task_id}}/status"): _TASK_STATE,
    ("GET", f"{_INDEXER}/task/{{task_id}}/why"): _TASK_STATE,
    ("GET", f"{_INDEXER}/task/{{task_id}}/segments"): _TASK_CONTENT,
    ("GET", f"{_INDEXER}/task/{{task_id}}/log"): _TASK_CONTENT,
    ("GET", f"{_INDEXER}/task/{{task_id}}/reports"): _TASK_CONTENT,
    ("POST", f"{_INDEXER}/task/{{task_id}}/shutdown"): _TASK_CONTROL,
    ("POST", f"{_INDEXER}/datasources/{{datasource}}/shutdownAllTasks"): _datasource(MANAGE),
    **{
        ("GET", f"{_INDEXER}/{state}"): _TASKS_LISTED
        for state in ("tasks", "pendingTasks", "waitingTasks", "runningTasks", "completeTasks")
    },
    ("POST", f"{_INDEXER}/taskStatus"): _TASKS_LISTED,
    # The router forwards them.
    ("GET", "/penstock/v1/tasks"): _TASKS_LISTED,
    ("GET", "/penstock/v1/locks"): _LOCKS_LISTED,
}

_SUPERVISOR: Final = f"{_INDEXER}/supervisor"
_ONE_SUPERVISOR: Final = f"{_SUPERVISOR}/{{supervisor_id}}"
_SUPERVISORS: Final[RouteRules] = {
    ("GET", _SUPERVISOR): _SUPERVISORS_LISTED,
    ("POST", _SUPERVISOR): SUBMIT_SUPERVISOR,
    ("GET", f"{_SUPERVISOR}/history"): _SUPERVISORS_LISTED,
    **{
        ("POST", f"{_SUPERVISOR}/{command}"): _system(MANAGE, CLUSTER)
        for command in ("suspendAll", "resumeAll", "terminateAll")
    },
    ("GET", _ONE_SUPERVISOR): _SUPERVISOR_STATE,
    ("GET", f"{_ONE_SUPERVISOR}/status"): _SUPERVISOR_STATE,
    ("GET", f"{_ONE_SUPERVISOR}/health"): _SUPERVISOR_STATE,
    ("GET", f"{_ONE_SUPERVISOR}/stats"): _SUPERVISOR_STATE,
    ("GET", f"{_ONE_SUPERVISOR}/history"): _SUPERVISOR_STATE,
    ("GET", f"{_ONE_SUPERVISOR}/parseErrors"): _SUPERVISOR_CONTENT,
    **{
        ("POST", f"{_ONE_SUPERVISOR}/{command}"): _SUPERVISOR_CONTROL
        for command in (
            *("suspend", "resume", "terminate", "shutdown", "reset", "resetOffsets"),
            *("resetToLatestAndBackfill", "taskGroups/handoff"),
        )
    },
    # The router forwards them.
    ("GET", "/penstock/v1/supervisors"): _SUPERVISORS_LISTED,
    ("GET", "/penstock/v1/supervisors/{supervisor_id}/lag"): _SUPERVISOR_STATE,
    ("POST", "/penstock/v1/supervisors/{supervisor_id}/backfill"): _SUPERVISOR_CONTROL,
}

_COMPACTION: Final = f"{_INDEXER}/compaction"
_ONE_CONFIG: Final = f"{_COMPACTION}/config/datasources/{{datasource}}"
_CLUSTER_ROUTES: Final[RouteRules] = {
    ("GET", f"{_INDEXER}/leader"): KNOWN,
    ("GET", f"{_INDEXER}/isLeader"): KNOWN,
    ("GET", f"{_INDEXER}/workers"): _system(READ, CLUSTER),
    ("GET", f"{_INDEXER}/totalWorkerCapacity"): _system(READ, CLUSTER),
    ("GET", f"{_INDEXER}/scaling"): _system(READ, CLUSTER),
    ("GET", f"{_INDEXER}/worker"): _system(READ, CLUSTER),
    ("POST", f"{_INDEXER}/worker"): _system(MANAGE, CLUSTER),
    ("GET", f"{_INDEXER}/worker/history"): _system(READ, CLUSTER),
    ("POST", f"{_INDEXER}/worker/{{host}}/enable"): _system(MANAGE, CLUSTER),
    ("POST", f"{_INDEXER}/worker/{{host}}/disable"): _system(MANAGE, CLUSTER),
    ("POST", f"{_INDEXER}/lockedIntervals/v2"): _BODY,
    ("POST", f"{_INDEXER}/activeLocks"): _BODY,
    ("GET", f"{_COMPACTION}/isSupervisorEnabled"): KNOWN,
    ("GET", f"{_COMPACTION}/config/cluster"): _system(READ, CLUSTER),
    ("POST", f"{_COMPACTION}/config/cluster"): _system(MANAGE, CLUSTER),
    ("GET", f"{_COMPACTION}/config/datasources"): _LISTED,
    ("GET", _ONE_CONFIG): _datasource(READ),
    ("POST", _ONE_CONFIG): _datasource(MANAGE),
    ("DELETE", _ONE_CONFIG): _datasource(MANAGE),
    ("GET", f"{_ONE_CONFIG}/history"): _datasource(READ),
    ("GET", f"{_COMPACTION}/status/datasources"): _LISTED,
    ("GET", f"{_COMPACTION}/status/datasources/{{datasource}}"): _datasource(READ),
    ("POST", f"{_COMPACTION}/simulate"): _LISTED,
}

_SEGMENTS: Final[RouteRules] = {
    **{
        (method, f"{_INDEXER}/datasources/{{datasource}}{path}"): _datasource(MANAGE)
        for method, path in (
            ("POST", ""),
            ("DELETE", ""),
            ("POST", "/markUsed"),
            ("POST", "/markUnused"),
            ("POST", "/segments/{segment:path}"),
            ("DELETE", "/segments/{segment:path}"),
        )
    },
    ("DELETE", f"{_INDEXER}/pendingSegments/{{datasource}}"): _datasource(MANAGE),
}

_WORKERS: Final[RouteRules] = {
    ("GET", f"{_INTERNAL}/worker"): _system(MANAGE, PROCESSES),
    ("POST", f"{_INTERNAL}/worker/assignTask"): _system(MANAGE, PROCESSES),
    ("GET", f"{_INTERNAL}/leader"): OF_TASKS,
    ("GET", f"{_INTERNAL}/broker"): OF_TASKS,
    ("GET", f"{_WORKER}/enabled"): _system(READ, CLUSTER),
    ("POST", f"{_WORKER}/enable"): _system(MANAGE, CLUSTER),
    ("POST", f"{_WORKER}/disable"): _system(MANAGE, CLUSTER),
    ("GET", f"{_WORKER}/tasks"): _system(READ, CLUSTER),
    ("POST", f"{_WORKER}/task/{{task_id}}/shutdown"): _system(MANAGE, PROCESSES),
    ("GET", f"{_WORKER}/task/{{task_id}}/log"): _system(MANAGE, PROCESSES),
    ("GET", f"{_WORKER}/task/{{task_id}}/reports"): _system(MANAGE, PROCESSES),
}

_PEONS: Final[RouteRules] = {
    (method, f"{_WORKER}/chat/{{task_id}}/{verb}"): _system(MANAGE, PROCESSES)
    for method, verb in (
        *(("GET", one) for one in ("liveReports", "rowStats", "unparseableEvents", "status")),
        *(("GET", one) for one in ("time/start", "offsets/current", "offsets/end", "checkpoints")),
        *(("POST", one) for one in ("stop", "pause", "resume", "offsets/end")),
    )
}

_FLOWS: Final[RouteRules] = {
    ("GET", "/flow"): _FLOW_READ,
    ("PUT", "/flow"): _FLOW_MANAGE,
    ("POST", "/flow/validate"): _FLOW_MANAGE,
    ("GET", "/flow/status"): _FLOW_READ,
    ("GET", "/flow/bulletins"): _FLOW_READ,
    **{
        ("POST", f"/flow/{command}"): _FLOW_WRITE
        for command in ("start", "stop", "run-once", "terminate")
    },
    ("GET", "/flow/queue"): _FLOW_READ,
    ("GET", "/flow/component"): _FLOW_READ,
    ("GET", "/flow/state"): _FLOW_READ,
    ("DELETE", "/flow/state"): _FLOW_WRITE,
    ("GET", "/flow/queue/status"): _FLOW_READ,
    ("GET", "/flow/queue/content"): _FLOW_WRITE,
    ("GET", "/flow/queue/count"): _FLOW_READ,
    ("POST", "/flow/queue/drop"): _FLOW_WRITE,
    ("GET", "/flow/queue/drop"): _FLOW_READ,
    ("DELETE", "/flow/queue/drop"): _FLOW_WRITE,
    ("GET", "/flow/openapi.json"): _system(READ, MANUAL),
    ("GET", "/flow/metrics"): _system(READ, METRICS),
    ("GET", "/penstock/v1/flow/provenance"): ByHandler(
        "read flow:NAME, and read datasource:NAME of its provenance"
    ),
    ("POST", "/penstock/v1/flow/replay"): _FLOW_WRITE,
    ("GET", "/penstock/v1/flow/replays"): ByHandler(
        "read flow:NAME, and read datasource:NAME of its provenance"
    ),
    ("POST", "/penstock/v1/flow/replays"): ByHandler(
        "read and write flow:NAME, and read datasource:NAME of its provenance"
    ),
}

ROUTE_RULES: Final[RouteRules] = {
    **_EVERY_PROCESS,
    **_ROUTER,
    **_OF_LOOKUPS,
    **_TASKS,
    **_SUPERVISORS,
    **_CLUSTER_ROUTES,
    **_SEGMENTS,
    **_WORKERS,
    **_PEONS,
    **_FLOWS,
}
"""The rule of each method and path."""


def guarded(routes: Iterable[BaseRoute], rules: RouteRules = ROUTE_RULES) -> Sequence[Route]:
    """Return the routes with the check of their rules before each.

    Raises:
        LookupError: A route has no rule: add it to the table of this module.
    """
    return [_guarded(route, rules) for route in routes]


def _guarded(route: BaseRoute, rules: RouteRules) -> Route:
    if not isinstance(route, Route) or not route.methods:
        raise LookupError(f"{route!r} is not a route with methods, so no rule can be checked")
    own: dict[str, RouteRule] = {}
    for method in route.methods:
        # HEAD is answered like GET, without the body.
        rule = rules.get(("GET" if method == "HEAD" else method, route.path))
        if rule is None:
            raise LookupError(
                f"{method} {route.path} has no rule: add one to services.api.access_rules"
            )
        own[method] = rule
    found = Route(route.path, route.endpoint, methods=list(route.methods), name=route.name)
    found.app = _RuleCheck(found.app, own)
    return found


class _RuleCheck:
    """Checks the rule of a route, then passes the request on.

    Args:
        app: The route's handler.
        rules: Its rule for each method.
    """

    def __init__(self, app: ASGIApp, rules: Mapping[str, RouteRule]) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Raises Unauthenticated or Forbidden."""
        rule = self._rules[scope["method"]]
        if rule is not OPEN:
            access = access_of(Request(scope))
            access.require_known()
            if isinstance(rule, Needs | NeedsDefaultable):
                access.require(rule.action, rule.resource(scope["path_params"]))
            elif (access.principal.kind is PrincipalKind.TASK) != (rule is OF_TASKS):
                # A task has only its own routes, and these have only tasks and processes.
                access.require(MANAGE, PROCESSES)
        await self._app(scope, receive, send)
