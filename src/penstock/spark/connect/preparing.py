"""Creation of Spark's class archive ahead of time, so that the first `penstock up` is fast too.

Owns one orderly run of a Spark Connect server: start, load the classes that indexing and SQL use,
end. The JVM and `classarchive` own the archive itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from penstock.core.clock import Clock
from penstock.spark.connect.class_archive import makes_archive
from penstock.spark.connect.server import SparkServer, SparkServerOptions, prepare
from penstock.spark.connect.session import SparkSessionOptions, SparkSessions

_START_TIMEOUT_S = 120.0
# Writing the archive takes about ten seconds on two cores; no user waits for this stop.
_STOP_TIMEOUT_S = 120.0


def prepare_spark(cache_folder: Path, environment: Mapping[str, str], clock: Clock) -> bool:
    """Create the class archive if it is missing; return whether it was created.

    Raises:
        Unavailable: There is no Java, or Spark does not start.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-prepare-") as name:
        folder = Path(name)
        options = SparkServerOptions(
            run_folder=folder / "run",
            log_folder=folder / "log",
            temp_folder=folder / "tmp",
            cache_folder=cache_folder,
        )
        if not makes_archive(prepare(options, environment).argv):
            return False
        server = SparkServer(options, clock, environment)
        server.start()
        try:
            _load_classes(server.wait_ready(_START_TIMEOUT_S), str(folder / "rows"))
        finally:
            server.stop(_STOP_TIMEOUT_S)
        return True


def _load_classes(remote: str, path: str) -> None:
    sessions = SparkSessions(SparkSessionOptions(remote))
    with sessions.use() as session:
        rows = session.sql("SELECT id, id % 7 AS k, timestamp_millis(id) AS t FROM range(9)")
        rows.repartition(2, "k").sortWithinPartitions("t").write.parquet(path)
        session.read.parquet(path).createOrReplaceTempView("rows")
        session.sql("SELECT k, count(*), avg(id) FROM rows GROUP BY k ORDER BY k").toArrow()
    sessions.close()
