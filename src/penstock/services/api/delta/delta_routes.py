"""Routes of the Delta table of a datasource: enable, disable, rebuild, and its state."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.services.api.asgi import JsonResponse
from penstock.services.api.delta.delta_tables import DeltaStatus, DeltaTables
from penstock.services.api.indexer.request_parts import author_and_comment, datasource_of

DELTA: Final = "/penstock/v1/datasources/{datasource}/delta"


class DeltaRoutes:
    """The routes."""

    def __init__(self, tables: DeltaTables) -> None:
        self._tables = tables

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(DELTA, self.status),
            Route(DELTA, self.enable, methods=["POST"]),
            Route(DELTA, self.disable, methods=["DELETE"]),
            Route(f"{DELTA}/rebuild", self.rebuild, methods=["POST"]),
        ]

    def status(self, request: Request) -> Response:
        """Return the state of the table."""
        name = self._name(request)
        return _answer(name, self._tables.status(name))

    def enable(self, request: Request) -> Response:
        """Let the datasource have a table."""
        name = self._name(request)
        return _answer(name, self._tables.enable(name, *author_and_comment(request)))

    def disable(self, request: Request) -> Response:
        """Delete the table."""
        name = self._name(request)
        return _answer(name, self._tables.disable(name, *author_and_comment(request)))

    def rebuild(self, request: Request) -> Response:
        """Write the log of the table again."""
        name = self._name(request)
        return _answer(name, self._tables.rebuild(name, *author_and_comment(request)))

    def _name(self, request: Request) -> str:
        return datasource_of(request, self._tables.is_known)


def _answer(datasource: str, status: DeltaStatus) -> Response:
    sums = status.sums
    found: dict[str, object] = {
        "datasource": datasource,
        "state": status.health.value,
        "location": status.location,
        "reason": status.reason,
        "table": None
        if sums is None
        else {
            "version": sums.version,
            "revision": sums.revision,
            "files": sums.files,
            "rows": sums.rows,
            "bytes": sums.size_bytes,
            "copies": sums.copies,
            "copiedBytes": sums.copied_bytes,
            "columnsLeftOut": dict(sums.left_out),
        },
    }
    return JsonResponse(found)
