"""Which files are visible, from the metadata store: segments and announced files of one snapshot.

Owns the step from the catalogue's view to `TableFile`s. It decides no visibility.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.segments.catalogue import Catalogue, CatalogueView
from penstock.segments.deepstore import DeepStore
from penstock.segments.model import Segment
from penstock.segments.timeline import Skyline
from penstock.spark.tables.model import Feeder, TableFile, Tables, columns_from_json
from penstock.storage.metadata import MetadataStore, Snapshot


@dataclass(frozen=True, slots=True)
class _Published:
    """The files of a datasource's visible segments, and what they were taken from."""

    skyline: Skyline[Segment]
    files: tuple[TableFile, ...]


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
        # What changes with nearly every revision is what tasks announce; of the segments of a
        # datasource there may be very many, and they are the same as long as its skyline is.
        self._published: dict[str, _Published] = {}

    def revision(self) -> int:
        """Return the metadata revision; cheap."""
        return self._store.revision()

    def tables(self) -> Tables:
        """Return the visible files of every datasource, all from one revision."""
        with self._mutex:
            self._snapshot = snapshot = self._store.snapshot(known=self._snapshot)
            if self._tables is None or self._tables.revision != snapshot.revision:
                view = self._catalogue.view(snapshot)
                self._published = {name: self._published_of(view, name) for name in view.skylines}
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

    def is_dropped(self, datasource: str) -> bool:
        """Tell whether all segments of a datasource are unused; its name as it was written."""
        return self._store.survey.look(lambda overview: overview.is_dropped(datasource))

    def _published_of(self, view: CatalogueView, name: str) -> _Published:
        skyline, known = view.skylines[name], self._published.get(name)
        if known is not None and known.skyline is skyline:
            return known
        files = tuple(
            TableFile(
                self._deep_store.location(piece.segment.load_spec),
                piece.segment.columns,
                piece.segment.interval,
                piece.interval if piece.clipped else None,
                size_bytes=piece.segment.size,
            )
            for piece in view.visible(name)
        )
        return _Published(skyline, files)

    def _files(self, view: CatalogueView, name: str) -> tuple[TableFile, ...]:
        published = self._published.get(name)
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
        return (*(published.files if published else ()), *announced)


def _datasource(supervisor: Mapping[str, object]) -> str:
    """Return what a supervisor's spec feeds; empty where it has not the shape of one."""
    node: object = supervisor
    for name in ("spec", "dataSchema", "dataSource"):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node if isinstance(node, str) else ""
