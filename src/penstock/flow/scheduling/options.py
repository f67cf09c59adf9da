"""The bounds of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How much at once, and how long it waits for what.

    Attributes:
        threads: Runs that may go on at once.
        component_threads: Of these, how many one component may have; 0: all but one, so that none
            can take them all.
        lifecycle_threads: Methods of the life cycle that may go on at once, beside the runs: so
            that stuck runs keep nothing from being stopped, and starts keep nothing from running.
        administrative_yield_ms: How long a component is left alone after an unexpected exception.
        start_limit_ms: How long a start may take before its thread is given up.
        start_retry_ms: How long after a start that failed the next is tried.
        invalid_retry_ms: The same for a component that is not valid; doubles up to
            `start_retry_ms`.
        rest_ms: How long a component is left alone that had work and did nothing; doubles up to
            `rest_max_ms`. An event ends it.
        rest_max_ms: The longest rest.
        repeat_ms: How long a run may begin further sessions, where the schedule leaves no time
            between two runs; 0: each session is a run. Others wait so much longer for a thread.
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
                raise InvalidRequest(f"{getattr(self, name)} threads: give 1 or more", place=name)
