"""API of supervisors: submit, read and control them, below `/druid/indexer/v1/supervisor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Resource, ResourceKind
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import format_time
from penstock.indexing.overlord import Overlord
from penstock.indexing.overlord.supervisor_service import SHORT_OF_SLOTS
from penstock.indexing.required_access import datasource_of_spec, required_access
from penstock.indexing.secrets import masked
from penstock.indexing.sequences import offsets_from_json
from penstock.indexing.specs import SupervisorSpec
from penstock.services.api.asgi import JsonResponse, bounded_body, integer, json_object
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.compaction import compaction_progress
from penstock.services.api.indexer.owned_access import (
    OwnedNeed,
    may_access,
    require_access,
    shown_error,
)
from penstock.services.api.indexer.request_parts import (
    PREFIX,
    query_count,
    query_flag,
    stored_name_of,
)
from penstock.services.api.request_access import RequestAccess, access_of
from penstock.services.json_values import part

if TYPE_CHECKING:
    from penstock.indexing.overlord.admin_service import AdminService
    from penstock.indexing.overlord.supervisor_service import SupervisorService, SupervisorView
    from penstock.storage.metadata import SupervisorRow

HISTORY_MAX: Final = 1_000

_BASE: Final = PREFIX + "/supervisor"
_GROUPS_MAX: Final = 10_000
_NAMED_MAX: Final = 20


class SupervisorRoutes:
    """The routes that read supervisors, submit them, and control all of them."""

    def __init__(self, overlord: Overlord) -> None:
        self._service = overlord.supervisor_service
        self._compaction = overlord.compaction_service
        self._admin = overlord.admin_service
        self._ids = SupervisorIds(self._service, self._admin)
        self._commands = _Commands(self._service, self._ids)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        one = _BASE + "/{supervisor_id}"
        return [
            Route(_BASE, self.list),
            Route(_BASE, self.submit, methods=["POST"]),
            Route(_BASE + "/history", self.histories),
            Route(_BASE + "/suspendAll", self._all(self._suspend_all), methods=["POST"]),
            Route(_BASE + "/resumeAll", self._all(self._resume_all), methods=["POST"]),
            Route(_BASE + "/terminateAll", self._all(self._terminate_all), methods=["POST"]),
            Route(one, self.spec),
            Route(one + "/status", self.status),
            Route(one + "/health", self.health),
            Route(one + "/stats", self.stats),
            Route(one + "/parseErrors", self.parse_errors),
            Route(one + "/history", self.history),
            *self._commands.routes(),
        ]

    def list(self, request: Request) -> Response:
        """List supervisors: ids; with `state`, `full` or `system` one entry each."""
        found = self._readable(request)
        if query_flag(request, "system"):
            return JsonResponse([_as_system(one) for one in found])
        if query_flag(request, "full"):
            return JsonResponse(
                [{**one.summary, "spec": masked(one.spec.to_json())} for one in found]
            )
        if query_flag(request, "state"):
            return JsonResponse([dict(one.summary) for one in found])
        return JsonResponse([one.summary["id"] for one in found])

    def _readable(self, request: Request) -> Sequence[SupervisorView]:
        """Return the supervisors whose state the principal may see."""
        access = access_of(request)
        return [
            one
            for one in result_of(self._service.every())
            if may_access(
                *(access, OwnedNeed.STATE, supervisor_resource(one.spec.supervisor_id)),
                datasource_of_spec(one.spec),
            )
        ]

    async def submit(self, request: Request) -> Response:
        """Create a supervisor, or update its spec."""
        # Unparsed, because a duplicate name in an object can only be detected in the text.
        body = await bounded_body(request)
        skip = query_flag(request, "skipRestartIfUnmodified")
        return await run_in_threadpool(self._submit, access_of(request), body, skip_unmodified=skip)

    def _submit(self, access: RequestAccess, body: bytes, *, skip_unmodified: bool) -> Response:
        spec = self._service.parse(body)
        for action, resource in required_access(spec):
            access.require(action, resource)

        def check(written: str | None) -> None:
            # On the mailbox, where no other request can store one of this id in between.
            if written is not None:
                name = supervisor_resource(spec.supervisor_id)
                require_access(access, OwnedNeed.CONTROL, name, lambda: written)

        done = result_of(self._service.submit(spec, skip_unmodified=skip_unmodified, check=check))
        return JsonResponse({"id": done.id, "modified": done.modified, "restarted": done.restarted})

    def spec(self, request: Request) -> Response:
        """Return a spec."""
        return JsonResponse(
            masked(result_of(self._service.spec(self._state_id(request))).to_json())
        )

    def status(self, request: Request) -> Response:
        """Return the status of a supervisor."""
        supervisor_id = self._state_id(request)
        compacts = self._compaction.spec(supervisor_id)
        if compacts is not None:
            progress = compaction_progress(self._admin, compacts.spec.datasource)
            return JsonResponse(self._compaction.status(compacts, progress))
        status = result_of(self._service.status(supervisor_id))
        return JsonResponse(shown_status(access_of(request), supervisor_id, status))

    def health(self, request: Request) -> Response:
        """Return whether a supervisor is healthy; compaction supervisors always are."""
        supervisor_id = self._state_id(request)
        if self._compaction.spec(supervisor_id) is not None:
            return JsonResponse({"healthy": True})
        status = result_of(self._service.status(supervisor_id))
        payload = status.get("payload")
        healthy = part(payload, "healthy") is True
        # A healthy supervisor may still leave no slots for others.
        short = part(payload, SHORT_OF_SLOTS)
        more = {SHORT_OF_SLOTS: short} if short else {}
        return JsonResponse({"healthy": healthy, **more}, 200 if healthy else 503)

    def stats(self, request: Request) -> Response:
        """Return the counts of a supervisor's tasks."""
        return JsonResponse(result_of(self._service.stats(self._state_id(request))))

    def parse_errors(self, request: Request) -> Response:
        """Return samples of messages that a supervisor's tasks could not parse."""
        return JsonResponse(
            result_of(self._service.parse_errors(self._ids.of(request, OwnedNeed.CONTENT)))
        )

    def histories(self, request: Request) -> Response:
        """List the versions of all specs, by supervisor, newest first."""
        access = access_of(request)
        return JsonResponse(
            {
                name: [_version(row) for row in rows]
                for name, rows in self._service.histories().items()
                if may_access(
                    access, OwnedNeed.STATE, supervisor_resource(name), _datasource_of_row(rows[0])
                )
            }
        )

    def history(self, request: Request) -> Response:
        """List the versions of a spec, newest first."""
        supervisor_id = self._ids.of(request, OwnedNeed.STATE, may_have_ended=True)
        count = query_count(request, "count", default=HISTORY_MAX, most=HISTORY_MAX)
        return JsonResponse([_version(row) for row in self._service.history(supervisor_id)[:count]])

    def _state_id(self, request: Request) -> str:
        return self._ids.of(request, OwnedNeed.STATE)

    def _suspend_all(self) -> None:
        result_of(self._service.suspend_all(suspended=True))

    def _resume_all(self) -> None:
        result_of(self._service.suspend_all(suspended=False))

    def _terminate_all(self) -> None:
        result_of(self._service.terminate_all())

    @staticmethod
    def _all(command: Callable[[], None]) -> Callable[[Request], Response]:
        def answer(_request: Request) -> Response:
            command()
            return JsonResponse({"status": "success"})

        return answer


class _Commands:
    """The routes that control one supervisor."""

    def __init__(self, service: SupervisorService, ids: SupervisorIds) -> None:
        self._service = service
        self._ids = ids

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        one = _BASE + "/{supervisor_id}"
        return [
            Route(one + "/suspend", self.suspend, methods=["POST"]),
            Route(one + "/resume", self.resume, methods=["POST"]),
            Route(one + "/terminate", self.terminate, methods=["POST"]),
            Route(one + "/shutdown", self.terminate, methods=["POST"]),
            Route(one + "/reset", self.reset, methods=["POST"]),
            Route(one + "/resetOffsets", self.reset_offsets, methods=["POST"]),
            Route(one + "/resetToLatestAndBackfill", self.backfill, methods=["POST"]),
            Route(one + "/taskGroups/handoff", self.hand_off, methods=["POST"]),
        ]

    def suspend(self, request: Request) -> Response:
        """Suspend a supervisor."""
        return JsonResponse(masked(result_of(self._service.suspend(self._id(request))).to_json()))

    def resume(self, request: Request) -> Response:
        """Resume a supervisor."""
        return JsonResponse(masked(result_of(self._service.resume(self._id(request))).to_json()))

    def terminate(self, request: Request) -> Response:
        """Terminate a supervisor."""
        supervisor_id = self._id(request)
        result_of(self._service.terminate(supervisor_id))
        return JsonResponse({"id": supervisor_id})

    def reset(self, request: Request) -> Response:
        """Forget the committed offsets of a supervisor."""
        supervisor_id = self._id(request)
        result_of(self._service.reset(supervisor_id))
        return JsonResponse({"id": supervisor_id})

    async def reset_offsets(self, request: Request) -> Response:
        """Set the committed offsets of a supervisor."""
        wanted = (await json_object(request)).get("partitions")
        if not isinstance(wanted, dict):
            raise InvalidRequest("must hold stream and partitionOffsetMap", place="partitions")
        return await run_in_threadpool(self._reset_offsets, request, wanted)

    def _reset_offsets(self, request: Request, wanted: dict[str, object]) -> Response:
        supervisor_id = self._id(request)
        place = "partitions.partitionOffsetMap"
        try:
            offsets = offsets_from_json(wanted.get("partitionOffsetMap"))
        except InvalidRequest as error:
            raise InvalidRequest(str(error), place=place) from None
        if not offsets:
            raise InvalidRequest("must name at least one stream partition", place=place)
        spec = result_of(self._service.spec(supervisor_id))
        reads = spec.stream if isinstance(spec, SupervisorSpec) else None
        if reads is not None and wanted.get("stream", reads) != reads:
            raise InvalidRequest(
                f"the supervisor reads {reads}, not {wanted['stream']}", place="partitions.stream"
            )
        result_of(self._service.reset(supervisor_id, offsets))
        return JsonResponse({"id": supervisor_id})

    def backfill(self, request: Request) -> Response:
        """Continue at the latest messages, and start a second supervisor for those before them."""
        count = integer(request, "backfillTaskCount")
        if count is not None and count < 1:
            raise InvalidRequest(f"{count} is below 1", place="backfillTaskCount")
        supervisor_id = self._id(request)
        other = result_of(self._service.backfill(supervisor_id, task_count=count))
        return JsonResponse({"id": supervisor_id, "backfillSupervisorId": other})

    async def hand_off(self, request: Request) -> Response:
        """Have task groups publish the rows that they have read."""
        groups = (await json_object(request)).get("taskGroupIds")
        if not isinstance(groups, list) or not groups:
            raise InvalidRequest("must list at least one task group", place="taskGroupIds")
        if len(groups) > _GROUPS_MAX or not all(type(group) is int for group in groups):
            raise InvalidRequest("must be whole numbers", place="taskGroupIds")
        await run_in_threadpool(
            lambda: result_of(self._service.hand_off(self._id(request), groups))
        )
        return JsonResponse({}, 202)

    def _id(self, request: Request) -> str:
        return self._ids.of(request, OwnedNeed.CONTROL)


class SupervisorIds:
    """Ids of supervisors in paths, which the principal of the request may access."""

    def __init__(self, service: SupervisorService, admin: AdminService) -> None:
        self._service = service
        self._admin = admin

    def of(self, request: Request, need: OwnedNeed, *, may_have_ended: bool = False) -> str:
        """Return the id in the path.

        Raises:
            Forbidden: The principal may not access the supervisor.
            NotFound: There is no such supervisor; the message lists those that it may see.
        """
        access = access_of(request)
        name = stored_name_of(request, "supervisor_id", self._admin.metadata.is_stored_name)
        datasource = result_of(self._service.written_by(name))
        require_access(access, need, supervisor_resource(name), lambda: datasource)
        if datasource is None and not may_have_ended:
            seen = result_of(self._service.specs())
            known = [
                one.supervisor_id
                for one in seen
                if may_access(
                    *(access, OwnedNeed.STATE, supervisor_resource(one.supervisor_id)),
                    datasource_of_spec(one),
                )
            ]
            some = ", ".join(known[:_NAMED_MAX]) or "none"
            rest = f", … ({len(known):,} in total)" if len(known) > _NAMED_MAX else ""
            raise NotFound(f"there is no supervisor {name!r}; there are: {some}{rest}")
        return name


def supervisor_resource(supervisor_id: str) -> Resource:
    """Return the resource whose rights apply to a supervisor."""
    return Resource(ResourceKind.SUPERVISOR, supervisor_id)


def shown_status(
    access: RequestAccess, supervisor_id: str, status: Mapping[str, object]
) -> dict[str, object]:
    """Return a status in which the texts of errors are as the principal may see them."""
    payload = status.get("payload")
    if access.is_unlimited or not isinstance(payload, dict):
        return dict(status)
    resource, datasource = supervisor_resource(supervisor_id), str(payload.get("dataSource"))

    def shown(entries: object, name: str) -> list[object]:
        return [
            {**one, name: shown_error(access, resource, datasource, str(one.get(name)))}
            for one in (entries if isinstance(entries, list) else ())
            if isinstance(one, dict)
        ]

    changed: dict[str, object] = {
        "recentErrors": shown(payload.get("recentErrors"), "exceptionMessage")
    }
    skipped = payload.get("skippedFiles")
    if isinstance(skipped, dict):
        changed["skippedFiles"] = {**skipped, "files": shown(skipped.get("files"), "reason")}
    return {**status, "payload": {**payload, **changed}}


def _as_system(one: SupervisorView) -> dict[str, object]:
    """Return the form that Druid's system tables read."""
    return {
        **one.summary,
        "type": one.spec.type,
        "source": one.spec.stream,
        "specString": orjson.dumps(masked(one.spec.to_json())).decode(),
    }


def _version(row: SupervisorRow) -> dict[str, object]:
    return {
        "spec": _ended(row) if row.tombstone else masked(row.payload),
        "version": str(row.version),
        "creationTime": format_time(row.created_ms),
    }


def _datasource_of_row(row: SupervisorRow) -> str:
    """Return the datasource of a stored spec."""
    spec = row.payload.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    schema = spec.get("dataSchema")
    # A compaction supervisor has the datasource in the spec itself.
    named = schema if isinstance(schema, dict) else spec
    return str(named.get("dataSource", row.id))


def _ended(row: SupervisorRow) -> dict[str, object]:
    """Return the entry of a terminated supervisor in place of a spec; it has no id."""
    return {
        "type": "NoopSupervisorSpec",
        "dataSources": [_datasource_of_row(row)],
        "suspended": False,
        "source": "",
    }
