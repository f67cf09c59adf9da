"""Requests to the engine of streams, made short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.core.intervals import Interval
from penstock.indexing.engine import (
    DataFile,
    DivideRequest,
    MergeRequest,
    PersistRequest,
    PersistResult,
    StreamRange,
)
from penstock.indexing.specs import DataSchema
from penstock.indexing.specs.input_formats import CsvFormat, TsvFormat
from penstock.indexing.specs.rows.stream_formats import KafkaFormat
from penstock.spark.spark_engine import SparkEngine
from tests.spark.conftest import MakeTopic
from tests.spark.data_folder_kit import JANUARY


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


class Story:
    """Persists and merges of one stream, each into folders of its own.

    Each persist reads the messages that were added since the one before.
    """

    def __init__(self, engine: SparkEngine, make_topic: MakeTopic, folder: Path) -> None:
        self._engine = engine
        self._make_topic = make_topic
        self._folder = folder
        self._calls = 0
        self._ends: dict[int, int] = {}

    def _new_folder(self) -> str:
        self._calls += 1
        return str(self._folder / f"call-{self._calls}")

    def persist(
        self, schema: DataSchema, messages: list[bytes], delimited: CsvFormat | None = None
    ) -> PersistResult:
        ranges = self._make_topic(messages)
        fresh = tuple(replace(one, start=self._ends.get(one.partition, 0)) for one in ranges)
        self._ends = {one.partition: one.end for one in ranges}
        return self._engine.persist(
            PersistRequest(
                "task",
                schema.datasource,
                fresh,
                schema,
                self._new_folder(),
                self._new_folder(),
                delimited=delimited,
            )
        )

    def merge(self, schema: DataSchema, files: Sequence[DataFile]) -> DataFile:
        folder = self._new_folder()
        merged = self._engine.merge(MergeRequest("task", JANUARY, tuple(files), schema, folder))
        assert [path for path in Path(folder).rglob("*") if path.is_file()] == [Path(merged.path)]
        return merged

    def divide(self, schema: DataSchema, file: DataFile) -> tuple[DataFile, ...]:
        times = (Interval.parse("2013-01-01/2013-01-02"), Interval.parse("2013-01-02/2013-02-01"))
        return self._engine.divide(DivideRequest("task", file, times, schema, self._new_folder()))
