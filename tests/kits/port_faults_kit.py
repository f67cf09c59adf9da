"""Raise an exception of each kind at each call of the system in an operation, and count leaks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from penstock.core.clock import SystemClock, pause
from penstock.core.errors import PenstockError
from tests.harness.call_faults_kit import FAULTS, Faults

# Threads of earlier tests may open a file at any moment, and close it soon.
_CLOSED_WITHIN_S = 10.0
_LOOK_S = 0.05


def open_descriptors() -> frozenset[tuple[str, str]]:
    """Return the descriptors of this process, each with what it is open on."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread closed it
            found.append((one.name, str(one.readlink())))
    return frozenset(found)


def left_open(before: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Return the descriptors that are open now, were not before, and stay open."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + _CLOSED_WITHIN_S
    found = open_descriptors() - before
    while found and clock.monotonic_s() < until_s:
        pause(clock, _LOOK_S)
        found &= open_descriptors()
    return found


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
            assert not left_open(before), f"{error.__name__} at {faults.raised}"
            check()
            if not faults.raised:
                break
            at += 1
        met += at
    return met
