"""The suite `fast-path`: generated statements, answered by the fast path and by a real Spark."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.spark.connect.spark_server import SparkServer, SparkServerOptions
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from tests.kits.fast_comparison_kit import DATA_EVERY, SETTINGS, WITHOUT_CODE, compare_seeds

THREADS = 2
# One datasource in twenty is compared with a Spark that makes code, and reads the files each time.
CODE_EVERY = 20


@contextmanager
def fast_path() -> Iterator[object]:
    """Give what compares the statements of seeds."""
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
        folder = Path(name)
        options = SparkServerOptions(
            folder / "run", folder / "log", folder / "tmp", folder / "cache",
            master="local[2]", driver_memory="2g", token="secret",
            # Both compilers of the JVM: after some thousand statements its planner takes a quarter
            # of the time that it takes with the first one alone.
            java_options=("-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=400m"),
        )  # fmt: skip
        server = SparkServer(options, SystemClock(), dict(os.environ))
        server.start()
        remote = SparkSessionOptions(server.wait_ready(240))
        sessions = [SparkSessions(remote) for _ in range(2 * THREADS)]
        try:
            for number, one in enumerate(sessions):
                more = WITHOUT_CODE if number < THREADS else {}
                for key, value in {**SETTINGS, **more}.items():
                    one.get().conf.set(key, value)

            def part(number: int, seeds: range) -> tuple[list[str], Counter[str]]:
                failures: list[str] = []
                counts: Counter[str] = Counter()
                step = THREADS * DATA_EVERY
                for start in range(seeds.start + number * DATA_EVERY, seeds.stop, step):
                    has_code = start // DATA_EVERY % CODE_EVERY == CODE_EVERY - 1
                    session = sessions[number + THREADS * has_code].get()
                    some = range(start, min(start + DATA_EVERY, seeds.stop))
                    with tempfile.TemporaryDirectory(dir=folder) as rows:
                        found, more = compare_seeds(session, Path(rows), some, is_kept=not has_code)
                    failures += found
                    counts += more
                return failures, counts

            def run(seeds: range) -> tuple[list[str], dict[str, int]]:
                with ThreadPoolExecutor(THREADS) as pool:
                    found = list(pool.map(part, range(THREADS), [seeds] * THREADS))
                counts = sum((more for _, more in found), Counter[str]())
                failures = [one for some, _ in found for one in some]
                return failures, dict(sorted(counts.items()))

            yield run
        finally:
            for one in sessions:
                one.close()
            server.stop()
