"""`make bench`: every benchmark in turn, one table. Arguments name the ones to run."""

from __future__ import annotations

import importlib
import sys

from benchmarks.table import print_rows

ALL = (
    "mailbox",
    "storage",
    "metadata",
    "broker",
    "publishing",
    "scale",
    "connections",
    "ingest",
    "indexing",
    "published",
    "projections",
    "latency",
    "recovery",
    "flow",
    "flowqueue",
    "flowscheduling",
    "flowsessions",
    "flowrepository",
    "taskstart",
    "sessions",
    "controlplane",
    "duties",
    "overlordapi",
    "locks",
    "taskqueue",
    "timeline",
)


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all, and print one table."""
    rows = []
    for name in names or ALL:
        print(f"running benchmarks/{name}.py …", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run()
    print_rows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
