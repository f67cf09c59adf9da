"""Events of a peon's task: counts of rows while it runs, and its end.

Owns the difference between two reads of the task's report. Every event of the process has the
task's fields already.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.core.threads import OnDeath, OwnedThread
from penstock.indexing.ports import TaskState
from penstock.indexing.task import TaskResult
from penstock.indexing.task_spec import TaskSpec
from penstock.indexing.worker.peon_task import PeonTask
from penstock.services.emitter.emitter import Emitter, send_alert
from penstock.services.emitter.events import MetricEvent, Severity

logger = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 5.0
# Rows of the other phase are the same rows, counted in an earlier read.
_PHASE: Final = "buildSegments"
_OTHER_NAMES: Final = {"processedBytes": "ingest/input/bytes"}


def task_dimensions(spec: TaskSpec) -> dict[str, object]:
    """Return the fields of the task for every event of its process, by Druid's names."""
    return {
        "taskId": spec.id,
        "taskType": spec.type,
        "groupId": spec.group_name,
        "dataSource": spec.datasource,
    }


class PeonEvents:
    """Emits the counts of a task periodically, on a thread of its own.

    The mutex of the condition guards the counts of the last read.

    Args:
        task: The task.
        emitter: Where events go.
        clock: Time.
        before: Counts that an earlier process of the task has emitted.
    """

    def __init__(
        self,
        task: PeonTask,
        emitter: Emitter,
        clock: Clock,
        before: Mapping[str, int] | None = None,
    ) -> None:
        self._task = task
        self._emitter = emitter
        self._clock = clock
        self._changed = threading.Condition()
        self._last = dict(before or {})
        self._thread = OwnedThread("task events", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, result: TaskResult) -> None:
        """Emit the remaining counts and the task's end, and stop."""
        self._thread.end(self._changed, _STOP_TIMEOUT_S)
        self.emit_counts()
        if result.state is TaskState.FAILED:
            text = f"the task failed: {result.error}"
            send_alert(self._emitter, logger, text, Severity.COMPONENT_FAILURE)

    def emit_counts(self) -> None:
        """Emit what was counted since the last read."""
        try:
            counts = dict(self._task.report().row_stats.get(_PHASE, {}))
        except PenstockError as error:
            logger.info("the task's counts cannot be read: %s", error)
            return
        with self._changed:
            grown = {name: n - self._last.get(name, 0) for name, n in counts.items()}
            self._last = counts
        for name, number in grown.items():
            if number > 0:
                metric = _OTHER_NAMES.get(name, f"ingest/events/{name}")
                self._emitter.emit(MetricEvent(metric, number))

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._thread.is_end_expected:
                    self._clock.wait(self._changed, PERIOD_S)
                if self._thread.is_end_expected:
                    return
            self.emit_counts()
