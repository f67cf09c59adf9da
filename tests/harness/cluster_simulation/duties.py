"""Duties of a simulated overlord: the real ones, with the waits of fibers."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.indexing.overlord.compaction.compaction_duty import CompactionDuty
from penstock.indexing.overlord.duties.janitor import JanitorDuty
from penstock.indexing.overlord.duties.retention import RetentionDuty
from penstock.indexing.overlord.duties.unused_segments import UnusedSegmentsDuty
from tests.harness.cluster_simulation.network import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.indexing.overlord.duties.duty import Duty, DutyTools
    from tests.harness.cluster_simulation.stores import SimDeepStore
    from tests.harness.cluster_simulation.world import Process

T = TypeVar("T")

RETENTION: Final = "duty retention"
_BUFFER_MS: Final = 1_000


def duties_of(
    process: Process, store: SimDeepStore, tools: DutyTools, rules: Callable[[], int]
) -> list[Duty]:
    """Return the duties of a term.

    Args:
        process: The overlord's process.
        store: Deep storage, with the overlord's faults.
        tools: Dependencies of the duties.
        rules: Returns the version of the rules in force.
    """
    waiting = replace(
        tools,
        submit=lambda task: _Awaited(process, tools.submit(task)),
        slots=lambda: _Awaited(process, tools.slots()),
    )
    duties: list[Duty] = [
        JanitorDuty(
            tools.metadata,
            store,
            tools.clock,
            interval_ms=30_000,
            orphan_age_ms=60_000,
            marks_after_ms=30_000,
        ),
        _Retention(process, RetentionDuty(tools.metadata, tools.clock, 15_000), rules),
        CompactionDuty(waiting, 10_000),
    ]
    if process.world.chance.deletes_unused:
        duties.append(
            UnusedSegmentsDuty(tools, store, _BUFFER_MS, interval_ms=3_000, clocks_apart_ms=0)
        )
    return duties


class _Retention:
    """The duty, whose commits record which rules were in force when it began."""

    def __init__(self, process: Process, inner: RetentionDuty, rules: Callable[[], int]) -> None:
        self._process = process
        self._inner = inner
        self._rules = rules
        self.name: Final = inner.name
        self.interval_ms: Final = inner.interval_ms

    def run(self) -> None:
        """Do one round."""
        fiber = self._process.world.current
        assert fiber is not None, "duties run on lanes"
        before, fiber.acting = fiber.acting, f"{RETENTION} {self._rules()}"
        try:
            self._inner.run()
        finally:
            fiber.acting = before


class _Awaited(Future[T]):
    """Answer of a mailbox, for a fiber: other fibers run while it waits."""

    def __init__(self, process: Process, answer: Future[T]) -> None:
        super().__init__()
        self._process = process
        self._answer = answer

    def result(self, timeout: float | None = None) -> T:
        """Return the result. Raises Unavailable if it does not arrive in time."""
        wait_for(self._process, self._answer.done, timeout or 30.0)
        return self._answer.result()

    def cancel(self) -> bool:
        """Cancel the wait."""
        return self._answer.cancel()
