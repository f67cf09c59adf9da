"""Batches of a streaming query of Spark as a suite of `make soak`: every tenth one is killed.

make soak ARGS="spark-sink --total 1000"

A case is a batch. The driver of the query is killed with all of its processes while batches run,
and begins again from its checkpoint. Penstock is a real server. After each block all rows are
counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.testing.server import LocalPenstock
from tests.kits.spark_sink_kit import DATASOURCE, KilledQuery

KILLS_PER_BATCH: Final = 0.1
_QUERY: Final = (
    f"SELECT count(*) AS n, count(DISTINCT id) AS different, sum(id) AS total FROM {DATASOURCE}"
)


@contextmanager
def spark_sink() -> Iterator[Callable[[range], tuple[list[str], dict[str, int]]]]:
    """Give what runs a number of batches."""
    with tempfile.TemporaryDirectory() as folder, LocalPenstock() as server:
        query = KilledQuery(server.api_url, Path(folder, "query"))

        def run(batches: range) -> tuple[list[str], dict[str, int]]:
            kills = round(len(batches) * KILLS_PER_BATCH)
            query.run(len(batches), kills, batches.start)
            (row,) = server.sql(_QUERY)
            found = {"rows": row["n"], "different": row["different"], "sum": row["total"]}
            wanted = query.expected()
            failures = [] if found == wanted else [f"found {found}, expected {wanted}"]
            return failures, {"kills": kills, "rows": int(str(row["n"]))}

        yield run
