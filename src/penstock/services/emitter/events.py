"""Events: measured values and alerts.

Owns their fields. The emitter adds the process that they come from (`emitter`).
"""

from __future__ import annotations

import enum
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.errors import InvalidRequest

# The fields that events and processes fill themselves; users' dimensions have other names.
_OWN_FIELDS = frozenset(
    {
        "description",
        "feed",
        "host",
        "metric",
        "service",
        "severity",
        "timestamp",
        "value",
        "version",
    }
)

_TRACE_CHARACTERS_MAX = 16_000


class Severity(enum.Enum):
    """Severity of an alert."""

    ANOMALY = "anomaly"
    COMPONENT_FAILURE = "component-failure"
    SERVICE_FAILURE = "service-failure"
    DEPRECATED = "deprecated"


class Event(Protocol):
    """Event that an emitter accepts."""

    @property
    def feed(self) -> str:
        """Return the stream of events to which it belongs, by which it may be routed."""
        ...

    @property
    def created_ms(self) -> int | None:
        """Return when it was made; None: when it is emitted."""
        ...

    def body(self) -> dict[str, object]:
        """Return its own fields, without feed, time and process."""
        ...


@dataclass(frozen=True, slots=True)
class MetricEvent:
    """One measured value.

    Attributes:
        metric: Its name.
        value: The measured value.
        dimensions: Each a text, a number or a list of texts.
        feed: The stream of events.
        created_ms: When it was measured; None: now.

    Raises:
        InvalidRequest: The name is empty, the value is not finite, or a dimension has no name, no
            value, or the name of a field of every event.
    """

    metric: str
    value: float
    dimensions: Mapping[str, str | float | Sequence[str]] = field(default_factory=dict)
    feed: str = "metrics"
    created_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.metric:
            raise InvalidRequest("a metric needs a name")
        if not math.isfinite(self.value):
            raise InvalidRequest(f"{self.metric}: {self.value} is not finite: leave it out")
        for name, value in self.dimensions.items():
            if not name or name in _OWN_FIELDS:
                raise InvalidRequest(f"{self.metric}: {name!r} cannot name a dimension")
            if value is None:
                raise InvalidRequest(
                    f"{self.metric}: dimension {name!r} has no value: leave it out"
                )

    def body(self) -> dict[str, object]:
        """Return its own fields."""
        dimensions = {
            name: value if isinstance(value, str | int | float) else list(value)
            for name, value in self.dimensions.items()
        }
        return {**dimensions, "metric": self.metric, "value": self.value}


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """An event that an administrator should examine.

    Attributes:
        description: Description of the problem.
        severity: Its severity.
        data: Details that help to find the cause.
        feed: The stream of events.
        created_ms: When it was noticed; None: now.
    """

    description: str
    severity: Severity = Severity.COMPONENT_FAILURE
    data: Mapping[str, str] = field(default_factory=dict)
    feed: str = "alerts"
    created_ms: int | None = None

    @classmethod
    def of_error(
        cls,
        description: str,
        error: BaseException,
        severity: Severity = Severity.COMPONENT_FAILURE,
        data: Mapping[str, str] | None = None,
    ) -> AlertEvent:
        """Return an alert for an exception, with its trace up to a bound."""
        trace = "".join(traceback.format_exception(error))
        about_error = {
            "exceptionType": type(error).__name__,
            "exceptionMessage": str(error),
            "exceptionStackTrace": trace[:_TRACE_CHARACTERS_MAX],
        }
        return cls(description, severity, {**(data or {}), **about_error})

    def body(self) -> dict[str, object]:
        """Return its own fields."""
        return {
            "severity": self.severity.value,
            "description": self.description,
            "data": dict(self.data),
        }
