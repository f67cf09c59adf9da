"""SQL client of the API: for the commands and the demo."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import PenstockError
from penstock.core.http_errors import detail_of, error_of_answer
from penstock.services.json_client import COMMAND_LINE, JsonClient, json_body

PATH = "/druid/v2/sql"
_FEWER: Final = (
    "select fewer rows or columns, or print them as they arrive with penstock sql --format csv,"
    " json or jsonl"
)


@dataclass(frozen=True, slots=True)
class SqlRows:
    """An answer: names, and rows of JSON values."""

    names: Sequence[str]
    rows: Sequence[Sequence[object]]
    truncated: bool = False
    """Whether the row limit cut the answer."""


def ask(api: JsonClient, statement: str, context: Mapping[str, object] | None = None) -> SqlRows:
    """Run a statement and return its rows.

    Args:
        api: Client of the API.
        statement: The query.
        context: Query context, as in Druid's API.

    Raises:
        AnswerTooLarge: The answer has more than 1 GiB.
        PenstockError: As `JsonClient.request`; or it is not an answer to an SQL query.
    """
    body = {"query": statement, "resultFormat": "array", "header": True}
    content = json_body({**body, "context": dict(context or {})})
    with api.stream("POST", PATH, content) as reply:
        text = reply.read_all(_FEWER)
    if reply.status >= 300:
        detail = detail_of(reply.headers)
        raise error_of_answer(reply.status, text, reply.request, detail, remedies=COMMAND_LINE)
    try:
        answer: object = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    rows = answer if isinstance(answer, list) and all(isinstance(r, list) for r in answer) else []
    if not rows or not all(isinstance(name, str) for name in rows[0]):
        raise PenstockError(
            f"{api.base_url} returned no rows: check that it is the API of Penstock"
        )
    return SqlRows(rows[0], rows[1:], reply.truncated)
