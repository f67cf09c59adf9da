"""The page on Druid has a line for every field of a spec, with its right status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.filters import Filter
from penstock.indexing.specs.input_formats import REFUSED_FORMATS, InputFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.indexing.specs.rows.projections import VirtualColumn
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.task_context import checked_context
from reference.spec_meanings import OURS
from reference.specs import models
from tests.kits.druid_page_kit import Line, field_lines

RULES: Final = ("load", "drop", "broadcast")
# The models of the lines of a section, by the kind that stands before their fields.
PLACES: Final[Mapping[str, Mapping[str, str]]] = {
    "Supervisor: top level": {"": "SupervisorSpec"},
    "Supervisor: `spec`": {"": "IngestionSpec BatchIngestion"},
    "Tasks: top level": {
        "index_parallel": "IndexParallelSpec",
        "compact": "CompactSpec",
        "kill": "KillSpec",
        "noop": "NoopSpec",
        "query_controller": "SqlIngestSpec",
        "index_spark": "SparkWriteSpec",
        "files": "SparkFile",
        "batch": "SparkBatch",
        "externs": "ExternTable",
        "signature": "ExternColumn",
    },
    "`dataSchema`": {"": "DataSchema"},
    "`timestampSpec`": {"": "TimestampSpec"},
    "`dimensionsSpec`": {"": "DimensionsSpec", "dimensions": "Dimension"},
    "`metricsSpec`": {"": "Aggregator"},
    "`granularitySpec`": {"": "GranularitySpec", "compact": "CompactGranularity"},
    "`transformSpec`": {
        "": "TransformSpec",
        "transforms": "Transform",
        "compact": "CompactTransform",
    },
    "Filters": {
        "selector": "SelectorFilter",
        "equals": "EqualsFilter",
        "null": "NullFilter",
        "in": "InFilter",
        "bound": "BoundFilter",
        "range": "RangeFilter",
        "like": "LikeFilter",
        "regex": "RegexFilter",
        "interval": "IntervalFilter",
        "columnComparison": "ColumnComparisonFilter",
        "expression": "ExpressionFilter",
        "true": "TrueFilter",
        "false": "FalseFilter",
        "and": "AndFilter",
        "or": "OrFilter",
        "not": "NotFilter",
    },
    "`projections`": {
        "": "Projection",
        "groupingColumns": "GroupingColumn",
        "expression": "ExpressionColumn",
        "nested-field": "NestedFieldColumn",
    },
    "`ioConfig` of streams": {
        "": "IoConfig",
        "idleConfig": "IdleConfig",
        "boundedStreamConfig": "BoundedStreamConfig",
    },
    "`autoScalerConfig`": {"lagBased": "AutoScalerConfig", "costBased": "CostAutoScalerConfig"},
    "`tuningConfig` of streams": {"": "TuningConfig"},
    "`ioConfig` of batch tasks": {
        "": "BatchIo",
        "compact": "CompactIo",
        "interval": "IntervalInput",
        "segments": "SegmentsInput",
        "minor": "MinorInput",
        "descriptor": "SegmentDescriptor",
    },
    "`inputSource`": {
        "local": "LocalInput",
        "http": "HttpInput",
        "inline": "InlineInput",
        "upload": "UploadInput",
        **dict.fromkeys(("s3", "google", "azure", "hdfs", "fsspec"), "StoredInput"),
        "objects": "ObjectPath",
        "properties": "S3Keys",
        "druid": "DruidInput",
        "sql": "DatabaseInput",
        "postgresql": "PostgresDatabase",
        "connectorConfig": "ConnectorConfig",
        "combining": "CombiningInput",
        "environment": "EnvironmentSecret",
    },
    "`inputFormat`": {
        "json": "JsonFormat",
        "csv": "CsvFormat",
        "tsv": "TsvFormat",
        "kafka": "KafkaFormat",
        "headerFormat": "HeaderFormat",
        "parquet": "ParquetFormat",
        "orc": "OrcFormat",
        "avro_ocf": "AvroFormat",
    },
    "`tuningConfig` of batch tasks": {"": "BatchTuning"},
    "`partitionsSpec`": {
        "dynamic": "DynamicPartitions",
        "hashed": "HashedPartitions",
        "single_dim": "SingleDimensionPartitions",
        "range": "RangePartitions",
    },
    "Compaction configuration": {
        "": "CompactionConfig",
        "supervisor": "CompactionSupervisorSpec",
        "ioConfig": "CompactionIo",
        "cluster": "ClusterCompaction",
    },
    "Rules": {
        "": "RuleList",
        **dict.fromkeys((f"{one}Forever" for one in RULES), "ForeverRule"),
        **dict.fromkeys(
            ("loadByInterval", "dropByInterval", "broadcastByInterval"), "IntervalRule"
        ),
        **dict.fromkeys(("loadByPeriod", "dropByPeriod", "broadcastByPeriod"), "PeriodRule"),
        "dropBeforeByPeriod": "BeforePeriodRule",
    },
    "Worker config": {
        "": "WorkerConfig",
        "selectStrategy": "SelectStrategy",
        "affinityConfig": "AffinityConfig",
        "workerCategorySpec": "WorkerCategorySpec",
        "categoryMap": "CategoryConfig",
        "taskLimits": "TaskLimits",
    },
}
MODELS: Final = {model.__name__: model for model in models()}


@dataclass(frozen=True)
class Told:
    """What the page says of one field of one model."""

    section: str
    kind: str
    model: type[SpecModel]
    name: str
    line: Line

    @property
    def key(self) -> tuple[str, str, str]:
        return self.section, self.kind, self.name

    @property
    def field(self) -> FieldInfo | None:
        fields = self.model.model_fields.values()
        return next((field for field in fields if field.alias == self.name), None)


def told() -> list[Told]:
    return [
        Told(line.section, kind, MODELS[model], name, line)
        for line, kinds, names in field_lines()
        for kind in kinds or [""]
        for model in PLACES.get(line.section, {}).get(kind, "").split()
        for name in names
    ]


TOLD: Final = told()


def known(model: type[SpecModel]) -> set[str]:
    """Every name that a model takes or refuses."""
    taken = {field.alias or "" for field in model.model_fields.values()}
    return taken | model.without_effect.keys() | model.unsupported.keys() | model.repeated.keys()


def becomes(one: Told) -> set[str]:
    """What the page may say of a field."""
    if one.name in one.model.without_effect:
        return {"no effect"}
    if one.name in one.model.unsupported:
        return {"absent"}
    if f"{one.model.__name__}.{one.name}" in OURS or one.kind == "fsspec":
        return {"added"}
    return {"differs"} if one.name in one.model.repeated else {"works", "differs"}


def test_every_model_has_its_place() -> None:
    placed = {
        name for kinds in PLACES.values() for names in kinds.values() for name in names.split()
    }
    assert placed == MODELS.keys() - {"LookupSpec", "LookupColumn"}, "Druid has no such specs"


@pytest.mark.parametrize("section", PLACES)
def test_every_field_has_one_line(section: str) -> None:
    for kind, names in PLACES[section].items():
        for model in (MODELS[name] for name in names.split()):
            here = [one.name for one in TOLD if one.key[:2] == (section, kind)]
            here = [name for name in here if name in known(model)]
            # What names a kind is the kind itself.
            assert known(model) - set(here) <= ({"type"} if kind else set()), (kind, names)
            shared = len(names.split())
            assert len(here) == len(set(here)) * shared, (kind, sorted(here))


def test_no_line_has_a_field_that_is_not_there() -> None:
    assert [one.line.place for one in TOLD if one.name not in known(one.model)] == []
    lost = [
        line.place
        for line, kinds, names in field_lines()
        for kind in kinds or [""]
        if names
        and line.section != "Context of a task"
        and kind not in PLACES.get(line.section, {})
    ]
    assert lost == []


def test_a_line_says_what_becomes_of_its_field() -> None:
    wrong = [(one.line.place, becomes(one)) for one in TOLD if one.line.here not in becomes(one)]
    assert wrong == []


@pytest.mark.parametrize("one", TOLD, ids=lambda one: f"{one.model.__name__}-{one.name}")
def test_a_field_is_taken_or_refused_as_its_line_says(one: Told) -> None:
    """The value fits almost no field: the kind of the error says whether the field is known."""

    def is_unknown(value: object) -> bool:
        try:
            one.model.model_validate({one.name: value})
        except ValidationError as error:
            places = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
            return (one.name,) in places
        return False

    assert is_unknown("no such value") == (one.line.here == "absent")
    assert not is_unknown(None), "a spec as Druid's API returns it has all fields"


def test_defaults_that_differ_are_told() -> None:
    wrong = [
        (one.line.place, one.field.default)
        for one in TOLD
        if one.field is not None
        and not is_default(one.line.cells[1], one.field)
        and "efault" not in one.line.told
    ]
    assert wrong == []


def is_default(cell: str, field: FieldInfo) -> bool:
    """Whether a field's default is Druid's, where that can be told of its text."""
    ours = field.get_default(call_default_factory=True, validated_data={})
    if cell == "required":
        return field.is_required()
    if cell == "none":
        return ours is None or ours in ("", ()) or isinstance(ours, SpecModel)
    if not cell.startswith("`"):
        return True
    try:
        druids = json.loads(cell.strip("`"))
    except json.JSONDecodeError:
        return True
    if isinstance(druids, str) and isinstance(ours, int):
        return parse_duration(druids) == ours
    return druids == (list(ours) if isinstance(ours, tuple) else ours)


REFUSED_KINDS: Final = {
    "Filters": Filter,
    "`inputSource`": InputSource,
    "`inputFormat`": InputFormat,
    "`projections`": VirtualColumn,
}


def test_kinds_that_are_refused_are() -> None:
    found = []
    for line, kinds, names in field_lines():
        for kind in kinds if not names and line.here == "absent" else ():
            found.append(kind)
            value: dict[str, object] = {"type": kind}
            if kind == "mysql":
                value = {"type": "sql", "database": {"type": kind}, "sqls": ["SELECT 1"]}
            with pytest.raises(ValidationError, match="is not supported here: "):
                TypeAdapter(REFUSED_KINDS[line.section]).validate_python(value)
    assert {"javascript", "mysql", "iceberg", "spatial", "fallback"} <= set(found)
    # Of streams' messages `kafka` is a format.
    assert REFUSED_FORMATS.keys() - {"kafka"} <= set(found)


def test_what_is_known_of_a_context_is_checked() -> None:
    """The others are kept as they are."""
    free = {"lookupLoadingMode", "javaOpts", "javaOptsArray", "druid.indexer.fork.property.…"}
    names = {
        n for line, _, names in field_lines() if line.section == "Context of a task" for n in names
    }
    assert free <= names
    for name in names:
        if name in free:
            assert checked_context({name: [1]}, "context") == {name: [1]}
            continue
        with pytest.raises(InvalidRequest, match="must be"):
            checked_context({name: [1]}, "context")
