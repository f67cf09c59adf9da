"""Lists of tasks, and the status of many tasks at once.

Active tasks are read from the overlord's index in memory; ended tasks from the metadata store,
without their payloads. A task that ends between the two reads is listed once, as ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Resource, ResourceKind
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.names import DATASOURCE, known_name
from penstock.indexing.overlord import Overlord
from penstock.indexing.overlord.task_index import ActiveTask, RunnerState
from penstock.indexing.ports import TaskState
from penstock.services.api.asgi import JsonResponse, bounded_json
from penstock.services.api.indexer.owned_access import OwnedNeed, may_access, shown_error
from penstock.services.api.indexer.request_parts import (
    LIST_MAX,
    PREFIX,
    TASKS,
    query_count,
    query_interval,
    texts,
)
from penstock.services.api.indexer.task_json import TaskStatus, active_statuses, complete_statuses
from penstock.services.api.request_access import RequestAccess, access_of
from penstock.storage.metadata import TaskFilter

STATES: Final = {
    "pending": RunnerState.PENDING,
    "waiting": RunnerState.WAITING,
    "running": RunnerState.RUNNING,
    "complete": RunnerState.NONE,
}

_ACTIVE_STATES: Final = {
    "waiting": RunnerState.WAITING,
    "pending": RunnerState.PENDING,
    "running": RunnerState.RUNNING,
}
_ENDED_STATES: Final = {"success": TaskState.SUCCESS, "failed": TaskState.FAILED}

SEARCHED: Final = 200
SEARCHED_MAX: Final = 1_000
"""Tasks of each kind, active and ended, in an answer: about 500 kB."""

_SEARCH_CHARACTERS_MAX: Final = 1_000

RECENT_MS: Final = 24 * 3_600_000
"""Maximum age of ended tasks in a list if the request specifies no time."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Filter of a list of tasks."""

    state: RunnerState | None
    datasource: str | None
    type: str | None
    created: Interval | None
    most: int

    @property
    def is_any(self) -> bool:
        """Return whether the list has every active task."""
        return self.datasource is None and self.type is None and self.created is None

    def has(self, active: ActiveTask) -> bool:
        """Return whether the list has an active task."""
        return (
            self.datasource in (None, active.task.datasource)
            and self.type in (None, active.task.type)
            and (self.created is None or self.created.contains(active.created_ms))
        )


class TaskListRoutes:
    """The routes of lists.

    Args:
        overlord: The overlord.
        clock: Determines which tasks ended recently.
    """

    def __init__(self, overlord: Overlord, clock: Clock) -> None:
        self._service = overlord.task_service
        self._admin = overlord.admin_service
        self._clock = clock

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(TASKS, self.search),
            Route(PREFIX + "/tasks", self.tasks),
            *(Route(f"{PREFIX}/{name}Tasks", self._in_state(name)) for name in STATES),
            Route(PREFIX + "/taskStatus", self.statuses, methods=["POST"]),
        ]

    def tasks(self, request: Request) -> Response:
        """List tasks: the active ones, and those that ended recently."""
        state = request.query_params.get("state")
        if state is not None and state not in STATES:
            raise InvalidRequest(f"invalid state {state!r}; use {', '.join(STATES)}", place="state")
        return self._list(None if state is None else STATES[state], request)

    def _in_state(self, name: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            return self._list(STATES[name], request)

        return answer

    def _list(self, state: RunnerState | None, request: Request) -> Response:
        query = request.query_params
        named = query.get("datasource")
        if named is not None:
            named = known_name(named, DATASOURCE, self._is_stored, place="datasource")
        wanted = _Wanted(
            state=state,
            datasource=named,
            type=query.get("type"),
            created=query_interval(request, "createdTimeInterval"),
            most=query_count(request, "max", "n", default=LIST_MAX),
        )
        access = access_of(request)
        listed = [] if state is RunnerState.NONE else _shown(access, self._active(wanted))
        if state in (None, RunnerState.NONE):
            complete = _shown(access, self._complete(wanted))
            ended = {one.id for one in complete}
            listed = [one for one in listed if one.id not in ended] + complete
        return _answer(listed)

    def _is_stored(self, name: str) -> bool:
        return self._admin.metadata.is_stored_name(name)

    def _active(self, wanted: _Wanted) -> list[TaskStatus]:
        index = self._service.index
        if wanted.state is not None:
            found = index.in_state(wanted.state)
        elif wanted.datasource is not None:
            found = index.of_datasource(wanted.datasource)
        else:
            found = index.all()
        shown = list(found.values())
        if not wanted.is_any:
            shown = [one for one in shown if wanted.has(one)]
        shown.sort(key=lambda one: (one.created_ms, one.task.id), reverse=True)
        return active_statuses(shown)

    def _complete(self, wanted: _Wanted) -> list[TaskStatus]:
        created = wanted.created
        since_ms = self._clock.now_ms() - RECENT_MS if created is None else created.start_ms
        chosen = TaskFilter(
            datasource=wanted.datasource,
            type=wanted.type,
            created_from_ms=since_ms,
            created_before_ms=None if created is None else created.end_ms,
        )
        return complete_statuses(self._service.complete(chosen, limit=wanted.most))

    def search(self, request: Request) -> Response:
        """Return the number of active tasks in each state, and some tasks, the newest first.

        In contrast to Druid's lists, at most `limit` active tasks are listed, so that the answer is
        short although ten thousand tasks wait.
        """
        query, access = request.query_params, access_of(request)
        datasource = query.get("datasource")
        if datasource is not None:
            datasource = known_name(datasource, DATASOURCE, self._is_stored, place="datasource")
        states = _states(query.get("state", ""))
        text = query.get("search", "")[:_SEARCH_CHARACTERS_MAX]
        most = query_count(request, "limit", default=SEARCHED, most=SEARCHED_MAX)
        ended_s = query_count(request, "endedWithinSeconds", default=RECENT_MS // 1_000)
        active = self._searched(access, datasource, text)
        listed = [one for one in active if one.state in states]
        listed.sort(key=lambda one: (one.created_ms, one.task.id), reverse=True)
        wanted = TaskFilter(
            datasource=datasource,
            ended_from_ms=self._clock.now_ms() - ended_s * 1_000,
            contains=text,
        )
        ended = self._ended(access, wanted, states, most)
        ids = {one.id for one in ended}
        shown = [one for one in listed[:most] if one.task.id not in ids]
        counts = Counter(one.state for one in active)
        return _answer(
            {
                "counts": {name: counts[state] for name, state in _ACTIVE_STATES.items()},
                "activeFound": len(listed),
                "hasMoreEnded": len(ended) > most,
                "tasks": [*_shown(access, active_statuses(shown)), *ended[:most]],
            }
        )

    def _searched(
        self, access: RequestAccess, datasource: str | None, text: str
    ) -> list[ActiveTask]:
        """Return the active tasks that the principal may see, of a datasource and with a text."""
        index = self._service.index
        every = index.all() if datasource is None else index.of_datasource(datasource)
        low = text.lower()
        found = [
            one
            for one in every.values()
            if not low or low in one.task.id.lower() or low in one.task.datasource.lower()
        ]
        return [
            one
            for one in found
            if access.is_unlimited
            or may_access(
                access,
                OwnedNeed.STATE,
                Resource(ResourceKind.TASK, one.task.id),
                one.task.datasource,
            )
        ]

    def _ended(
        self, access: RequestAccess, wanted: TaskFilter, states: frozenset[str], most: int
    ) -> list[TaskStatus]:
        """Return tasks that ended, one more than `most` if there are more."""
        ends = [state for state in _ENDED_STATES.values() if state in states]
        if not ends:
            return []
        if len(ends) == 1:
            wanted = replace(wanted, state=ends[0])
        # Those that the principal may not see are found only afterwards.
        limit = most + 1 if access.is_unlimited else LIST_MAX
        rows = self._service.complete(wanted, limit=limit)
        return _shown(access, complete_statuses(rows))[: most + 1]

    async def statuses(self, request: Request) -> Response:
        """Return the status of several tasks; those that do not exist are left out."""
        ids = texts(await bounded_json(request), "the body", most=LIST_MAX)
        return await run_in_threadpool(self._statuses, access_of(request), ids)

    def _statuses(self, access: RequestAccess, ids: list[str]) -> Response:
        index = self._service.index
        active = [one for task_id in ids if (one := index.get(task_id)) is not None]
        here = {one.task.id for one in active}
        ended = self._service.summaries([task_id for task_id in ids if task_id not in here])
        found = _shown(access, [*active_statuses(active), *complete_statuses(ended)])
        return _answer({one.id: one for one in found})


def _states(text: str) -> frozenset[str]:
    """Return the states that a request names, separated by commas; without one, all.

    Raises:
        InvalidRequest: There is no such state.
    """
    known = {**_ACTIVE_STATES, **_ENDED_STATES}
    names = [name for name in text.split(",") if name] or list(known)
    for name in names:
        if name not in known:
            raise InvalidRequest(f"invalid state {name!r}; use {', '.join(known)}", place="state")
    return frozenset(known[name] for name in names)


def _shown(access: RequestAccess, found: list[TaskStatus]) -> list[TaskStatus]:
    """Return the tasks whose state the principal may see."""
    if access.is_unlimited:
        return found
    shown = []
    for one in found:
        resource = Resource(ResourceKind.TASK, one.id)
        if may_access(access, OwnedNeed.STATE, resource, one.data_source):
            if one.error_msg:
                one.error_msg = shown_error(access, resource, one.data_source, str(one.error_msg))
            shown.append(one)
    return shown


def _answer(found: object) -> Response:
    return Response(msgspec.json.encode(found), media_type=JsonResponse.media_type)
