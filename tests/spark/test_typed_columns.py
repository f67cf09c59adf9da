"""Typed columns of files to rows: what Arrow can hold and Python cannot costs its row alone."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from penstock.spark.batch.input.schema_casts import as_text, conformed
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField

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
from penstock.spark.batch.input.schema_casts import conformed
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField
shape = RowShape((("x", FieldType.STRING),), TimeField("t"))
plain = pa.array([1_000_001], pa.int64()).cast(pa.timestamp("ns"))
structs = pa.StructArray.from_arrays([plain], ["s"])
for x in (
    plain,
    plain.dictionary_encode(),
    structs,
    pa.ListArray.from_arrays([0, 1], plain),
    pa.ListArray.from_arrays([0, 1], plain.dictionary_encode()),
    pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), structs),
    pa.FixedSizeListArray.from_arrays(plain, 1),
):
    batch = pa.record_batch({"t": pa.array([1]), "x": x})
    print(conformed(batch, shape)[0].column("x")[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    time = "1970-01-01T00:00:00.001Z"
    nested = [f'{{"s":"{time}"}}', *[f'["{time}"]'] * 2, f'[{{"s":"{time}"}}]', f'["{time}"]']
    assert done.stdout.split() == [time, time, *nested]


@pytest.mark.parametrize("others", ["clean", "one by one"])
def test_numbers_that_json_has_no_form_for_are_texts_that_say_so(others: str) -> None:
    numbers = [1.5, float("nan"), float("inf"), -float("inf"), None]
    shape = RowShape((("x", FieldType.STRING), ("y", FieldType.LONG)), TimeField("t"))
    y = pa.array(["1"] * 5 if others == "clean" else ["1", "no number", "1", "1", "1"])
    batch = pa.record_batch({"t": pa.array([1] * 5), "x": pa.array(numbers), "y": y})
    rows, bad = conformed(batch, shape)
    assert not bad or others == "one by one"
    wanted = ["1.5", "NaN", "Infinity", "-Infinity", None]
    kept = [text for at, text in enumerate(wanted) if at not in {index for index, _ in bad}]
    assert rows.column("x").to_pylist() == kept
    assert [as_text(number) for number in numbers] == wanted


def test_a_nested_value_that_cannot_be_json_costs_its_row_alone() -> None:
    spans = pa.array([None, 1], pa.int64()).cast(pa.duration("ns"))
    nested = pa.StructArray.from_arrays([spans], ["span"])
    batch = pa.record_batch({"t": pa.array([1, 1]), "x": nested})
    rows, bad = conformed(batch, SHAPE)
    assert [index for index, _ in bad] == [1]
    assert rows.column("x").to_pylist() == ['{"span":null}']


@pytest.mark.parametrize("type_", [FieldType.LONG, FieldType.DOUBLE])
@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("time", ["t", "x"])
def test_a_time_is_the_same_number_beside_a_value_that_does_not_fit(
    type_: FieldType, zone: str | None, time: str
) -> None:
    """Such a value has the batch read row by row, which made text of times."""
    shape = RowShape((("x", type_), ("y", FieldType.LONG)), TimeField(time))
    times = pa.array([1_500_999, None], pa.int64()).cast(pa.timestamp("us", zone))
    first = pa.array([5_000_000, 6_000_000], pa.int64()).cast(pa.timestamp("us", zone))
    clean = pa.record_batch({"t": first, "x": times.fill_null(first[1]), "y": [1, 2]})
    odd = pa.record_batch({"t": first, "x": times.fill_null(first[1]), "y": ["1", "z"]})
    rows, bad = conformed(clean, shape)
    row, odd_ones = conformed(odd, shape)
    assert (bad, row.to_pylist()) == ((), rows.slice(0, 1).to_pylist())
    assert rows.column("x").to_pylist() == [1_500, 6_000]
    assert [index for index, _ in odd_ones] == [1]
