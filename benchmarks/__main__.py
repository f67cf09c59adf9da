"""`make bench`: every benchmark in turn, one table. Arguments name the ones to run.

Each benchmark runs in a process of its own, so that its memory and its speed do not depend on what
ran before it.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from benchmarks.table import print_rows, run_benchmark

ALL = (
    "mailbox",
    "storage",
    "metadata",
    "broker",
    "publishing",
    "access_publishing",
    "access_queries",
    "queries",
    "scale",
    "connections",
    "ingest",
    "indexing",
    "published",
    "sink",
    "projections",
    "skipping",
    "statement_checks",
    "query_view",
    "latency",
    "recovery",
    "flow",
    "flowqueue",
    "flowscheduling",
    "flowsessions",
    "flow_provenance",
    "flowrepository",
    "taskstart",
    "sessions",
    "controlplane",
    "duties",
    "overlordapi",
    "locks",
    "taskqueue",
    "timeline",
    "segment_timeline",
    "open_tables",
    "traces",
    "console",
    "access",
)


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all, and print one table."""
    if unknown := sorted(set(names) - set(ALL)):
        sys.exit(f"unknown benchmark {', '.join(unknown)}: use {', '.join(ALL)}")
    rows = []
    for name in names or ALL:
        print(f"running benchmarks/{name}.py …", file=sys.stderr, flush=True)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            rows += process.submit(run_benchmark, name).result()
    print_rows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
