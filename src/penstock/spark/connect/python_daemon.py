"""Spark's Python daemon with everything imported that its workers need.

Spark forks each Python worker from a daemon that has imported nothing, so each worker imports
PySpark, Arrow and Penstock anew: more than a second of a core. A worker whose work raises an error
is not used again, and Spark tries that work four times, each time in a new one. Here the daemon
imports all of it once, and its workers share the memory, too.

Owns that the daemon is loaded before it forks. PySpark's own one, which this runs, does the rest.

Invariant: the process has no thread of Python's when it forks, and workers draw different random
numbers and have a memory limit (`worker_memory`).
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Final

from penstock.spark.connect.worker_memory import limit_this_process

WORKER: Final = "pyspark.worker"
# By name: the packages that do the work import this one.
_LOADED: Final = (
    WORKER,
    "pandas",  # PySpark's worker asks for it
    "pyarrow.compute",
    "pyarrow.parquet",
    "penstock.spark.batch.external_tables",
    "penstock.spark.batch.scan",
    "penstock.spark.batch.shuffle",
    "penstock.spark.chunk_work",
    "penstock.spark.datasource",
    "penstock.spark.messages.found_columns",
    "penstock.spark.tables.remote_reads",
    "penstock.spark.topic.source",
    "penstock.spark.engine",
)


def load() -> None:
    """Import what workers need, and see to it that forks share it and draw numbers of their own."""
    for name in _LOADED:
        importlib.import_module(name)
    os.register_at_fork(after_in_child=_draw_anew)
    os.register_at_fork(after_in_child=limit_this_process)
    gc.collect()
    gc.freeze()  # what is never looked at is never copied


def _draw_anew() -> None:
    from numpy import random  # noqa: PLC0415 - only where it was loaded

    # Each fork would draw the same from the one that numpy keeps; Python's own sees to itself.
    random.seed()  # noqa: NPY002 - it is that one


if __name__ == "__main__":
    from pyspark.daemon import manager

    # The daemons that only plan need less, and are asked for little.
    if WORKER in sys.argv[1:]:
        load()
    manager()
