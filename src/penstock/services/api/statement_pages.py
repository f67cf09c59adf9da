"""Pages of the answer of an asynchronous statement, and the summary that its state shows.

Owns the bounds of both. Reads rows, and keeps none but the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa

from penstock.core.row_bytes import bytes_of_rows
from penstock.services.api.sql_results import write_rows

if TYPE_CHECKING:
    from penstock.spark.sql.fetcher import RowSource

PAGES_MAX: Final = 1_000
"""Pages of an answer. Pages have more rows than requested if there would be more pages."""
_SAMPLE_ROWS: Final = 10
SAMPLE_BYTES_MAX: Final = 64 << 10
"""Size of the JSON of the first rows, which a statement keeps in memory until it expires."""


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """Summary of an answer: the numbers of its rows and bytes.

    Attributes:
        rows: Number of rows.
        size_bytes: Their size.
        page_rows: Rows of a page.
        sample: JSON of the first rows.
        pages: JSON of the list of pages.
    """

    rows: int
    size_bytes: int
    page_rows: int
    sample: bytes
    pages: bytes


class PageRows:
    """Some rows of an answer, which are read like all of them.

    Args:
        rows: All rows.
        start: Number of rows before the first one.
        count: Number of rows.
    """

    def __init__(self, rows: RowSource, start: int, count: int) -> None:
        self.schema = rows.schema
        self.num_rows = count
        self._rows = rows
        self._start = start

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, a batch at a time."""
        skipped, left = self._start, self.num_rows
        for batch in self._rows.to_batches():
            if left <= 0:
                return
            if skipped >= batch.num_rows:
                skipped -= batch.num_rows
                continue
            part = batch.slice(skipped, left)
            skipped, left = 0, left - part.num_rows
            yield part


def summary_of(answer: RowSource, page_rows: int) -> AnswerSummary:
    """Return the summary of an answer. It reads files.

    Args:
        answer: Its rows.
        page_rows: Requested rows of a page.
    """
    rows, size = answer.num_rows, answer.nbytes
    page_rows = max(page_rows, -(-rows // PAGES_MAX))
    pages = []
    for number, start in enumerate(range(0, max(1, rows), page_rows)):
        own = min(page_rows, rows - start)
        pages.append({"id": number, "numRows": own, "sizeInBytes": size * own // max(1, rows)})
    return AnswerSummary(rows, size, page_rows, _sample(answer), orjson.dumps(pages))


def _sample(rows: RowSource) -> bytes:
    """Return JSON of the first rows, up to the first one that makes it too long."""
    found: list[bytes] = []
    left = SAMPLE_BYTES_MAX
    for batch in PageRows(rows, 0, min(_SAMPLE_ROWS, rows.num_rows)).to_batches():
        sizes = bytes_of_rows(batch).to_pylist()
        for number, size in enumerate(sizes):
            if size > left:  # before it is written
                return _json_list(found)
            row = pa.Table.from_batches([batch.slice(number, 1)])
            written = b"".join(write_rows(row, "array", header=False))[1:-1]
            left -= len(written)
            if left < 0:
                return _json_list(found)
            found.append(written)
    return _json_list(found)


def _json_list(items: list[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"
