"""The ingestion spec: Druid's JSON names; errors with their place and the nearest name."""

from penstock.indexing.specs.aggregators import Aggregator
from penstock.indexing.specs.compaction import CompactionSupervisorSpec
from penstock.indexing.specs.data_schema import DataSchema, TimestampSpec, Transform, TransformSpec
from penstock.indexing.specs.errors import Mistake, SpecError
from penstock.indexing.specs.filters import (
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
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.indexing.specs.rows.dimensions import Dimension, DimensionsSpec
from penstock.indexing.specs.rows.granularities import GranularitySpec
from penstock.indexing.specs.scalars import TIME_COLUMN
from penstock.indexing.specs.stream_config import IoConfig, TuningConfig
from penstock.indexing.specs.supervisor_spec import (
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
