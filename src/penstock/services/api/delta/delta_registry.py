"""Which datasources have a Delta table, in the dynamic configuration of the metadata store.

Owns the stored value: an id and a goal for each datasource. All routers read it. A change is
exchanged only if the value is unchanged, and has an entry in the audit log if a user made it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from penstock.core.errors import CorruptData, InvalidRequest, Unavailable
from penstock.segments.json_fields import JsonFields
from penstock.storage.metadata import AuditRow, MetadataStore

AUDIT_TYPE: Final = "delta"

_NAME: Final = "delta"
_TRIES_MAX: Final = 20


class TableGoal(enum.StrEnum):
    """Work of the routers with a table; the values are stored."""

    CREATE = "create"
    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class DeltaEntry:
    """The table of a datasource.

    Attributes:
        table_id: Its id, another one each time it is enabled or rebuilt.
        goal: Work with it.
    """

    table_id: str
    goal: TableGoal


class DeltaRegistry:
    """The stored value. Any thread may call.

    Args:
        store: The metadata store.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def entries(self) -> Mapping[str, DeltaEntry]:
        """Return the tables by datasource.

        Raises:
            Unavailable: The metadata store does not answer.
            CorruptData: The value is of an unknown form, such as that of a later release.
        """
        return _parsed(self._store.config.get(_NAME))

    def change(
        self,
        datasource: str,
        change: Callable[[DeltaEntry | None], DeltaEntry | None],
        audit: AuditRow | None = None,
    ) -> DeltaEntry | None:
        """Change the entry of a datasource, and return the one after.

        Args:
            datasource: The datasource.
            change: Returns the entry after from the one before; None: there is none. It is called
                again if another process has changed the value meanwhile.
            audit: Added to the audit log if the entry changes.

        Raises:
            Unavailable: The metadata store does not answer, or others change the value all the
                time.
        """
        for _ in range(_TRIES_MAX):
            stored = self._store.config.get(_NAME)
            entries = dict(_parsed(stored))
            before = entries.get(datasource)
            after = change(before)
            if after == before:
                return after
            if after is None:
                del entries[datasource]
            else:
                entries[datasource] = after
            value = {
                name: {"id": one.table_id, "goal": one.goal.value} for name, one in entries.items()
            }
            new = orjson.dumps({"tables": value}, option=orjson.OPT_SORT_KEYS)
            if self._store.config.compare_and_set(_NAME, stored, new, entry=audit):
                return after
        raise Unavailable("the list of Delta tables changes all the time: try again")


def _parsed(stored: bytes | None) -> Mapping[str, DeltaEntry]:
    if stored is None:
        return {}
    found = {}
    try:
        tables = JsonFields(orjson.loads(stored), _NAME).mapping("tables")
        for name in tables:
            fields = JsonFields(JsonFields(tables, _NAME).mapping(name), name)
            found[name] = DeltaEntry(fields.text("id"), TableGoal(fields.text("goal")))
    except (InvalidRequest, ValueError) as error:  # narrow: a later release may have written it
        place = "the list of Delta tables in the metadata"
        raise CorruptData(place, None, f"it is of an unknown form ({error})") from error
    return found
