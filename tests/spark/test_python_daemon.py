"""Workers of Spark begin with everything imported: each failure of some work costs four of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORKS = """
import os, sys, threading
from penstock.spark.connect import python_daemon
before = {"numpy", "pyarrow", "pyspark"} & sys.modules.keys()
python_daemon.load()
print(before, threading.active_count(), flush=True)
import numpy.random, random
for _ in range(2):
    if (pid := os.fork()) == 0:
        print(numpy.random.random(), random.random(), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.spark
def test_a_new_worker_has_all_that_it_needs(spark: SparkSession) -> None:
    wanted = ("penstock.spark.chunk_work", "penstock.spark.batch.scan", "pandas")

    def loaded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [name for name in wanted if name in sys.modules]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})

    def fails(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError(list(batches))

    rows = spark.range(0, 1, 1, 1)
    with pytest.raises(Exception, match="ValueError"):
        rows.mapInArrow(fails, "found string").collect()
    [row] = rows.mapInArrow(loaded, "found string").collect()
    assert tuple(json.loads(row.found)) == wanted


def test_it_has_no_threads_and_its_forks_draw_other_numbers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=300
    )
    first, *draws = done.stdout.splitlines()
    assert first == "set() 1"
    numbers = [number for line in draws for number in line.split()]
    assert len(set(numbers)) == len(numbers) == 4
