"""Dimensions that keep a part of what is sent: a schema of some, and what their fold keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.indexing.spec import parse_data_schema
from penstock.spark.folding import fold_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

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
