"""Ask the API in SQL: for the commands and the demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.errors import PenstockError
from penstock.services.httpclient import JsonClient


@dataclass(frozen=True, slots=True)
class Rows:
    """An answer: names, and rows of JSON values."""

    names: Sequence[str]
    rows: Sequence[Sequence[object]]


def ask(api: JsonClient, statement: str) -> Rows:
    """Ask and return the rows. Raises as `JsonClient.request`."""
    answer = api.post(
        "/druid/v2/sql", {"query": statement, "resultFormat": "array", "header": True}
    )
    if not isinstance(answer, list) or not answer:
        raise PenstockError(f"{api.base_url} gave no rows; is it the API of Penstock?")
    return Rows(answer[0], answer[1:])
