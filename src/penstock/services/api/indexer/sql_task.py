"""`POST /druid/v2/sql/task`: writing SQL statements become tasks of the overlord.

Owns the format of requests; `penstock.indexing.batch.sql.ingest_statement` parses statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.core.http_errors import retry_headers
from penstock.indexing.batch.sql.ingest_statement import parse_ingest, writes
from penstock.services.api.asgi import JsonResponse, json_object
from penstock.services.api.indexer.request_parts import PREFIX
from penstock.services.api.indexer.task_json import typed_error
from penstock.services.api.request_access import on_behalf_of
from penstock.services.json_client import JsonClient

if TYPE_CHECKING:
    from pydantic import JsonValue

PATH: Final = "/druid/v2/sql/task"


def refuse_writes(statement: str) -> None:
    """Refuse a writing statement on a path that answers only queries.

    Raises:
        InvalidRequest: It is an INSERT or a REPLACE.
    """
    try:
        is_write = writes(statement)
    except InvalidRequest:  # Spark reports errors of queries better.
        return
    if is_write:
        raise InvalidRequest(
            f"this statement writes and is not a query: POST it to {PATH}, which starts a task and"
            " answers with its id; or use penstock sql",
            place="query",
        )


class SqlTaskRoutes:
    """The route of SQL tasks.

    Args:
        overlord: Returns a client of the overlord; may raise Unavailable.
    """

    def __init__(self, overlord: Callable[[], JsonClient]) -> None:
        self._overlord = overlord

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route(PATH, self.submit, methods=["POST"])]

    async def submit(self, request: Request) -> Response:
        """Start the task of a statement."""
        try:
            body = await json_object(request)
            task_id = await run_in_threadpool(self._submit, body, on_behalf_of(request))
        except PenstockError as error:
            status, answer = typed_error(error)
            return JsonResponse(answer, status, retry_headers(error))
        return JsonResponse({"taskId": task_id, "state": "RUNNING"}, 202)

    def _submit(self, body: Mapping[str, object], headers: Mapping[str, str]) -> str:
        statement = body.get("query")
        if not isinstance(statement, str) or not statement.strip():
            raise InvalidRequest("must be the text of a statement", place="query")
        if not writes(statement):
            raise InvalidRequest(
                "only INSERT and REPLACE become tasks: POST queries to /druid/v2/sql",
                place="query",
            )
        if body.get("parameters"):
            raise InvalidRequest(
                "tasks do not support parameters: write the values into the statement",
                place="parameters",
            )
        task = parse_ingest(statement, context=_context(body.get("context")))
        client = self._overlord()
        content = orjson.dumps(task.to_json())
        answer = client.request("POST", f"{PREFIX}/task", content, headers=headers)
        task_id = answer.get("task") if isinstance(answer, dict) else None
        if not isinstance(task_id, str):
            raise Unavailable("the overlord's answer has no task id: try again")
        return task_id


def _context(given: object) -> Mapping[str, JsonValue]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InvalidRequest("must be an object", place="context")
    # Context fields that only queries use are ignored by the spec.
    return {str(name): value for name, value in given.items()}
