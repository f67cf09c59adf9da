"""What a peon tells of its task: counts of rows while it runs, and how it ended.

Owns the difference between two looks at the task's report; whose task it is stands in every event
of the process already.
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
from penstock.indexing.taskspec import TaskSpec
from penstock.indexing.worker.peontask import PeonTask
from penstock.services.emitting.alerts import send_alert
from penstock.services.emitting.emitter import Emitter
from penstock.services.emitting.events import MetricEvent, Severity

logger = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 5.0
# Rows of the other phase are those of this one, read once before.
_PHASE: Final = "buildSegments"
_OTHER_NAMES: Final = {"processedBytes": "ingest/input/bytes"}


def task_dimensions(spec: TaskSpec) -> dict[str, object]:
    """Return what every event of a task's process says of the task, by Druid's names."""
    return {
        "taskId": spec.id,
        "taskType": spec.type,
        "groupId": spec.group_name,
        "dataSource": spec.datasource,
    }


class PeonEvents:
    """Emits what a task has counted, once in a while, by a thread of its own.

    The mutex of the condition guards one flag and the counts of the last look.

    Args:
        task: The task.
        emitter: Where events go.
        clock: Time.
        before: What an earlier process of the task counted, and told already.
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
        self._stopped = False
        self._last = dict(before or {})
        self._thread = OwnedThread("task events", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, result: TaskResult) -> None:
        """Emit what was counted since, and how the task ended, and end."""
        self._thread.expect_end()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_STOP_TIMEOUT_S)
        self.look()
        if result.state is TaskState.FAILED:
            text = f"the task failed: {result.error}"
            send_alert(self._emitter, logger, text, Severity.COMPONENT_FAILURE)

    def look(self) -> None:
        """Emit what was counted since the last look."""
        try:
            counts = dict(self._task.report().row_stats.get(_PHASE, {}))
        except PenstockError as error:
            logger.info("the task cannot say what it has counted: %s", error)
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
                if not self._stopped:
                    self._clock.wait(self._changed, PERIOD_S)
                if self._stopped:
                    return
            self.look()
