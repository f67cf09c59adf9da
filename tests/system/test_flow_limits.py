"""The FlowFile repository and a queue under real limits: memory, file descriptors, threads.

Whatever a limit made fail, a start finds the FlowFiles that were acknowledged, each with its
content, and no other; unless the repository has stopped, of which the last commit may exist.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.system.flow_limits import open_folder
from tests.system.limit_kit import check_refused, limit_folder, limitable

CHILD = Path(__file__).with_name("flow_limits.py")

pytestmark = pytest.mark.system


@pytest.fixture
def folder() -> Iterator[str]:
    with limit_folder() as made:
        yield str(made)


@dataclass
class Notes:
    """Notes of a process.

    Attributes:
        there: Ids of FlowFiles that must be found.
        unsure: Ids of those of steps that raised.
        queued: Ids in the order in which the queue handed them out at the end.
        raised: How many rounds raised.
        stopped: The repository has stopped.
    """

    there: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    queued: list[int] = field(default_factory=list)
    raised: int = 0
    stopped: bool = False

    @classmethod
    def read(cls, text: str) -> Notes:
        notes = cls()
        what, ids = "", set[int]()
        for line in text.splitlines():
            word, *rest = line.split()
            if word == "begin":
                what, ids = rest[1], set(map(int, rest[2:]))
            elif word == "ok":
                notes.there = notes.there - ids if what == "remove" else notes.there | ids
            elif word == "no":
                notes.unsure |= ids
            elif word == "queue":
                notes.queued = list(map(int, rest))
            else:
                notes.stopped, notes.raised = rest[0] == "1", int(rest[1])
        return notes


def found_in(folder: str) -> set[int]:
    content, repository = open_folder(folder)
    ids: set[int] = set()
    for recovered in repository.recovered.queues.values():
        flowfiles = list(recovered.flowfiles)
        for restored in recovered.swap_files:
            reader = repository.swap_store.open(restored.file)
            rows = reader.read(0, restored.file.summary.count)
            reader.close()
            assert not len(rows.lost)
            done = set(restored.done)
            numbers = rows.numbers.tolist()
            flowfiles += [
                one for row, one in zip(numbers, rows.flowfiles, strict=True) if row not in done
            ]
        for one in flowfiles:
            assert one.id not in ids
            ids.add(one.id)
            assert one.claim is not None
            assert content.read(one.claim) == b"%d" % one.id * 20
    repository.close()
    content.close()
    return ids


@pytest.mark.parametrize("kind", ["memory", "files", "threads"])
def test_a_start_finds_what_was_acknowledged_under_a_limit(folder: str, kind: str) -> None:
    log = Path(folder) / "log"
    with log.open("wb") as stream:
        subprocess.run(
            [sys.executable, str(CHILD), folder, kind],
            check=True, stdout=stream, stderr=stream, timeout=500, env=limitable(Path(folder)),
        )  # fmt: skip
    notes = Notes.read((Path(folder) / "notes").read_text())
    said = log.read_text()
    assert notes.there, said
    # A swap file that cannot be written raises nothing: its FlowFiles stay in memory. A thread that
    # cannot be started only delays a sync.
    check_refused(notes.raised, said)
    found = found_in(folder)
    if notes.stopped:
        assert notes.there - notes.unsure <= found <= notes.there | notes.unsure, said
    else:
        assert found == notes.there, said
        assert sorted(notes.queued) == sorted(found), said
