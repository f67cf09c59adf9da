"""Automatic compaction: configurations, and the progress of datasources.

Configurations of datasources and of the cluster have Druid's form; changes are kept in the audit
log. If a datasource has a compaction supervisor, its spec is the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.names import spelling
from penstock.indexing.overlord import Overlord
from penstock.indexing.overlord.compaction.compaction_duty import AuditOf, CompactionConfigs
from penstock.indexing.overlord.compaction.planner import CompactionPlan, SegmentTally
from penstock.indexing.specs.compaction import (
    CompactionConfig,
    parse_cluster_compaction,
    parse_compaction,
)
from penstock.services.api.asgi import JsonResponse, bounded_body
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.request_parts import (
    PREFIX,
    author_and_comment,
    datasource_of,
    query_count,
    query_interval,
)
from penstock.services.api.indexer.task_json import audit_to_json
from penstock.services.api.request_access import RequestAccess, access_of
from penstock.storage.metadata import AuditRow

if TYPE_CHECKING:
    from penstock.indexing.overlord.admin_service import AdminService
    from penstock.indexing.specs.compaction import ClusterCompaction

AUDIT_TYPE: Final = "compaction"
_CLUSTER: Final = "_cluster"
_HISTORY_MAX: Final = 1_000
_DONE: Final = {"success": True}


class CompactionRoutes:
    """The routes of compaction."""

    def __init__(self, overlord: Overlord) -> None:
        self._admin = overlord.admin_service
        self._service = overlord.compaction_service

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        base = PREFIX + "/compaction"
        config, status = base + "/config", base + "/status"
        one = config + "/datasources/{datasource}"
        return [
            Route(base + "/isSupervisorEnabled", self.is_on_overlord),
            Route(config + "/cluster", self.cluster),
            Route(config + "/cluster", self.set_cluster, methods=["POST"]),
            Route(config + "/datasources", self.configs),
            Route(one, self.config),
            Route(one, self.set_config, methods=["POST"]),
            Route(one, self.delete_config, methods=["DELETE"]),
            Route(one + "/history", self.history),
            Route(status + "/datasources", self.statuses),
            Route(status + "/datasources/{datasource}", self.status),
            Route(base + "/simulate", self.simulate, methods=["POST"]),
        ]

    def is_on_overlord(self, _request: Request) -> Response:
        """Return that the overlord itself compacts."""
        return JsonResponse(True)  # Druid's body is the bare value  # noqa: FBT003

    def cluster(self, _request: Request) -> Response:
        """Return how many compaction tasks may run."""
        return JsonResponse(self._read().cluster.to_json())

    async def set_cluster(self, request: Request) -> Response:
        """Set how many compaction tasks may run."""
        cluster = parse_cluster_compaction(await bounded_body(request))
        return await run_in_threadpool(self._set_cluster, cluster, *author_and_comment(request))

    def _set_cluster(self, cluster: ClusterCompaction, author: str, comment: str) -> Response:
        metadata = self._admin.metadata
        CompactionConfigs.change(
            metadata,
            lambda configs: replace(configs, cluster=cluster),
            _entry(_CLUSTER, author, comment),
        )
        return JsonResponse(_DONE)

    def configs(self, request: Request) -> Response:
        """List the configurations of datasources."""
        every = self._read().datasources.values()
        configs = access_of(request).readable(every, lambda config: config.datasource)
        return JsonResponse({"compactionConfigs": [config.to_json() for config in configs]})

    def config(self, request: Request) -> Response:
        """Show the configuration of a datasource."""
        return JsonResponse(_of(self._read(), self._datasource(request)).to_json())

    async def set_config(self, request: Request) -> Response:
        """Set the configuration of a datasource."""
        body = await bounded_body(request)
        return await run_in_threadpool(self._set_config, request, body)

    def _set_config(self, request: Request, body: bytes) -> Response:
        config = parse_compaction(body, lambda name: spelling(name, self._is_stored))
        named = self._datasource(request)
        if config.datasource != named:
            raise InvalidRequest(
                f"is {config.datasource!r}, but the path has {named!r}", place="dataSource"
            )
        author, comment = author_and_comment(request)
        result_of(self._service.configure(config, _entry(config.datasource, author, comment)))
        return JsonResponse(_DONE)

    def delete_config(self, request: Request) -> Response:
        """Stop compacting a datasource."""
        name = self._datasource(request)
        _of(self._read(), name)
        result_of(self._service.end(name, _entry(name, *author_and_comment(request))))
        return JsonResponse(_DONE)

    def history(self, request: Request) -> Response:
        """List the configurations that a datasource had, newest first."""
        name = self._datasource(request)
        if name == _CLUSTER:  # the name under which changes of the cluster are recorded
            access_of(request).require(Action.READ, Resource(ResourceKind.SYSTEM, "cluster"))
        rows = self._admin.metadata.audit.list(
            name,
            type=AUDIT_TYPE,
            interval=query_interval(request),
            limit=query_count(request, "count", default=_HISTORY_MAX, most=_HISTORY_MAX),
        )
        return JsonResponse([{**row.payload, **audit_to_json(row)} for row in rows])

    def statuses(self, request: Request) -> Response:
        """Return the progress of each configured datasource."""
        configs = self._read()
        shown = access_of(request).readable(configs.datasources)
        plans = self._admin.compaction_plans(configs, shown)
        found = [_status(name, configs, plan) for name, plan in plans.items()]
        return JsonResponse({"latestStatus": found})

    def status(self, request: Request) -> Response:
        """Return the progress of a datasource."""
        return JsonResponse(compaction_progress(self._admin, self._datasource(request)))

    async def simulate(self, request: Request) -> Response:
        """List the intervals due under another cluster configuration, newest first."""
        cluster = parse_cluster_compaction(await bounded_body(request) or b"{}")
        return await run_in_threadpool(self._simulate, access_of(request), cluster)

    def _simulate(self, access: RequestAccess, cluster: ClusterCompaction) -> Response:
        plans = self._admin.compaction_plans(replace(self._read(), cluster=cluster))
        shown = access.readable(plans)
        rows = [[name, str(interval)] for name in shown for interval in plans[name].due]
        table = {"columnNames": ["dataSource", "interval"], "rows": rows}
        return JsonResponse({"compactionStates": {"PENDING": table}})

    def _datasource(self, request: Request) -> str:
        return datasource_of(request, self._is_stored)

    def _is_stored(self, name: str) -> bool:
        return name in self._read().datasources or self._admin.metadata.is_stored_name(name)

    def _read(self) -> CompactionConfigs:
        return CompactionConfigs.read(self._admin.metadata)


def _entry(key: str, author: str, comment: str) -> AuditOf:
    """Return a function that builds the audit log entry from the changed configurations."""

    def of(changed: CompactionConfigs) -> AuditRow:
        config = changed.datasources.get(key)
        payload: Mapping[str, object] = {
            "globalConfig": changed.cluster.to_json(),
            "compactionConfig": None if config is None else config.to_json(),
        }
        return AuditRow(key, AUDIT_TYPE, author, comment, payload)

    return of


def _of(configs: CompactionConfigs, name: str) -> CompactionConfig:
    config = configs.datasources.get(name)
    if config is None:
        raise NotFound(
            f"{name} has no compaction configuration: set one with penstock compaction set,"
            " or a POST to …/compaction/config/datasources"
        )
    return config


def compaction_progress(admin: AdminService, datasource: str) -> Mapping[str, object]:
    """Return the progress of a datasource's compaction, in Druid's JSON. Blocks.

    Raises:
        NotFound: The datasource has no configuration.
        Unavailable: The metadata store does not answer.
    """
    configs = CompactionConfigs.read(admin.metadata)
    _of(configs, datasource)
    plans = admin.compaction_plans(configs, (datasource,))
    return _status(datasource, configs, plans[datasource])


def _status(name: str, configs: CompactionConfigs, plan: CompactionPlan) -> dict[str, object]:
    # A suspended supervisor reports its numbers, too, so that users can see what it would compact.
    status = "NOT_ENABLED" if name in configs.suspended else "RUNNING"
    shown: dict[str, object] = {"dataSource": name, "scheduleStatus": status}
    for what in ("bytes", "segmentCount", "intervalCount"):
        for kind, tally in (
            ("AwaitingCompaction", plan.awaiting),
            ("Compacted", plan.compacted),
            ("Skipped", plan.skipped),
        ):
            shown[what + kind] = _number(tally, what)
    shown["due"] = [str(interval) for interval in plan.due]
    return shown


def _number(tally: SegmentTally, what: str) -> int:
    return {
        "bytes": tally.bytes,
        "segmentCount": tally.segments,
        "intervalCount": tally.intervals,
    }[what]
