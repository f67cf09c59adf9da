"""Options of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits and delays of the scheduler.

    Attributes:
        threads: Maximum number of concurrent runs.
        component_threads: Maximum number of concurrent runs of one component; 0: one less than
            `threads`, so that no component can use all of them.
        lifecycle_threads: Maximum number of concurrent lifecycle methods. They have their own
            threads, so that stuck runs do not prevent stops, and starts do not delay runs.
        administrative_yield_ms: How long a component is not triggered after an unexpected
            exception.
        start_limit_ms: Maximum duration of a start; then its thread is abandoned.
        start_retry_ms: Delay before a failed start is retried.
        invalid_retry_ms: The same for an invalid component; doubles up to `start_retry_ms`.
        rest_ms: How long a component is not triggered after a run that did nothing although there
            was work; doubles up to `rest_max_ms`. An event ends the wait.
        rest_max_ms: Maximum of that delay.
        repeat_ms: How long a run may begin further sessions, if the schedule has no pause between
            two runs; 0: each session is a run. Other components wait this much longer for a thread.
    """

    threads: int = 10
    component_threads: int = 0
    lifecycle_threads: int = 4
    administrative_yield_ms: int = 1_000
    start_limit_ms: int = 60_000
    start_retry_ms: int = 30_000
    invalid_retry_ms: int = 500
    rest_ms: int = 10
    rest_max_ms: int = 1_000
    repeat_ms: int = 5

    def __post_init__(self) -> None:
        for name in ("threads", "lifecycle_threads"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{getattr(self, name)} threads: use 1 or more", place=name)
