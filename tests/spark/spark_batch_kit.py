"""Requests to the batch engine, made short."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow.parquet as pq
from pydantic import JsonValue, TypeAdapter

from penstock.indexing.batch.batch_engine import (
    BatchInput,
    BatchRequest,
    BatchResult,
    ExternalInput,
    Partitioning,
)
from penstock.indexing.specs import parse_data_schema
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.segments.deep_storage import DeepStore
from penstock.spark.schema_columns import metric_names
from tests.kits.this_host_kit import this_host_listed

JSON: Mapping[str, JsonValue] = {"type": "json"}
# Of the rows of `lines`.
PARTS: dict[str, JsonValue] = {
    "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]}
}
_LATER_MS = 2**52


def lines(count: int) -> bytes:
    """Return rows of three months."""
    rows = ({"at": f"2013-0{i % 3 + 1}-05", "name": f"n{i % 5}", "size": i} for i in range(count))
    return b"\n".join(map(orjson.dumps, rows)) + b"\n"


def orphans(store: DeepStore, known: list[str]) -> list[str]:
    """Return the files in deep storage of which none is known."""
    specs = [store.load_spec_of(uri) for uri in known]
    return sorted(map(store.location, store.list_orphans(specs, modified_before_ms=_LATER_MS)))


class Asked(NamedTuple):
    """A request of a file."""

    path: str
    headers: Mapping[str, str]


class Reply(NamedTuple):
    """What it is answered with; `location` is where else the file is."""

    status: int
    body: bytes = b""
    location: str = ""


class Served(NamedTuple):
    """Where a server is, and what was asked of it."""

    address: str
    asked: list[Asked]


@contextlib.contextmanager
def served(reply: Callable[[Asked], Reply]) -> Iterator[Served]:
    """Have requests to this host answered while a block runs."""
    asked: list[Asked] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(Asked(self.path, dict(self.headers.items())))
            said = reply(asked[-1])
            self.send_response(said.status)
            if said.location:
                self.send_header("location", said.location)
            self.send_header("content-length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with (
        this_host_listed(),
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{server.server_address[1]}", asked)
        finally:
            server.shutdown()
            thread.join()


def external(
    source: Mapping[str, JsonValue], format_: Mapping[str, JsonValue] = JSON
) -> ExternalInput:
    return ExternalInput(
        TypeAdapter[InputSource](InputSource).validate_python(source),
        TypeAdapter[InputFormat](InputFormat).validate_python(format_),
    )


def inline(*rows: Mapping[str, JsonValue]) -> ExternalInput:
    data = "\n".join(orjson.dumps(row).decode() for row in rows)
    return external({"type": "inline", "data": data})


def local(*paths: Path, format_: Mapping[str, JsonValue] = JSON) -> ExternalInput:
    return external({"type": "local", "files": [str(path) for path in paths]}, format_)


def request(
    folder: str | Path,
    given: BatchInput,
    parts: Mapping[str, JsonValue],
    granularity: Mapping[str, JsonValue] | None = None,
    partitioning: Partitioning | None = None,
    *,
    bears: int | None = 1_000_000,
    saved: int = 0,
    combines: bool = False,
) -> BatchRequest:
    """A request of a datasource by month without roll-up that bears bad rows, if not told else."""
    schema = parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "auto"},
            "granularitySpec": {
                "segmentGranularity": "month",
                "queryGranularity": "none",
                "rollup": False,
                **(granularity or {}),
            },
            **parts,
        }
    )
    spread = partitioning or Partitioning()
    names = metric_names(schema) if combines else frozenset[str]()
    chunks = schema.segment_granularity.given
    return BatchRequest("task", schema, given, chunks, spread, str(folder), bears, saved, names)


def rows_of(result: BatchResult) -> list[dict[str, object]]:
    """Return the rows of files of this host."""
    return [row for f in result.files for row in pq.read_table(f.data.path).to_pylist()]
