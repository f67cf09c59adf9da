"""Where a supervisor reads from and how its tasks run: ``spec.ioConfig``, ``spec.tuningConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from penstock.indexing.spec.inputs import InputFormat, JsonFormat
from penstock.indexing.spec.model import SpecModel, mistakes
from penstock.indexing.spec.scalars import Count, DurationMs, TimeText, TopicName

__all__ = ["IoConfig", "TopicName", "TuningConfig"]

_DEAD_LETTER_SUFFIX: Final = ".dead-letter"


class IoConfig(SpecModel):
    """Where from, with how many tasks, and for how long each reads."""

    type: Literal["penstock", "kafka"] = "penstock"
    topic: TopicName
    input_format: InputFormat = JsonFormat()
    task_count: Count = Field(default=1, ge=1, le=1000)
    replicas: Literal[1] = 1
    task_duration: DurationMs = 3_600_000
    start_delay: DurationMs = 5_000
    period: DurationMs = 30_000
    use_earliest_offset: bool = False
    completion_timeout: DurationMs = 1_800_000
    late_message_rejection_period: DurationMs | None = None
    early_message_rejection_period: DurationMs | None = None
    late_message_rejection_start_date_time: TimeText | None = None
    dead_letter_topic: TopicName | None = None

    unsupported: ClassVar[Mapping[str, str]] = {
        "topicPattern": "start a supervisor for each topic",
        "stream": "the name of the topic goes into topic",
        "autoScalerConfig": "set taskCount",
        "idleConfig": "an idle task costs next to nothing",
        "stopTaskCount": "all tasks of a supervisor hand over together",
        "serverPriorityToReplicas": "only one replica is supported",
        "boundedStreamConfig": "suspend the supervisor when its lag is 0",
        "emitTimeLagMetrics": "lag is measured in messages",
    }
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {"consumerProperties", "pollTimeout", "lagAggregator", "configOverrides"}
    )

    @model_validator(mode="after")
    def _check_together(self) -> IoConfig:
        found: list[tuple[tuple[str | int, ...], object, str]] = []
        if (
            self.late_message_rejection_period is not None
            and self.late_message_rejection_start_date_time is not None
        ):
            text = "give this or lateMessageRejectionPeriod, not both"
            value = self.late_message_rejection_start_date_time
            found.append((("lateMessageRejectionStartDateTime",), value, text))
        if self.dead_letter_topic == self.topic:
            text = "must be another topic, or bad messages would come round again for ever"
            found.append((("deadLetterTopic",), self.dead_letter_topic, text))
        for name, length_ms in (("taskDuration", self.task_duration), ("period", self.period)):
            if length_ms < 1:
                found.append(((name,), length_ms, "must be longer than nothing"))
        if found:
            raise mistakes("IoConfig", found)
        return self

    @property
    def dead_letters(self) -> str:
        """The topic that takes the messages that cannot be parsed."""
        if self.dead_letter_topic is not None:
            return self.dead_letter_topic
        return self.topic[: 64 - len(_DEAD_LETTER_SUFFIX)] + _DEAD_LETTER_SUFFIX


class TuningConfig(SpecModel):
    """How large segments and batches become."""

    type: Literal["penstock", "kafka"] = "penstock"
    max_rows_per_segment: Count = Field(default=5_000_000, ge=1)
    max_total_rows: Count = Field(default=20_000_000, ge=1)
    max_rows_per_persist: Count = Field(default=1_500_000, ge=1)
    max_bytes_per_persist: Count = Field(default=512 * 1024 * 1024, ge=1024)
    reset_offset_automatically: bool = False
    report_parse_exceptions: Literal[False] = False

    unsupported: ClassVar[Mapping[str, str]] = {
        "maxParseExceptions": "messages that cannot be parsed go to ioConfig.deadLetterTopic",
        "intermediateHandoffPeriod": "set ioConfig.taskDuration",
        "partitionsSpec": "set maxRowsPerSegment and maxTotalRows",
        "skipSequenceNumberAvailabilityCheck": "leave it out",
        "repartitionTransitionDuration": "leave it out",
    }
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {
            "appendableIndexSpec",
            "basePersistDirectory",
            "chatHandlerTimeout",
            "chatRetries",
            "chatThreads",
            "handoffConditionTimeout",
            "httpTimeout",
            "indexSpec",
            "indexSpecForIntermediatePersists",
            "intermediatePersistPeriod",
            "logParseExceptions",
            "maxBytesInMemory",
            "maxColumnsToMerge",
            "maxPendingPersists",
            "maxRowsInMemory",
            "maxSavedParseExceptions",
            "numPersistThreads",
            "offsetFetchPeriod",
            "releaseLocksOnHandoff",
            "segmentWriteOutMediumFactory",
            "shutdownTimeout",
            "skipBytesInMemoryOverheadCheck",
            "workerThreads",
        }
    )
