"""Lines of files as ranges of a stream: any window, any cut, gives the same lines. No JVM."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.indexing.engine import FileRange
from penstock.spark.batch.input import text_lines
from penstock.spark.batch.input.file_splits import InputFile, Split
from penstock.spark.batch.input.text_lines import read_lines
from penstock.spark.messages.formats import MetadataColumns, TextFormat
from penstock.spark.messages.record_rows import RecordRows
from penstock.spark.topic.offset_splits import SourceRange, cut
from penstock.spark.topic.parse import MessageParser
from penstock.spark.topic.record_locations import LongLine, _read_lines, as_source, read_place
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField
from penstock.spark.topic.split_reader import BadMessagePolicy, read_parsed, translate_split_errors
from penstock.storage.disk import OsFileSystem
from tests.kits.port_faults_kit import open_below


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


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    block_bytes=st.integers(1, 8),
    start=st.integers(0, 3),
)
def test_lines_that_are_too_long_are_told_in_any_window(
    tmp_path_factory, sizes, block_bytes, start
):
    path = Path(tmp_path_factory.mktemp("lines")) / "a.log"
    lines = [b"x" * size + b"\n" for size in sizes]
    path.write_bytes(b"".join(lines))
    start = min(start, len(lines))
    begin = sum(map(len, lines[:start]))
    source = as_source(FileRange(0, str(path), start, len(lines), begin, sum(map(len, lines))))
    found = {}
    for piece in _read_lines(OsFileSystem(), source, block_bytes, 10):
        assert sum(map(len, piece.messages.to_pylist())) <= 10 + 2 * block_bytes
        for number, line in enumerate(piece.messages.to_pylist(), piece.base_offset):
            found[number] = None if isinstance(piece, LongLine) else line
    wanted = [line if len(line) <= 11 else None for line in lines]
    assert found == dict(list(enumerate(wanted))[start:])


@given(
    text=st.text("ab\r\n", max_size=40),
    block_bytes=st.integers(1, 16),
    piece_bytes=st.integers(1, 5),
    at=st.integers(0, 40),
)
def test_each_line_of_a_file_is_in_one_split_whatever_is_read_at_once(
    tmp_path_factory, text, block_bytes, piece_bytes, at
):
    path = Path(tmp_path_factory.mktemp("lines")) / "a.csv"
    path.write_bytes(text.encode())
    file, at = InputFile(str(path), "a.csv", len(text), 0), min(at, len(text))
    found = []
    with mock.patch.object(text_lines, "_PIECE_BYTES", piece_bytes):
        for split in (Split(file, 0, at), Split(file, at, len(text))):
            for lines in read_lines(split, line_bytes_max=100, block_bytes=block_bytes):
                whole = bytes(memoryview(lines.text))
                ends = zip(lines.starts.tolist(), lines.ends.tolist(), strict=True)
                found += [whole[start:end].decode() for start, end in ends]
    assert found == [line for one in text.split("\n") if (line := one.removesuffix("\r"))]


def test_a_line_that_is_too_long_is_a_bad_message(tmp_path, monkeypatch):
    monkeypatch.setattr(_read_lines, "__defaults__", (100,))
    path = tmp_path / "a.log"
    path.write_bytes(b'{"a":"' + b"x" * 200 + b'"}\n{"timestamp":1}\n{"timestamp":2}\n')
    source = as_source(FileRange(0, str(path), 0, 3, 0, path.stat().st_size))
    parser = MessageParser(RowShape((), TimeField("timestamp")))
    [rows] = read_parsed(OsFileSystem(), (source,), parser, BadMessagePolicy(drop=True))
    assert rows.num_rows == 2
    with pytest.raises(CorruptData, match="offset 0: longer than 100 bytes"):
        list(read_parsed(OsFileSystem(), (source,), parser, BadMessagePolicy()))


def test_a_line_that_is_too_long_is_a_bad_record_for_its_length(tmp_path, monkeypatch):
    """The format `kafka` over a folder said "an empty line: in Kafka, a record without a value"."""
    monkeypatch.setattr(_read_lines, "__defaults__", (100,))
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 200 + b"\n\n1,b\n2,c\n")
    source = as_source(FileRange(0, str(path), 0, 4, 0, path.stat().st_size))
    csv = TextFormat(("timestamp", "b"))
    columns = MetadataColumns("t", "topic", "partition", "offset", "key", None, "header.", None)
    shape = RowShape((("b", FieldType.STRING),), TimeField("timestamp"))
    bad = tmp_path / "bad"
    parser = RecordRows(shape, csv, columns)
    [rows] = read_parsed(OsFileSystem(), (source,), parser, BadMessagePolicy(str(bad)))
    assert rows.column("b").to_pylist() == ["b", "c"]
    [kept] = bad.iterdir()
    found = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [one["offset"] for one in found] == [0, 1]
    assert found[0]["reason"] == "longer than 100 bytes"
    assert found[1]["reason"].startswith("an empty line")
    with pytest.raises(CorruptData) as raised:
        list(read_parsed(OsFileSystem(), (source,), parser, BadMessagePolicy()))
    assert str(raised.value).startswith(f"{path}")
    assert "stream partition 0, offset 0: longer than 100 bytes" in str(raised.value)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ('lines:["/logs/a.log", 0, 0, 32, [], []]', "/logs/a.log"),
        ("kafka:clicks", "Kafka topic 'clicks'"),
        ("/topics/clicks", "/topics/clicks"),
    ],
)
def test_a_range_without_a_topic_is_called_by_its_place(place, shown):
    with (
        pytest.raises(InvalidRequest, match=rf"working on {shown}, stream partition 3, offsets"),
        translate_split_errors((SourceRange(3, place, 5, 9),)),
    ):
        raise MemoryError


@pytest.mark.parametrize(
    "error", [MemoryError, SystemError("<loads> returned NULL without setting an exception")]
)
def test_memory_that_runs_out_names_the_place(tmp_path, error):
    class Parser:
        def parse(self, messages):
            raise error

    path = tmp_path / "a.log"
    path.write_bytes(b'{"timestamp":1}\n{"timestamp":2}\n')
    source = as_source(FileRange(7, str(path), 0, 2, 0, 32))
    with pytest.raises(
        InvalidRequest,
        match=r"memory.* while reading topic 'clicks', stream partition 7, offsets 0 to 1: split",
    ):
        list(read_parsed(OsFileSystem(), (source,), Parser(), BadMessagePolicy(topic="clicks")))


def test_memory_that_runs_out_behind_the_reading_names_the_ranges():
    split = (SourceRange(3, "/topics/clicks", 5, 9), SourceRange(4, "/topics/clicks", 0, 2))
    with (
        pytest.raises(InvalidRequest, match=r"partition 3, offsets 5 to 8; .*partition 4, offsets"),
        translate_split_errors(split, "clicks"),
    ):
        raise MemoryError
    with pytest.raises(SystemError), translate_split_errors(split, "clicks"):
        raise SystemError("something else")


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
    assert open_below(folder) == 0
    assert not [one for one in folder.iterdir() if one.suffix == ".jsonl"]
