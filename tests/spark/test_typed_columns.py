"""Typed columns of files to rows: what Arrow can hold and Python cannot costs its row alone."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from penstock.spark.batch.input.conforming import conformed
from penstock.spark.topic.rowshape import FieldType, RowShape, TimeField

SHAPE = RowShape((("x", FieldType.STRING),), TimeField("t"))
FAR = 2**61


@pytest.mark.parametrize(
    "type_", [pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.timestamp("s")]
)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_time_behind_the_calendar_costs_its_row_alone(type_: pa.DataType, count: int) -> None:
    values = pa.array([*range(count), FAR, 0], pa.int64()).cast(type_)
    batch = pa.record_batch({"t": pa.array([1] * len(values)), "x": values})
    rows, bad = conformed(batch, SHAPE)
    assert bad == ((count, "a value is a time outside the years 0001 to 9999"),)
    assert rows.num_rows == count + 1


def test_nanoseconds_need_no_other_package() -> None:
    # In a process of its own, in which pandas, that would read them, cannot be imported.
    script = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
import pyarrow as pa
from penstock.spark.batch.input.conforming import conformed
from penstock.spark.topic.rowshape import FieldType, RowShape, TimeField
shape = RowShape((("x", FieldType.STRING),), TimeField("t"))
batch = pa.record_batch(
    {"t": pa.array([1]), "x": pa.array([1_000_001], pa.int64()).cast(pa.timestamp("ns"))}
)
print(conformed(batch, shape)[0].column("x").to_pylist())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['1970-01-01T00:00:00.001Z']\n"
