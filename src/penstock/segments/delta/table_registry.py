"""Which datasources have a Delta table, in the dynamic configuration of the metadata store.

Owns the stored value: an id and a goal for each datasource, and the bound of kills. Routers read
and write it; kills read it. A change is exchanged only if the value is unchanged, and has an entry
in the audit log if a user made it.

Invariant: no version of a table that can be read names the file of a segment that became unused at
the revision `DeltaEntry.unneeded` or before. The log is shortened first, then the revision is
raised; kills delete only such files.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
        unneeded: Files of segments that became unused at this revision or before may be deleted.
        next_version: When this version is the oldest one that can be read, `unneeded` becomes
            `next_unneeded`.
        next_unneeded: The revision whose rows this version has.
    """

    table_id: str
    goal: TableGoal
    unneeded: int = 0
    next_version: int = -1
    next_unneeded: int = 0

    def shortened(self, oldest: int, version: int, revision: int) -> DeltaEntry:
        """Return the entry after the log was shortened.

        Args:
            oldest: The oldest version that can be read.
            version: The newest version.
            revision: A revision whose rows this version has.
        """
        if oldest == version:
            return replace(
                self,
                unneeded=max(self.unneeded, revision),
                next_version=version,
                next_unneeded=revision,
            )
        if self.next_version < 0:
            return replace(self, next_version=version, next_unneeded=revision)
        if oldest >= self.next_version:
            return replace(
                self,
                unneeded=max(self.unneeded, self.next_unneeded),
                next_version=version,
                next_unneeded=revision,
            )
        return self


@dataclass(frozen=True, slots=True)
class KillBounds:
    """The revisions until which segments must have become unused before a kill deletes them.

    Attributes:
        revision: A revision at which these were the tables.
        of_tables: The revision for each datasource with a table.
    """

    revision: int
    of_tables: Mapping[str, int]

    @classmethod
    def read(cls, store: MetadataStore) -> KillBounds:
        """Read them. Raises as `DeltaRegistry.entries`.

        The revision is read first. A table that is enabled later has the visible files of a later
        revision, so no file of a segment that was unused at this one.
        """
        revision = store.revision()
        entries = DeltaRegistry(store).entries()
        return cls(revision, {name: one.unneeded for name, one in entries.items()})

    def of(self, datasource: str) -> int:
        """Return the revision for a datasource."""
        return min(self.revision, self.of_tables.get(datasource, self.revision))


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
            value = {name: _to_json(one) for name, one in entries.items()}
            new = orjson.dumps({"tables": value}, option=orjson.OPT_SORT_KEYS)
            if self._store.config.compare_and_set(_NAME, stored, new, entry=audit):
                return after
        raise Unavailable("the list of Delta tables changes all the time: try again")


def _to_json(entry: DeltaEntry) -> dict[str, object]:
    return {
        "id": entry.table_id,
        "goal": entry.goal.value,
        "unneeded": entry.unneeded,
        "nextVersion": entry.next_version,
        "nextUnneeded": entry.next_unneeded,
    }


def _parsed(stored: bytes | None) -> Mapping[str, DeltaEntry]:
    if stored is None:
        return {}
    found = {}
    try:
        tables = JsonFields(orjson.loads(stored), _NAME).mapping("tables")
        for name in tables:
            fields = JsonFields(JsonFields(tables, _NAME).mapping(name), name)
            found[name] = DeltaEntry(
                fields.text("id"),
                TableGoal(fields.text("goal")),
                fields.whole("unneeded", 0),
                fields.signed("nextVersion", -1),
                fields.whole("nextUnneeded", 0),
            )
    except (InvalidRequest, ValueError) as error:  # narrow: a later release may have written it
        place = "the list of Delta tables in the metadata"
        raise CorruptData(place, None, f"it is of an unknown form ({error})") from error
    return found
