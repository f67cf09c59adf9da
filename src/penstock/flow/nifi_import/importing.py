"""Import of NiFi's swap files into a connection of a stopped flow.

Owns the order of steps and the processing of a FlowFile. Does not own reading NiFi's files
(`swap.nifi`, `contents`), the record of imported rows (`record`), nor the durability of FlowFiles.

Invariants:

- A FlowFile is imported once, however many files of its queue contain it, however often they are
  given and however the import ends: the commit that puts it also records it.
- A commit is durable before the next one begins. A failed commit leaves nothing behind.
- FlowFiles keep the order in which NiFi would have processed them, for any prioritizers and across
  files. Dates and indexes are NiFi's. Content is new and keeps its order. New ids are in the order
  of NiFi's record ids, by which NiFi decides if nothing else differs.
- Only a few are in memory at once: they are written to Penstock's swap files.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import UUID, FlowFile
from penstock.flow.nifi_import.content import NifiContent, UnreadableContent
from penstock.flow.nifi_import.import_record import ImportRecord, QueueRecord, key_of, mark_of
from penstock.flow.prioritizers import SortOrder
from penstock.flow.repository.changes import Changes
from penstock.storage.content.claims import ResourceClaim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.flow.prioritizers import Prioritizer
    from penstock.flow.repository.repository import FlowFileRepository
    from penstock.flow.swap.nifi.summary import NifiSwapFile
    from penstock.storage.content.claims import ContentClaim
    from penstock.storage.content.repository import ContentRepository

_QUEUE_INDEX_MAX: Final = 1 << 62
_READ_FLOWFILES: Final = 1_000
_NOWHERE: Final = ResourceClaim("", "", "")
_Place = tuple[ResourceClaim, int, int]


@dataclass(frozen=True, slots=True)
class ImportOptions:
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
class Target:
    """Destination of FlowFiles.

    Attributes:
        queue: Id of the connection.
        prioritizers: Its order, in which swap files are written.
    """

    queue: str
    prioritizers: Sequence[Prioritizer] = ()


@dataclass(slots=True)
class FileReport:
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
    report: FileReport
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
        target: Target,
        repository: FlowFileRepository,
        content: ContentRepository,
        source: NifiContent | None,
        new_uuid: Callable[[], str],
        options: ImportOptions | None = None,
    ) -> None:
        self._target = target
        self._order = SortOrder(target.prioritizers)
        self._repository = repository
        self._content = content
        self._source = source
        self._new_uuid = new_uuid
        self._options = options or ImportOptions()
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

    def take(self, name: str, file: NifiSwapFile) -> FileReport:
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
            return FileReport()
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
        report = FileReport(imported_before=len(rows) - len(left))
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
        self._repository.swap_home.swap_out(self._target.queue, ordered, self._order.text)


def _place(flowfile: FlowFile) -> _Place:
    """Return the location of the content in NiFi: file, position, length."""
    claim = flowfile.claim
    if claim is None:
        return _NOWHERE, 0, flowfile.size
    return claim.resource, claim.offset + flowfile.content_offset, flowfile.size
