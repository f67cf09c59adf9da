"""Visible files of each datasource: segments and announced files of one metadata snapshot.

Owns the step from the catalogue's view to `TableFile`s. Does not decide visibility.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.clock import Clock, SystemClock
from penstock.core.intervals import Interval
from penstock.core.timeline.timeline import VisibleEntries
from penstock.indexing.specs.rows.declared_projections import (
    DeclaredProjections,
    config_name,
    load,
    merged,
    of_schema,
)
from penstock.segments.catalog import Catalog, CatalogView, with_rows
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment
from penstock.spark.tables.table_files import Feeder, TableFile, Tables, columns_from_json
from penstock.storage.metadata import MetadataStore, Snapshot

DECLARED_FOR_S: Final = 10.0
"""Maximum age of the cached projection declarations, in seconds."""


@dataclass(frozen=True, slots=True)
class _Published:
    """Files of a datasource's visible segments, and the view that they come from.

    `counts` has the number of files of each span of the view.
    """

    visible: VisibleEntries[Segment]
    files: tuple[TableFile, ...]
    counts: array[int]


class VisibleFiles:
    """`TableSource` over the metadata store.

    Queries call it on many threads. The mutex is held while the catalogue is updated, because every
    query needs the result.
    """

    def __init__(self, store: MetadataStore, deep_storage: str, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        # Each value is replaced in one step, so any thread may use it: the time of a read, and its
        # result.
        self._supervised: tuple[float, Mapping[str, tuple[DeclaredProjections, ...]]] | None = None
        self._declared: dict[str, tuple[float, tuple[DeclaredProjections, ...]]] = {}
        self._deep_store = DeepStore(deep_storage)
        self._mutex = threading.Lock()
        self._catalogue = Catalog()
        self._snapshot: Snapshot | None = None
        self._tables: Tables | None = None
        # Most revisions change only announced files. A datasource may have very many segments, so
        # their files are reused while its visible timeline is unchanged.
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
                self._published = {
                    name: self._published_of(view, name) for name in view.visible_timelines
                }
                self._tables = Tables(
                    view.revision, {name: self._files(view, name) for name in view.datasources()}
                )
            return self._tables

    def feeders(self, datasource: str) -> list[Feeder]:
        """Return the supervisors of a datasource, whose name may differ in case."""
        return [
            Feeder(
                row.id,
                suspended=bool(row.payload.get("suspended")),
                datasource=_datasource(row.payload),
            )
            for row in self._store.supervisors.list()
            if _datasource(row.payload).casefold() == datasource.casefold()
        ]

    def is_dropped(self, datasource: str) -> bool:
        """Return whether all segments of a datasource are unused; its name is case-sensitive."""
        return self._store.segment_overviews.read(lambda overview: overview.is_dropped(datasource))

    def projections(self, datasource: str) -> Sequence[DeclaredProjections]:
        """Return the projections of a datasource, at most `DECLARED_FOR_S` old.

        Those of supervisors follow, and take precedence over, those that batch tasks published.
        """
        now_s = self._clock.monotonic_s()
        known = self._declared.get(datasource)
        if known is not None and now_s < known[0] + DECLARED_FOR_S:
            return known[1]
        of_tasks = load(self._store.config.get(config_name(datasource)))
        found = merged(of_tasks, self._of_supervisors(now_s).get(datasource, ()))
        self._declared[datasource] = (now_s, found)
        return found

    def _of_supervisors(self, now_s: float) -> Mapping[str, tuple[DeclaredProjections, ...]]:
        known = self._supervised
        if known is not None and now_s < known[0] + DECLARED_FOR_S:
            return known[1]
        found: dict[str, tuple[DeclaredProjections, ...]] = {}
        for row in self._store.supervisors.list():
            if declared := of_schema(_schema(row.payload)):
                name = _datasource(row.payload)
                found[name] = merged(found.get(name, ()), declared)
        self._supervised = (now_s, found)
        return found

    def _published_of(self, view: CatalogView, name: str) -> _Published:
        """Return the files of a datasource's visible segments.

        A publish changes few of a million spans, mostly at the end: the files of the spans before
        and behind the changed ones are taken over.
        """
        visible, known = view.visible_timelines[name], self._published.get(name)
        if known is None:
            files, counts = self._files_of(visible, 0, len(visible))
            return _Published(visible, tuple(files), counts)
        if known.visible is visible:
            return known
        head, tail = visible.shared_ends(known.visible)
        files, counts = self._files_of(visible, head, len(visible) - tail)
        behind = len(known.counts) - tail
        first = sum(known.counts[:head])
        last = len(known.files) - sum(known.counts[behind:])
        return _Published(
            visible,
            (*known.files[:first], *files, *known.files[last:]),
            known.counts[:head] + counts + known.counts[behind:],
        )

    def _files_of(
        self, visible: VisibleEntries[Segment], low: int, high: int
    ) -> tuple[list[TableFile], array[int]]:
        """Return the files of some spans, and their number for each span."""
        files: list[TableFile] = []
        counts = array("l")
        for start_ms, end_ms, entry in visible.spans_at(low, high):
            before, interval = len(files), Interval(start_ms, end_ms)
            files.extend(
                TableFile(
                    self._deep_store.location(segment.load_spec),
                    segment.columns,
                    segment.interval,
                    None if interval == segment.interval else interval,
                    size_bytes=segment.size,
                    rows=segment.total_rows,
                )
                for segment in with_rows(entry)
            )
            counts.append(len(files) - before)
        return files, counts

    def _files(self, view: CatalogView, name: str) -> tuple[TableFile, ...]:
        published = self._published.get(name)
        announced = (
            TableFile(
                row.file.path,
                columns_from_json(row.file.payload.get("columns") or []),
                row.file.interval,
                announced=True,
                size_bytes=int(str(row.file.payload.get("bytes") or 0)),
                part_of=f"{row.task_id} {row.sequence_name} {row.file.interval}",
                rows=row.file.rows,
            )
            for row in view.announced(name)
        )
        return (*(published.files if published else ()), *announced)


def _datasource(supervisor: Mapping[str, object]) -> str:
    """Return the datasource of a supervisor's spec; empty if the spec is malformed."""
    name = _schema(supervisor).get("dataSource")
    return name if isinstance(name, str) else ""


def _schema(supervisor: Mapping[str, object]) -> Mapping[str, object]:
    """Return the `dataSchema` of a supervisor's spec; empty if the spec is malformed."""
    node: object = supervisor
    for name in ("spec", "dataSchema"):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}
