"""Rows that are folded: every metric that Arrow folds, values for them, and rows as they are read.

And dimensions that keep a part of what is sent: a schema of some, and what their fold keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
from hypothesis import strategies as st

from penstock.indexing.specs import parse_data_schema
from penstock.spark.rollup import fold_of
from penstock.spark.schema_columns import row_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from penstock.indexing.specs import DataSchema

Value = str | int | float | None
# The time in milliseconds, then the fields.
Row = tuple[Value, ...]

KINDS = ("Sum", "Min", "Max", "First", "Last")


def metric(type_: str, name: str, field: str, **more: JsonValue) -> dict[str, JsonValue]:
    return {"type": type_, "name": name, "fieldName": field, **more}


METRICS: list[JsonValue] = [
    {"type": "count", "name": "n"},
    # Named as Arrow would name a sum of the field `n`.
    *(metric(f"long{kind}", f"n_{kind.lower()}", "whole") for kind in KINDS),
    *(metric(f"double{kind}", f"d{kind}", "wide") for kind in KINDS),
    *(metric(f"float{kind}", f"f{kind}", "narrow") for kind in KINDS),
    metric("stringFirst", "t0", "text", maxStringBytes=3),
    metric("stringLast", "t1", "text"),
]
# A sum of these is the same in whichever order they are added.
SMALL = st.integers(-64, 64).map(lambda n: n / 4)
LONGS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
TEXTS = st.none() | st.text(st.sampled_from("aß€😀 \n"), max_size=5)


def rolling_schema(
    query: str, dimensions: Sequence[JsonValue], metrics: Sequence[JsonValue], **parts: JsonValue
) -> DataSchema:
    """Return a schema that rolls up; `parts` take the place of its own."""
    return parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "millis"},
            "dimensionsSpec": {"dimensions": list(dimensions)},
            "metricsSpec": list(metrics),
            "granularitySpec": {
                "segmentGranularity": "all",
                "queryGranularity": query,
                "rollup": True,
            },
            **parts,
        }
    )


def as_read(rows: Sequence[Row], fields: Sequence[str], schema: DataSchema) -> pa.RecordBatch:
    """Return rows of these fields as they are parsed: what is read as text is text."""
    shape = row_shape(schema).arrow_schema
    found = dict(zip(("__time", *fields), zip(*rows, strict=True), strict=True))
    columns = []
    for field in shape:
        values = list(found[field.name])
        if field.name == "__time":
            columns.append(pa.array([ms * 1000 for ms in values], pa.int64()).cast(field.type))
        else:
            is_text = pa.types.is_string(field.type)
            values = [str(v) if is_text and v is not None else v for v in values]
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=shape)


def messages(rows: Sequence[Row], fields: Sequence[str]) -> list[bytes]:
    """Return rows of these fields as they are sent."""
    return [orjson.dumps(dict(zip(("at", *fields), row, strict=True))) for row in rows]


# A column that is computed, and a count: what rows may have beside such a dimension.
COMPUTED: JsonValue = {"type": "expression", "name": "place", "expression": 'upper("place")'}
COUNT: JsonValue = [{"type": "count", "name": "count"}]


def schema_of(*dimensions: JsonValue, rollup: bool = False) -> dict[str, JsonValue]:
    return {
        "dataSource": "things",
        "dimensionsSpec": {"dimensions": list(dimensions)},
        "granularitySpec": {"rollup": rollup},
    }


def kept_of(
    texts: Sequence[str | None], dimension: dict[str, JsonValue], *, rollup: bool
) -> list[str | None]:
    """Return what a dimension keeps of texts.

    Another dimension keeps all of them, and what was kept once is kept again.
    """
    fold = fold_of(parse_data_schema(schema_of(dimension, "place", rollup=rollup)))
    assert fold is not None
    times = pa.array(range(len(texts)), pa.timestamp("us", "UTC"))
    column = pa.array(texts, pa.string())
    names = ["__time", str(dimension["name"]), "place"]
    held = fold.held(pa.RecordBatch.from_arrays([times, column, column], names=names))
    assert held.column("place").to_pylist() == texts
    assert fold.held(held).equals(held)
    return held.column(names[1]).to_pylist()
