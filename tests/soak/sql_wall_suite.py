"""The suites of the SQL wall: random statements against a real Spark, with canaries.

`sql-wall` gives them as queries, `sql-task` as statements that write, `sql-flow` as queries of a
flow, and `sql-expression` as expressions of a spec. Each has a suite whose name ends with `-plan`,
which checks no texts, so that all that is held back is held back by the check of plans.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.spark.connect.spark_server import SparkServer, SparkServerOptions
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from tests.fuzz.sql_canaries_kit import (
    VARIABLE,
    changes,
    new_secret,
    run_statements,
    watching,
    without_text_check,
)

THREADS = 3


@contextmanager
def running_seeds(place: str) -> Iterator[object]:
    """Give what runs the statements of seeds in a place, several at once as a service does."""
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
            with watching(sessions, folder / "canaries", secret, place) as watch:

                def run(seeds: range) -> tuple[list[str], dict[str, int]]:
                    watch.counts = Counter()
                    parts = [range(seeds.start + n, seeds.stop, THREADS) for n in range(THREADS)]
                    with ThreadPoolExecutor(THREADS) as pool:
                        found = pool.map(lambda part: run_statements(watch, part), parts)
                        failures = [one for some in found for one in some]
                    failures += changes(watch, seeds)
                    return failures, dict(sorted(watch.counts.items()))

                yield run
        finally:
            sessions.close()
            server.stop()


@contextmanager
def by_plan_alone(place: str) -> Iterator[object]:
    """Give what runs the statements of seeds in a place without the check of their texts."""
    with without_text_check(), running_seeds(place) as run:
        yield run


sql_wall, sql_plan = partial(running_seeds, "query"), partial(by_plan_alone, "query")
sql_task, sql_task_plan = partial(running_seeds, "task"), partial(by_plan_alone, "task")
sql_flow, sql_flow_plan = partial(running_seeds, "flow"), partial(by_plan_alone, "flow")
sql_expression = partial(running_seeds, "expression")
sql_expression_plan = partial(by_plan_alone, "expression")
