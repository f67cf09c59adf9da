"""Import of NiFi swap files into a connection of a stopped flow.

`NifiImport` owns the order of steps and the result of each FlowFile. `StoppedFlow` opens and
closes the folder of a flow whose service is not running, and locks it against the service. Does
not own reading NiFi's files (`swap.nifi`, `nifi_content`), the record of imported rows
(`import_record`) or the repositories.

Invariants:

- A FlowFile is imported once, even if several files of its queue contain it, a file is given
  again or an import is interrupted: the commit that adds it also records it as imported.
- A commit is durable before the next one begins. A failed commit changes nothing.
- FlowFiles keep the order in which NiFi would have processed them under any prioritizers and
  across files: dates and indexes are NiFi's, new content keeps its order, and new ids are in
  the order of NiFi's record ids.
- Memory is bounded: imported FlowFiles go to Penstock's swap files.

An import belongs to one thread.
"""

from __future__ import annotations

from array import array
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from penstock.core.errors import InvalidRequest, NotFound
from penstock.flow.controller.applied_flow import AppliedFlowFile
from penstock.flow.flowfile import UUID, FlowFile
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.nifi_import.import_record import ImportRecord, QueueRecord, key_of, mark_of
from penstock.flow.nifi_import.nifi_content import NifiContent, UnreadableContent
from penstock.flow.prioritizers import SortOrder, prioritizer_named
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.repository_changes import Changes
from penstock.storage.content.claims import ResourceClaim
from penstock.storage.content.content_repository import ContentRepository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.graph.flow_index import PlacedConnection
    from penstock.flow.prioritizers import Prioritizer
    from penstock.flow.repository.repository_changes import RecoveryEvent
    from penstock.flow.swap.nifi.nifi_swap_file import NifiSwapFile
    from penstock.storage.content.claims import ContentClaim
    from penstock.storage.filesystem import FileSystem


_QUEUE_INDEX_MAX: Final = 1 << 62
_READ_FLOWFILES: Final = 1_000
_NOWHERE: Final = ResourceClaim("", "", "")
_Place = tuple[ResourceClaim, int, int]


@dataclass(frozen=True, slots=True)
class SwapImportOptions:
    """Options of an import.

    Args:
        without_content: Whether FlowFiles with unreadable content are imported without content.
        batch_flowfiles: Maximum number of FlowFiles per commit.
        batch_text: Maximum number of characters in the attributes of one commit; a larger FlowFile
            has its own commit.
        swap_flowfiles: Number of FlowFiles per swap file of Penstock.
    """

    without_content: bool = False
    batch_flowfiles: int = 1_000
    batch_text: int = 16 * 1024 * 1024
    swap_flowfiles: int = 10_000

    def __post_init__(self) -> None:
        for name in ("batch_flowfiles", "batch_text", "swap_flowfiles"):
            if getattr(self, name) < 1:
                raise InvalidRequest(
                    f"is {getattr(self, name)}, but must be at least 1", place=name
                )


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """Destination of FlowFiles.

    Attributes:
        queue: Id of the connection.
        prioritizers: Its order, in which swap files are written.
    """

    queue: str
    prioritizers: Sequence[Prioritizer] = ()


@dataclass(slots=True)
class SwapFileReport:
    """Result for one file.

    Attributes:
        imported: FlowFiles that this import put into the connection.
        imported_before: FlowFiles that an earlier import put there.
        content_bytes: Bytes of copied content.
        left_out: FlowFiles with unreadable content, by its file and the reason.
    """

    imported: int = 0
    imported_before: int = 0
    content_bytes: int = 0
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(slots=True)
class _Taking:
    """File that is being imported.

    Attributes:
        rows: Its FlowFiles; the last one is imported first.
        marks: Mark that identifies each among those of its queue.
        queue: FlowFiles of its queue that are imported.
        record: Rows of the file that are imported.
        report: Result so far.
        claims: Claims of copied content, by the location in NiFi.
    """

    rows: Sequence[FlowFile]
    marks: Sequence[int]
    queue: QueueRecord
    record: ImportRecord
    report: SwapFileReport
    claims: dict[_Place, ContentClaim] = field(default_factory=dict)


class _NewIds:
    """New ids of FlowFiles, in the order of their record ids.

    Args:
        ids: Their record ids.
        marks: Mark that identifies each; FlowFiles with equal marks get one id.
        first: First new id.
    """

    def __init__(self, ids: Sequence[int], marks: Sequence[int], first: int) -> None:
        self._first = first
        self._marks, at = np.unique(np.asarray(marks, np.int64), return_index=True)
        order = np.argsort(np.asarray(ids, np.int64)[at], kind="stable")
        self._ranks = np.empty(len(order), np.int64)
        self._ranks[order] = np.arange(len(order))

    def __contains__(self, mark: int) -> bool:
        place = int(np.searchsorted(self._marks, mark))
        return place < len(self._marks) and int(self._marks[place]) == mark

    def of(self, mark: int) -> int:
        """Return the new id for a mark."""
        return self._first + int(self._ranks[np.searchsorted(self._marks, mark)])


class NifiImport:
    """Import of files into one connection. Not thread-safe.

    Args:
        target: Destination.
        repository: Repository of the flow; no other thread may commit meanwhile.
        content: Content repository of the flow.
        source: NiFi's content; None: there is none.
        new_uuid: Returns a unique text.
        options: Options of the import.
    """

    def __init__(
        self,
        target: ImportTarget,
        repository: FlowFileRepository,
        content: ContentRepository,
        source: NifiContent | None,
        new_uuid: Callable[[], str],
        options: SwapImportOptions | None = None,
    ) -> None:
        self._target = target
        self._order = SortOrder(target.prioritizers)
        self._repository = repository
        self._content = content
        self._source = source
        self._new_uuid = new_uuid
        self._options = options or SwapImportOptions()
        self._unswapped: list[FlowFile] = []
        self._queues: dict[str, QueueRecord] = {}
        self._ids = _NewIds((), (), 0)

    def expect(self, files: Iterable[NifiSwapFile]) -> None:
        """Assign new ids to all FlowFiles of several files, in the order of NiFi's record ids.

        Without this call, `take` assigns them separately for each file. The files are read
        completely.
        """
        ids, marks = array("q"), array("q")
        for file in files:
            for batch in file.batches(_READ_FLOWFILES):
                ids.extend([one.id for one in batch])
                marks.extend([mark_of(one) for one in batch])
        self._ids = _NewIds(ids, marks, self._repository.next_ids(len(ids)))

    def take(self, name: str, file: NifiSwapFile) -> SwapFileReport:
        """Import the rows of a file that no earlier import has imported; the file must be unread.

        Args:
            name: Name of the file, for the record.
            file: The file; afterwards it contains the position of any damage.

        Raises:
            Unavailable: Full disk or I/O error; imported FlowFiles stay. Import the file again.
            CorruptData: The record of an earlier import cannot be read.
        """
        rows = list(chain.from_iterable(file.batches(_READ_FLOWFILES)))
        if not rows:
            return SwapFileReport()
        key = key_of(file.summary, rows[0])
        record = ImportRecord.load(self._repository, key, name, self._target.queue, len(rows))
        queue = self._queues.get(file.summary.queue)
        if queue is None:
            queue = QueueRecord(self._repository, file.summary.queue)
            self._queues[file.summary.queue] = queue
        marks = [mark_of(one) for one in rows]
        # If a FlowFile is in a file twice, the first one is used.
        new = {mark: row for row, mark in reversed(list(enumerate(marks)))}
        left = [
            row
            for row in record.left(len(rows))
            if marks[row] not in queue.done and new[marks[row]] == row
        ]
        left.sort(key=lambda row: rows[row].id)
        report = SwapFileReport(imported_before=len(rows) - len(left))
        taking = _Taking(rows, marks, queue, record, report)
        if not all(marks[row] in self._ids for row in left):
            old = [rows[row].id for row in left]
            first = self._repository.next_ids(len(left))
            self._ids = _NewIds(old, [marks[row] for row in left], first)
        for batch in self._batches(rows, left):
            self._import(taking, batch)
        return taking.report

    def _batches(self, rows: Sequence[FlowFile], left: Sequence[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        text = 0
        for row in left:
            attributes = rows[row].attributes
            length = sum(map(len, attributes.keys())) + sum(map(len, attributes.values()))
            full = len(batch) == self._options.batch_flowfiles
            if batch and (full or text + length > self._options.batch_text):
                yield batch
                batch, text = [], 0
            batch.append(row)
            text += length
        if batch:
            yield batch

    def _import(self, taking: _Taking, batch: Sequence[int]) -> None:
        """Commit a batch of rows."""
        written: list[ContentClaim] = []
        try:
            claims = self._copy(taking, batch, written)
            rows = [row for row in batch if row in claims]
            if not rows:
                return
            puts = [
                self._moved(taking.rows[row], self._ids.of(taking.marks[row]), claims[row])
                for row in rows
            ]
            marks = [taking.marks[row] for row in rows]
            changes = Changes(
                puts={self._target.queue: puts},
                written=written,
                states={
                    taking.record.key: taking.record.with_rows(rows, marks),
                    **taking.queue.with_file(taking.record.key),
                },
            )
            self._repository.commit(changes, durable=True)
        except BaseException:
            for claim in written:
                self._content.release(claim.resource)
            raise
        taking.record.add(rows, marks)
        taking.queue.add(taking.record.key, marks)
        taking.report.imported += len(rows)
        taking.report.content_bytes += sum(claim.length for claim in written)
        self._unswapped += puts
        if len(self._unswapped) >= self._options.swap_flowfiles:
            self._swap_out()

    def _copy(
        self, taking: _Taking, batch: Sequence[int], written: list[ContentClaim]
    ) -> dict[int, ContentClaim | None]:
        """Copy the content of rows, in the order of NiFi's files; shared content is copied once.

        Returns:
            Claim of each row; rows with unreadable content are omitted.
        """
        found: dict[int, ContentClaim | None] = {}
        for row in sorted(batch, key=lambda row: _place(taking.rows[row])):
            flowfile = taking.rows[row]
            if not flowfile.size or self._options.without_content:
                found[row] = None
                continue
            place = _place(flowfile)
            claim = taking.claims.get(place)
            if claim is None:
                try:
                    claim = self._copy_one(flowfile)
                except UnreadableContent as error:
                    taking.report.left_out[error.path, error.reason] += 1
                    continue
                written.append(claim)
                taking.claims[place] = claim
            found[row] = claim
        return found

    def _copy_one(self, flowfile: FlowFile) -> ContentClaim:
        if self._source is None:
            raise UnreadableContent("no folder", "specify NiFi's content repository")
        return self._source.copy(flowfile, self._content)

    def _moved(self, flowfile: FlowFile, number: int, claim: ContentClaim | None) -> FlowFile:
        attributes = flowfile.attributes
        if UUID not in attributes:
            attributes = {**attributes, UUID: self._new_uuid()}
        return FlowFile(
            number,
            attributes,
            0 if claim is None else claim.length,
            claim,
            0,
            flowfile.entry_ms,
            flowfile.lineage_start_ms,
            flowfile.lineage_index,
            flowfile.queued_ms,
            # A damaged value must leave enough indexes for the repository.
            min(max(flowfile.queue_index, 0), _QUEUE_INDEX_MAX),
        )

    def _swap_out(self) -> None:
        flowfiles, self._unswapped = self._unswapped, []
        keys = self._order.keys(flowfiles)
        ordered = [flowfiles[at] for at in sorted(range(len(keys)), key=keys.__getitem__)]
        self._repository.swap_store.swap_out(self._target.queue, ordered, self._order.text)


def _place(flowfile: FlowFile) -> _Place:
    """Return the location of the content in NiFi: file, position, length."""
    claim = flowfile.claim
    if claim is None:
        return _NOWHERE, 0, flowfile.size
    return claim.resource, claim.offset + flowfile.content_offset, flowfile.size


class StoppedFlow:
    """Folder of a stopped flow; a context manager that closes it.

    Args:
        folder: The folder.
        fs: The file system.
        clock: The current time.

    Attributes:
        content: Content of its FlowFiles.
        repository: Its FlowFile repository.
        events: Events of recovery that an operator needs to know.

    Raises:
        NotFound: No flow was applied there.
        Conflict: The service of the flow is running.
        CorruptData: Durable data is damaged.
        Unavailable: I/O error.
    """

    def __init__(self, folder: str, *, fs: FileSystem, clock: Clock) -> None:
        self._index = FlowIndex.of(AppliedFlowFile(fs, folder).load().flow)
        if not self._index.connections:
            raise NotFound(
                f"{folder} has no flow with a connection: apply one with penstock flow apply, or "
                "specify another folder with --data-dir"
            )
        with ExitStack() as resources:
            self.content = ContentRepository.open(f"{folder}/content", fs=fs, clock=clock)
            resources.callback(self.content.close)
            self.repository = FlowFileRepository.open(
                f"{folder}/flowfiles", fs=fs, clock=clock, content=self.content
            )
            resources.callback(self.repository.close)
            self.events: Sequence[RecoveryEvent] = self.repository.recovered.events
            self._resources = resources.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def connection(self, name: str) -> PlacedConnection:
        """Return a connection by its name or id.

        Raises:
            NotFound: The flow does not have this connection.
        """
        return self._index.find_connection(name)


def target_of(placed: PlacedConnection) -> ImportTarget:
    """Return a connection as a destination."""
    try:
        order = [prioritizer_named(name) for name in placed.connection.prioritizers]
    except InvalidRequest:
        # For a user's own prioritizer: the queue sorts swapped FlowFiles when it starts.
        order = []
    return ImportTarget(placed.id, order)
