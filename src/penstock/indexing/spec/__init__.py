"""The ingestion spec: Druid's JSON names; errors with their place and the nearest name."""

from penstock.indexing.spec.aggregators import Aggregator
from penstock.indexing.spec.compaction import CompactionSupervisorSpec
from penstock.indexing.spec.config import IoConfig, TuningConfig
from penstock.indexing.spec.errors import Mistake, SpecError
from penstock.indexing.spec.filters import (
    AndFilter,
    BoundFilter,
    EqualsFilter,
    Filter,
    InFilter,
    NotFilter,
    NullFilter,
    OrFilter,
    RangeFilter,
    SelectorFilter,
)
from penstock.indexing.spec.inputs import InputFormat, InputSource
from penstock.indexing.spec.rows.dimensions import Dimension, DimensionsSpec
from penstock.indexing.spec.rows.granularities import GranularitySpec
from penstock.indexing.spec.rows.timestamps import TimestampSpec
from penstock.indexing.spec.scalars import TIME_COLUMN
from penstock.indexing.spec.schema import DataSchema, Transform, TransformSpec
from penstock.indexing.spec.supervisor import (
    AnySupervisorSpec,
    IngestionSpec,
    SupervisorSpec,
    parse_data_schema,
    parse_supervisor,
    parse_supervisor_spec,
)

__all__ = [
    "TIME_COLUMN",
    "Aggregator",
    "AndFilter",
    "AnySupervisorSpec",
    "BoundFilter",
    "CompactionSupervisorSpec",
    "DataSchema",
    "Dimension",
    "DimensionsSpec",
    "EqualsFilter",
    "Filter",
    "GranularitySpec",
    "InFilter",
    "IngestionSpec",
    "InputFormat",
    "InputSource",
    "IoConfig",
    "Mistake",
    "NotFilter",
    "NullFilter",
    "OrFilter",
    "RangeFilter",
    "SelectorFilter",
    "SpecError",
    "SupervisorSpec",
    "TimestampSpec",
    "Transform",
    "TransformSpec",
    "TuningConfig",
    "parse_data_schema",
    "parse_supervisor",
    "parse_supervisor_spec",
]
