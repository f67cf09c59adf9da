"""Page of the error codes, from `data/errors.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.core.errors import Dependency
from penstock.services.cli import exit_codes
from reference.markdown import data, head, sentence, table

_ABOUT: Final = """\
Every error code of the HTTP API, of the broker, and of NSQ's protocol, with its meaning and what to
do. The text of an error says what is wrong, where, and what to do; programs should use the code.
"""
_DEPENDENCIES: Final = {
    Dependency.STORAGE: "Deep storage does not answer, or a file in it is missing.",
    Dependency.METADATA: "The metadata database does not answer, is full, or stays busy.",
    Dependency.SPARK: "Spark does not run or does not answer.",
    Dependency.BROKER: "The broker does not answer.",
    Dependency.STREAM: "Kafka does not answer.",
    Dependency.OVERLORD: "The overlord does not answer, or another one became the leader.",
    Dependency.WORKER: "A worker does not answer.",
    Dependency.DISK: "The local disk is full or fails.",
    Dependency.INPUT: "The source of a task's input does not answer.",
    Dependency.OTHER: "No dependency is named.",
}


def page() -> str:
    """Return docs/reference/errors.md."""
    lines = [head("Errors", "the table of error codes", _ABOUT)]
    for group in data("errors"):
        lines += ["", f"## {group['title']}", "", group["about"]]
        heads = ("code", "status", "meaning", "what to do")
        rows = [
            (f"`{code}`", status, sentence(meaning), sentence(remedy))
            for code, (status, meaning, remedy) in group["codes"].items()
        ]
        # NSQ's errors over TCP have no status.
        used = [0, 2, 3] if group["id"] == "tcp" else [0, 1, 2, 3]
        shown = [[row[number] for number in used] for row in rows]
        lines += table([heads[number] for number in used], shown)
    return "\n".join((*lines, *_dependencies())) + "\n"


def _dependencies() -> Iterator[str]:
    yield from ("", "## Dependencies", "")
    yield (
        "`dependency` of an error, `waits` of `/status/ready`, and the label `dependency` of"
        " metrics have these values. Commands end with exit code"
        f" {exit_codes.NOT_REACHABLE} if no server answers them."
    )
    rows = [(f"`{one.value}`", _DEPENDENCIES[one]) for one in Dependency]
    yield from table(("dependency", "meaning"), rows)
