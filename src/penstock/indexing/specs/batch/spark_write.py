"""The spec of a write from Spark: files that Spark's workers have written, to be published.

Spark's data source `penstock` submits such a task when a write, or a batch of a streaming query,
is complete. Owns how it is described; `penstock.spark.sink` writes and checks the files.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from penstock.core.durations import HOUR_MS
from penstock.core.intervals import ETERNITY, Granularity, Interval
from penstock.indexing.lock_intent import LockIntent
from penstock.indexing.specs.batch.task import BatchTask, aligned
from penstock.indexing.specs.data_schema import DataSchema
from penstock.indexing.specs.scalars import Count, IntervalText
from penstock.indexing.specs.spec_base import Found, SpecModel, mistakes
from penstock.indexing.specs.task_context import BATCH_PRIORITY, IngestionMode

ATTEMPT: Final = "spark"
"""The only attempt of such a task: its id is as unique as the names of other tasks' attempts."""
TASK_ID: Final = r"index_spark_[0-9a-f]{32}"
"""Ids of these tasks: random, or a hash of an Iceberg client's snapshot; each write has its own."""
FILE_NAME: Final = r"[0-9A-Za-z][0-9A-Za-z_.-]{0,150}\.parquet"
"""Names of files in a folder of a write: one element of a path, and not hidden."""
FILES_MAX: Final = 5_000
FILES_AGE_MAX_MS: Final = 5 * HOUR_MS
"""Age of files up to which their task may begin: the janitor does not delete them while it runs."""

FileName = Annotated[str, StringConstraints(pattern=f"^{FILE_NAME}$")]


class SparkFile(SpecModel):
    """A file of a write: its name in the folder of the task, and what its worker says about it."""

    name: FileName
    rows: Count = Field(ge=1)
    bytes: Count = Field(ge=1)


class SparkBatch(SpecModel):
    """The batch of a streaming query that the files have: it is published only once."""

    query_id: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,100}$")]
    batch_id: Count = Field(ge=0)


class SparkWriteSpec(BatchTask):
    """Publish the files of a write from Spark.

    `rows` counts the rows that Spark wrote, before roll-up; `unparseable` those without a usable
    time, which were left out.
    With `converts`, the files are of an Iceberg client: the task writes segments of their rows.
    `overwrite` lists the intervals to replace, ``["all"]`` for all of time, and ``["chunks"]`` for
    the time chunks that have rows; None appends.
    """

    type: Literal["index_spark"] = "index_spark"
    data_schema: DataSchema
    files: tuple[SparkFile, ...] = Field(default=(), max_length=FILES_MAX)
    rows: Count = Field(default=0, ge=0)
    unparseable: Count = Field(default=0, ge=0)
    max_parse_exceptions: Count = Field(default=0, ge=-1)
    converts: bool = False
    overwrite: tuple[Literal["all", "chunks"] | IntervalText, ...] | None = None
    batch: SparkBatch | None = None

    default_priority: ClassVar[int] = BATCH_PRIORITY

    @model_validator(mode="after")
    def _check_together(self) -> SparkWriteSpec:
        found: Found = []
        if self.batch is not None and self.overwrite is not None:
            text = "a batch of a streaming query is appended: leave it out"
            found.append((("overwrite",), list(self.overwrite), text))
        found += self._mistakes_in_schema()
        found += self._mistakes_in_overwrite()
        counts = Counter(file.name for file in self.files)
        if twice := [name for name, count in counts.items() if count > 1]:
            found.append((("files",), twice[0], f"has {twice[0]} twice: list each file once"))
        if found:
            raise mistakes("SparkWriteSpec", found)
        return self

    def _mistakes_in_schema(self) -> Found:
        found: Found = []
        schema = self.data_schema
        if schema.dimensions_spec.discovers and self.files:
            place = ("dataSchema", "dimensionsSpec", "dimensions")
            found.append((place, None, "list the dimensions: the files have these columns"))
        if schema.transforms or schema.filter is not None:
            text = "compute columns and select rows in Spark: leave it out"
            found.append((("dataSchema", "transformSpec"), None, text))
        if schema.granularity_spec.intervals is not None:
            place = ("dataSchema", "granularitySpec", "intervals")
            found.append((place, None, "name the intervals to replace in overwrite: leave it out"))
        return found

    def _mistakes_in_overwrite(self) -> Found:
        found: Found = []
        if self.overwrite is None:
            return found
        if not self.overwrite or (len(self.overwrite) > 1 and "chunks" in self.overwrite):
            text = 'list the intervals to replace, or ["all"], or ["chunks"]'
            found.append((("overwrite",), list(self.overwrite), text))
        for number, interval in enumerate(self.intervals):
            if not self.segment_granularity.is_aligned(interval):
                text = (
                    f"{interval} does not begin and end with a time chunk of"
                    f" {self.segment_granularity}: write"
                    f" {aligned(interval, self.segment_granularity)}, or use a finer granularity"
                )
                found.append((("overwrite", number), str(interval), text))
        return found

    @property
    def datasource(self) -> str:
        """The datasource of the rows."""
        return self.data_schema.datasource

    @property
    def mode(self) -> IngestionMode:
        """Append, replace whole intervals, or replace the time chunks that have rows."""
        if self.overwrite is None:
            return IngestionMode.APPEND
        return IngestionMode.REPLACE if self.intervals else IngestionMode.REPLACE_LEGACY

    @property
    def segment_granularity(self) -> Granularity:
        """The time chunks."""
        return self.data_schema.segment_granularity

    @property
    def parse_errors_max(self) -> int | None:
        """Maximum number of rows without a usable time; None means unlimited."""
        return None if self.max_parse_exceptions < 0 else self.max_parse_exceptions

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The intervals that the write replaces."""
        given = [text for text in self.overwrite or () if text != "chunks"]
        return tuple(ETERNITY if text == "all" else Interval.parse(text) for text in given)

    def lock_intents(self) -> tuple[LockIntent, ...]:
        """Return the replaced intervals; nothing for others, whose rows determine the chunks."""
        return self._lock_intents(self.intervals)
