"""Metadata stores of tests whose subject is not the first start of a store.

Each is a copy of an empty database, whose tables the real migrations made once in this process: a
copy takes a quarter of the time. The databases of a process share their compiled statements, as
the transactions of one database do.
"""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from sqlalchemy import create_engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from penstock.storage.metadata import MetadataStore
from penstock.storage.metadata.backends import sqlite
from penstock.storage.sqlite_urls import sqlite_url
from tests.harness.cluster_simulation.memory import MemoryDatabase

if TYPE_CHECKING:
    from types import ModuleType

    from sqlalchemy import Dialect

    from penstock.core.clock import Clock
    from penstock.storage.metadata import Snapshot

_COMPILED: Final[dict[object, object]] = {}


def open_metadata(folder: Path | str, clock: Clock | None = None) -> MetadataStore:
    """Open the store in the file `metadata.db` of a folder, and create it if it is missing."""
    path = Path(folder, "metadata.db")
    if not path.exists():
        create_metadata(path)
    return MetadataStore.open(sqlite_url(path), clock=clock)


class MemoryMetadata(MetadataStore):
    """A store in memory on one connection, for worlds of one thread that never open it again."""

    def __init__(self, clock: Clock) -> None:
        self.memory = MemoryDatabase(clock)
        super().__init__(self.memory)
        self._found: dict[str, tuple[int, Snapshot]] = {}

    def latest(self, datasource: str) -> Snapshot:
        """Return the snapshot of a datasource, read again only after a change.

        Tests wait for its contents, and ask after each of thousands of steps.
        """
        changes = self.memory.changes
        at, found = self._found.get(datasource, (-1, None))
        if found is None or at != changes:
            found = self.snapshot(datasource)
            self._found[datasource] = (changes, found)
        return found


def create_metadata(path: Path) -> None:
    """Create an SQLite file with the tables of this release and without rows."""
    path.touch(mode=0o600, exist_ok=False)  # the permissions that the store gives it
    path.write_bytes(_empty_database())


@functools.cache
def _empty_database() -> bytes:
    with TemporaryDirectory(prefix="metadata") as folder:
        path = Path(folder, "metadata.db")
        MetadataStore.open(sqlite_url(path)).close()
        return path.read_bytes()


def share_compiled_statements(
    backend: ModuleType = sqlite, dialect: type[Dialect] = SQLiteDialect_pysqlite
) -> None:
    """Compile each statement once for all databases of a backend that are opened from now on.

    The key of a compiled statement includes the dialect, and each engine makes one of its own. All
    of a backend are configured alike.
    """
    dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    vars(backend)["create_engine"] = functools.partial(
        create_engine, execution_options={"compiled_cache": _COMPILED}
    )
