"""Bounds of Parquet files whose footers lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from penstock.core.parquet_bounds import runs_of_groups


def footer(rows: int, values: int) -> Any:
    column = SimpleNamespace(
        path_in_schema="text",
        physical_type="BYTE_ARRAY",
        num_values=values,
        total_uncompressed_size=10,
        encodings=("PLAIN",),
    )
    group = SimpleNamespace(num_rows=rows, num_columns=1, column=lambda _number: column)
    return SimpleNamespace(row_group=lambda _number: group)


def test_a_row_group_of_values_and_no_row_is_left_to_the_reader() -> None:
    runs = runs_of_groups(pa.BufferReader(b""), footer(0, 5), [0], None, 1_000, "a.parquet")
    assert list(runs) == [([0], 1_000)]
