"""`GET /penstock/v1/datasources/{name}/files`: the current files of a datasource.

For Spark's data source `penstock`. Owns only the route; the catalogue determines visibility.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import NotFound
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.indexer.reading import datasource_of
from penstock.spark.tables import TableSource, why_empty

PATH = "/penstock/v1/datasources/{datasource:path}/files"


class TableRoutes:
    """The route of the visible files."""

    def __init__(self, source: TableSource) -> None:
        self._source = source

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route(PATH, self.files)]

    def files(self, request: Request) -> Response:
        """List the files of visible segments and the announced files, as of one revision."""
        tables = self._source.tables()
        name = datasource_of(request, lambda name: name in tables.files)
        if not tables.files.get(name) and (why := why_empty(self._source, name)):
            raise NotFound(why)
        files = [file.to_json() for file in tables.of(name)]
        return JsonResponse({"datasource": name, "revision": tables.revision, "files": files})
