"""Which files are visible, from the metadata store: segments and announced files of one snapshot.

Owns the step from the catalogue's view to `TableFile`s. It decides no visibility.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from penstock.segments.catalogue import Catalogue, CatalogueView
from penstock.segments.deepstore import DeepStore
from penstock.spark.tables.model import Feeder, TableFile, Tables, columns_from_json
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
                view = self._catalogue.view(snapshot)
                self._tables = Tables(
                    view.revision, {name: self._files(view, name) for name in view.datasources()}
                )
            return self._tables

    def feeders(self, datasource: str) -> list[Feeder]:
        """Return the supervisors of a datasource, whose name may be in another case."""
        return [
            Feeder(row.id, suspended=bool(row.payload.get("suspended")))
            for row in self._store.supervisors.list()
            if _datasource(row.payload).casefold() == datasource.casefold()
        ]

    def _files(self, view: CatalogueView, name: str) -> tuple[TableFile, ...]:
        segments = (
            TableFile(
                self._deep_store.location(piece.segment.load_spec),
                piece.segment.columns,
                piece.segment.interval,
                piece.interval if piece.clipped else None,
                size_bytes=piece.segment.size,
            )
            for piece in view.visible(name)
            if not piece.segment.is_tombstone
        )
        announced = (
            TableFile(
                row.file.path,
                columns_from_json(row.file.payload.get("columns") or []),
                row.file.interval,
                announced=True,
                size_bytes=int(str(row.file.payload.get("bytes") or 0)),
            )
            for row in view.announced(name)
        )
        return (*segments, *announced)


def _datasource(supervisor: Mapping[str, object]) -> str:
    """Return what a supervisor's spec feeds; empty where it has not the shape of one."""
    node: object = supervisor
    for name in ("spec", "dataSchema", "dataSource"):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node if isinstance(node, str) else ""
