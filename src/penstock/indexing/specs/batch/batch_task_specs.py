"""The kinds of batch tasks: reads the spec of any; `kill` and `noop`, whose specs are short.

Owns which types of Druid are refused, and why; `indexing.batch` runs the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Final, Literal, get_args

from pydantic import Field, JsonValue

from penstock.core.intervals import Interval
from penstock.indexing.lock_intent import LockIntent
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.batch.spark_write import SparkWriteSpec
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.specs.batch.task import RESOURCE_REFUSAL, BatchTask
from penstock.indexing.specs.errors import Mistake, SpecError, did_you_mean, shown
from penstock.indexing.specs.scalars import (
    Count,
    DatasourceName,
    IntervalText,
    TimeText,
)
from penstock.indexing.specs.spec_base import IgnoredValue
from penstock.indexing.specs.spec_text import read_model, read_object
from penstock.indexing.specs.stream_config import StreamType


class KillSpec(BatchTask):
    """Delete rows and files of unused segments of an interval."""

    type: Literal["kill"] = "kill"
    datasource: DatasourceName
    interval: IntervalText
    # One query takes all of them, and databases limit the number of values in a query.
    versions: (
        Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=1_000)] | None
    ) = None
    batch_size: Count = Field(default=100, ge=1, le=10_000)
    limit: Count | None = Field(default=None, ge=1)
    max_used_status_last_updated_time: TimeText | None = None

    unsupported: ClassVar[Mapping[str, str]] = RESOURCE_REFUSAL | {
        "markAsUnused": "mark segments unused through the datasource's API first"
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"markAsUnused": False}

    @property
    def time(self) -> Interval:
        """The interval."""
        return Interval.parse(self.interval)

    def lock_intents(self) -> tuple[LockIntent, ...]:
        """Return its interval."""
        return self._lock_intents([self.time])


class NoopSpec(BatchTask):
    """A task that only sleeps, to test that the cluster runs tasks."""

    type: Literal["noop"] = "noop"
    datasource: DatasourceName = "none"
    run_time: Count = Field(default=2_500, ge=0, le=86_400_000)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = dict.fromkeys(
        ("firehose", "isReadyResult", "isReadyTime"), IgnoredValue.ANY
    )

    def lock_intents(self) -> tuple[LockIntent, ...]:
        """Return nothing."""
        return ()


BatchTaskSpec = (
    IndexParallelSpec | CompactSpec | KillSpec | NoopSpec | SparkWriteSpec | SqlIngestSpec
)
_TYPES: Final[Mapping[str, type[BatchTaskSpec]]] = {
    "index_parallel": IndexParallelSpec,
    "index": IndexParallelSpec,
    "compact": CompactSpec,
    "kill": KillSpec,
    "noop": NoopSpec,
    "query_controller": SqlIngestSpec,
    "index_spark": SparkWriteSpec,
}
BATCH_TASK_TYPES: Final = tuple(_TYPES)
_OF_SUPERVISORS: Final = "supervisors create the tasks of streams: submit a supervisor"
_OF_PARALLEL: Final = "submit index_parallel: one task, whose work Spark distributes"
_OF_STORES: Final = "move files with the tools of the store"
_REFUSED_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("index_kafka", "index_kinesis", "index_rabbit"), _OF_SUPERVISORS),
    **dict.fromkeys(
        (
            "index_hadoop",
            "partial_dimension_cardinality",
            "partial_dimension_distribution",
            "partial_index_generate",
            "partial_index_generic_merge",
            "partial_range_index_generate",
            "single_phase_sub_task",
        ),
        _OF_PARALLEL,
    ),
    **dict.fromkeys(("archive", "move", "restore"), _OF_STORES),
    "query_worker": "Spark distributes the work of a statement: POST it to /druid/v2/sql/task",
}


def parse_batch_task(
    raw: bytes | str | Mapping[str, JsonValue], names: Callable[[str], str] | None = None
) -> BatchTaskSpec:
    """Read the spec of a batch task of any kind; for `names` see `read_model`.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    value: object = read_object(raw) if isinstance(raw, bytes | str) else raw
    if not isinstance(value, dict):
        raise SpecError((Mistake("", "the spec must be a JSON object"),))
    kind: object = value.get("type")
    if kind is None:
        raise SpecError((Mistake("type", f"is required, one of {', '.join(_TYPES)}"),))
    if not isinstance(kind, str) or kind not in _TYPES:
        if kind in get_args(StreamType):
            text = f"{kind!r} is a kind of supervisor, not of batch task: submit it as a supervisor"
            raise SpecError((Mistake("type", text),))
        if isinstance(kind, str) and kind in _REFUSED_TYPES:
            text = f"{kind!r} of Druid is not supported here: {_REFUSED_TYPES[kind]}"
            raise SpecError((Mistake("type", text),))
        given, name = (repr(kind), kind) if isinstance(kind, str) else (shown(kind), "")
        text = f"{given} is not a kind of batch task{did_you_mean(name, list(_TYPES))}"
        raise SpecError((Mistake("type", text),))
    return read_model(_TYPES[kind], value, names)
