"""Requests to the engine of streams, made short."""

from __future__ import annotations

from pathlib import Path

from penstock.indexing.engine import PersistRequest, StreamRange
from penstock.indexing.spec import DataSchema
from penstock.indexing.spec.inputs import CsvFormat, TsvFormat
from penstock.indexing.spec.rows.records import KafkaFormat


def persist_request(
    tmp_path: Path,
    ranges: tuple[StreamRange, ...],
    schema: DataSchema,
    *,
    delimited: CsvFormat | TsvFormat | None = None,
    record_format: KafkaFormat | None = None,
    **more: int,
) -> PersistRequest:
    """A persist of one task: rows go to the folder out, what cannot be read to bad."""
    return PersistRequest(
        "task",
        "things",
        ranges,
        schema,
        str(tmp_path / "out"),
        str(tmp_path / "bad"),
        delimited=delimited,
        record_format=record_format,
        **more,
    )
