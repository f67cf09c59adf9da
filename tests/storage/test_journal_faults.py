"""The journal under exceptions that nobody expects, at each call of its file system."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.storage.journal import Journal
from penstock.testing.clock import VirtualClock
from penstock.testing.crashable import CrashableFileSystem
from penstock.testing.injection import FAULTS, Faults

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
    at, raised = 0, True
    while raised:
        fs, faults = CrashableFileSystem(), Faults()
        port = faults.port(fs, results=("create", "open_append", "open_read"))
        journal = Journal.open(FOLDER, fs=port, clock=VirtualClock())
        journal.compact(b"old")
        journal.append([b"a"])
        journal.sync()
        journal.append([b"b"])
        with faults.armed(error, at, after=after):
            operation(journal)
        raised = bool(faults.raised)
        where = f"{error.__name__} at call {at}, {faults.raised}"
        is_appended = operation is append and not raised
        journal.append([b"c"])
        journal.sync()
        read = Journal.open(FOLDER, fs=fs.crash(at), clock=VirtualClock())
        expected = [(b"old", [b"a", b"b", *[b"faulty"] * is_appended, b"c"])]
        if operation is compact:
            expected.append((b"new", [b"c"]))
            if not raised:
                del expected[0]
        assert (read.snapshot, read.records) in expected, where
        at += 1
    assert at > 1
