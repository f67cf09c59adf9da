"""Rows that plans of ingestion read, and names in their errors, for submitters with few rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import JsonValue

from penstock.core.errors import InvalidRequest
from penstock.indexing.batch.ingest_plans import IndexPlan, SqlPlan
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.batch.batch_engine import SqlInput
    from penstock.indexing.batch.task_input import TaskInput
    from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
    from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec


class NamesOfOthers:
    """The input of a task in an installation with more datasources; none has rows."""

    def to_replace(self, *_: object, **__: object) -> Sequence[object]:
        return []

    visible = claim = to_replace

    def as_input(self, _found: object) -> str:
        return "the rows"

    def datasources(self) -> tuple[str, ...]:
        return ("payments-secret",)


TASK = cast("TaskInput", NamesOfOthers())
REPLACE: dict[str, Any] = {
    "type": "query_controller",
    "dataSource": "clicks",
    "sql": "REPLACE",
    "query": "SELECT __time FROM clicks",
    "overwrite": ["all"],
}


@pytest.mark.parametrize(
    ("reads", "given"),
    [
        (None, (("clicks", "the rows"),)),
        (["clicks", "web"], (("clicks", "the rows"),)),
        ([], ()),
        (["web", "Clicks"], ()),
    ],
)
def test_a_replace_gets_rows_of_its_own_datasource_only_if_it_may_read_them(
    reads: list[str] | None, given: object
) -> None:
    spec = cast("SqlIngestSpec", parse_batch_task({**REPLACE, "reads": cast("JsonValue", reads)}))
    (job,) = SqlPlan(spec).jobs(TASK)
    assert cast("SqlInput", job.input).given == given


def test_a_missing_datasource_reveals_no_other_name() -> None:
    spec = {
        "type": "index_parallel",
        "spec": {
            "dataSchema": {
                "dataSource": "clicks",
                "timestampSpec": {"column": "t", "format": "millis"},
                "dimensionsSpec": {"dimensions": ["a"]},
                "granularitySpec": {"segmentGranularity": "DAY"},
            },
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": {
                    "type": "druid",
                    "dataSource": "payments-secre",
                    "interval": "2024-01-01/2024-01-02",
                },
            },
        },
    }
    parsed = cast("IndexParallelSpec", parse_batch_task(spec))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest) as caught:
        IndexPlan(parsed).jobs(TASK)
    assert str(caught.value).endswith('no datasource "payments-secre" with data: correct its name')
