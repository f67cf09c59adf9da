"""The outcome of one message, computed without Spark."""

from __future__ import annotations

import orjson
import pyarrow as pa
from pydantic import JsonValue

from penstock.indexing.specs import SupervisorSpec
from penstock.indexing.specs.supervisor_spec import parse_supervisor
from penstock.spark.traces.message_rows import MessageSchema, outcome_of
from penstock.storage.queue.log_reader import MessageSlice

TIME_MS = 1_700_000_000_000
SPEC: dict[str, JsonValue] = {
    "type": "penstock",
    "spec": {
        "dataSchema": {
            "dataSource": "clicks",
            "timestampSpec": {"column": "t", "format": "millis"},
            "dimensionsSpec": {"useSchemaDiscovery": True},
        },
        "ioConfig": {"topic": "clicks"},
    },
}


def test_the_columns_that_a_message_brings_are_bounded() -> None:
    spec = parse_supervisor(SPEC)
    assert isinstance(spec, SupervisorSpec)
    body = orjson.dumps({"t": TIME_MS, **{f"c{number}": "v" for number in range(3_000)}})
    message = MessageSlice(0, pa.array([body], pa.binary()), TIME_MS)
    found = outcome_of(MessageSchema.of_supervisor(spec), message, 0, TIME_MS)
    assert (found.kind, found.time_ms) == ("row", TIME_MS)
    assert found.values is not None
    assert len(found.values) == 1_000
