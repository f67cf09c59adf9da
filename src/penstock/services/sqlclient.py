"""Ask the API in SQL: for the commands and the demo."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.errors import PenstockError
from penstock.services.httpclient import JsonClient, detail_of, error_of_answer, json_body

PATH = "/druid/v2/sql"


@dataclass(frozen=True, slots=True)
class Rows:
    """An answer: names, and rows of JSON values."""

    names: Sequence[str]
    rows: Sequence[Sequence[object]]
    truncated: bool = False
    """Whether the row limit cut the answer."""


def ask(api: JsonClient, statement: str, context: Mapping[str, object] | None = None) -> Rows:
    """Ask and return the rows.

    Args:
        api: Whom to ask.
        statement: The query.
        context: What the server is told beside it, as in Druid's API.

    Raises:
        PenstockError: As `JsonClient.request`; or what came is no answer to SQL.
    """
    body = {"query": statement, "resultFormat": "array", "header": True}
    content = json_body({**body, "context": dict(context or {})})
    with api.reading("POST", PATH, content) as reply:
        text = b"".join(reply.chunks)
    if reply.status >= 300:
        detail = detail_of(reply.headers)
        raise error_of_answer(reply.status, text, f"POST {api.base_url}{PATH}", detail)
    try:
        answer: object = json.loads(text)
    except ValueError:
        answer = None
    rows = answer if isinstance(answer, list) and all(isinstance(r, list) for r in answer) else []
    if not rows or not all(isinstance(name, str) for name in rows[0]):
        raise PenstockError(f"{api.base_url} gave no rows; is it the API of Penstock?")
    return Rows(rows[0], rows[1:], reply.truncated)
