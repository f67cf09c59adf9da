"""The dynamic worker config, which controls the selection of workers, in Druid's JSON.

Defines the form only; `penstock.indexing.overlord.runner.selection` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, JsonValue

from penstock.indexing.specs.scalars import Flag
from penstock.indexing.specs.spec_base import IgnoredValue, SpecModel
from penstock.indexing.specs.spec_text import read_model

CONFIG_NAME: Final = "worker.config"
"""Its name among the dynamic configs of the metadata store."""


class TaskLimits(SpecModel):
    """Maximum number of tasks of a type on one worker: by count, by share of its slots."""

    max_slot_count_by_type: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    max_slot_ratio_by_type: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict
    )


class AffinityConfig(SpecModel):
    """Hosts of each datasource. Strong: its tasks run on no others; weak: on these if possible."""

    affinity: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    strong: Flag = False


class CategoryConfig(SpecModel):
    """The worker category of one task type: by supervisor, by datasource, and the default."""

    default_category: str | None = None
    category_affinity: dict[str, str] = Field(default_factory=dict)
    supervisor_id_category_affinity: dict[str, str] = Field(default_factory=dict)


class WorkerCategorySpec(SpecModel):
    """Worker categories by task type. Strong: such a task runs on no other workers."""

    category_map: dict[str, CategoryConfig] = Field(default_factory=dict)
    strong: Flag = False


Strategy = Literal[
    "equalDistribution",
    "fillCapacity",
    "equalDistributionWithAffinity",
    "fillCapacityWithAffinity",
    "equalDistributionWithCategorySpec",
    "fillCapacityWithCategorySpec",
]


class SelectStrategy(SpecModel):
    """Strategy for selecting the worker of a task.

    `equalDistribution` selects the one with most free slots, `fillCapacity` that with most used.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "function": "JavaScript cannot select a worker: use a category spec or an affinity",
    }

    type: Strategy = "equalDistribution"
    affinity_config: AffinityConfig = AffinityConfig()
    worker_category_spec: WorkerCategorySpec = WorkerCategorySpec()
    task_limits: TaskLimits = TaskLimits()

    @property
    def fills(self) -> bool:
        """Whether workers are filled one after another."""
        return self.type.startswith("fillCapacity")

    @property
    def affinity(self) -> AffinityConfig | None:
        """The affinity, if the strategy uses it."""
        return self.affinity_config if self.type.endswith("WithAffinity") else None

    @property
    def categories(self) -> WorkerCategorySpec | None:
        """The categories, if the strategy uses them."""
        return self.worker_category_spec if self.type.endswith("WithCategorySpec") else None


class WorkerConfig(SpecModel):
    """Settings for workers that operators may change while the overlord runs."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "autoScaler": "the overlord does not start workers: leave it out",
    }
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"type": IgnoredValue.ANY}

    select_strategy: SelectStrategy = SelectStrategy()

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value


def parse_worker_config(value: bytes | str | dict[str, JsonValue]) -> WorkerConfig:
    """Read a worker config.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    return read_model(WorkerConfig, value)
