"""Damaged tails of ORC files: they are interpreted or ignored, and only Arrow reports damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as po

from penstock.core.errors import InvalidRequest
from penstock.core.orc_bounds import OrcTail, check_tail

ROWS = 1_000


def stored_table(path: Path) -> bytes:
    table = pa.table({"at": ["2013"] * ROWS, "nested": [[{"key": "x"}]] * ROWS})
    po.write_table(table, path, compression="uncompressed")
    return path.read_bytes()


def lengths(path: Path) -> tuple[int, int]:
    """Return the length of the metadata section, and of what follows it."""
    file = po.ORCFile(path)
    after = file.file_footer_length + file.file_postscript_length + 1
    return file.stripe_statistics_length, after


def damaged(whole: bytes, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end):
        for change in (0x01, 0x80, 0xFF):
            yield whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :]


def test_a_damaged_byte_of_the_tail_raises_no_error_of_the_parser(tmp_path: Path) -> None:
    """Statistics of a stripe raised a private error where they were used."""
    whole = stored_table(tmp_path / "a.orc")
    at = len(whole) - sum(lengths(tmp_path / "a.orc"))
    understood = 0
    for content in damaged(whole, at, len(whole)):
        with suppress(InvalidRequest):  # the damaged number is beyond a bound
            tail = OrcTail.open(pa.BufferReader(content), "a.orc")
            if tail is not None:
                tail.rows_at_once(0, None, "a.orc")
                understood += 1
    assert understood > 100


def test_damaged_statistics_of_a_stripe_leave_those_of_the_file(tmp_path: Path) -> None:
    whole = stored_table(tmp_path / "a.orc")
    metadata, after = lengths(tmp_path / "a.orc")
    start, end = len(whole) - metadata - after, len(whole) - after
    tails = [
        OrcTail.open(pa.BufferReader(whole[:start] + section + whole[end:]), "a.orc")
        # The section itself is damaged; then the statistics of its one stripe, after two lengths.
        for section in (b"\xff" * metadata, whole[start : start + 3] + b"\xff" * (metadata - 3))
    ]
    for tail in tails:
        assert tail is not None
        assert tail._sizes_of(0) == tail._footer.sizes != []


def test_a_check_of_the_tail_reads_no_statistics_of_stripes(tmp_path: Path) -> None:
    whole = stored_table(tmp_path / "a.orc")
    _, after = lengths(tmp_path / "a.orc")
    reads: list[int] = []

    class Watched:
        def size(self) -> int:
            return len(whole)

        def read_at(self, size: int, at: int) -> bytes:
            reads.append(at)
            return whole[at : at + size]

    check_tail(Watched(), "a.orc")
    assert min(reads) == len(whole) - after
