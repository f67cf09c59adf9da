"""Task kinds that do not use the batch engine: streaming, and noop, which only sleeps."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, InvalidRequest
from penstock.indexing.engine_json import row_stats
from penstock.indexing.ports import TaskState
from penstock.indexing.task import StreamingTask, TaskResult
from penstock.indexing.task_spec import TASK_TYPE, NoopTaskSpec, StreamTaskSpec
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState, TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue

    from penstock.core.clock import Clock
    from penstock.indexing.task.streaming_state import TaskOptions, TaskPorts
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.indexing.task_spec import TaskSpec

STOPPED: Final = "the task was stopped with its process and cannot continue: submit it again"
_REPORT_WAIT_S: Final = 5.0


class StreamingPeonTask:
    """A streaming task as a `PeonTask`."""

    def __init__(
        self,
        spec: StreamTaskSpec,
        folder: TaskFolder,
        ports: TaskPorts,
        options: TaskOptions | None,
    ) -> None:
        self.control = StreamingTask(spec, folder, ports, options)
        self._lanes = ports.lanes
        self._last_counts: dict[str, int] = {}

    def run(self) -> TaskResult:
        """Run until the task ends or is stopped."""
        try:
            return self.control.run()
        finally:
            self._last_counts = self.control.counts
            self._lanes.close()

    def stop(self) -> None:
        """Make `run` return; the task continues from its folder."""
        self.control.stop()

    def report(self) -> IngestionReport:
        """Return row counts, samples of unparseable rows, and averages."""
        averages: dict[str, JsonValue] = {}
        try:
            report = self.control.report().result(_REPORT_WAIT_S)
        except (
            Closed,
            CancelledError,
            TimeoutError,
        ):  # its loop has not started, or has ended
            counts = self._last_counts
            saved = self.control.unparseable
        else:
            counts = dict(report.counts)
            saved = tuple(dict(sample) for sample in report.unparseable)
            averages = {span: dict(row_stats(rates)) for span, rates in report.averages.items()}
        result = self.control.result
        state = IngestionState.COMPLETED if result.state.complete else IngestionState.BUILD_SEGMENTS
        return IngestionReport(
            state,
            {"buildSegments": row_stats(counts)},
            {"buildSegments": [dict(sample) for sample in saved]},
            error=result.error,
            more={"movingAverages": {"buildSegments": averages}},
        )


def streaming_kind(
    make_ports: Callable[[StreamTaskSpec], TaskPorts], options: TaskOptions | None = None
) -> TaskKind:
    """Return the `TaskKind` of streaming tasks.

    Args:
        make_ports: Creates the ports of a task.
        options: Options of every task; None means the defaults.
    """

    def make(spec: TaskSpec, folder: TaskFolder) -> StreamingPeonTask:
        if not isinstance(spec, StreamTaskSpec):
            raise InvalidRequest(f"task {spec.id} has the type {spec.type}, not a streaming type")
        return StreamingPeonTask(spec, folder, make_ports(spec), options)

    return TaskKind(TASK_TYPE, make, restorable=True)


class NoopTask:
    """A task that sleeps. The mutex of the condition guards one flag, set from another thread."""

    def __init__(self, run_time_ms: int, clock: Clock) -> None:
        self._run_time_ms = run_time_ms
        self._clock = clock
        self._condition = threading.Condition()
        self._stopped = False
        self._done = False

    def run(self) -> TaskResult:
        """Sleep for the time in its spec."""
        until_s = self._clock.monotonic_s() + self._run_time_ms / 1000
        with self._condition:
            while not self._stopped:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    self._done = True
                    return TaskResult(TaskState.SUCCESS)
                self._clock.wait(self._condition, left_s)
        return TaskResult(TaskState.FAILED, STOPPED)

    def stop(self) -> None:
        """End the sleep."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def report(self) -> IngestionReport:
        """Return an empty report."""
        state = IngestionState.COMPLETED if self._done else IngestionState.BUILD_SEGMENTS
        return IngestionReport(state)


def noop_kind(clock: Clock) -> TaskKind:
    """Return the `TaskKind` of noop tasks."""

    def make(spec: TaskSpec, _folder: TaskFolder) -> NoopTask:
        if not isinstance(spec, NoopTaskSpec):
            raise InvalidRequest(f"task {spec.id} has the type {spec.type}, not noop")
        return NoopTask(spec.run_time, clock)

    return TaskKind("noop", make)
