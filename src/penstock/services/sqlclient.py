"""Ask the API in SQL: for the commands and the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.errors import PenstockError
from penstock.services.httpclient import JsonClient


@dataclass(frozen=True, slots=True)
class Rows:
    """An answer: names, and rows of JSON values."""

    names: Sequence[str]
    rows: Sequence[Sequence[object]]


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
    answer = api.post("/druid/v2/sql", {**body, "context": dict(context or {})})
    rows = answer if isinstance(answer, list) and all(isinstance(r, list) for r in answer) else []
    if not rows or not all(isinstance(name, str) for name in rows[0]):
        raise PenstockError(f"{api.base_url} gave no rows; is it the API of Penstock?")
    return Rows(rows[0], rows[1:])
