"""Routes of the cursors of streams: how far streams of a datasource have read.

Spark's data source sets one after each micro-batch, if its option `cursor` names it. A principal
with the right to read the datasource may set cursors and change its own; one with the right to
manage it may change all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.broker.topic_names import require_name
from penstock.core.access.rules import Action, ResourceKind
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.instants import format_time
from penstock.services.api.asgi import JsonResponse, json_object
from penstock.services.api.indexer.request_parts import datasource_of
from penstock.services.api.request_access import access_of

if TYPE_CHECKING:
    from penstock.services.api.request_access import RequestAccess
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.metadata.tables.stream_cursors import StreamCursor

CURSORS: Final = "/penstock/v1/datasources/{datasource:path}/cursors"
CURSOR: Final = CURSORS + "/{cursor}"
_BODY_BYTES_MAX: Final = 1 << 10
_NUMBER_MAX: Final = 2**63 - 1


class StreamCursorRoutes:
    """The routes of cursors.

    Args:
        store: The metadata store.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(CURSORS, self.cursors),
            Route(CURSOR, self.move, methods=["PUT"]),
            Route(CURSOR, self.remove, methods=["DELETE"]),
        ]

    def cursors(self, request: Request) -> Response:
        """List the cursors of a datasource, with the rows that each has not read."""
        name = datasource_of(request, self._store.is_stored_name)
        found = self._store.stream_cursors.list(name)
        return JsonResponse({"datasource": name, "cursors": [_answer(one) for one in found]})

    async def move(self, request: Request) -> Response:
        """Set a cursor."""
        body = await json_object(request, _BODY_BYTES_MAX)
        position = _number(body, "revision"), _number(body, "rowsLeft")
        return await run_in_threadpool(self._move, request, position)

    def _move(self, request: Request, position: tuple[int, int]) -> Response:
        name, cursor = self._place(request)
        access = access_of(request)
        self._store.stream_cursors.move(
            name, cursor, position, access.principal.id, may_manage=_manages(access, name)
        )
        return JsonResponse({"cursor": cursor})

    def remove(self, request: Request) -> Response:
        """Delete a cursor."""
        name, cursor = self._place(request)
        access = access_of(request)
        found = self._store.stream_cursors.delete(
            name, cursor, access.principal.id, may_manage=_manages(access, name)
        )
        if not found:
            known = ", ".join(one.name for one in self._store.stream_cursors.list(name))
            raise NotFound(f"{name} has no cursor {cursor}; its cursors are: {known or 'none'}")
        return JsonResponse({"cursor": cursor})

    def _place(self, request: Request) -> tuple[str, str]:
        cursor = require_name(str(request.path_params["cursor"]), "cursor")
        return datasource_of(request, self._store.is_stored_name), cursor


def _manages(access: RequestAccess, datasource: str) -> bool:
    return access.may(Action.MANAGE, ResourceKind.DATASOURCE, datasource)


def _number(body: dict[str, object], name: str) -> int:
    found = body.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _NUMBER_MAX:
        raise InvalidRequest("must be a whole number from 0", place=name)
    return found


def _answer(cursor: StreamCursor) -> dict[str, object]:
    return {
        "cursor": cursor.name,
        "revision": cursor.revision,
        "rowsBehind": cursor.rows_behind,
        "owner": cursor.owner,
        "moved": format_time(cursor.moved_ms),
    }
