"""API of locks: locked intervals of datasources, and their owners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest
from penstock.core.names import DATASOURCE, IsStored, known_name
from penstock.indexing.lockbox.task_locks import HeldLock, LockPolicy, LockType, TaskLock
from penstock.indexing.overlord import Overlord
from penstock.indexing.specs.task_context import uses_concurrent_locks
from penstock.services.api.asgi import JsonResponse, bounded_json
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.request_parts import PREFIX
from penstock.services.api.indexer.task_json import lock_to_json

POLICIES_MAX: Final = 1_000

_PRIORITY_LIMIT: Final = 1 << 31


class LockRoutes:
    """The routes of locks."""

    def __init__(self, overlord: Overlord) -> None:
        self._admin = overlord.admin_service

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(PREFIX + "/lockedIntervals/v2", self.intervals, methods=["POST"]),
            Route(PREFIX + "/activeLocks", self.locks, methods=["POST"]),
        ]

    async def intervals(self, request: Request) -> Response:
        """Return the intervals locked for a priority, for each datasource."""
        return await run_in_threadpool(self._intervals, await bounded_json(request))

    def _intervals(self, body: object) -> Response:
        policies = _policies(body, self._is_stored)
        found = result_of(self._admin.locked_intervals(policies))
        return JsonResponse(
            {name: [str(one) for one in times] for name, times in found.items() if times}
        )

    async def locks(self, request: Request) -> Response:
        """Return the locks with the tasks that hold them."""
        return await run_in_threadpool(self._locks, await bounded_json(request))

    def _locks(self, body: object) -> Response:
        policies = _policies(body, self._is_stored)
        lookups = [self._admin.locks(policy.datasource) for policy in policies]
        found: dict[str, list[dict[str, object]]] = {}
        for policy, held in zip(policies, lookups, strict=True):
            found[policy.datasource] = _shown(policy, result_of(held))
        return JsonResponse({"datasourceToLocks": {k: v for k, v in found.items() if v}})

    def _is_stored(self, name: str) -> bool:
        return self._admin.metadata.is_stored_name(name)


def _shown(policy: LockPolicy, held: list[HeldLock]) -> list[dict[str, object]]:
    holders: dict[TaskLock, list[str]] = {}
    for one in held:
        lock = one.lock
        if lock.revoked or lock.priority < policy.priority:
            continue
        if not (policy.concurrent and lock.type is LockType.APPEND):
            holders.setdefault(lock, []).append(one.task_id)
    return [lock_to_json(lock, sorted(tasks)) for lock, tasks in holders.items()]


def _policies(body: object, is_stored: IsStored) -> list[LockPolicy]:
    if not isinstance(body, list) or not body:
        raise InvalidRequest(
            'the body must be a list such as [{"datasource": "name", "priority": 0}]'
        )
    if len(body) > POLICIES_MAX:
        raise InvalidRequest(f"has {len(body)} entries: request at most {POLICIES_MAX} at once")
    found: dict[str, LockPolicy] = {}
    for number, one in enumerate(body):
        policy = _policy(one, f"[{number}]", is_stored)
        if policy.datasource in found:
            raise InvalidRequest(
                f"{policy.datasource} occurs in the list twice", place=f"[{number}].datasource"
            )
        found[policy.datasource] = policy
    return list(found.values())


def _policy(value: object, place: str, is_stored: IsStored) -> LockPolicy:
    if not isinstance(value, dict):
        raise InvalidRequest("must be an object with datasource and priority", place=place)
    # Druid's own clients have used both.
    datasource = value.get("datasource", value.get("dataSource"))
    if not isinstance(datasource, str) or not datasource:
        raise InvalidRequest("must name a datasource", place=f"{place}.datasource")
    datasource = known_name(datasource, DATASOURCE, is_stored, place=f"{place}.datasource")
    priority = value.get("priority")
    if priority is None:
        priority = -_PRIORITY_LIMIT
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidRequest("must be a whole number", place=f"{place}.priority")
    context = value.get("context") or {}
    if not isinstance(context, Mapping):
        raise InvalidRequest("must be an object", place=f"{place}.context")
    return LockPolicy(datasource, priority, concurrent=uses_concurrent_locks(context))
