"""The spec of a SQL `INSERT` or `REPLACE`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from penstock.core.intervals import ETERNITY, Granularity, Interval
from penstock.indexing.lock_intent import LockIntent
from penstock.indexing.specs.batch.task import BatchTask, aligned
from penstock.indexing.specs.inputs import ExternTable
from penstock.indexing.specs.scalars import (
    Count,
    DatasourceName,
    GranularityText,
    IntervalText,
)
from penstock.indexing.specs.spec_base import Found, mistakes
from penstock.indexing.specs.task_context import (
    BATCH_PRIORITY,
    IngestionMode,
)
from penstock.indexing.specs.text.clauses import overwrite_clause

_EXTERNS_MAX: Final = 100


class SqlIngestSpec(BatchTask):
    """A SQL `INSERT` or `REPLACE`, as the SQL parser split the statement.

    `sql` is the whole statement, for display; `query` selects its rows, with a column `__time`.
    `overwrite` lists the intervals of a REPLACE, ``["all"]`` for all of time; empty for an INSERT.
    `query` reads the first of `externs` by the name `__penstock_extern_1`, and so on.
    `reads` lists the datasources that it may read, because its submitter may; None means all.
    """

    type: Literal["query_controller"] = "query_controller"
    datasource: DatasourceName
    sql: str = Field(min_length=1)
    query: str = Field(min_length=1)
    overwrite: tuple[Literal["all"] | IntervalText, ...] | None = None
    partitioned_by: GranularityText = "all"
    clustered_by: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    rows_per_segment: Count = Field(default=3_000_000, ge=1)
    externs: tuple[ExternTable, ...] = Field(default=(), max_length=_EXTERNS_MAX)
    max_parse_exceptions: Count = Field(default=0, ge=-1)
    # The overlord replaces the value of a submitted spec. Left out if it is None, because peons of
    # earlier releases do not know the field.
    reads: tuple[str, ...] | None = Field(default=None, exclude_if=lambda value: value is None)

    default_priority: ClassVar[int] = BATCH_PRIORITY

    @model_validator(mode="after")
    def _check_together(self) -> SqlIngestSpec:
        found: Found = []
        granularity = self.segment_granularity
        if self.overwrite is not None and not self.overwrite:
            found.append((("overwrite",), [], "list the intervals to replace"))
        for number, interval in enumerate(self.intervals):
            if not granularity.is_aligned(interval):
                text = (
                    f"{overwrite_clause([interval])} does not begin and end with a time chunk"
                    f" (PARTITIONED BY {granularity}):"
                    f" write {overwrite_clause([aligned(interval, granularity)])},"
                    " or a finer PARTITIONED BY"
                )
                found.append((("overwrite", number), str(interval), text))
        if found:
            raise mistakes("SqlIngestSpec", found)
        return self

    @property
    def mode(self) -> IngestionMode:
        """INSERT appends; REPLACE replaces whole intervals."""
        return IngestionMode.APPEND if self.overwrite is None else IngestionMode.REPLACE

    @property
    def segment_granularity(self) -> Granularity:
        """The time chunks."""
        return Granularity.parse(self.partitioned_by)

    @property
    def parse_errors_max(self) -> int | None:
        """Maximum number of unparseable rows of `externs`; one more fails the task.

        None means unlimited, but one of `externs` with no other rows fails the task.
        """
        return None if self.max_parse_exceptions < 0 else self.max_parse_exceptions

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The intervals that a REPLACE replaces."""
        given = self.overwrite or ()
        return tuple(ETERNITY if text == "all" else Interval.parse(text) for text in given)

    def lock_intents(self) -> tuple[LockIntent, ...]:
        """Return the replaced intervals; nothing for an INSERT, whose rows determine the chunks."""
        return self._lock_intents(self.intervals)
