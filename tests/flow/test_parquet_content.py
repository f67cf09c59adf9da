"""Flows check the pages of Parquet content, because no memory limit handles a wrong footer."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.flow.processors.records.formats.columnar import read_parquet
from penstock.flow.processors.records.formats.format_protocols import (
    BadRecords,
    ReadingOptions,
    RecordSource,
)


def sizes_of(data: bytes) -> list[int]:
    source = RecordSource(lambda: io.BytesIO(data), len(data))
    return [batch.num_rows for batch in read_parquet(source, ReadingOptions()).batches]


def test_a_large_value_of_a_column_with_a_dot_in_its_name_is_read_in_small_batches() -> None:
    raw = io.BytesIO()
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int32()), ["0" * 100_000])
    table = pa.table({"user.name": values})
    pq.write_table(table, raw, compression="zstd", dictionary_pagesize_limit=1 << 20)
    found = sizes_of(raw.getvalue())
    assert (sum(found), max(found) < 1_500) == (5_000, True)


def test_a_page_with_a_size_that_is_not_known_fails() -> None:
    raw = io.BytesIO()
    form = {"use_dictionary": False, "write_batch_size": 10, "data_page_size": 100}
    pq.write_table(pa.table({"a": ["0" * 100] * 20}), raw, compression="none", **form)
    data = bytearray(raw.getvalue())
    assert sizes_of(bytes(data)) == [20]
    place = pq.read_metadata(raw).row_group(0).column(0).data_page_offset
    second = data.index(data[place : place + 2], place + 1_000)
    data[second : second + 2] = b"\x15\x01"
    with pytest.raises(BadRecords, match="'a' in row group 0 are not known: the header of the"):
        sizes_of(bytes(data))
