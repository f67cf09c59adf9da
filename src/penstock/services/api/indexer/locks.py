"""API of locks: locked intervals of datasources, their owners, and the tasks that wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time
from penstock.core.names import DATASOURCE, IsStored, known_name
from penstock.indexing.lockbox.task_locks import (
    HeldLock,
    LockPolicy,
    LockRefused,
    LockType,
    TaskLock,
)
from penstock.indexing.overlord import Overlord
from penstock.indexing.overlord.wait_reasons import BlockedTask
from penstock.indexing.specs.task_context import uses_concurrent_locks
from penstock.services.api.asgi import JsonResponse, bounded_json
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.owned_access import OwnedNeed, may_access
from penstock.services.api.indexer.request_parts import LOCKS, PREFIX, query_count
from penstock.services.api.indexer.task_json import lock_to_json
from penstock.services.api.request_access import RequestAccess, access_of

POLICIES_MAX: Final = 1_000

LOCKS_DEFAULT: Final = 500
LOCKS_MAX: Final = 5_000
"""Locks in one answer: about 2 MB."""

TASKS_MAX: Final = 20
"""Tasks that are named for each lock, and requests for each task that waits."""

_PRIORITY_LIMIT: Final = 1 << 31


class LockRoutes:
    """The routes of locks."""

    def __init__(self, overlord: Overlord) -> None:
        self._admin = overlord.admin_service
        self._service = overlord.task_service

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(LOCKS, self.table),
            Route(PREFIX + "/lockedIntervals/v2", self.intervals, methods=["POST"]),
            Route(PREFIX + "/activeLocks", self.locks, methods=["POST"]),
        ]

    def table(self, request: Request) -> Response:
        """Return the locks of all datasources with their tasks, and the tasks that wait for them.

        A principal sees the locks of the datasources that it may read, and those of tasks whose
        state it may see.
        """
        named = request.query_params.get("datasource")
        if named is not None:
            named = known_name(named, DATASOURCE, self._is_stored, place="datasource")
        most = query_count(request, "limit", default=LOCKS_DEFAULT, most=LOCKS_MAX)
        sight = _Sight(access_of(request))
        locks = self._table(sight, named, most + 1)
        waiting = [
            _blocked_to_json(one)
            for one in result_of(self._service.blocked_tasks())
            if named in (None, one.active.task.datasource)
            and sight.has(one.active.task.datasource, one.active.task.id)
        ]
        return JsonResponse(
            {
                "locks": locks[:most],
                "hasMoreLocks": len(locks) > most,
                "waiting": waiting[:most],
                "waitingTasks": len(waiting),
            }
        )

    def _table(self, sight: _Sight, named: str | None, most: int) -> list[dict[str, object]]:
        """Return up to `most` locks, by datasource and interval."""
        index = self._service.index
        active = index.all() if named is None else index.of_datasource(named)
        # Only active tasks have locks.
        tasks: dict[str, list[str]] = {}
        for task_id, one in active.items():
            tasks.setdefault(one.task.datasource, []).append(task_id)
        found: list[dict[str, object]] = []
        for datasource in sorted(tasks):
            if len(found) >= most:
                break
            if not sight.reads(datasource) and not any(
                sight.has(datasource, task_id) for task_id in tasks[datasource]
            ):
                continue
            held = result_of(self._admin.locks(datasource))
            found += _held_to_json([one for one in held if sight.has(datasource, one.task_id)])
        return found[:most]

    async def intervals(self, request: Request) -> Response:
        """Return the intervals locked for a priority, for each datasource."""
        return await run_in_threadpool(
            self._intervals, access_of(request), await bounded_json(request)
        )

    def _intervals(self, access: RequestAccess, body: object) -> Response:
        policies = self._policies(access, body)
        found = result_of(self._admin.locked_intervals(policies))
        return JsonResponse(
            {name: [str(one) for one in times] for name, times in found.items() if times}
        )

    async def locks(self, request: Request) -> Response:
        """Return the locks with the tasks that hold them."""
        return await run_in_threadpool(self._locks, access_of(request), await bounded_json(request))

    def _locks(self, access: RequestAccess, body: object) -> Response:
        policies = self._policies(access, body)
        lookups = [self._admin.locks(policy.datasource) for policy in policies]
        found: dict[str, list[dict[str, object]]] = {}
        for policy, held in zip(policies, lookups, strict=True):
            found[policy.datasource] = _shown(policy, result_of(held))
        return JsonResponse({"datasourceToLocks": {k: v for k, v in found.items() if v}})

    def _policies(self, access: RequestAccess, body: object) -> list[LockPolicy]:
        found = _policies(body, self._is_stored)
        for policy in found:
            access.require(Action.READ, Resource(ResourceKind.DATASOURCE, policy.datasource))
        return found

    def _is_stored(self, name: str) -> bool:
        return self._admin.metadata.is_stored_name(name)


class _Sight:
    """Which locks a principal sees: those of datasources that it may read, and of its tasks."""

    def __init__(self, access: RequestAccess) -> None:
        self._access = access
        self._datasources: dict[str, bool] = {}

    def reads(self, datasource: str) -> bool:
        """Return whether the principal sees all locks of a datasource."""
        if self._access.is_unlimited:
            return True
        found = self._datasources.get(datasource)
        if found is None:
            found = self._access.may(Action.READ, ResourceKind.DATASOURCE, datasource)
            self._datasources[datasource] = found
        return found

    def has(self, datasource: str, task_id: str) -> bool:
        """Return whether the principal sees the locks of a task."""
        resource = Resource(ResourceKind.TASK, task_id)
        return self.reads(datasource) or may_access(
            self._access, OwnedNeed.STATE, resource, datasource
        )


def _held_to_json(held: Iterable[HeldLock]) -> list[dict[str, object]]:
    """Return locks with the tasks that hold them, in order of time."""
    holders: dict[TaskLock, list[str]] = {}
    for one in held:
        holders.setdefault(one.lock, []).append(one.task_id)
    in_order = sorted(holders.items(), key=lambda one: (one[0].interval.start_ms, one[0].group))
    return [
        {
            **lock_to_json(lock, sorted(tasks)[:TASKS_MAX]),
            "tasks": len(tasks),
            "since": format_time(lock.created_ms),
        }
        for lock, tasks in in_order
    ]


def _blocked_to_json(blocked: BlockedTask) -> dict[str, object]:
    """Return a waiting task with the locks that refuse it, and the tasks that hold these."""
    task = blocked.active.task
    return {
        "task": task.id,
        "dataSource": task.datasource,
        "priority": task.priority,
        "created": format_time(blocked.active.created_ms),
        "requests": [
            {
                "type": str(refused.request.type),
                "interval": str(refused.request.interval),
                "heldBy": _holders(refused),
            }
            for refused in blocked.refused[:TASKS_MAX]
        ],
    }


def _holders(refused: LockRefused) -> list[str]:
    """Return tasks that hold the locks that refuse a request."""
    held_by = dict.fromkeys(task for one in refused.refusals for task in one.task_ids)
    return list(held_by)[:TASKS_MAX]


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
