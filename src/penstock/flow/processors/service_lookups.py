"""The lookups of this service, for processors.

Owns the access to them. The start of the service sets them before a processor is scheduled;
processors are created from a flow's file and cannot receive them in another way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Unavailable
from penstock.core.names import normalised
from penstock.core.printable import quoted

if TYPE_CHECKING:
    from penstock.storage.lookup_rows import LookupTable, LookupTables


class ServiceLookups:
    """The lookups of the service; set once, read from any thread."""

    def __init__(self) -> None:
        self._tables: LookupTables | None = None

    def set(self, tables: LookupTables | None) -> None:
        """Set the lookups; None: there are none."""
        self._tables = tables

    def current(self, name: str) -> LookupTable:
        """Return the current version of a lookup, by its exact name.

        Raises:
            CorruptData: The stored rows are damaged.
            Unavailable: There is no such lookup, or the metadata does not answer.
        """
        found = None if self._tables is None else self._tables.current(name)
        # The right to read it is given for its name as it is written.
        if found is None or found.name != normalised(name):
            raise Unavailable(
                f"there is no lookup {quoted(name)}: apply its spec with penstock lookup apply, or"
                " correct the property"
            )
        return found


SERVICE_LOOKUPS: Final = ServiceLookups()
