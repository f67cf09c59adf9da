"""Raise an exception of each kind at each call of the system in an operation, and count leaks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from penstock.core.errors import PenstockError
from tests.harness.call_faults_kit import FAULTS, Faults


def open_descriptors() -> frozenset[tuple[str, Path]]:
    """Return the open descriptors of this process: the number, and what it is open on.

    Compare by what is new: the garbage collector may close those of earlier tests at any moment.
    """
    found: set[tuple[str, Path]] = set()
    for one in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # that of the list itself, or another thread closed it
            found.add((one.name, one.readlink()))
    return frozenset(found)


def open_below(folder: Path) -> int:
    """Return how many descriptors of this process are open on files in a folder.

    Descriptors of earlier tests, which the garbage collector closes meanwhile, do not count.
    """
    return len([place for _, place in open_descriptors() if place.is_relative_to(folder)])


def check_at_each_call(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    operation: Callable[[], object],
    *,
    ports: Collection[str] = ("os", "fcntl"),
    results: Collection[str] = (),
    check: Callable[[], object] = lambda: None,
) -> int:
    """Insist that no descriptor is left open, whatever a call raises; return how many calls met it.

    Args:
        monkeypatch: Of the test.
        module: The module whose ports are made to fail; `os.close` never does.
        operation: Opens something, and closes it again.
        ports: Names of the port modules in the module.
        results: Names of calls whose results are ports, too.
        check: More that must hold after each fault.
    """
    faults = Faults()
    for name in ports:
        target = getattr(module, name)
        port = faults.port(target, results)
        if hasattr(target, "close"):
            vars(port)["close"] = target.close
        monkeypatch.setattr(module, name, port)
    operation()  # what is opened once and kept is open from here on
    gc.collect()  # what earlier tests left open would be closed at any moment
    met = 0
    for error in FAULTS:
        at = 0
        while True:
            before = open_descriptors()
            with faults.armed(error, at), suppress(PenstockError):
                operation()
            left = open_descriptors() - before
            assert not left, f"{error.__name__} at {faults.raised}: {left}"
            check()
            if not faults.raised:
                break
            at += 1
        met += at
    return met
