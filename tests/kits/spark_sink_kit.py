"""A streaming query of Spark into a datasource, whose driver is killed again and again.

The driver is a process of its own: this module as a program. It reads a folder of Parquet files,
one in each batch, and writes their rows with format `penstock` until all are written.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.clock import SystemClock, pause

ROWS_PER_BATCH = 40
DATASOURCE = "kills"
_START_US = 1_767_225_600_000_000  # 2026-01-01
_MINUTE_US = 60_000_000
_POLL_S = 0.05
_PATIENCE_S = 300.0
"""Longest time without another batch."""


class KilledQuery:
    """A query over a folder of files, and the process that runs it.

    Args:
        url: The router.
        folder: Folder for the source, the checkpoint and the log of the driver.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._source = folder / "source"
        self._source.mkdir(parents=True)
        self._commits = folder / "checkpoint" / "commits"
        self._files = 0
        self.kills = 0

    def run(self, batches: int, kills: int, seed: int) -> None:
        """Write more batches while the driver is killed, each time at another moment.

        Raises:
            TimeoutError: The query makes no progress.
        """
        chance = random.Random(seed)
        first, last = self._files, self._files + batches
        for number in range(first, last):
            self._write(number)
        self._files = last
        # A kill comes while some batch runs, at any moment of it.
        moments = sorted(chance.sample(range(first, last), kills))
        for moment in moments:
            with self._driver() as driver:
                self._wait_for(driver, moment)
                pause(SystemClock(), chance.random() * 2)
                self.kills += 1
        with self._driver() as driver:
            self._wait_for(driver, last)
            driver.wait(_PATIENCE_S)

    def expected(self) -> dict[str, int]:
        """Return what a query over all rows that were written gives."""
        rows = self._files * ROWS_PER_BATCH
        return {"rows": rows, "different": rows, "sum": rows * (rows - 1) // 2}

    def _write(self, number: int) -> None:
        ids = range(number * ROWS_PER_BATCH, (number + 1) * ROWS_PER_BATCH)
        times = pa.array([_START_US + one * _MINUTE_US for one in ids], pa.int64())
        table = pa.table({"__time": times.cast(pa.timestamp("us", tz="UTC")), "id": list(ids)})
        path = self._source / f"{number:06}.parquet"
        pq.write_table(table, path)
        # Spark reads files in the order of these times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def _committed(self) -> int:
        if not self._commits.exists():
            return 0
        numbers = [int(path.name) for path in self._commits.iterdir() if path.name.isdigit()]
        return max(numbers, default=-1) + 1

    def _wait_for(self, driver: subprocess.Popen[bytes], batches: int) -> None:
        done, since_s = self._committed(), time.monotonic()
        while done < batches:
            has_ended = driver.poll() is not None  # before the last look at what it committed
            before, done = done, self._committed()
            if done > before:
                since_s = time.monotonic()
            elif has_ended or time.monotonic() > since_s + _PATIENCE_S:
                shown = (self._folder / "driver.log").read_text(errors="replace")[-4_000:]
                raise TimeoutError(f"{done} of {batches} batches, then: {shown}")
            pause(SystemClock(), _POLL_S)

    @contextlib.contextmanager
    def _driver(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the driver; at the end its whole group of processes is killed."""
        command = [sys.executable, "-m", __name__, self._url, str(self._folder)]
        # Otherwise Spark starts the `python3` of the path, which may lack Penstock's packages.
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        with (self._folder / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            try:
                yield driver
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()


def drive(url: str, folder: str) -> None:
    """Run the query until all files are written."""
    # Imported here: only the driver needs Spark.
    from pyspark.sql import SparkSession

    import penstock.spark

    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    penstock.spark.register(spark)
    rows = spark.readStream.schema("__time timestamp, id bigint").option("maxFilesPerTrigger", "1")
    writer = rows.parquet(f"{folder}/source").writeStream.format("penstock")
    writer = writer.option("url", url).option("datasource", DATASOURCE)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    drive(*sys.argv[1:])
