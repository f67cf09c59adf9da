"""docs/druid-compatibility.md has a line for every field of a spec, and says what becomes of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pytest
from druid_page_kit import Line, lines, named
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest
from penstock.indexing.overlord.runner import worker_config
from penstock.indexing.specs.filters import Filter
from penstock.indexing.specs.input_formats import REFUSED_FORMATS, InputFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.indexing.specs.rows.projections import VirtualColumn
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.task_context import checked_context
from spec_meanings import OURS
from spec_page import models

RULES: Final = ("load", "drop", "broadcast")
# The models of the lines of a section, by the kind that stands before their fields.
PLACES: Final[Mapping[str, Mapping[str, str]]] = {
    "Supervisor": {"": "SupervisorSpec"},
    "Spec": {"": "IngestionSpec BatchIngestion"},
    "Tasks' heads": {
        "index_parallel": "IndexParallelSpec",
        "compact": "CompactSpec",
        "kill": "KillSpec",
        "noop": "NoopSpec",
        "query_controller": "SqlIngestSpec",
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
        **dict.fromkeys(("s3", "google", "azure", "hdfs", "fsspec"), "StoredInput"),
        "objects": "ObjectPath",
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
WORKER_MODELS: Final = [
    one
    for one in vars(worker_config).values()
    if inspect.isclass(one) and issubclass(one, SpecModel) and one is not SpecModel
]
MODELS: Final = {model.__name__: model for model in (*models(), *WORKER_MODELS)}


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


def field_lines() -> Iterator[tuple[Line, list[str], list[str]]]:
    """(line, kinds, fields) of every line about fields."""
    for line in lines():
        if (cell := line.cells.get("field") or line.cells.get("fields")) is not None:
            yield line, *named(cell)


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
        return {"refused"}
    if f"{one.model.__name__}.{one.name}" in OURS or one.kind == "fsspec":
        return {"ours"}
    return {"other"} if one.name in one.model.repeated else {"same", "other"}


def test_every_model_has_its_place() -> None:
    placed = {
        name for kinds in PLACES.values() for names in kinds.values() for name in names.split()
    }
    assert placed == MODELS.keys()


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
        if names and line.section != "Context" and kind not in PLACES.get(line.section, {})
    ]
    assert lost == []


def test_a_line_says_what_becomes_of_its_field() -> None:
    wrong = [(one.line.place, becomes(one)) for one in TOLD if one.line.here not in becomes(one)]
    assert wrong == []


def test_defaults_that_differ_are_told() -> None:
    wrong = [
        (one.line.place, one.field.default)
        for one in TOLD
        if one.field is not None
        and not is_default(one.line.cells.get("default", ""), one.field)
        and "default" not in one.line.told
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
        for kind in kinds if not names and line.here == "refused" else ():
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
    names = {n for line, _, names in field_lines() if line.section == "Context" for n in names}
    assert free <= names
    for name in names:
        if name in free:
            assert checked_context({name: [1]}, "context") == {name: [1]}
            continue
        with pytest.raises(InvalidRequest, match="must be"):
            checked_context({name: [1]}, "context")
