"""Measured plan of a query: a row for each of Spark's operators, with its rows and times.

Owns the form of the answer to `EXPLAIN ANALYZE`, and which of Spark's measurements are the rows and
the times of an operator. Spark adds up the times of all tasks, so an operator may take longer than
the query. Operators that Spark compiles together have one time, that of the stage around them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa
import pyarrow.json as pa_json

from penstock.indexing.engine import EngineFailure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.metrics import CollectedMetrics

_SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("parent", pa.int64()),
        ("operator", pa.string()),
        ("rows", pa.int64()),
        ("ms", pa.float64()),
        ("bytes", pa.int64()),
        ("metrics", pa.string()),
    ]
)
PLAN_TYPES: Final = ("bigint", "bigint", "string", "bigint", "double", "bigint", "string")
"""Spark's types of the columns."""

_ROWS: Final = ("numOutputRows", "recordsRead", "shuffleRecordsWritten")
_BYTES: Final = ("filesSize", "dataSize", "shuffleBytesWritten")
# Milliseconds in a unit of each kind of measurement that is a time.
_UNITS_MS: Final[Mapping[str, float]] = {"timing": 1.0, "nsTiming": 1e-6}
_DEPTH_MAX: Final = 1_000


def measured_plan(run: DataFrame, shown: Callable[[str], str]) -> pa.Table:
    """Return a row for each operator of a query that was run, parents first.

    Args:
        run: The rows, which were fetched.
        shown: Removes paths and names that users must not see from the name of an operator.

    Raises:
        EngineFailure: Spark has returned no measurements.
    """
    info = run.executionInfo
    metrics = None if info is None else info.metrics
    if metrics is None:
        raise EngineFailure("Spark has returned no measurements of the query: use EXPLAIN instead")
    lines = [orjson.dumps(row) for row in _operators(metrics, shown)]
    # Not from Python lists: Arrow would import pandas, which takes the router 0.4 s and 40 MB.
    options = pa_json.ParseOptions(explicit_schema=_SCHEMA)
    return pa_json.read_json(io.BytesIO(b"\n".join(lines)), parse_options=options)


def _operators(
    metrics: CollectedMetrics, shown: Callable[[str], str]
) -> Iterator[Mapping[str, object]]:
    root, graph = metrics.extract_graph()
    waiting: list[tuple[int, int | None]] = [(root, None)]
    seen: set[int] = set()
    while waiting:
        number, parent = waiting.pop()
        if number in seen or len(seen) > _DEPTH_MAX:
            continue
        seen.add(number)
        node = graph[number]
        found = {one.name: one for one in node.metrics}
        times = [
            one.value * _UNITS_MS[one.metric_type]
            for one in node.metrics
            if one.metric_type in _UNITS_MS
        ]
        yield {
            "id": number,
            "parent": parent,
            "operator": shown(node.name).strip(),
            "rows": next((int(found[name].value) for name in _ROWS if name in found), None),
            "ms": round(sum(times), 1) if times else None,
            "bytes": next((int(found[name].value) for name in _BYTES if name in found), None),
            "metrics": orjson.dumps(
                {one.name: one.value for one in node.metrics if one.value}
            ).decode(),
        }
        waiting += [(child, number) for child in reversed(node.children) if child != number]
