"""ORC files as input of batch tasks; without Spark."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as po
import pytest

from penstock.core.errors import InvalidRequest
from penstock.spark.batch.input.columnar import read_columns
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.topic.row_shape import FieldType, RowShape

MIXED = pa.UnionArray.from_dense(
    pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array(["x"]), pa.array([1])]
)


def test_a_union_is_refused_with_its_column_if_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.orc"
    po.write_table(pa.table({"name": ["a", "b"], "mixed": MIXED}), path)
    split = Split(InputFile(str(path), "rows.orc", path.stat().st_size, 0))
    names = Source("orc", RowShape((("name", FieldType.STRING),)))
    assert [batch.num_rows for _, batch in read_columns(split, names)] == [2]
    mixed = Source("orc", RowShape((("mixed", FieldType.STRING),)))
    with pytest.raises(InvalidRequest, match=r"rows\.orc: column 'mixed' has a union type"):
        list(read_columns(split, mixed))


def test_damaged_statistics_of_stripes_do_not_prevent_reading(tmp_path: Path) -> None:
    """Arrow does not read them."""
    path = tmp_path / "rows.orc"
    po.write_table(pa.table({"name": ["a"] * 1_000}), path, compression="uncompressed")
    whole, file = path.read_bytes(), po.ORCFile(path)
    end = len(whole) - file.file_footer_length - file.file_postscript_length - 1
    source = Source("orc", RowShape((("name", FieldType.STRING),)))
    split = Split(InputFile(str(path), "rows.orc", len(whole), 0))
    for at in range(end - file.stripe_statistics_length, end):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        batches = [batch for _, batch in read_columns(split, source)]
        assert [*chain(*(batch["name"].to_pylist() for batch in batches))] == ["a"] * 1_000, at
