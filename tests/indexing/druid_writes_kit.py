"""Whole specs as Druid's own GET writes them: every field is there, with its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INDEX = {
    "bitmap": {"type": "roaring"},
    "dimensionCompression": "lz4",
    "stringDictionaryEncoding": {"type": "utf8"},
    "metricCompression": "lz4",
    "longEncoding": "longs",
    "complexMetricCompression": None,
    "jsonCompression": None,
    "segmentLoader": None,
}
APPENDABLE = {"type": "onheap", "preserveExistingMetrics": False}


def dimension(name: str, kind: str = "string") -> dict[str, Any]:
    return {
        "type": kind,
        "name": name,
        "multiValueHandling": "SORTED_ARRAY",
        "createBitmapIndex": kind == "string",
    }


def data_schema(name: str, *, time: str = "at", **changes: object) -> dict[str, Any]:
    return {
        "dataSource": name,
        "timestampSpec": {"column": time, "format": "iso", "missingValue": None},
        "dimensionsSpec": {
            "dimensions": [dimension("carrier"), dimension("delay", "long")],
            "dimensionExclusions": ["__time", time],
            "includeAllDimensions": False,
            "useSchemaDiscovery": False,
        },
        "metricsSpec": [],
        "granularitySpec": {
            "type": "uniform",
            "segmentGranularity": "HOUR",
            "queryGranularity": {"type": "none"},
            "rollup": False,
            "intervals": [],
        },
        "transformSpec": {"filter": None, "transforms": []},
        **changes,
    }


def kafka_io(topic: str, **changes: object) -> dict[str, Any]:
    return {
        "topic": topic,
        "inputFormat": {
            "type": "json",
            "keepNullColumns": False,
            "assumeNewlineDelimited": False,
            "useJsonNodeReader": False,
        },
        "replicas": 1,
        "taskCount": 1,
        "taskDuration": "PT3600S",
        "consumerProperties": {"bootstrap.servers": "localhost:9092"},
        "autoScalerConfig": None,
        "pollTimeout": 100,
        "startDelay": "PT5S",
        "period": "PT30S",
        "useEarliestOffset": True,
        "completionTimeout": "PT1800S",
        "lateMessageRejectionPeriod": None,
        "earlyMessageRejectionPeriod": None,
        "lateMessageRejectionStartDateTime": None,
        "configOverrides": None,
        "idleConfig": None,
        "stream": topic,
        "useEarliestSequenceNumber": True,
        **changes,
    }


def kafka_tuning(**changes: object) -> dict[str, Any]:
    return {
        "type": "kafka",
        "appendableIndexSpec": APPENDABLE,
        "basePersistDirectory": None,
        "maxRowsInMemory": 150_000,
        "maxBytesInMemory": 0,
        "skipBytesInMemoryOverheadCheck": False,
        "maxRowsPerSegment": 5_000_000,
        "maxTotalRows": None,
        "intermediatePersistPeriod": "PT10M",
        "maxPendingPersists": 0,
        "indexSpec": INDEX,
        "indexSpecForIntermediatePersists": INDEX,
        "reportParseExceptions": False,
        "handoffConditionTimeout": 0,
        "resetOffsetAutomatically": False,
        "segmentWriteOutMediumFactory": None,
        "workerThreads": None,
        "chatThreads": None,
        "chatRetries": 8,
        "httpTimeout": "PT10S",
        "shutdownTimeout": "PT80S",
        "offsetFetchPeriod": "PT30S",
        "intermediateHandoffPeriod": "P2147483647D",
        "logParseExceptions": False,
        "maxParseExceptions": 2_147_483_647,
        "maxSavedParseExceptions": 0,
        "skipSequenceNumberAvailabilityCheck": False,
        "repartitionTransitionDuration": "PT120S",
        **changes,
    }


def supervisor(spec: Mapping[str, object], **changes: object) -> dict[str, Any]:
    return {
        "type": "kafka",
        "spec": dict(spec),
        **spec,
        "context": None,
        "suspended": False,
        **changes,
    }


def plain_supervisor() -> dict[str, Any]:
    """The spec of a user who named the least."""
    return supervisor(
        {
            "dataSchema": data_schema("flights"),
            "ioConfig": kafka_io("flights"),
            "tuningConfig": kafka_tuning(),
        }
    )


def scaled_supervisor() -> dict[str, Any]:
    """A later release's, with roll-up, an auto-scaler and a context."""
    exclusions = ["__time", "delay_sum", "delay", "at", "count"]
    schema = data_schema(
        "delays",
        dimensionsSpec={
            "dimensions": [dimension("carrier"), dimension("tail")],
            "dimensionExclusions": exclusions,
            "includeAllDimensions": False,
            "useSchemaDiscovery": False,
            "forceSegmentSortByTime": None,
        },
        metricsSpec=[
            {"type": "count", "name": "count"},
            {"type": "longSum", "name": "delay_sum", "fieldName": "delay", "expression": None},
        ],
        granularitySpec={
            "type": "uniform",
            "segmentGranularity": {"type": "period", "period": "P1D", "timeZone": "UTC"},
            "queryGranularity": "MINUTE",
            "rollup": True,
            "intervals": None,
        },
        projections=None,
    )
    scaler = {
        "enableTaskAutoScaler": True,
        "autoScalerStrategy": "lagBased",
        "lagCollectionIntervalMillis": 30_000,
        "lagCollectionRangeMillis": 600_000,
        "scaleActionStartDelayMillis": 300_000,
        "scaleActionPeriodMillis": 60_000,
        "scaleOutThreshold": 6_000_000,
        "scaleInThreshold": 1_000_000,
        "triggerScaleOutFractionThreshold": 0.3,
        "triggerScaleInFractionThreshold": 0.9,
        "taskCountMax": 6,
        "taskCountMin": 2,
        "taskCountStart": None,
        "scaleInStep": 1,
        "scaleOutStep": 2,
        "minTriggerScaleActionFrequencyMillis": 600_000,
        "lagAggregate": "SUM",
        "stopTaskCountRatio": None,
    }
    flat = {"type": "json", "flattenSpec": {"useFieldDiscovery": True, "fields": []}}
    io = kafka_io(
        "delays",
        topicPattern=None,
        inputFormat=flat | {"featureSpec": {}},
        autoScalerConfig=scaler,
        lagAggregator={"type": "default"},
        idleConfig={"enabled": False, "inactiveAfterMillis": None},
        stopTaskCount=None,
        stopTaskCountRatio=None,
        serverPriorityToReplicas=None,
        boundedStreamConfig=None,
        emitTimeLagMetrics=False,
        skipOffsetGaps=False,
        type="kafka",
    )
    tuning = kafka_tuning(
        numPersistThreads=1, maxColumnsToMerge=-1, releaseLocksOnHandoff=False, chatThreads=None
    )
    whole = supervisor(
        {"dataSchema": schema, "ioConfig": io, "tuningConfig": tuning},
        id="delays-in",
        context={"priority": 75, "useConcurrentLocks": True},
        source="delays",
    )
    # Beside `spec` the type is not written.
    return whole | {"ioConfig": {name: v for name, v in io.items() if name != "type"}}


def index_parallel() -> dict[str, Any]:
    """The payload of a batch task, with the name that Druid gave it."""
    name = "index_parallel_flights_abcdefgh_2013-01-02T03:04:05.678Z"
    interval = "2013-01-01T00:00:00.000Z/2013-01-02T00:00:00.000Z"
    granularity = {
        "type": "uniform",
        "segmentGranularity": "DAY",
        "queryGranularity": {"type": "none"},
        "rollup": False,
        "intervals": [interval],
    }
    return {
        "type": "index_parallel",
        "id": name,
        "groupId": name,
        "resource": {"availabilityGroup": name, "requiredCapacity": 1},
        "spec": {
            "dataSchema": data_schema("flights", granularitySpec=granularity),
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": {
                    "type": "local",
                    "baseDir": "/data/flights",
                    "filter": "*.csv.gz",
                    "files": [],
                    "systemFields": None,
                },
                "inputFormat": {
                    "type": "csv",
                    "listDelimiter": None,
                    "columns": ["at", "carrier", "delay"],
                    "findColumnsFromHeader": False,
                    "skipHeaderRows": 0,
                    "tryParseNumbers": False,
                },
                "appendToExisting": False,
                "dropExisting": False,
            },
            "tuningConfig": {
                "type": "index_parallel",
                "maxRowsPerSegment": 5_000_000,
                "appendableIndexSpec": APPENDABLE,
                "maxRowsInMemory": 1_000_000,
                "maxBytesInMemory": 0,
                "skipBytesInMemoryOverheadCheck": False,
                "maxTotalRows": None,
                "numShards": None,
                "splitHintSpec": None,
                "partitionsSpec": {
                    "type": "dynamic",
                    "maxRowsPerSegment": 5_000_000,
                    "maxTotalRows": None,
                },
                "indexSpec": INDEX,
                "indexSpecForIntermediatePersists": INDEX,
                "maxPendingPersists": 0,
                "forceGuaranteedRollup": False,
                "reportParseExceptions": False,
                "pushTimeout": 0,
                "segmentWriteOutMediumFactory": None,
                "maxNumConcurrentSubTasks": 1,
                "maxRetry": 3,
                "taskStatusCheckPeriodMs": 1000,
                "chatHandlerTimeout": "PT10S",
                "chatHandlerNumRetries": 5,
                "maxNumSegmentsToMerge": 100,
                "totalNumMergeTasks": 10,
                "logParseExceptions": False,
                "maxParseExceptions": 2_147_483_647,
                "maxSavedParseExceptions": 0,
                "maxColumnsToMerge": -1,
                "awaitSegmentAvailabilityTimeoutMillis": 0,
                "maxAllowedLockCount": -1,
                "numPersistThreads": 1,
                "partitionDimensions": [],
            },
        },
        "context": {"forceTimeChunkLock": True, "useLineageBasedSegmentAllocation": True},
        "dataSource": "flights",
    }


def batch_task(kind: str, **fields: object) -> dict[str, Any]:
    """What the tasks of all kinds have."""
    name = f"{kind}_flights_abcdefgh_2013-01-02T03:04:05.678Z"
    resource = {"availabilityGroup": name, "requiredCapacity": 1}
    return {"type": kind, "id": name, "groupId": name, "resource": resource, **fields}


def compact() -> dict[str, Any]:
    """A compaction that says nothing but where."""
    interval = "2013-01-01T00:00:00.000Z/2013-02-01T00:00:00.000Z"
    nothing = ("dimensionsSpec", "transformSpec", "metricsSpec", "segmentGranularity")
    return batch_task(
        "compact",
        dataSource="flights",
        ioConfig={
            "type": "compact",
            "inputSpec": {
                "type": "interval",
                "interval": interval,
                "sha256OfSortedSegmentIds": None,
            },
            "allowNonAlignedInterval": False,
            "dropExisting": False,
        },
        **dict.fromkeys((*nothing, "granularitySpec", "projections", "tuningConfig")),
        compactionRunner={"type": "native"},
        context={"forceTimeChunkLock": True},
    )


def kill() -> dict[str, Any]:
    """Of an earlier release, which could mark segments, too."""
    return batch_task(
        "kill",
        dataSource="flights",
        interval="2013-01-01T00:00:00.000Z/2013-02-01T00:00:00.000Z",
        versions=None,
        context={},
        markAsUnused=False,
        batchSize=100,
        limit=None,
        maxUsedStatusLastUpdatedTime=None,
    )


def compaction_config(**changes: object) -> dict[str, Any]:
    """How a datasource is compacted, which a supervisor of compaction has as its spec."""
    nothing = ("maxRowsPerSegment", "granularitySpec", "dimensionsSpec", "metricsSpec", "baseTable")
    return {
        "type": "inline",
        "dataSource": "flights",
        "taskPriority": 25,
        "inputSegmentSizeBytes": 100_000_000_000_000,
        "skipOffsetFromLatest": "P1D",
        "skipIntervals": [],
        "tuningConfig": {
            **dict.fromkeys(
                (
                    *("maxRowsInMemory", "maxBytesInMemory", "maxTotalRows", "splitHintSpec"),
                    *("indexSpecForIntermediatePersists", "maxPendingPersists", "pushTimeout"),
                    *("segmentWriteOutMediumFactory", "maxNumConcurrentSubTasks", "maxRetry"),
                    *("taskStatusCheckPeriodMs", "chatHandlerTimeout", "chatHandlerNumRetries"),
                    *("maxNumSegmentsToMerge", "totalNumMergeTasks", "maxColumnsToMerge"),
                    "numPersistThreads",
                )
            ),
            "type": "index_parallel",
            "appendableIndexSpec": APPENDABLE,
            "partitionsSpec": {
                "type": "dynamic",
                "maxRowsPerSegment": 3_000_000,
                "maxTotalRows": None,
            },
            "indexSpec": INDEX,
        },
        "transformSpec": {"filter": None, "virtualColumns": []},
        **dict.fromkeys((*nothing, "projections", "ioConfig", "taskContext", "engine")),
        **changes,
    }
