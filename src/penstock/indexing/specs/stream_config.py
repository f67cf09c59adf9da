"""The stream and the tasks of a supervisor: ``spec.ioConfig`` and ``spec.tuningConfig``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from penstock.broker.topic_names import mistake_text, name_mistake
from penstock.indexing.secrets import MASK, MASK_REMEDY
from penstock.indexing.specs.batch_tuning import WITHOUT_EFFECT
from penstock.indexing.specs.input_formats import CsvFormat, JsonFormat, TsvFormat
from penstock.indexing.specs.rows.stream_formats import (
    KafkaFormat,
    StreamFormat,
    mistakes_in_message,
)
from penstock.indexing.specs.scalars import (
    AnswerTimeMs,
    CappedDurationMs,
    Count,
    DurationMs,
    Flag,
    PositiveDurationMs,
    TimeText,
    TopicName,
)
from penstock.indexing.specs.sources.secret_values import SecretSetting
from penstock.indexing.specs.spec_base import Found, IgnoredValue, SpecModel, mistakes, refuse_types

__all__ = [
    "AutoScalerConfig",
    "BoundedStreamConfig",
    "CostAutoScalerConfig",
    "IdleConfig",
    "IoConfig",
    "StreamType",
    "TopicName",
    "TuningConfig",
]

StreamType = Literal["penstock", "kafka", "folder"]

_DEAD_LETTER_SUFFIX: Final = ".dead-letter"
_KAFKA_TOPIC_MAX: Final = 249
_KAFKA_TOPIC: Final = re.compile(rf"[.a-zA-Z0-9_-]{{1,{_KAFKA_TOPIC_MAX}}}")
_Fraction = Annotated[float, Field(ge=0, le=1)]
_REPLICAS_MAX: Final = 10
_TIME_LAG_EVERY_MS: Final = 30_000  # Druid's offsetFetchPeriod
# Numbers that Java holds as an int, in their one canonical form.
_SERVER_PRIORITY: Final = re.compile(r"0|-?[1-9][0-9]{0,8}")


def _check_server_priorities(value: object) -> object:
    """Refuse names that are not whole numbers, each in its place."""
    if isinstance(value, dict):
        text = 'must be a whole number of up to 9 digits: the priority of replicas, such as "1"'
        names = (str(name) for name in value)
        found: Found = [((n,), n, text) for n in names if not _SERVER_PRIORITY.fullmatch(n)]
        if found:
            raise mistakes("serverPriorityToReplicas", found)
    return value


_PriorityCounts = Annotated[
    dict[int, Annotated[Count, Field(ge=0)]],
    Field(min_length=1),
    BeforeValidator(_check_server_priorities),
]


class IdleConfig(SpecModel):
    """When a supervisor without new messages stops its tasks."""

    enabled: Flag = False
    inactive_after_millis: Count = Field(default=600_000, ge=1)


class _ScalerBounds(SpecModel):
    """Settings of every autoscaler: whether it is enabled, and the bounds of `taskCount`."""

    enable_task_auto_scaler: Flag = False
    task_count_min: Count = Field(ge=1, le=1000)
    task_count_max: Count = Field(ge=1, le=1000)
    task_count_start: Count | None = Field(default=None, ge=1, le=1000)

    kind_field: ClassVar[str] = "auto_scaler_strategy"

    def _mistakes_in_bounds(self) -> Found:
        least, most, start = self.task_count_min, self.task_count_max, self.task_count_start
        if least > most:
            return [(("taskCountMin",), least, f"must be at most taskCountMax, {most}")]
        if start is not None and not least <= start <= most:
            text = f"must be from taskCountMin to taskCountMax, {least} to {most}"
            return [(("taskCountStart",), start, text)]
        return []


class AutoScalerConfig(_ScalerBounds):
    """Settings of the autoscaler that follows the lag.

    Every `scale_action_period_millis` it evaluates the lags of the last
    `lag_collection_range_millis`. If at least the share `trigger_scale_out_fraction_threshold` of
    them is at or above `scale_out_threshold`, it adds groups. If at least the share
    `trigger_scale_in_fraction_threshold` is at or below `scale_in_threshold`, it removes groups.
    """

    auto_scaler_strategy: Literal["lagBased"] = "lagBased"
    min_trigger_scale_action_frequency_millis: Count = Field(default=600_000, ge=0)
    lag_collection_interval_millis: Count = Field(default=30_000, ge=1)
    lag_collection_range_millis: Count = Field(default=600_000, ge=1)
    scale_action_start_delay_millis: Count = Field(default=300_000, ge=0)
    scale_action_period_millis: Count = Field(default=60_000, ge=1)
    scale_out_threshold: Count = Field(default=6_000_000, ge=0)
    scale_in_threshold: Count = Field(default=1_000_000, ge=0)
    trigger_scale_out_fraction_threshold: _Fraction = 0.3
    trigger_scale_in_fraction_threshold: _Fraction = 0.9
    scale_out_step: Count = Field(default=2, ge=1)
    scale_in_step: Count = Field(default=1, ge=1)
    lag_aggregate: Literal["SUM", "MAX", "AVERAGE"] = "SUM"

    unsupported: ClassVar[Mapping[str, str]] = {
        "stopTaskCountRatio": "set ioConfig.stopTaskCount",
        "lagWeight": "it is a field of costBased: set autoScalerStrategy",
        "idleWeight": "it is a field of costBased: set autoScalerStrategy",
    }

    @model_validator(mode="after")
    def _check_together(self) -> AutoScalerConfig:
        found = self._mistakes_in_bounds()
        if self.scale_in_threshold >= self.scale_out_threshold:
            text = "must be less than scaleOutThreshold, or groups would come and go forever"
            found.append((("scaleInThreshold",), self.scale_in_threshold, text))
        if self.lag_collection_range_millis < self.lag_collection_interval_millis:
            text = "must be at least lagCollectionIntervalMillis"
            found.append((("lagCollectionRangeMillis",), self.lag_collection_range_millis, text))
        if found:
            raise mistakes("AutoScalerConfig", found)
        return self


class CostAutoScalerConfig(_ScalerBounds):
    """Settings of the autoscaler that minimizes the cost of a lag and of idle tasks.

    Every `scale_action_period_millis` it chooses the number of groups with the lowest sum of
    `lag_weight` times the time to work off the lag and `idle_weight` times the cost of idle tasks.
    """

    auto_scaler_strategy: Literal["costBased"]
    lag_weight: float = Field(default=0.4, ge=0, le=1e6)
    idle_weight: float = Field(default=0.6, ge=0, le=1e6)
    optimal_task_idle_ratio: float = Field(default=0.25, gt=0, lt=1)
    scale_action_period_millis: Count = Field(default=120_000, ge=1)
    min_scale_up_delay: DurationMs = 900_000
    min_scale_down_delay: DurationMs = 1_200_000
    scale_down_during_task_rollover_only: Flag = False
    use_task_count_boundaries_on_scale_up: Flag = False
    use_task_count_boundaries_on_scale_down: Flag = True
    critical_lag_threshold: Count | None = Field(default=None, ge=1)
    high_lag_cost_factor: float = Field(default=6.0, ge=0, le=1e6)
    min_cost_drop_percent_for_scaling: Count = Field(default=0, ge=0, le=100)

    unsupported: ClassVar[Mapping[str, str]] = {
        "highLagThreshold": "set criticalLagThreshold",
        "idealIdleRatio": "set optimalTaskIdleRatio",
        "scaleDownBarrier": "set minScaleDownDelay",
        "stopTaskCountRatio": "set ioConfig.stopTaskCount",
        "useTaskCountBoundaries": "set useTaskCountBoundariesOnScaleUp and …OnScaleDown",
        **dict.fromkeys(
            (
                "lagAggregate",
                "lagCollectionIntervalMillis",
                "lagCollectionRangeMillis",
                "scaleInStep",
                "scaleInThreshold",
                "scaleOutStep",
                "scaleOutThreshold",
                "triggerScaleInFractionThreshold",
                "triggerScaleOutFractionThreshold",
            ),
            "it is a field of lagBased: leave it out",
        ),
    }
    # Throughput and idle time of tasks are measured, never assumed.
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = dict.fromkeys(
        (
            "defaultProcessingRate",
            "metricsCollectionIntervalMillis",
            "minTriggerScaleActionFrequencyMillis",
            "scaleActionStartDelayMillis",
            "usePollIdleRatio",
        ),
        IgnoredValue.ANY,
    )

    @model_validator(mode="after")
    def _check_together(self) -> CostAutoScalerConfig:
        found = self._mistakes_in_bounds()
        if not self.lag_weight and not self.idle_weight:
            text = "must be more than 0 unless idleWeight is: otherwise every choice costs the same"
            found.append((("lagWeight",), self.lag_weight, text))
        if found:
            raise mistakes("CostAutoScalerConfig", found)
        return self


ScalerConfig = Annotated[
    AutoScalerConfig | CostAutoScalerConfig,
    Field(discriminator="auto_scaler_strategy"),
    refuse_types({}, default="lagBased", field="autoScalerStrategy"),
]


class BoundedStreamConfig(SpecModel):
    """The range that a supervisor reads before it stops, by stream partition."""

    start_sequence_numbers: dict[str, Annotated[Count, Field(ge=0)]] = Field(min_length=1)
    end_sequence_numbers: dict[str, Annotated[Count, Field(ge=0)]] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_together(self) -> BoundedStreamConfig:
        found: Found = []
        starts, ends = self.start_sequence_numbers, self.end_sequence_numbers
        for name in sorted(starts.keys() ^ ends.keys()):
            other = "endSequenceNumbers" if name in starts else "startSequenceNumbers"
            found.append(((other,), None, f"stream partition {name!r} is in only one of the two"))
        for name in sorted(starts.keys() & ends.keys()):
            if starts[name] > ends[name]:
                text = f"stream partition {name!r} ends before its start, {starts[name]}"
                found.append((("endSequenceNumbers",), ends[name], text))
        if found:
            raise mistakes("BoundedStreamConfig", found)
        return self


class IoConfig(SpecModel):
    """The stream, the number of tasks, and the time for which each task reads.

    A `kafka` spec without `consumerProperties` reads a topic of Penstock.
    """

    type: StreamType = "penstock"
    topic: str = ""
    consumer_properties: dict[str, SecretSetting] | None = None
    base_dir: str | None = Field(default=None, min_length=1)
    filter: str | None = Field(default=None, min_length=1)
    input_format: StreamFormat = JsonFormat()
    task_count: Count = Field(default=1, ge=1, le=1000)
    replicas: Count = Field(default=1, ge=1, le=_REPLICAS_MAX)
    server_priority_to_replicas: _PriorityCounts | None = None
    task_duration: PositiveDurationMs = 3_600_000
    start_delay: DurationMs = 5_000
    period: PositiveDurationMs = 30_000
    use_earliest_offset: Flag = False
    completion_timeout: DurationMs = 1_800_000
    late_message_rejection_period: DurationMs | None = None
    early_message_rejection_period: DurationMs | None = None
    late_message_rejection_start_date_time: TimeText | None = None
    dead_letter_topic: TopicName | None = None
    stop_task_count: Count | None = Field(default=None, ge=1)
    idle_config: IdleConfig | None = None
    auto_scaler_config: ScalerConfig | None = None
    bounded_stream_config: BoundedStreamConfig | None = None
    # Left out if not set, so that the form of existing supervisors does not change.
    emit_time_lag_metrics: Flag = Field(default=False, exclude_if=lambda value: value is False)

    unsupported: ClassVar[Mapping[str, str]] = {
        "lagAggregator": "set autoScalerConfig.lagAggregate",
        "skipOffsetGaps": "set tuningConfig.resetOffsetAutomatically",
        "stopTaskCountRatio": "set stopTaskCount",
        "topicPattern": "create one supervisor for each topic",
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {
        "lagAggregator": {"type": "default"},
        "skipOffsetGaps": False,
    }
    repeated: ClassVar[Mapping[str, str]] = {
        "stream": "topic",
        "useEarliestSequenceNumber": "useEarliestOffset",
    }
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {
        "pollTimeout": IgnoredValue.NUMBER,
        "configOverrides": IgnoredValue.OBJECT,
        "multiTopic": IgnoredValue.ANY,
    }

    @model_validator(mode="after")
    def _check_together(self) -> IoConfig:
        found = self._mistakes_in_source() + self._mistakes_in_format()
        if (
            self.late_message_rejection_period is not None
            and self.late_message_rejection_start_date_time is not None
        ):
            text = "conflicts with lateMessageRejectionPeriod: set only one of them"
            value = self.late_message_rejection_start_date_time
            found.append((("lateMessageRejectionStartDateTime",), value, text))
        if self.source == "topic" and self.dead_letter_topic == self.topic:
            text = "must be another topic: otherwise bad messages would be read again forever"
            found.append((("deadLetterTopic",), self.dead_letter_topic, text))
        if self.bounded_stream_config is not None and self.scaler is not None:
            text = "a bounded stream has a fixed number of tasks: leave out one of the two"
            found.append((("autoScalerConfig",), None, text))
        found += self._mistakes_in_priorities()
        if found:
            raise mistakes("IoConfig", found)
        return self

    @model_validator(mode="after")
    def _count_replicas(self) -> IoConfig:
        """Set or check the number of replicas by the priorities of replicas."""
        if self.server_priority_to_replicas is None:
            return self
        count = sum(self.server_priority_to_replicas.values())
        return self if count == self.replicas else self.model_copy(update={"replicas": count})

    def _mistakes_in_priorities(self) -> Found:
        counts = self.server_priority_to_replicas
        if counts is None:
            return []
        total = sum(counts.values())
        if not 1 <= total <= _REPLICAS_MAX:
            text = f"specifies {total} replicas in all, which must be 1 to {_REPLICAS_MAX}"
            return [(("serverPriorityToReplicas",), None, text)]
        if "replicas" in self.model_fields_set and self.replicas != total:
            text = f"is {self.replicas}, but serverPriorityToReplicas specifies {total} in all:"
            return [(("replicas",), self.replicas, f"{text} leave replicas out")]
        return []

    def _mistakes_in_source(self) -> Found:
        found: Found = []
        fields = {
            "topic": self.topic or None,
            "consumerProperties": self.consumer_properties,
            "baseDir": self.base_dir,
            "filter": self.filter,
        }
        allowed = {
            "topic": {"topic"},
            "kafka": {"topic", "consumerProperties"},
            "folder": {"baseDir", "filter"},
        }[self.source]
        for name, value in fields.items():
            if value is not None and name not in allowed:
                text = f"has no meaning for {self.type}: leave it out"
                if self.type == "kafka":
                    text = "is a field of folder: leave it out, or set the type folder"
                found.append(((name,), str(value), text))
        if self.source == "folder":
            if self.base_dir is None:
                found.append((("baseDir",), None, "is required: name the folder"))
            return found
        if not self.topic:
            found.append((("topic",), self.topic, "is required"))
        elif text := self._mistake_in_topic():
            found.append((("topic",), self.topic, text))
        servers = (self.consumer_properties or {}).get("bootstrap.servers")
        if self.source == "kafka" and not (isinstance(servers, str) and servers):
            text = 'needs "bootstrap.servers", such as "localhost:9092"'
            found.append((("consumerProperties",), None, text))
        found.extend(
            (("consumerProperties", name), value, MASK_REMEDY)
            for name, value in (self.consumer_properties or {}).items()
            if value == MASK
        )
        return found

    def _mistakes_in_format(self) -> Found:
        format_ = self.input_format
        if not isinstance(format_, KafkaFormat):
            return [(("inputFormat", *at), v, why) for at, v, why in mistakes_in_message(format_)]
        if self.source != "folder":
            return []  # The format validates its own fields.
        text = "lines of files have no keys, headers or times: set the format of the line itself"
        return [(("inputFormat", "type"), format_.type, text)]

    def _mistake_in_topic(self) -> str:
        if self.source == "topic":
            return name_mistake(self.topic, may_be_ephemeral=False)
        if _KAFKA_TOPIC.fullmatch(self.topic) and self.topic not in {".", ".."}:
            return ""
        return mistake_text(self.topic, "topic", _KAFKA_TOPIC_MAX)

    @property
    def source(self) -> Literal["topic", "kafka", "folder"]:
        """The kind of stream: a topic of Penstock, Kafka, or a folder of growing files."""
        if self.type == "folder":
            return "folder"
        has_servers = self.consumer_properties is not None
        return "kafka" if self.type == "kafka" and has_servers else "topic"

    @property
    def record_format(self) -> KafkaFormat | None:
        """The format if other parts of a record than its value become columns; None otherwise."""
        return self.input_format if isinstance(self.input_format, KafkaFormat) else None

    @property
    def delimited(self) -> CsvFormat | TsvFormat | None:
        """The format of messages, or values of records, as delimited text; None for JSON."""
        format_: StreamFormat = self.input_format
        if isinstance(format_, KafkaFormat):
            format_ = format_.value_format
        return format_ if isinstance(format_, CsvFormat | TsvFormat) else None

    @property
    def stream(self) -> str:
        """The name of the stream for users: topic, or folder."""
        return self.topic or self.base_dir or ""

    @property
    def server_priorities(self) -> tuple[int, ...]:
        """The priority of each replica of a group, the highest first; 0 if not specified."""
        counts = self.server_priority_to_replicas
        if counts is None:
            return (0,) * self.replicas
        return tuple(sorted(Counter(counts).elements(), reverse=True))

    @property
    def dead_letters(self) -> str:
        """The topic for messages that cannot be parsed."""
        if self.dead_letter_topic is not None:
            return self.dead_letter_topic
        # Names of other streams may contain characters that topic names may not.
        name = re.sub(r"[^.a-zA-Z0-9_-]+", "_", self.stream)
        return name[: 64 - len(_DEAD_LETTER_SUFFIX)] + _DEAD_LETTER_SUFFIX

    @property
    def scaler(self) -> AutoScalerConfig | CostAutoScalerConfig | None:
        """The autoscaler, if one is enabled."""
        config = self.auto_scaler_config
        return config if config is not None and config.enable_task_auto_scaler else None

    @property
    def first_task_count(self) -> int:
        """The initial number of groups: of the autoscaler, otherwise `taskCount`."""
        if self.scaler is None:
            return self.task_count
        return self.scaler.task_count_start or self.scaler.task_count_min

    @property
    def inactive_after_ms(self) -> int | None:
        """Time without a new message after which the supervisor is idle; None for never."""
        config = self.idle_config
        return config.inactive_after_millis if config is not None and config.enabled else None


class TuningConfig(SpecModel):
    """The size of segments and batches, and how many unparseable messages are tolerated."""

    type: StreamType = "penstock"
    max_rows_per_segment: Count = Field(default=5_000_000, ge=1)
    max_total_rows: Count = Field(default=20_000_000, ge=1)
    max_rows_per_persist: Count = Field(default=1_500_000, ge=1)
    max_bytes_per_persist: Count = Field(default=512 * 1024 * 1024, ge=1024)
    reset_offset_automatically: Flag = False
    report_parse_exceptions: Flag = False
    max_parse_exceptions: Count | None = Field(default=None, ge=0)
    max_saved_parse_exceptions: Count = Field(default=0, ge=0, le=10_000)
    repartition_transition_duration: DurationMs = 120_000
    # An ignored field, so it is never stored: names of tasks are derived from the other fields.
    intermediate_handoff_period: CappedDurationMs | None = Field(default=None, exclude=True)
    # Left out if not set, for the same reason.
    release_locks_on_handoff: Flag = Field(default=False, exclude_if=lambda value: value is False)
    skip_sequence_number_availability_check: Flag = Field(
        default=False, exclude_if=lambda value: value is False
    )
    log_parse_exceptions: Flag = Field(default=False, exclude_if=lambda value: value is False)
    # Only the supervisor uses it: it does not change the tasks.
    offset_fetch_period: PositiveDurationMs | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    http_timeout: AnswerTimeMs = 10_000

    unsupported: ClassVar[Mapping[str, str]] = {
        "partitionsSpec": "set maxRowsPerSegment and maxTotalRows",
    }
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {
        **WITHOUT_EFFECT,
        **dict.fromkeys(
            ("chatRetries", "chatThreads", "handoffConditionTimeout", "workerThreads"),
            IgnoredValue.NUMBER,
        ),
        **dict.fromkeys(("intermediatePersistPeriod", "shutdownTimeout"), IgnoredValue.DURATION),
    }

    @model_validator(mode="after")
    def _check_together(self) -> TuningConfig:
        found: Found = []
        if self.report_parse_exceptions and self.max_parse_exceptions:
            text = "reportParseExceptions tolerates none: leave one of the two out"
            found.append((("maxParseExceptions",), self.max_parse_exceptions, text))
        if found:
            raise mistakes("TuningConfig", found)
        return self

    @property
    def time_lag_every_ms(self) -> int:
        """Time between two measurements of the lag in time, which read the stream."""
        return self.offset_fetch_period or _TIME_LAG_EVERY_MS

    @property
    def waits_for_messages(self) -> bool:
        """Whether a task waits for missing messages; otherwise it does not start at them."""
        return self.skip_sequence_number_availability_check and not self.reset_offset_automatically

    @property
    def parse_errors_max(self) -> int | None:
        """Maximum number of unparseable messages; one more fails the task. None for unlimited."""
        return 0 if self.report_parse_exceptions else self.max_parse_exceptions
