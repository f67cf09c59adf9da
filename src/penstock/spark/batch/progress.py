"""Progress of Spark's work for a call, reported while it runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

    from penstock.indexing.batch.engine import EngineProgress


class _Teller:
    """Sums up the pieces of work of all stages, which Spark reports repeatedly."""

    def __init__(self, progress: EngineProgress) -> None:
        self._progress = progress
        self._thread = threading.get_ident()
        self._stages: dict[int, tuple[int, int]] = {}

    def __call__(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Handle a report of Spark, which arrives in the thread of the query."""
        del inflight_tasks, operation_id, done
        if threading.get_ident() != self._thread:
            return
        for stage in stages or ():
            self._stages[stage.stage_id] = (stage.num_completed_tasks, stage.num_tasks)
        finished = sum(completed for completed, _ in self._stages.values())
        self._progress(finished, sum(total for _, total in self._stages.values()))


@contextlib.contextmanager
def told(spark: SparkSession, progress: EngineProgress | None) -> Iterator[None]:
    """Report the progress of this thread's jobs while the block runs.

    Only Spark Connect reports progress; other Spark sessions do not.
    """
    register = getattr(spark, "registerProgressHandler", None)
    if progress is None or register is None or not hasattr(spark, "client"):
        yield
        return
    # Spark accepts any callable, although its type hint requires a base class.
    teller = cast("ProgressHandler", _Teller(progress))
    spark.registerProgressHandler(teller)
    try:
        yield
    finally:
        spark.removeProgressHandler(teller)
