"""How far Spark is with a call, told while it works."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

    from penstock.indexing.batch.engine import Progress


class _Teller:
    """Adds up the pieces of work of all stages; stages are seen again as they go on."""

    def __init__(self, progress: Progress) -> None:
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
        """Take Spark's word; it comes in the thread whose query it is about."""
        del inflight_tasks, operation_id, done
        if threading.get_ident() != self._thread:
            return
        for stage in stages or ():
            self._stages[stage.stage_id] = (stage.num_completed_tasks, stage.num_tasks)
        finished = sum(completed for completed, _ in self._stages.values())
        self._progress(finished, sum(total for _, total in self._stages.values()))


@contextlib.contextmanager
def told(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Tell how far the jobs of this thread are while the block runs.

    Only Spark Connect tells; with another Spark session nothing is told.
    """
    register = getattr(spark, "registerProgressHandler", None)
    if progress is None or register is None or not hasattr(spark, "client"):
        yield
        return
    # Spark calls whatever can be called; its type asks for a base class all the same.
    teller = cast("ProgressHandler", _Teller(progress))
    spark.registerProgressHandler(teller)
    try:
        yield
    finally:
        spark.removeProgressHandler(teller)
