"""The journal under exceptions that nobody expects, at each call of its file system."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from call_faults_kit import FAULTS, Faults
from faultcases import FaultCases

from penstock.storage.journal import Journal
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem

FOLDER = "/journal"


def append(journal: Journal) -> None:
    journal.append([b"faulty"])


def compact(journal: Journal) -> None:
    journal.compact(b"new")


def sync(journal: Journal) -> None:
    journal.sync()


@pytest.mark.parametrize("operation", [append, compact, sync])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_what_is_synced_after_an_exception_is_read_after_a_power_loss(
    operation: Callable[[Journal], None], error: type[BaseException], after: bool
) -> None:
    at, raised = 0, "a port"
    while raised:
        raised = check(operation, lambda faults: faults.armed(error, at, after=after), at)  # noqa: B023
        at += 1
    assert at > 1


def check(
    operation: Callable[[Journal], None],
    arm: Callable[[Faults], AbstractContextManager[None]],
    seed: int,
) -> str:
    """Do it under faults; what is synced afterwards is what a power loss leaves."""
    fs, faults = CrashableFileSystem(), Faults()
    port = faults.port(fs, results=("create", "open_append", "open_read"))
    journal = Journal.open(FOLDER, fs=port, clock=VirtualClock())
    journal.compact(b"old")
    journal.append([b"a"])
    journal.sync()
    journal.append([b"b"])
    with arm(faults):
        operation(journal)
    where = faults.raised
    is_appended = operation is append and not where
    journal.append([b"c"])
    journal.sync()
    read = Journal.open(FOLDER, fs=fs.crash(seed), clock=VirtualClock())
    expected = [(b"old", [b"a", b"b", *[b"faulty"] * is_appended, b"c"])]
    if operation is compact:
        expected.append((b"new", [b"c"]))
        if not where:
            del expected[0]
    assert (read.snapshot, read.records) in expected, where
    return where


OPERATIONS = {one.__name__: one for one in (append, compact, sync)}
INSIDE = ["penstock.storage"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_synced_is_read_after_a_memory_error(name: str) -> None:
    at, raised = 0, "a function"
    while raised:
        raised = check(
            OPERATIONS[name],
            lambda faults: faults.armed_inside(INSIDE, MemoryError, at),  # noqa: B023
            at,
        )
        at += 1
    assert at > 1


PAIRS = FaultCases(
    OPERATIONS,
    lambda case: ", then " in check(OPERATIONS[case.operation], case.armed, case.at),
    calls=16,
    gaps=4,
)


def test_what_is_synced_is_read_after_a_pair_of_exceptions() -> None:
    failures, reached = PAIRS.run(range(1_500))
    assert not failures, failures[0]
    assert reached > 10
