"""Servers of tests listen on this host, which flows and tasks may reach only if it is listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.network_guard import NetworkGuard

LISTED = "*,localhost:*"
"""Value of `--reachable-hosts` that allows every port of this host."""


@contextmanager
def this_host_listed() -> Iterator[None]:
    """Allow flows and tasks of this process to reach servers on this host, in the block."""
    before = NETWORK_GUARD.get()
    NETWORK_GUARD.set(NetworkGuard.of(LISTED.split(",")))
    try:
        yield
    finally:
        NETWORK_GUARD.set(before)
