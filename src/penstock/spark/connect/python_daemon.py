"""Spark's Python daemon with everything imported that its workers need.

Spark forks each Python worker from a daemon that has imported nothing, so each worker imports
PySpark, Arrow and Penstock again: more than a second of a core. A worker whose work raises an error
is not used again, and Spark tries that work four times, each time in a new worker. This daemon
imports all modules once, and its workers share their memory.

Owns the imports before the fork; PySpark's own daemon, which this module runs, does the rest.
Invariants: the process has only one Python thread when it forks; workers draw different random
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
    "duckdb",
    "pandas",  # PySpark's worker imports it
    "pyarrow.compute",
    "pyarrow.parquet",
    "penstock.spark.batch.stored_tables",
    "penstock.spark.batch.scan",
    "penstock.spark.batch.shuffle",
    "penstock.spark.chunk_work",
    "penstock.spark.datasource",
    "penstock.spark.messages.found_columns",
    "penstock.spark.tables.remote_reads",
    "penstock.spark.topic.source",
    "penstock.spark.spark_engine",
)


def load() -> None:
    """Import the workers' modules, share them with forks, and seed random numbers in each fork."""
    for name in _LOADED:
        importlib.import_module(name)
    os.register_at_fork(after_in_child=_reseed)
    os.register_at_fork(after_in_child=limit_this_process)
    gc.collect()
    gc.freeze()  # the collector does not write to frozen objects, so forks share their pages


def _reseed() -> None:
    from numpy import random  # noqa: PLC0415 - only where it was loaded

    # Forks inherit the state of numpy's generator; Python seeds its own generator after a fork.
    random.seed()  # noqa: NPY002 - it is that one


if __name__ == "__main__":
    from pyspark.daemon import manager

    # Daemons that only plan queries need few modules and fork few workers.
    if WORKER in sys.argv[1:]:
        load()
    manager()
