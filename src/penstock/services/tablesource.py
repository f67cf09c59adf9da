"""Which files SQL reads: visible segments and announced files, from one metadata snapshot.

Owns the step from the catalogue's view to `penstock.spark.tables`. It decides no visibility.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import cast

from penstock.segments.catalogue import Catalogue
from penstock.segments.deepstore import DeepStore
from penstock.spark.tables import TableFile, Tables
from penstock.storage.metadata import MetadataStore, Snapshot


class MetadataTables:
    """`TableSource` over the metadata store.

    Queries come on many threads, and the catalogue has one owner: a mutex is held while it moves
    to a new snapshot, which is the work that all of them wait for anyway.
    """

    def __init__(self, store: MetadataStore, deep_storage: str) -> None:
        self._store = store
        self._deep_store = DeepStore(deep_storage)
        self._mutex = threading.Lock()
        self._catalogue = Catalogue()
        self._snapshot: Snapshot | None = None
        self._tables: Tables | None = None

    def revision(self) -> int:
        """Return the metadata revision; cheap."""
        return self._store.revision()

    def tables(self) -> Tables:
        """Return the visible files of every datasource, all from one revision."""
        with self._mutex:
            self._snapshot = snapshot = self._store.snapshot(known=self._snapshot)
            if self._tables is None or self._tables.revision != snapshot.revision:
                self._tables = self._move_to(snapshot)
            return self._tables

    def _move_to(self, snapshot: Snapshot) -> Tables:
        view = self._catalogue.view(snapshot)
        files: dict[str, tuple[TableFile, ...]] = {}
        for name in view.datasources():
            segments = [
                TableFile(
                    self._deep_store.location(piece.segment.load_spec),
                    piece.segment.columns,
                    piece.segment.interval,
                    piece.interval if piece.clipped else None,
                )
                for piece in view.visible(name)
                if not piece.segment.is_tombstone
            ]
            announced = [
                TableFile(row.file.path, _columns(row.file.payload), row.file.interval)
                for row in view.announced(name)
            ]
            files[name] = (*segments, *announced)
        return Tables(snapshot.revision, files)


def _columns(payload: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    listed = cast("list[list[str]]", payload.get("columns") or [])
    return tuple((name, kind) for name, kind in listed)
