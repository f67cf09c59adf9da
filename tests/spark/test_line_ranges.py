"""Lines of files as ranges of a stream: any window, any cut, gives the same lines. No JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData
from penstock.indexing.engine import FileRange
from penstock.spark.topic.parse import MessageParser
from penstock.spark.topic.places import as_source, read_place
from penstock.spark.topic.reading import BadMessagePolicy, read_parsed
from penstock.spark.topic.rowshape import RowShape, TimeField
from penstock.spark.topic.splits import SourceRange, cut
from penstock.storage.filesystem import OsFileSystem


def read(source: SourceRange, block_bytes: int) -> list[tuple[int, bytes]]:
    found = []
    for piece in read_place(OsFileSystem(), source, block_bytes):
        found += enumerate(piece.messages.to_pylist(), piece.base_offset)
    return found


@given(
    lines=st.lists(st.binary(max_size=9).map(lambda t: t.replace(b"\n", b"") + b"\n"), min_size=1),
    block_bytes=st.integers(1, 64),
    pieces=st.integers(1, 5),
    data=st.data(),
)
def test_any_window_and_any_cut_give_the_same_lines(
    tmp_path_factory, lines, block_bytes, pieces, data
):
    path = Path(tmp_path_factory.mktemp("lines")) / "a.log"
    path.write_bytes(b"".join(lines) + b"half")
    start = data.draw(st.integers(0, len(lines)))
    sizes = [len(line) for line in lines]
    wanted = FileRange(7, str(path), start, len(lines), sum(sizes[:start]), sum(sizes))
    found = [
        line
        for split in cut([as_source(wanted)], pieces, 1)
        for source in split
        for line in read(source, block_bytes)
    ]
    assert found == list(enumerate(lines))[start:]


def test_a_file_that_was_cut_is_told(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    with pytest.raises(CorruptData, match="shorter"):
        read(as_source(FileRange(0, str(path), 0, 2, 0, 8)), 64)


def test_a_read_that_breaks_off_keeps_no_file_of_bad_messages_open(tmp_path):
    path, folder = tmp_path / "a.log", tmp_path / "bad"
    path.write_bytes(b'{"timestamp":1}\nbad\n')
    source = as_source(FileRange(0, str(path), 0, 2, 0, 20))
    policy = BadMessagePolicy(str(folder))
    shape = RowShape((), TimeField("timestamp"))
    rows = read_parsed(OsFileSystem(), (source,), MessageParser(shape), policy)
    assert next(rows).num_rows == 1
    rows.close()
    opened = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert not [one for one in opened if one.is_relative_to(folder)]
    assert not [one for one in folder.iterdir() if one.suffix == ".jsonl"]
