"""Lookups in statements: the tables of the schema `lookup`, and calls of LOOKUP. Pure.

Spark knows neither. A table with this schema becomes a name that no datasource can have.
A call becomes an access to a map in such a table of one row: Spark makes a constant of the map, so
that it finds a key by its hash, and a call may stand wherever an expression may.

Meaning of LOOKUP: the page "SQL functions" of Druid's documentation. A key that the lookup does not
have, or that is NULL, gives NULL, or the third argument; so does a value that is NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.names import normalised
from penstock.core.sql import tree

LOOKUP_SCHEMA: Final = "lookup"
"""The schema of lookups."""
FUNCTION: Final = "LOOKUP"
MAP_COLUMN: Final = "map"
"""The column of the table of one row with the map of a lookup."""


@dataclass(frozen=True, slots=True)
class LookupRead:
    """A lookup that a statement reads as a table, or one of its columns by LOOKUP.

    Attributes:
        name: Its name in lower case.
        column: The column whose values LOOKUP returns, in lower case; empty: the first one.
        is_map: Whether LOOKUP reads it.
        place: Where the statement names it first.
    """

    name: str
    column: str = ""
    is_map: bool = False
    place: str = field(default="", compare=False)

    @property
    def view(self) -> str:
        """The name in statements for Spark, which no datasource can have because of the slash."""
        if not self.is_map:
            return f"{LOOKUP_SCHEMA}/{self.name}"
        return f"{LOOKUP_SCHEMA}/{self.name}/{MAP_COLUMN}/{self.column}"


def is_lookup(table: tree.Table) -> bool:
    """Return whether a name in FROM stands for a lookup."""
    return len(table.parts) == 2 and table.parts[0].lower() == LOOKUP_SCHEMA


def table_read(table: tree.Table, place: str = "") -> LookupRead:
    """Return the lookup that a name in FROM stands for."""
    return LookupRead(_folded(table.parts[1]), place=place)


def is_call(call: tree.Call) -> bool:
    """Return whether a call is one of LOOKUP."""
    return len(call.name) == 1 and call.name[0].upper() == FUNCTION


def call_read(call: tree.Call, place: str) -> LookupRead:
    """Return the lookup and the column that a call of LOOKUP reads.

    Raises:
        InvalidRequest: It has other arguments than a value, a text with the name of a lookup, and a
            replacement of missing values.
    """
    arguments = call.arguments
    is_plain = not (call.is_distinct or call.form or call.within or call.condition or call.over)
    named = arguments[1] if is_plain and len(arguments) in {2, 3} else None
    if not isinstance(named, tree.Text) or not named.value:
        raise InvalidRequest(
            f"LOOKUP has other arguments, {place}: write LOOKUP(key, 'name'), or"
            " LOOKUP(key, 'name', replacement) for keys that the lookup does not have"
        )
    name, _, column = named.value.partition(".")
    return LookupRead(_folded(name), column.lower(), is_map=True, place=place)


def _folded(name: str) -> str:
    return normalised(name).lower()


def written_call(read: LookupRead, arguments: Sequence[str]) -> str:
    """Return the text of a call for Spark.

    Args:
        read: The lookup and the column that it reads.
        arguments: The texts of its arguments.
    """
    view = read.view.replace("`", "``")
    found = f"element_at((SELECT `{MAP_COLUMN}` FROM `{view}`), CAST({arguments[0]} AS STRING))"  # noqa: S608 - the name is quoted
    return found if len(arguments) == 2 else f"coalesce({found}, {arguments[2]})"
