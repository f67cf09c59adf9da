"""Headers of pages of hostile Parquet files: read once, up to a limit, and as Arrow reads them."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core import parquet_bounds, parquet_pages
from penstock.core.errors import InvalidRequest
from penstock.core.parquet_bounds import runs_of_groups
from penstock.core.parquet_pages import ColumnPages, DataPage, PageHeaders

STOP = b"\0"


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(value: int, step: int = 1, kind: int = 5) -> bytes:
    """Return a field: the difference of its number to that of the previous one, and its value."""
    return bytes([step << 4 | kind]) + varint(value << 1)


def page(size: int, stored: int, values: int = 1, kind: int = 0) -> bytes:
    details = number(values) + number(0) + number(3) + number(3) + STOP
    return number(kind) + number(size) + number(stored) + b"\x2c" + details + STOP + bytes(stored)


def footer(data: bytes, values: int, groups: int = 1) -> Any:
    column = SimpleNamespace(
        data_page_offset=0,
        has_dictionary_page=False,
        total_compressed_size=len(data),
        num_values=values,
    )
    group = SimpleNamespace(column=lambda _number: column)
    return SimpleNamespace(row_group=lambda _number: group)


def pages_of(data: bytes, values: int) -> ColumnPages:
    return PageHeaders(pa.BufferReader(data), footer(data, values)).of(0, 0)


def test_pages_are_those_of_their_headers() -> None:
    found = pages_of(page(100, 10, 3) + page(50, 0, 2), 5)
    assert not found.problem
    assert [(one.size, one.stored_size, one.values) for one in found.data] == [
        (100, 10, 3),
        (50, 0, 2),
    ]
    assert (found.size(), found.largest(), found.largest_at_once()) == (150, 100, 100)


@pytest.mark.parametrize(
    "header",
    [
        number(0) + number(9) + number(1 << 65),
        number(0) + number(9) + number(1 << 32),
        number(0) + number(1 << 31) + number(0) + number(8, 0),
        page(9, 9)[:-9],
        number(0) + number(9) + number(0) + b"\x2c" + number(1 << 40) + STOP + STOP,
        # The size occurs twice, as a number of 64 bits the second time: Arrow uses the first.
        number(0) + number(1 << 30) + number(0) + b"\x06\x04\x02\x3c\x00",
        # The number of the field exceeds 16 bits, and Arrow drops the others.
        number(0) + b"\x05" + varint(0x10002 << 1) + varint(2),
        number(0) + number(9) + number(0) + STOP,
        b"\x11" * 1_000,
        b"\x18" + varint(1 << 31),
        b"\x1c" * 100,
    ],
)
def test_headers_that_arrow_may_interpret_otherwise_are_not_interpreted(header: bytes) -> None:
    found = pages_of(header + (b"" if header.endswith(STOP) else STOP), 1)
    assert "the header of the page at byte 0 is damaged or not supported" in found.problem


def test_a_dictionary_after_a_page_is_not_interpreted() -> None:
    dictionary = number(2) + number(1 << 30) + number(0) + b"\x4c" + number(1) + number(0)
    found = pages_of(page(9, 9) + dictionary + STOP + STOP + page(9, 9), 2)
    assert "the page at byte" in found.problem


def test_small_pages_of_a_file_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_pages, "SMALL_PAGES_MAX", 10)
    data = page(1, 0) * 7
    headers = PageHeaders(pa.BufferReader(data), footer(data, 7))
    assert [bool(headers.of(group, 0).problem) for group in range(3)] == [False, True, True]
    assert headers.of(1, 0).problem == "the file has more than 10 small pages"
    assert [headers.of(3, number).problem for number in (0, 0, 1)] != [""] * 3
    large = page(1, 0, 2_000) * 20
    assert not PageHeaders(pa.BufferReader(large), footer(large, 40_000)).of(0, 0).problem
    one = page(1, 0)
    headers = PageHeaders(pa.BufferReader(one), footer(one, 1))
    assert not any(headers.of(group, 0).problem for group in range(50))


def test_pages_of_a_row_group_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_pages, "PAGES_MAX", 10)
    data = page(1, 0, 2_000) * 6
    headers = PageHeaders(pa.BufferReader(data), footer(data, 12_000))
    assert not headers.of(0, 0).problem
    assert headers.of(0, 1).problem == "the row group has more than 10 pages"
    assert not headers.of(1, 1).problem


def test_each_header_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    real = parquet_pages._page_header

    def counted(stored: pa.NativeFile, at: int) -> tuple[parquet_pages._Fields, int]:
        places.append(at)
        return real(stored, at)

    monkeypatch.setattr(parquet_pages, "_page_header", counted)
    monkeypatch.setattr(parquet_bounds, "PAGES_BYTES_MAX", 200_000)
    monkeypatch.setattr(parquet_bounds, "BATCH_BYTES_MAX", 10_000)
    file = stored_columns({"a": [f"{row:0200d}" for row in range(2_000)]})
    metadata = pq.read_metadata(file)
    assert list(runs_of_groups(file, metadata, [0], None, 1_000, "a.parquet", all_pages=True))
    assert len(places) > 10
    assert len(set(places)) == len(places)


def stored_columns(columns: dict[str, list[str]], **form: object) -> pa.BufferReader:
    raw = io.BytesIO()
    form = {"use_dictionary": False, "data_page_size": 10_000, "write_batch_size": 50} | form
    pq.write_table(pa.table(columns), raw, compression="zstd", **form)
    return pa.BufferReader(raw.getvalue())


class WrongFooter:
    """A footer with another number of rows, or size and encoding of each column chunk."""

    def __init__(
        self, metadata: pq.FileMetaData, rows: int | None = None, **values: object
    ) -> None:
        self.schema = metadata.schema
        self._metadata = metadata
        self._rows = rows
        self._values = values

    def row_group(self, group: int) -> Any:
        found = self._metadata.row_group(group)
        return SimpleNamespace(
            num_rows=found.num_rows if self._rows is None else self._rows,
            num_columns=found.num_columns,
            column=lambda number: WrongChunk(found.column(number), self._values),
        )


class WrongChunk:
    def __init__(self, column: pq.ColumnChunkMetaData, values: dict[str, object]) -> None:
        self._column = column
        self._values = values

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name, getattr(self._column, name))


def test_a_page_that_is_larger_than_the_footer_announces_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_bounds, "PAGES_BYTES_MAX", 100_000)
    file = stored_columns({"a": ["0"] * 50 + ["0" * 10_000] * 20})
    metadata: Any = WrongFooter(pq.read_metadata(file), total_uncompressed_size=100)
    with pytest.raises(InvalidRequest, match="a page of column 'a' in row group 0 takes 200,"):
        list(runs_of_groups(file, metadata, [0], None, 1_000, "a.parquet", all_pages=True))


def test_pages_end_with_their_chunk() -> None:
    found = pages_of(page(9, 9, 1), 5)
    assert (found.size(), found.problem) == (9, "")
    found = pages_of(b"", 5)
    assert (found.size(), found.largest(), found.largest_at_once(), found.problem) == (0, 0, 0, "")


@pytest.mark.parametrize("values", [0, -1])
@pytest.mark.parametrize("all_pages", [True, False])
def test_a_column_without_values_has_no_bounds(values: int, all_pages: bool) -> None:
    file = stored_columns({"a": ["0"] * 100})
    metadata: Any = WrongFooter(pq.read_metadata(file), num_values=values)
    runs = runs_of_groups(file, metadata, [0], None, 1_000, "a.parquet", all_pages=all_pages)
    assert list(runs) == [([0], 1_000)]


@pytest.mark.parametrize("dictionary", [True, False])
def test_values_that_the_footer_denies_are_bounded(
    monkeypatch: pytest.MonkeyPatch, dictionary: bool
) -> None:
    monkeypatch.setattr(parquet_bounds, "BATCH_BYTES_MAX", 1 << 20)
    form = {"use_dictionary": dictionary, "data_page_size": 100_000}
    file = stored_columns({"a": ["0" * 200] * 60_000}, **form)
    wrong: dict[str, Any] = {"total_uncompressed_size": 100, "encodings": ("PLAIN", "RLE")}
    metadata: Any = WrongFooter(pq.read_metadata(file), **wrong)
    for all_pages, is_bounded in ((True, True), (False, False)):
        [(_, rows)] = runs_of_groups(
            file, metadata, [0], None, 1 << 16, "a.parquet", all_pages=all_pages
        )
        assert (rows * 200 <= parquet_bounds.BATCH_BYTES_MAX) == is_bounded


@pytest.mark.parametrize("all_pages", [True, False])
def test_more_rows_than_values_do_not_make_a_row_seem_small(
    monkeypatch: pytest.MonkeyPatch, all_pages: bool
) -> None:
    monkeypatch.setattr(parquet_bounds, "BATCH_BYTES_MAX", 1 << 20)
    file = stored_columns({"a": [f"{row:0200d}" for row in range(60_000)]}, data_page_size=100_000)
    metadata: Any = WrongFooter(pq.read_metadata(file), rows=1 << 40)
    [(_, rows)] = runs_of_groups(
        file, metadata, [0], None, 1 << 16, "a.parquet", all_pages=all_pages
    )
    assert rows * 200 <= 1 << 20


def test_pages_that_are_not_known_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_bounds, "PAGES_BYTES_MAX", 100_000)
    monkeypatch.setattr(parquet_pages, "SMALL_PAGES_MAX", 5)
    columns = {
        "a": [f"{row:0200d}" for row in range(2_000)],
        "b": [str(row) for row in range(2_000)],
    }
    file = stored_columns(columns)
    metadata = pq.read_metadata(file)
    reason = (
        "a.parquet: the sizes of the pages of column 'a' in row group 0 are not known: the file has"
        " more than 5 small pages: check the file, or write it with larger pages"
    )
    with pytest.raises(InvalidRequest) as refused:
        list(runs_of_groups(file, metadata, [0], None, 1_000, "a.parquet"))
    assert str(refused.value) == reason
    monkeypatch.setattr(parquet_bounds, "PAGES_BYTES_MAX", 420_000)
    with pytest.raises(InvalidRequest, match="are not known: the file has more than 5 small"):
        list(runs_of_groups(file, metadata, [0], None, 1_000, "a.parquet"))


def test_a_page_of_data_has_details() -> None:
    assert isinstance(pages_of(page(9, 9), 1).data[0], DataPage)
    assert pages_of(page(9, 9, kind=3), 1).problem
    assert pages_of(page(9, 9, kind=7) + page(9, 9), 1).size() == 9
