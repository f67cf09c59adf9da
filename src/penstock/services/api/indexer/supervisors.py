"""API of supervisors: submit, read and control them, below `/druid/indexer/v1/supervisor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time
from penstock.indexing.overlord import Overlord
from penstock.indexing.overlord.supervisor_service import SHORT_OF_SLOTS
from penstock.indexing.secrets import masked
from penstock.indexing.sequences import offsets_from_json
from penstock.services.api.asgi import JsonResponse, bounded_body, integer, json_object
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.compaction import compaction_progress
from penstock.services.api.indexer.request_parts import (
    PREFIX,
    query_count,
    query_flag,
    stored_name_of,
)
from penstock.services.json_values import part

if TYPE_CHECKING:
    from penstock.indexing.overlord.admin_service import AdminService
    from penstock.indexing.overlord.supervisor_service import SupervisorService, SupervisorView
    from penstock.storage.metadata import SupervisorRow

HISTORY_MAX: Final = 1_000

_BASE: Final = PREFIX + "/supervisor"
_GROUPS_MAX: Final = 10_000


class SupervisorRoutes:
    """The routes that read supervisors, submit them, and control all of them."""

    def __init__(self, overlord: Overlord) -> None:
        self._service = overlord.supervisor_service
        self._compaction = overlord.compaction_service
        self._admin = overlord.admin_service
        self._commands = _Commands(self._service, self._admin)

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
        found = result_of(self._service.every())
        if query_flag(request, "system"):
            return JsonResponse([_as_system(one) for one in found])
        if query_flag(request, "full"):
            return JsonResponse(
                [{**one.summary, "spec": masked(one.spec.to_json())} for one in found]
            )
        if query_flag(request, "state"):
            return JsonResponse([dict(one.summary) for one in found])
        return JsonResponse([one.summary["id"] for one in found])

    async def submit(self, request: Request) -> Response:
        """Create a supervisor, or update its spec."""
        # Unparsed, because a duplicate name in an object can only be detected in the text.
        body = await bounded_body(request)
        skip = query_flag(request, "skipRestartIfUnmodified")
        return await run_in_threadpool(self._submit, body, skip_unmodified=skip)

    def _submit(self, body: bytes, *, skip_unmodified: bool) -> Response:
        done = result_of(self._service.submit(body, skip_unmodified=skip_unmodified))
        return JsonResponse({"id": done.id, "modified": done.modified, "restarted": done.restarted})

    def spec(self, request: Request) -> Response:
        """Return a spec."""
        return JsonResponse(
            masked(result_of(self._service.spec(_id(request, self._admin))).to_json())
        )

    def status(self, request: Request) -> Response:
        """Return the status of a supervisor."""
        compacts = self._compaction.spec(_id(request, self._admin))
        if compacts is not None:
            progress = compaction_progress(self._admin, compacts.spec.datasource)
            return JsonResponse(self._compaction.status(compacts, progress))
        return JsonResponse(result_of(self._service.status(_id(request, self._admin))))

    def health(self, request: Request) -> Response:
        """Return whether a supervisor is healthy; compaction supervisors always are."""
        if self._compaction.spec(_id(request, self._admin)) is not None:
            return JsonResponse({"healthy": True})
        status = result_of(self._service.status(_id(request, self._admin)))
        payload = status.get("payload")
        healthy = part(payload, "healthy") is True
        # A healthy supervisor may still leave no slots for others.
        short = part(payload, SHORT_OF_SLOTS)
        more = {SHORT_OF_SLOTS: short} if short else {}
        return JsonResponse({"healthy": healthy, **more}, 200 if healthy else 503)

    def stats(self, request: Request) -> Response:
        """Return the counts of a supervisor's tasks."""
        return JsonResponse(result_of(self._service.stats(_id(request, self._admin))))

    def parse_errors(self, request: Request) -> Response:
        """Return samples of messages that a supervisor's tasks could not parse."""
        return JsonResponse(result_of(self._service.parse_errors(_id(request, self._admin))))

    def histories(self, _request: Request) -> Response:
        """List the versions of all specs, by supervisor, newest first."""
        found = self._service.histories()
        return JsonResponse({name: [_version(row) for row in rows] for name, rows in found.items()})

    def history(self, request: Request) -> Response:
        """List the versions of a spec, newest first."""
        count = query_count(request, "count", default=HISTORY_MAX, most=HISTORY_MAX)
        return JsonResponse(
            [_version(row) for row in self._service.history(_id(request, self._admin))[:count]]
        )

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

    def __init__(self, service: SupervisorService, admin: AdminService) -> None:
        self._service = service
        self._admin = admin

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
        return JsonResponse(
            masked(result_of(self._service.suspend(_id(request, self._admin))).to_json())
        )

    def resume(self, request: Request) -> Response:
        """Resume a supervisor."""
        return JsonResponse(
            masked(result_of(self._service.resume(_id(request, self._admin))).to_json())
        )

    def terminate(self, request: Request) -> Response:
        """Terminate a supervisor."""
        result_of(self._service.terminate(_id(request, self._admin)))
        return JsonResponse({"id": _id(request, self._admin)})

    def reset(self, request: Request) -> Response:
        """Forget the committed offsets of a supervisor."""
        result_of(self._service.reset(_id(request, self._admin)))
        return JsonResponse({"id": _id(request, self._admin)})

    async def reset_offsets(self, request: Request) -> Response:
        """Set the committed offsets of a supervisor."""
        wanted = (await json_object(request)).get("partitions")
        if not isinstance(wanted, dict):
            raise InvalidRequest("must hold stream and partitionOffsetMap", place="partitions")
        return await run_in_threadpool(self._reset_offsets, request, wanted)

    def _reset_offsets(self, request: Request, wanted: dict[str, object]) -> Response:
        supervisor_id = _id(request, self._admin)
        place = "partitions.partitionOffsetMap"
        try:
            offsets = offsets_from_json(wanted.get("partitionOffsetMap"))
        except InvalidRequest as error:
            raise InvalidRequest(str(error), place=place) from None
        if not offsets:
            raise InvalidRequest("must name at least one stream partition", place=place)
        stream = result_of(self._service.stream_spec(supervisor_id)).stream
        if wanted.get("stream", stream) != stream:
            raise InvalidRequest(
                f"the supervisor reads {stream}, not {wanted['stream']}", place="partitions.stream"
            )
        result_of(self._service.reset(supervisor_id, offsets))
        return JsonResponse({"id": supervisor_id})

    def backfill(self, request: Request) -> Response:
        """Continue at the latest messages, and start a second supervisor for those before them."""
        count = integer(request, "backfillTaskCount")
        if count is not None and count < 1:
            raise InvalidRequest(f"{count} is below 1", place="backfillTaskCount")
        other = result_of(self._service.backfill(_id(request, self._admin), task_count=count))
        return JsonResponse({"id": _id(request, self._admin), "backfillSupervisorId": other})

    async def hand_off(self, request: Request) -> Response:
        """Have task groups publish the rows that they have read."""
        groups = (await json_object(request)).get("taskGroupIds")
        if not isinstance(groups, list) or not groups:
            raise InvalidRequest("must list at least one task group", place="taskGroupIds")
        if len(groups) > _GROUPS_MAX or not all(type(group) is int for group in groups):
            raise InvalidRequest("must be whole numbers", place="taskGroupIds")
        await run_in_threadpool(
            lambda: result_of(self._service.hand_off(_id(request, self._admin), groups))
        )
        return JsonResponse({}, 202)


def _id(request: Request, admin: AdminService) -> str:
    def is_stored(name: str) -> bool:
        return admin.metadata.is_stored_name(name)

    return stored_name_of(request, "supervisor_id", is_stored)


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


def _ended(row: SupervisorRow) -> dict[str, object]:
    """Return the entry of a terminated supervisor in place of a spec; it has no id."""
    spec = row.payload.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    schema = spec.get("dataSchema")
    # A compaction supervisor has the datasource in the spec itself.
    named = schema if isinstance(schema, dict) else spec
    return {
        "type": "NoopSupervisorSpec",
        "dataSources": [named.get("dataSource", row.id)],
        "suspended": False,
        "source": "",
    }
