"""The suites `sql-wall` and `sql-plan`: random statements against a real Spark, with canaries.

The second one checks no texts, so that all that is held back is held back by the check of plans.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

from sql_canaries import VARIABLE, new_secret, run_seeds, watching, without_text_check

from penstock.core.clock import SystemClock
from penstock.spark.connect.server import SparkServer, SparkServerOptions
from penstock.spark.connect.session import SparkSessionOptions, SparkSessions

THREADS = 3


@contextmanager
def sql_wall() -> Iterator[object]:
    """Give what runs the statements of seeds, several at once as a service does."""
    secret = new_secret()
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
        folder = Path(name)
        options = SparkServerOptions(
            folder / "run", folder / "log", folder / "tmp", folder / "cache",
            master="local[2]", driver_memory="1g", token=secret,
        )  # fmt: skip
        server = SparkServer(options, SystemClock(), {**os.environ, VARIABLE: secret})
        server.start()
        sessions = SparkSessions(SparkSessionOptions(server.wait_ready(240)))
        try:
            with watching(sessions, folder / "canaries", secret) as watch:

                def run(seeds: range) -> tuple[list[str], dict[str, int]]:
                    watch.counts = Counter()
                    parts = [range(seeds.start + n, seeds.stop, THREADS) for n in range(THREADS)]
                    with ThreadPoolExecutor(THREADS) as pool:
                        found = pool.map(lambda part: run_seeds(watch, part), parts)
                        failures = [one for some in found for one in some]
                    return failures, dict(sorted(watch.counts.items()))

                yield run
        finally:
            sessions.close()
            server.stop()


@contextmanager
def sql_plan() -> Iterator[object]:
    """Give what runs the statements of seeds without the check of their texts."""
    with without_text_check(), sql_wall() as run:
        yield run
