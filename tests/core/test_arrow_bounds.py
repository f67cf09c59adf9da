"""Bounds of Arrow's own format: ordinary files pass, damaged ones are left to the reader."""

from __future__ import annotations

import contextlib
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import arrow_bounds
from penstock.core.arrow_bounds import check_batches
from penstock.core.errors import InvalidRequest


def written(*, is_file: bool, codec: str | None, rows: int = 1_000) -> bytes:
    names = pa.array([f"name {number % 7}" for number in range(rows)])
    nested = pa.array([[{"a": "x", "b": None}]] * rows)
    table = pa.table({"name": names.dictionary_encode(), "text": names, "nested": nested})
    out = io.BytesIO()
    open_ = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with open_(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=300)
    return out.getvalue()


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_each_batch_is_found_with_its_size(
    monkeypatch: pytest.MonkeyPatch, is_file: bool, codec: str | None
) -> None:
    raw = written(is_file=is_file, codec=codec)
    check_batches(io.BytesIO(raw), "a.arrow")
    found = list(arrow_bounds._batches(io.BytesIO(raw), len(raw)))
    rows = [one.rows for one in found if not one.is_dictionary and one.rows]
    assert rows == [300, 300, 300, 100]
    assert any(one.is_dictionary for one in found)
    [first, *_] = [one.size for one in found if one.rows == 300]
    assert first > 300 * (4 + 4 + len("name 1"))  # unpacked, whatever the codec
    monkeypatch.setattr(arrow_bounds, "BATCH_BYTES_MAX", 1_000)
    with pytest.raises(InvalidRequest, match=r"a\.arrow: the record batch that ends at byte"):
        check_batches(io.BytesIO(raw), "a.arrow")


def test_batches_that_arrow_0_17_compressed_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their codec stands in the metadata of the message: 40 kB passed that took 1.2 GB."""
    rows = 11
    zeros = pa.py_buffer(bytes(rows << 20))
    batch = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.binary(1 << 20), rows, [None, zeros])], names=["a"]
    )
    out = io.BytesIO()
    old = pa.ipc.MetadataVersion.V4
    options = pa.ipc.IpcWriteOptions(metadata_version=old, compression="zstd")
    with pa.ipc.new_stream(out, batch.schema, options=options) as writer:
        codec = {"ARROW:experimental_compression": "zstd"}
        writer.write_batch(batch, custom_metadata=codec)
    raw = bytearray(out.getvalue())
    # As that release wrote it, the batch itself does not tell that it is compressed.
    at = raw.rfind(b"\xff\xff\xff\xff", 0, raw.find(b"ARROW:experimental")) + 8
    table = arrow_bounds._Table.root(bytes(raw[at:])).table(2)
    begin = at + table._fields_at + 4 + 2 * 3
    assert raw[begin : begin + 2] != b"\0\0"
    raw[begin : begin + 2] = b"\0\0"
    assert pa.ipc.open_stream(bytes(raw)).read_next_batch().num_rows == rows
    monkeypatch.setattr(arrow_bounds, "BATCH_BYTES_MAX", 10 << 20)
    with pytest.raises(InvalidRequest, match="takes 11,534,"):
        check_batches(io.BytesIO(bytes(raw)), "a.arrow")


@pytest.mark.parametrize("is_file", [True, False])
def test_metadata_that_are_too_long_to_be_checked_are_refused(
    monkeypatch: pytest.MonkeyPatch, is_file: bool
) -> None:
    """Arrow reads metadata of any length, whose batches were not bounded then."""
    raw = written(is_file=is_file, codec="zstd")
    monkeypatch.setattr(arrow_bounds, "_METADATA_BYTES_MAX", 64)
    with pytest.raises(InvalidRequest, match=r"a\.arrow: the metadata at byte .* more than 64"):
        check_batches(io.BytesIO(raw), "a.arrow")
    # Of a file that ends before, the reader reports the damage.
    check_batches(io.BytesIO(raw[:100] if not is_file else raw[:-7]), "a.arrow")


GOOD = [written(is_file=is_file, codec="lz4", rows=40) for is_file in (True, False)]


@given(st.sampled_from(GOOD), st.data())
def test_damage_is_left_to_the_reader(good: bytes, data: st.DataObject) -> None:
    raw = bytearray(good[: data.draw(st.integers(0, len(good)))])
    for _ in range(data.draw(st.integers(0, 4)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequest):
        check_batches(io.BytesIO(bytes(raw)), "a.arrow")
