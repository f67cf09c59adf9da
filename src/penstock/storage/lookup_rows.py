"""Rows of lookups: their form in the metadata, and the versions that readers hold in memory.

Owns the Parquet form and the cache. A version never changes: a query that has one keeps it, while
others already get the next, and its memory is free when the last reader has ended. Does not own
which versions there are (`storage.metadata.tables.lookups`), nor how rows are checked before they
are stored (`spark.batch.input.lookup_rows`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.core.errors import CorruptData
from penstock.storage.metadata.tables.lookups import LookupContent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage.metadata.tables.lookups import LookupRow, StoredLookups

CACHE_BYTES_MAX: Final = 128 << 20
"""Size of the rows that a process keeps for later readers."""
_CODEC: Final = "zstd"
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class LookupTable:
    """One version of a lookup.

    Attributes:
        name: The name of the lookup.
        version: The number of its rows.
        rows: The rows; the first column is the key, a text that each row has and no two share.
    """

    name: str
    version: int
    rows: pa.Table = field(repr=False)

    @property
    def key(self) -> str:
        """The name of the key's column."""
        return str(self.rows.schema.names[0])

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the other columns."""
        return tuple(self.rows.schema.names[1:])


def written_rows(rows: pa.Table) -> LookupContent:
    """Return rows as they are stored."""
    # Imported here and below: 9 MB that only processes with lookups need.
    import pyarrow.parquet as pq  # noqa: PLC0415

    target = pa.BufferOutputStream()
    pq.write_table(rows, target, compression=_CODEC)
    return LookupContent(target.getvalue().to_pybytes(), rows.num_rows, rows.nbytes)


def read_rows(name: str, data: bytes) -> pa.Table:
    """Return stored rows.

    Raises:
        CorruptData: They are damaged.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        # The function for whole tables would import pandas: 0.4 s and 40 MB.
        return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise CorruptData(
            f"the rows of lookup {name}", None, f"{error}: apply its spec again"
        ) from error


class LookupTables:
    """The current versions of lookups. Any thread; the mutex is held while entries are moved.

    Args:
        stored: The lookups in the metadata.
        cache_bytes_max: Size of the rows that are kept for later readers.
    """

    def __init__(self, stored: StoredLookups, cache_bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._stored = stored
        self._bytes_max = cache_bytes_max
        self._mutex = threading.Lock()
        self._kept: OrderedDict[str, LookupTable] = OrderedDict()
        self._bytes = 0

    def listed(self) -> Iterable[LookupRow]:
        """Return all lookups without their rows."""
        return self._stored.list()

    def current(self, name: str) -> LookupTable | None:
        """Return the current version of a lookup, whose name may differ in case.

        None: there is no such lookup.

        Raises:
            CorruptData: The stored rows are damaged.
            Unavailable: The metadata does not answer.
        """
        for _ in range(_TRIES):
            row = self._stored.find(name)
            if row is None:
                self._forget(name)
                return None
            if (kept := self._get(row)) is not None:
                return kept
            found = self._stored.content(row.name)
            # Deleted since, or deleted and declared again: look again.
            if found is not None:
                table = LookupTable(row.name, found[0], read_rows(row.name, found[1]))
                self._keep(table)
                return table
        return None

    def _get(self, row: LookupRow) -> LookupTable | None:
        with self._mutex:
            kept = self._kept.get(row.name)
            if kept is None or kept.version != row.content_version:
                return None
            self._kept.move_to_end(row.name)
            return kept

    def _keep(self, table: LookupTable) -> None:
        with self._mutex:
            last = self._kept.get(table.name)
            if last is not None and last.version > table.version:
                return
            self._drop(table.name)
            self._kept[table.name] = table
            self._bytes += table.rows.nbytes
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._kept)))

    def _forget(self, name: str) -> None:
        with self._mutex:
            self._drop(name)

    def _drop(self, name: str) -> None:
        table = self._kept.pop(name, None)
        if table is not None:
            self._bytes -= table.rows.nbytes
