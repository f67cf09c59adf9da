"""The kinds of batch task that a peon can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.indexing.batch.compact_plan import CompactPlan
from penstock.indexing.batch.ingest_plans import IndexPlan, SparkWritePlan, SqlPlan
from penstock.indexing.batch.ingest_task import IngestTask
from penstock.indexing.batch.kill_task import KillTask
from penstock.indexing.specs.batch.batch_task_specs import KillSpec
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.batch.spark_write import SparkWriteSpec
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.worker.peon_task import TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.indexing.batch.batch_ports import BatchPorts
    from penstock.indexing.batch.ingest_task import IngestPlan
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.indexing.task_spec import TaskSpec
    from penstock.indexing.worker.peon_task import PeonTask

_Spec = TypeVar("_Spec", bound="TaskSpec")
_Ingest = TypeVar("_Ingest", IndexParallelSpec, SqlIngestSpec, SparkWriteSpec, CompactSpec)


def batch_kinds(make_ports: Callable[[TaskSpec], BatchPorts]) -> list[TaskKind]:
    """Return the kinds; each continues from its folder after its process died.

    Args:
        make_ports: Creates the ports of a task, once its folder is locked.
    """

    def kind(
        name: str,
        model: type[_Spec],
        make: Callable[[_Spec, TaskFolder, BatchPorts], PeonTask],
    ) -> TaskKind:
        def made(spec: TaskSpec, folder: TaskFolder) -> PeonTask:
            assert isinstance(spec, model), f"a task of type {name} is a {model.__name__}"
            return make(spec, folder, make_ports(spec))

        return TaskKind(name, made, restorable=True)

    return [
        kind("index_parallel", IndexParallelSpec, _ingest(IndexPlan)),
        kind("index", IndexParallelSpec, _ingest(IndexPlan)),
        kind("query_controller", SqlIngestSpec, _ingest(SqlPlan)),
        kind("index_spark", SparkWriteSpec, _ingest(SparkWritePlan)),
        kind("compact", CompactSpec, _ingest(CompactPlan)),
        kind("kill", KillSpec, KillTask),
    ]


def _ingest(
    plan: Callable[[_Ingest], IngestPlan],
) -> Callable[[_Ingest, TaskFolder, BatchPorts], PeonTask]:
    return lambda spec, folder, ports: IngestTask(spec, plan(spec), folder, ports)
