"""SplitRecord: splits a FlowFile with many records into FlowFiles with fewer records each.

Owns the choice of split points. JSON lines are split without copying: each FlowFile refers to a
range of the original content.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import FILENAME, UUID
from penstock.flow.processor import (
    FlowFile,
    InputRequirement,
    ProcessContext,
    ProcessError,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.records.base import RecordProcessor, record_attributes
from penstock.flow.processors.records.formats.format_protocols import BadRecords
from penstock.flow.processors.records.formats.record_formats import RecordFormat

FRAGMENT_ID: Final = "fragment.identifier"
FRAGMENT_INDEX: Final = "fragment.index"
FRAGMENT_COUNT: Final = "fragment.count"
ORIGINAL_NAME: Final = "segment.original.filename"

_PIECE_BYTES: Final = 1 << 20
_NEWLINE: Final = 10
_BLANK: Final = np.zeros(256, dtype=bool)
_BLANK[list(b" \t\r\n")] = True


def _positive(number: int) -> None:
    if number < 1:
        raise InvalidRequest(f"{number} is too small: use 1 or more")


class SplitRecord(RecordProcessor):
    """Splits FlowFiles into parts with a maximum number of records.

    If input and output are JSON lines and no schema is set, content is split at line breaks,
    without parsing or copying.
    """

    input = InputRequirement.REQUIRED
    tags = ("records", "split")
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "mime.type": "MIME type of the parts.",
        "record.count": "Number of records in the part; on the original, in all parts.",
        FRAGMENT_ID: "Same value for all parts of one FlowFile.",
        FRAGMENT_INDEX: "Number of the part, from 0.",
        FRAGMENT_COUNT: "Number of parts; also set on the original.",
        ORIGINAL_NAME: "Name of the FlowFile that was split.",
        **WRITES_REASON,
    }

    output_format = Property(
        RecordFormat, about="Format of the parts; by default, the format of the input."
    )
    records_per_split = Property(
        int, required=True, validator=_positive, about="Maximum number of records in a part."
    )
    max_splits = Property(
        int,
        default=10_000,
        validator=_positive,
        about="Maximum number of parts; a FlowFile with more parts goes to failure, because all "
        "parts are committed together.",
    )

    splits = Relationship("Parts of the FlowFile.")
    original = Relationship("FlowFiles that were split.")
    failure = Relationship(
        "FlowFiles whose content is not in the input format, or that would have more than "
        "max_splits parts."
    )

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Split one FlowFile."""
        flowfile = session.get()
        if flowfile is None:
            return
        target = self.output_format or self.input_format
        plain_lines = self.input_format is target is RecordFormat.JSON_LINES and self.schema is None
        parts: list[tuple[FlowFile, int]] = []
        try:
            made = self._cut(session, flowfile) if plain_lines else self._write(session, flowfile)
            for part in made:
                parts.append(part)
                if len(parts) > self.max_splits:
                    raise BadRecords(
                        f"there are more than {self.max_splits:,} parts: increase "
                        "records_per_split or max_splits"
                    )
        except ProcessError as error:
            session.remove([part for part, _ in parts])
            fail(context, session, flowfile, self.failure, error)
            return
        self._send(session, flowfile, parts, target)

    def _send(
        self,
        session: ProcessSession,
        flowfile: FlowFile,
        parts: list[tuple[FlowFile, int]],
        target: RecordFormat,
    ) -> None:
        every = {
            FRAGMENT_ID: flowfile.attributes[UUID],
            FRAGMENT_COUNT: str(len(parts)),
            ORIGINAL_NAME: flowfile.attributes[FILENAME],
        }
        for index, (part, count) in enumerate(parts):
            own = {**every, FRAGMENT_INDEX: str(index), **record_attributes(target, count)}
            session.put_attributes(part, own)
        session.transfer([part for part, _ in parts], self.splits)
        total = sum(count for _, count in parts)
        session.put_attributes(flowfile, {**every, "record.count": str(total)})
        session.counters.add("records", total)
        session.transfer(flowfile, self.original)

    def _cut(self, session: ProcessSession, flowfile: FlowFile) -> Iterator[tuple[FlowFile, int]]:
        start = 0
        for end, count in self._ends(session, flowfile):
            yield session.clone(flowfile, start, end - start), count
            start = end

    def _ends(self, session: ProcessSession, flowfile: FlowFile) -> Iterator[tuple[int, int]]:
        """Yield the end of each part, and its number of lines that are not blank."""
        position, lines, in_line = 0, 0, 0
        with session.read(flowfile) as content:
            while piece := content.read(_PIECE_BYTES):
                data = np.frombuffer(piece, dtype=np.uint8)
                breaks = np.flatnonzero(data == _NEWLINE)
                seen = in_line + np.cumsum(~_BLANK[data], dtype=np.int64)
                found = breaks[np.diff(seen[breaks], prepend=0) > 0]
                for index in range(
                    self.records_per_split - lines - 1, len(found), self.records_per_split
                ):
                    yield position + int(found[index]) + 1, self.records_per_split
                lines = (lines + len(found)) % self.records_per_split
                in_line = int(seen[-1]) - (int(seen[breaks[-1]]) if len(breaks) else 0)
                position += len(piece)
        if lines or in_line:
            yield position, lines + (in_line > 0)

    def _write(self, session: ProcessSession, flowfile: FlowFile) -> Iterator[tuple[FlowFile, int]]:
        target = self.output_format or self.input_format
        records = self.records(session, flowfile, self.reading_options())
        slices = _slices(records.batches, self.records_per_split)
        for _, group in itertools.groupby(slices, key=lambda numbered: numbered[0]):
            part = session.create(flowfile)
            count = 0
            try:
                with session.write(part) as out:
                    writer = self.writer(target, out, records.schema)
                    for _, batch in group:
                        writer.write(batch)
                        count += batch.num_rows
                    writer.close()
            except ProcessError:  # narrow: other errors roll the session back
                session.remove(part)
                raise
            yield part, count


def _slices(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the records in slices, each with the number of its part."""
    row = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            count = min(size - row % size, batch.num_rows - start)
            yield row // size, batch.slice(start, count)
            start += count
            row += count
