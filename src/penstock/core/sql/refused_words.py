"""Remedies for statements that write or change something, by their first words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_WRITE_REMEDY: Final = (
    "only a task writes rows: begin the statement with INSERT INTO or REPLACE INTO, and pass it to"
    " penstock sql, or POST it to /druid/v2/sql/task"
)
_CHANGE_REMEDY: Final = (
    "to change or delete rows, replace the time chunks that contain them: REPLACE INTO … OVERWRITE"
    " WHERE … SELECT the rows to keep"
)
_REMEDIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("INSERT", "REPLACE"), _WRITE_REMEDY),
    **dict.fromkeys(("DELETE", "UPDATE", "MERGE", "TRUNCATE"), _CHANGE_REMEDY),
    "DROP": (
        "to remove rows from queries, mark their segments as unused: penstock segment mark-unused"
    ),
    "CREATE": "the first rows create a datasource: use INSERT INTO, a task or a supervisor",
    "ALTER": (
        "new rows have the columns and types of the spec or the INSERT INTO that writes them; to"
        " change older rows, use REPLACE INTO"
    ),
}


def word_remedy(word: str) -> str:
    """Return the remedy for a word in upper case where a query should begin; empty for others."""
    return _REMEDIES.get(word, "")
