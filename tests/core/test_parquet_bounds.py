"""Rows of Parquet that are read at once take no more than the bound, whatever its dictionaries."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import parquet_bounds, parquet_pages
from penstock.core.errors import InvalidRequest
from penstock.core.parquet_bounds import runs_of_groups
from penstock.core.parquet_levels import LevelReader
from penstock.core.parquet_pages import DataPage, PageHeaders

ROWS = 1 << 16


def stored(values: pa.Array, codec: str, **form: object) -> pa.BufferReader:
    raw = io.BytesIO()
    pq.write_table(pa.table({"a": values}), raw, compression=codec, **form)
    return pa.BufferReader(raw.getvalue())


def rows_at_once(file: pa.BufferReader) -> int:
    metadata = pq.read_metadata(file)
    [(groups, rows)] = runs_of_groups(file, metadata, [0], None, ROWS, "a.parquet")
    assert groups == [0]
    return rows


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the size, which smaller files exceed."""
    monkeypatch.setattr(parquet_bounds, "BATCH_BYTES_MAX", 32 << 20)


@pytest.fixture
def no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("the header and the lengths of the dictionary suffice")

    monkeypatch.setattr(pq, "ParquetFile", opened)


@pytest.mark.usefixtures("no_reader")
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_dictionary_of_many_short_values_needs_no_other_reader(codec: str, version: str) -> None:
    values = pa.array([f"value {number % 20_000}" for number in range(100_000)])
    assert rows_at_once(stored(values, codec, data_page_version=version)) == ROWS


@pytest.mark.usefixtures("no_reader")
def test_a_small_dictionary_is_known_by_its_header() -> None:
    values = pa.array(["a" * 500, "b"] * 50_000)
    assert rows_at_once(stored(values, "snappy")) == ROWS


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
@pytest.mark.parametrize("length", [3_000, 100_000])
def test_rows_of_long_values_are_read_in_small_batches(codec: str, length: int) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 50_000), ["0" * length, "b"])
    rows = rows_at_once(stored(values, codec, dictionary_pagesize_limit=1 << 20))
    assert rows * length <= parquet_bounds.BATCH_BYTES_MAX
    assert rows * length > parquet_bounds.BATCH_BYTES_MAX / 2


@pytest.mark.usefixtures("small_batches")
def test_rows_of_long_values_without_a_dictionary_are_read_in_small_batches() -> None:
    values = pa.array(["0" * 10_000] * 5_000)
    rows = rows_at_once(stored(values, "snappy", use_dictionary=False))
    assert 1 <= rows * 10_000 <= parquet_bounds.BATCH_BYTES_MAX


def test_a_wide_file_of_values_that_share_prefixes_is_read_in_large_batches() -> None:
    columns = {f"c{number}": [f"v{row % 977}" for row in range(4_000)] for number in range(100)}
    raw = io.BytesIO()
    encoding = dict.fromkeys(columns, "DELTA_BYTE_ARRAY")
    pq.write_table(pa.table(columns), raw, use_dictionary=False, column_encoding=encoding)
    assert rows_at_once(pa.BufferReader(raw.getvalue())) == ROWS


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_even_values_larger_than_a_batch_are_read_in_large_batches(codec: str) -> None:
    values = pa.array([bytes([number % 251]) * 20_000 for number in range(10_000)])
    rows = rows_at_once(stored(values, codec, use_dictionary=False))
    assert rows >= parquet_bounds.BATCH_BYTES_MAX // 20_000 // 4


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_rows_of_uneven_lists_are_read_in_batches_of_a_limited_size(version: str) -> None:
    ends = [*[0] * 10_000, *range(0, 401 * 25_000, 25_000), *[400 * 25_000] * 10_000]
    lists = pa.ListArray.from_arrays(ends, np.full(400 * 25_000, 7, np.int64))
    file = stored(lists, "zstd", data_page_version=version)
    assert rows_at_once(file) * 25_000 * 8 <= parquet_bounds.BATCH_BYTES_MAX


def uneven_lists() -> pa.Array:
    """Return empty lists, then 200 lists of 10,000 values that compress by a factor of 30."""
    numbers = np.random.default_rng(7).integers(0, 4, 200 * 10_000)
    ends = np.concatenate([np.zeros(50_000, np.int64), np.arange(201) * 10_000])
    return pa.ListArray.from_arrays(ends.astype(np.int32), numbers)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_rows_of_lists_are_counted_where_headers_and_averages_are_wrong(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = parquet_pages._data_page

    def as_many_rows_as_values(header: parquet_pages._Fields, start: int) -> DataPage | None:
        page = real(header, start)
        return None if page is None else page._replace(rows=page.rows and page.values)

    monkeypatch.setattr(parquet_pages, "_data_page", as_many_rows_as_values)
    monkeypatch.setattr(parquet_bounds, "BATCH_BYTES_MAX", 1 << 20)
    file = stored(uneven_lists(), "none", data_page_version=version, write_batch_size=1_000)
    [(_, rows)] = runs_of_groups(
        file, pq.read_metadata(file), [0], None, ROWS, "a.parquet", all_pages=True
    )
    assert 1 <= rows * 10_000 * 8 <= 1 << 20


def test_levels_that_are_not_in_runs_are_not_counted() -> None:
    """Arrow reads such levels; as runs, they could show any number of rows."""
    file = stored([[1, 2], [], [3]], "none")
    [page] = PageHeaders(file, pq.read_metadata(file)).of(0, 0).data
    assert LevelReader(file).parts_of(page, "UNCOMPRESSED", 1, 16) is not None
    raw = bytearray(file.read_at(file.size(), 0))
    place = raw.rindex(b"\x15\x06\x15\x06", 0, page.start) + 3  # encodings of both levels
    raw[place] = 4 << 1
    file = pa.BufferReader(bytes(raw))
    [page] = PageHeaders(file, pq.read_metadata(file)).of(0, 0).data
    assert LevelReader(file).parts_of(page, "UNCOMPRESSED", 1, 16) is None


def test_levels_of_pages_of_the_second_version_are_not_decompressed() -> None:
    file = stored([[1, 2], [], [3]], "zstd", data_page_version="2.0")
    [page] = PageHeaders(file, pq.read_metadata(file)).of(0, 0).data
    parts = LevelReader(file).parts_of(page, "a codec that nobody has", 1, 16)
    assert parts is not None
    assert (parts.rows.tolist(), parts.values.tolist()) == ([3], [4])


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("dictionary", [True, False])
def test_the_pages_of_a_column_are_found(version: str, statistics: bool, dictionary: bool) -> None:
    lists = pa.array([["a" * 3_000, str(number)] for number in range(1_000)])
    form = {"write_statistics": statistics, "use_dictionary": dictionary}
    size = {"data_page_size": 1_000, "write_batch_size": 100, "data_page_version": version}
    file = stored(lists, "zstd", **form, **size)
    metadata = pq.read_metadata(file)
    column = metadata.row_group(0).column(0)
    found = PageHeaders(file, metadata).of(0, 0)
    pages = found.data
    assert not found.problem
    assert (found.dictionary is None) != dictionary
    assert len(pages) > 1 or dictionary
    assert sum(page.values for page in pages) == 2_000
    assert [page.rows is None for page in pages] == [version == "1.0"] * len(pages)
    if version == "2.0":
        assert sum(page.rows or 0 for page in pages) == 1_000
    for cut in range(column.total_compressed_size):
        if cut % 97 == 0:
            end = (column.dictionary_page_offset or column.data_page_offset) + cut
            raw = pa.BufferReader(file.read_at(end, 0))
            assert PageHeaders(raw, metadata).of(0, 0).problem


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=40), min_size=1, max_size=60),
    st.booleans(),
    st.sampled_from(["none", "snappy"]),
)
def test_rows_of_lists_are_counted_by_their_levels(
    lists: list[list[int]], nested: bool, codec: str
) -> None:
    kind = pa.list_(pa.int64())
    values = pa.array([[one, one] for one in lists], pa.list_(kind)) if nested else lists
    file = stored(values, codec, data_page_size=100, write_batch_size=16)
    metadata = pq.read_metadata(file)
    column = metadata.row_group(0).column(0)
    levels = metadata.schema.column(0).max_repetition_level
    assert levels == 1 + nested
    reader = LevelReader(file)
    parts = [
        reader.parts_of(page, column.compression, levels, 16)
        for page in PageHeaders(file, metadata).of(0, 0).data
    ]
    assert sum(int(part.rows.sum()) for part in parts if part) == len(lists)
    assert sum(int(part.values.sum()) for part in parts if part) == column.num_values


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_lists_of_few_different_values_are_read_in_large_batches(
    monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    monkeypatch.setattr(parquet_bounds, "BATCH_BYTES_MAX", 8 << 20)
    lists = pa.array([["0" * 100] * 10] * 50_000)
    assert rows_at_once(stored(lists, codec)) > 1_000


def test_pages_that_take_too_much_memory_together_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_bounds, "PAGES_BYTES_MAX", 2_000)
    raw = io.BytesIO()
    values = ["0123456789" * 10] * 15
    pq.write_table(pa.table({"a": values, "b": values}), raw, use_dictionary=False)
    file = pa.BufferReader(raw.getvalue())
    metadata = pq.read_metadata(file)
    assert list(runs_of_groups(file, metadata, [0], ["a"], ROWS, "a.parquet"))
    with pytest.raises(InvalidRequest, match=r"a\.parquet: the pages of 2 columns in row group 0"):
        list(runs_of_groups(file, metadata, [0], None, ROWS, "a.parquet"))


def test_many_row_groups_are_probed_by_one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = pq.ParquetFile
    values = pa.array([f"{number % 2_000:0300d}" for number in range(100_000)])
    file = stored(values, "snappy", row_group_size=20_000)
    metadata = pq.read_metadata(file)

    def counted(*args: object, **form: object) -> pq.ParquetFile:
        opened.append(args)
        return real(*args, **form)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    runs = runs_of_groups(file, metadata, range(5), None, ROWS, "a.parquet")
    assert [group for groups, _ in runs for group in groups] == [0, 1, 2, 3, 4]
    assert len(opened) == 1


@given(
    st.lists(
        st.one_of(st.binary(max_size=12), st.sampled_from([b"\0" * 9, b"\0" * 300, b"\2\0\0\0ab"])),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["none", "snappy"]),
)
def test_the_largest_value_is_that_of_the_dictionary_or_not_known(
    values: list[bytes], codec: str
) -> None:
    file = stored(pa.array(values, pa.binary()), codec)
    metadata = pq.read_metadata(file)
    page = PageHeaders(file, metadata).dictionary(0, 0)
    assert page is not None
    codec = metadata.row_group(0).column(0).compression
    found = parquet_bounds._largest_short_value(file, page, codec)
    assert found in {None, max(map(len, values))}
    if all(len(value) < 256 and b"\0" not in value and value for value in values):
        assert found is not None


@pytest.mark.parametrize("cut", [0, 1, 5, 20])
def test_a_page_that_is_cut_or_something_else_is_left_to_the_reader(cut: int) -> None:
    file = stored(pa.array(["a" * 50, "b"]), "snappy")
    metadata = pq.read_metadata(file)
    end = metadata.row_group(0).column(0).dictionary_page_offset + cut
    raw = file.read_at(1 << 20, 0)
    for tail in (b"", b"\xff" * 100):
        found = pa.BufferReader(raw[:end] + tail)
        page = PageHeaders(found, metadata).dictionary(0, 0)
        assert page is None or parquet_bounds._largest_short_value(found, page, "SNAPPY") is None
