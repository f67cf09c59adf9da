"""Headings, examples and fixed texts of the page of specs. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Group:
    """A part of the page.

    Attributes:
        title: Its heading.
        about: Its first paragraph; the first sentence is shown in the table of contents.
        models: Headings of its models, by the names of the models.
        notes: Name of the fixed text after the models; empty: there is none.
    """

    title: str
    about: str
    models: Mapping[str, str]
    notes: str = ""


GROUPS: Final = (
    Group(
        "Supervisors",
        "A supervisor reads a stream into a datasource without end. Submit it with"
        " `penstock supervisor submit FILE`.",
        {
            "SupervisorSpec": "Supervisor of a stream",
            "IngestionSpec": "`spec` of a supervisor",
            "CompactionSupervisorSpec": "Supervisor `autocompact`",
        },
    ),
    Group(
        "Tasks",
        "A batch task reads an input, writes or changes segments, and ends. Submit it with"
        " `penstock task submit FILE`.",
        {
            "IndexParallelSpec": "Task `index_parallel`",
            "BatchIngestion": "`spec` of `index_parallel`",
            "CompactSpec": "Task `compact`",
            "KillSpec": "Task `kill`",
            "NoopSpec": "Task `noop`",
            "SqlIngestSpec": "Task `query_controller`",
            "SparkWriteSpec": "Task `index_spark`",
            "SparkFile": "`files` of `index_spark`",
            "SparkBatch": "`batch` of `index_spark`",
            "ExternTable": "`externs` of `query_controller`",
            "ExternColumn": "Columns of `externs`",
        },
    ),
    Group(
        "Data schema",
        "The schema says which columns rows get: the time, dimensions, metrics and computed columns.",
        {
            "DataSchema": "`dataSchema`",
            "TimestampSpec": "`timestampSpec`",
            "DimensionsSpec": "`dimensionsSpec`",
            "Dimension": "Dimensions",
            "Aggregator": "Metrics",
            "GranularitySpec": "`granularitySpec`",
            "TransformSpec": "`transformSpec`",
            "Transform": "Transforms",
            "Projection": "Projections",
            "GroupingColumn": "Grouping columns of a projection",
            "ExpressionColumn": "Virtual column `expression`",
            "NestedFieldColumn": "Virtual column `nested-field`",
        },
        "spec_schema",
    ),
    Group(
        "Filters",
        "A filter selects rows. In a filter, `__time` is a number of milliseconds; in the expression"
        " of an `expression` filter it is a timestamp.",
        {
            "SelectorFilter": "Filter `selector`",
            "EqualsFilter": "Filter `equals`",
            "NullFilter": "Filter `null`",
            "InFilter": "Filter `in`",
            "BoundFilter": "Filter `bound`",
            "RangeFilter": "Filter `range`",
            "LikeFilter": "Filter `like`",
            "RegexFilter": "Filter `regex`",
            "IntervalFilter": "Filter `interval`",
            "ColumnComparisonFilter": "Filter `columnComparison`",
            "ExpressionFilter": "Filter `expression`",
            "TrueFilter": "Filter `true`",
            "FalseFilter": "Filter `false`",
            "AndFilter": "Filter `and`",
            "OrFilter": "Filter `or`",
            "NotFilter": "Filter `not`",
        },
    ),
    Group(
        "Streams",
        "The parts of a supervisor that say what is read, by how many tasks, and for how long.",
        {
            "IoConfig": "`ioConfig` of a stream",
            "TuningConfig": "`tuningConfig` of a stream",
            "IdleConfig": "`idleConfig`",
            "AutoScalerConfig": "`autoScalerConfig` `lagBased`",
            "CostAutoScalerConfig": "`autoScalerConfig` `costBased`",
            "BoundedStreamConfig": "`boundedStreamConfig`",
        },
        "spec_streams",
    ),
    Group(
        "Input of batch tasks",
        "The source of a batch task's rows, and how the task treats existing segments.",
        {
            "BatchIo": "`ioConfig` of `index_parallel`",
            "LocalInput": "Input source `local`",
            "HttpInput": "Input source `http`",
            "InlineInput": "Input source `inline`",
            "UploadInput": "Input source `upload`",
            "StoredInput": "Input sources of object stores",
            "ObjectPath": "Objects of an object store",
            "S3Keys": "`properties` of `s3`",
            "DruidInput": "Input source `druid`",
            "DatabaseInput": "Input source `sql`",
            "PostgresDatabase": "Database `postgresql`",
            "ConnectorConfig": "`connectorConfig`",
            "CombiningInput": "Input source `combining`",
            "EnvironmentSecret": "Password in an environment variable",
            "CompactIo": "`ioConfig` of `compact`",
            "IntervalInput": "Compaction input `interval`",
            "SegmentsInput": "Compaction input `segments`",
            "MinorInput": "Compaction input `minor`",
            "SegmentDescriptor": "Segments of `minor`",
        },
        "spec_inputs",
    ),
    Group(
        "Input formats",
        "The format of files or messages.",
        {
            "JsonFormat": "Format `json`",
            "CsvFormat": "Format `csv`",
            "TsvFormat": "Format `tsv`",
            "KafkaFormat": "Format `kafka`",
            "HeaderFormat": "Header format of `kafka`",
            "ParquetFormat": "Format `parquet`",
            "OrcFormat": "Format `orc`",
            "AvroFormat": "Format `avro_ocf`",
        },
    ),
    Group(
        "Tuning of batch tasks",
        "The size of segments, how rows are distributed over them, and how many unparseable rows are"
        " tolerated.",
        {
            "BatchTuning": "`tuningConfig` of batch tasks",
            "DynamicPartitions": "`partitionsSpec` `dynamic`",
            "HashedPartitions": "`partitionsSpec` `hashed`",
            "SingleDimensionPartitions": "`partitionsSpec` `single_dim`",
            "RangePartitions": "`partitionsSpec` `range`",
        },
    ),
    Group(
        "Compaction",
        "The form that the segments of a datasource should have, and how much compaction may run at"
        " once.",
        {
            "CompactionConfig": "Compaction of a datasource",
            "CompactionIo": "`ioConfig` of a compaction",
            "CompactGranularity": "`granularitySpec` of a compaction",
            "CompactTransform": "`transformSpec` of a compaction",
            "ClusterCompaction": "Compaction of the cluster",
        },
    ),
    Group(
        "Retention rules",
        "The rules that keep or drop segments by their age. Set them with"
        " `penstock rule set DATASOURCE FILE`.",
        {
            "RuleList": "Rules of a datasource",
            "ForeverRule": "Rules `loadForever` and `dropForever`",
            "IntervalRule": "Rules `loadByInterval` and `dropByInterval`",
            "PeriodRule": "Rules `loadByPeriod` and `dropByPeriod`",
            "BeforePeriodRule": "Rule `dropBeforeByPeriod`",
        },
    ),
    Group(
        "Lookups",
        "A lookup is a small table that queries and flows join by name. Declare it with"
        " `penstock lookup apply FILE`.",
        {
            "LookupSpec": "Spec of a lookup",
            "LookupColumn": "Columns of a lookup",
        },
    ),
    Group(
        "Worker selection",
        "How the overlord selects the worker of a task. Set it with"
        " `POST /druid/indexer/v1/worker`.",
        {
            "WorkerConfig": "Worker config",
            "SelectStrategy": "`selectStrategy`",
            "AffinityConfig": "`affinityConfig`",
            "WorkerCategorySpec": "`workerCategorySpec`",
            "CategoryConfig": "`categoryMap`",
            "TaskLimits": "`taskLimits`",
        },
    ),
)
TITLES: Final[Mapping[str, str]] = {
    name: title for group in GROUPS for name, title in group.models.items()
}

EXAMPLES: Final[Mapping[str, str]] = {
    "SupervisorSpec": """\
{
  "type": "penstock",
  "spec": {
    "dataSchema": {
      "dataSource": "clicks",
      "timestampSpec": {"column": "time", "format": "iso"},
      "dimensionsSpec": {"dimensions": ["page", {"type": "long", "name": "user"}]},
      "granularitySpec": {"segmentGranularity": "day", "rollup": false}
    },
    "ioConfig": {"topic": "clicks", "useEarliestOffset": true, "taskDuration": "PT1H"}
  }
}""",
    "IndexParallelSpec": """\
{
  "type": "index_parallel",
  "spec": {
    "dataSchema": {
      "dataSource": "clicks",
      "timestampSpec": {"column": "time"},
      "dimensionsSpec": {"dimensions": ["page", {"type": "long", "name": "user"}]},
      "granularitySpec": {
        "segmentGranularity": "day",
        "intervals": ["2026-01-01/2026-02-01"],
        "rollup": false
      }
    },
    "ioConfig": {
      "inputSource": {"type": "local", "baseDir": "/data/clicks", "filter": "*.json"},
      "inputFormat": {"type": "json"}
    }
  }
}""",
    "CompactSpec": """\
{
  "type": "compact",
  "dataSource": "clicks",
  "ioConfig": {
    "type": "compact",
    "inputSpec": {"type": "interval", "interval": "2026-01-01/2026-02-01"}
  }
}""",
    "KillSpec": """\
{"type": "kill", "dataSource": "clicks", "interval": "2025-01-01/2026-01-01"}""",
    "NoopSpec": """\
{"type": "noop", "runTime": 5000}""",
    "CompactionSupervisorSpec": """\
{
  "type": "autocompact",
  "spec": {"dataSource": "clicks", "skipOffsetFromLatest": "P1D", "maxRowsPerSegment": 5000000}
}""",
    "CompactionConfig": """\
{"dataSource": "clicks", "granularitySpec": {"segmentGranularity": "month"}}""",
    "RuleList": """\
[{"type": "loadByPeriod", "period": "P30D"}, {"type": "dropForever"}]""",
    "LookupSpec": """\
{
  "name": "countries",
  "inputSource": {"type": "http", "uris": ["https://data.example.com/countries.csv"]},
  "inputFormat": {"type": "csv", "findColumnsFromHeader": true},
  "key": "code",
  "columns": [{"name": "name"}, {"name": "population", "type": "long"}],
  "refreshPeriod": "PT1H"
}""",
    "Aggregator": """\
{"type": "longSum", "name": "bytes", "fieldName": "bytes"}""",
    "Transform": """\
{"type": "expression", "name": "host", "expression": "lower(\\"host\\")"}""",
    "BoundFilter": """\
{"type": "bound", "dimension": "status", "lower": "500", "ordering": "numeric"}""",
    "KafkaFormat": """\
{"type": "kafka", "valueFormat": {"type": "json"}, "headerFormat": {"type": "string"}}""",
    "RangePartitions": """\
{"type": "range", "partitionDimensions": ["country"], "targetRowsPerSegment": 5000000}""",
}


@dataclass(frozen=True)
class ContextKey:
    """A key of a context: the type of its values, its default, its meaning."""

    value: str
    default: str
    meaning: str


_FLAG: Final = "`true`, `false`"
CONTEXT: Final[Mapping[str, ContextKey]] = {
    "priority": ContextKey(
        "whole number",
        "streams 75, batch tasks 50, compaction 25, others 0",
        "Priority of the task's locks, and in the queue of tasks.",
    ),
    "useConcurrentLocks": ContextKey(
        _FLAG, "`false`", "The task may append or replace while other tasks do the same."
    ),
    "taskLockType": ContextKey(
        "`EXCLUSIVE`, `SHARED`, `REPLACE`, `APPEND`", "none", "The type of the task's locks."
    ),
    "useSharedLock": ContextKey(
        _FLAG, "`false`", "Older form of `taskLockType` `SHARED`, for tasks that append."
    ),
    "taskLockTimeout": ContextKey(
        "milliseconds",
        "`300000`",
        "Maximum time for which a running task waits for a lock. Then it fails, and its error names"
        " the tasks that hold the lock.",
    ),
    "forceTimeChunkLock": ContextKey(
        _FLAG,
        "`true`",
        "With `false`, `index_parallel` and `compact` lock single segments where possible.",
    ),
    "storeCompactionState": ContextKey(
        _FLAG,
        "compaction `true`, others `false`",
        "Record in segments how they were created, so that compaction can skip them.",
    ),
    "tags": ContextKey("object", "none", "Labels, which are stored with the task."),
    "useLineageBasedSegmentAllocation": ContextKey(_FLAG, "", "Accepted without effect."),
    "storeEmptyColumns": ContextKey(_FLAG, "", "Accepted without effect."),
    "subTaskTimeoutMillis": ContextKey("milliseconds", "", "Accepted without effect."),
}
