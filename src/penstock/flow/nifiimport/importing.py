"""From NiFi's swap files into a connection of a flow that does not run.

Owns the order of steps and what becomes of a FlowFile. Does not own reading NiFi's files
(`swap.nifi`, `contents`), which rows are done (`record`), nor where FlowFiles are durable.

Invariants:

- A FlowFile is imported once, in however many files of its queue it stands, however often they are
  given and whatever ends the import: that it is done stands in the commit that puts it.
- A commit is durable before the next one begins. One that fails leaves nothing behind.
- FlowFiles come in the order in which NiFi would have handed them out, by any prioritizers and
  across files: dates and indexes are NiFi's, content is new and keeps its order, and new ids are
  in the order of NiFi's record ids, by which NiFi decides where nothing else does.
- Few are in memory, however many there are: they go on to our swap files.
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
from penstock.flow.nifiimport.contents import NifiContent, UnreadableContent
from penstock.flow.nifiimport.record import ImportRecord, QueueRecord, key_of, mark_of
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
    """How an import goes.

    Args:
        without_content: FlowFiles whose content cannot be had come with none.
        batch_flowfiles: FlowFiles of one commit.
        batch_text: Characters in the attributes of one commit; a larger FlowFile has its own.
        swap_flowfiles: As many are put into one swap file of ours.
    """

    without_content: bool = False
    batch_flowfiles: int = 1_000
    batch_text: int = 16 * 1024 * 1024
    swap_flowfiles: int = 10_000

    def __post_init__(self) -> None:
        for name in ("batch_flowfiles", "batch_text", "swap_flowfiles"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"is {getattr(self, name)}: must be at least 1", place=name)


@dataclass(frozen=True, slots=True)
class Target:
    """Where FlowFiles go.

    Attributes:
        queue: Id of the connection.
        prioritizers: Its order, so that swap files are written in it.
    """

    queue: str
    prioritizers: Sequence[Prioritizer] = ()


@dataclass(slots=True)
class FileReport:
    """What became of one file.

    Attributes:
        imported: FlowFiles that are in the connection now, and were not before.
        imported_before: FlowFiles that an earlier import had taken.
        content_bytes: Content that was copied.
        left_out: FlowFiles whose content cannot be had, by its file and what is wrong with it.
    """

    imported: int = 0
    imported_before: int = 0
    content_bytes: int = 0
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(slots=True)
class _Taking:
    """One file while it is imported.

    Attributes:
        rows: Its FlowFiles, the first to go last.
        marks: By what each is known among those of its queue.
        queue: Which FlowFiles of its queue are done.
        record: Which of them are done.
        report: What became of them.
        claims: Content that was copied, by where NiFi has it.
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
        marks: By what each is known; one that comes twice gets one id.
        first: The first new id.
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
        """Return the new id of one."""
        return self._first + int(self._ranks[np.searchsorted(self._marks, mark)])


class NifiImport:
    """Imports files into one connection. For one thread.

    Args:
        target: Where to.
        repository: The flow's; nobody else commits meanwhile.
        content: What goes with it.
        source: NiFi's content; None: there is none.
        new_uuid: Gives text that was never given before.
        options: How.
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
        """Give out new ids for all FlowFiles of several files, in the order of NiFi's record ids.

        Without it, `take` gives them out for each file alone. The files are read to their end.
        """
        ids, marks = array("q"), array("q")
        for file in files:
            for batch in file.batches(_READ_FLOWFILES):
                ids.extend([one.id for one in batch])
                marks.extend([mark_of(one) for one in batch])
        self._ids = _NewIds(ids, marks, self._repository.next_ids(len(ids)))

    def take(self, name: str, file: NifiSwapFile) -> FileReport:
        """Import what an earlier import of the same file has not; nothing of it may be read yet.

        Args:
            name: Of the file, for the record.
            file: The file; afterwards it says what of it was damaged.

        Raises:
            Unavailable: Full disk or I/O error; what was imported stays, take the file again.
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
        # Of one that stands in a file twice, the first counts.
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
        """Make one commit of a batch of rows."""
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
        """Copy the content of rows, in the order of NiFi's files; what many share, once.

        Returns:
            The claim of each row; rows whose content cannot be had are not in it.
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
            raise UnreadableContent("no folder", "name NiFi's content repository")
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
            # A damaged one must not leave too little for the repository to count on from.
            min(max(flowfile.queue_index, 0), _QUEUE_INDEX_MAX),
        )

    def _swap_out(self) -> None:
        flowfiles, self._unswapped = self._unswapped, []
        keys = self._order.keys(flowfiles)
        ordered = [flowfiles[at] for at in sorted(range(len(keys)), key=keys.__getitem__)]
        self._repository.swap_home.swap_out(self._target.queue, ordered, self._order.text)


def _place(flowfile: FlowFile) -> _Place:
    """Return where NiFi has the content: file, position, length."""
    claim = flowfile.claim
    if claim is None:
        return _NOWHERE, 0, flowfile.size
    return claim.resource, claim.offset + flowfile.content_offset, flowfile.size
